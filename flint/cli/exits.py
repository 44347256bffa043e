"""Exit codes, and the guard that turns what a command raises into one of them."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import TypeVar

import typer

from flint.cli.console import print_error, print_traceback
from flint.cli.signals import INTERRUPTED, TERMINATED, Terminated
from flint.errors import FlintError

#: A check or a comparison found something.
FOUND = 1
#: A bug of ours (EX_SOFTWARE of sysexits.h). 2 is `FlintError.exit_code`, and typer's usage errors.
BUG = 70
C = TypeVar("C", bound=Callable[..., None])


def guarded(command: C) -> C:
    """Wrap a command so that it ends with an exit code and never with a bare exception."""

    @functools.wraps(command)
    def run(*args: object, **kwargs: object) -> None:
        try:
            command(*args, **kwargs)
        except (typer.Exit, typer.Abort):
            raise
        except FlintError as error:
            if kwargs.get("verbose") and error.__cause__ is not None:
                print_traceback(error.__cause__)
            print_error(error)
            raise typer.Exit(error.exit_code) from None
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except Terminated:
            print("terminated", file=sys.stderr)
            raise typer.Exit(TERMINATED) from None
        except BrokenPipeError:
            # The reader (`| head`) has what it wanted. Python would complain once more at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except Exception:  # noqa: BLE001  all that is left is our bug
            traceback.print_exc()
            print("\nthis is a bug in flint, please report it", file=sys.stderr)
            raise typer.Exit(BUG) from None
        except BaseException as error:  # noqa: BLE001  SystemExit, and what users derive like it
            if kwargs.get("verbose"):
                print_traceback(error)
            print_error(_ended(error))
            raise typer.Exit(FlintError.exit_code) from None

    return run  # type: ignore[return-value]  # functools.wraps keeps the signature


def _ended(error: BaseException) -> FlintError:
    """No code of ours raises it: the user's did, somewhere where nothing else has caught it."""
    from flint.frontends.user_code import user_error

    return user_error(error, "the model's code")
