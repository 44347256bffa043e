"""The commands of `flint/cli/commands` and those that packages register, found when they are asked for.

Help texts name what there is (profiles, passes); that is read only when help is asked for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from itertools import pairwise
from pkgutil import iter_modules
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption

from flint.cli import commands
from flint.cli.console import lost_output, print_any_character, print_error, print_text
from flint.cli.exits import end_process, guarded
from flint.cli.requests import TABLES
from flint.cli.signals import signals
from flint.errors import FlintError
from flint.plugins import COMMANDS, load, registered

#: Stands for "-" in names until the lines are broken: names are not.
_HYPHEN = "\N{NON-BREAKING HYPHEN}"


def passes() -> Iterable[tuple[str, str]]:
    """Passes with their options and defaults, and what each does."""
    from flint.passes.pass_list import described, known_passes

    return (described(one) for one in known_passes().values())


#: What stands after the help of a command, by the command's name: terms, and what they are.
LISTS: dict[str, tuple[str, Callable[[], Iterable[tuple[str, str]]]]] = {"opt": ("Passes", passes)}


def filled(text: str) -> str:
    """A help text with the name of a table of `TABLES` replaced by the names in it."""
    for name, table in TABLES.items():
        if f"{{{name}}}" in text:
            text = text.replace(f"{{{name}}}", ", ".join(table()).replace("-", _HYPHEN))
    return text


#: Whether what follows -m is a module's name, which no mesh can be.
_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*").fullmatch
_UsageError: Any = typer.BadParameter.__base__
_NOT_OURS = (
    "Options of a script go after --, those of its launcher stay with it: "
    "flint capture -- torchrun --nproc_per_node 8 train.py --lr 1"
)


class CommandWithTables(TyperCommand):
    """A command whose options' help may name one of `TABLES`, and that may end with one of `LISTS`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse; an unknown option may be one of the script, or of what starts it."""
        try:
            args = self._module_named(ctx, args)
            self._refuse_repeated(ctx, args)
            return super().parse_args(ctx, args)
        except _UsageError as error:
            unknown = getattr(error, "option_name", None)
            if unknown and any(p.name == "script_arguments" for p in self.params):
                likely = getattr(error, "possibilities", None) or ()
                error.possibilities = get_close_matches(unknown, likely, cutoff=0.75)
                error.message += f" of flint {self.name}. {_NOT_OURS}"
            raise

    def _refuse_repeated(self, ctx: typer.Context, args: list[str]) -> None:
        """Options with one value are given once: the last of two would silently be all that counts."""
        order = self.make_parser(ctx).parse_args(list(args))[2]
        for option, count in Counter(p for p in order if isinstance(p, TyperOption)).items():
            if count > 1 and not (option.multiple or option.is_flag or option.count):
                why = f"It takes one value, and is given {count} times."
                raise typer.BadParameter(why, ctx=ctx, param=option)

    def _module_named(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Without a model, `-m package.train` is one, as for python -m and torchrun -m."""
        head = args[: args.index("--")] if "--" in args else args
        at = next((i for i, (a, b) in enumerate(pairwise(head)) if a == "-m" and _MODULE(b)), -1)
        arguments = [str(p.name) for p in self.params if isinstance(p, TyperArgument)]
        if at < 0 or not arguments:
            return args
        model = self.make_parser(ctx).parse_args(list(head))[0].get(arguments[0])
        return args if isinstance(model, str) else [*args[:at], *args[at + 1 :]]

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the list of this command."""
        super().format_epilog(ctx, formatter)
        title, terms = LISTS.get(self.name or "", ("", tuple))
        rows = [(term.replace("-", _HYPHEN), text) for term, text in terms()]
        if rows:
            with formatter.section(title):
                formatter.write_dl(rows, col_max=24)

    def get_help(self, ctx: Any) -> str:
        """The help with the names in it."""
        for parameter in self.params:
            text = getattr(parameter, "help", None)
            if text:
                parameter.help = filled(text)  # type: ignore[attr-defined]
        return super().get_help(ctx).replace(_HYPHEN, "-")


def _nothing() -> None:
    """Make an application of one command a group: typer makes a command of it otherwise."""


@cache
def _command(name: str, found: Any) -> Any:
    """What typer makes of a function, or of an application of several."""
    group = typer.Typer(callback=_nothing, rich_markup_mode=None, pretty_exceptions_enable=False)
    if isinstance(found, typer.Typer):
        group.add_typer(found, name=name)
    else:
        group.command(name, cls=CommandWithTables)(guarded(found))
    return typer.main.get_group(group).commands[name]


class UnusableCommand(TyperCommand):
    """A registered command that cannot be imported: `flint --help` lists it, its use is the error."""

    def __init__(self, name: str, error: FlintError) -> None:
        super().__init__(name, help=error.message)
        self.error = error

    def make_context(self, *_: Any, **__: Any) -> Any:
        """Raise the error."""
        raise self.error


class Commands(Mapping[str, Any]):
    """The commands by name. One is imported when it is asked for, packages are when none is of ours.

    Raises FlintError FL880 to FL882 for what packages register wrongly.
    """

    def __init__(self) -> None:
        modules = (m.name for m in iter_modules(commands.__path__))
        self._own = {m.rstrip("_"): m for m in modules}  # `import_`: Python has that word

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            module = self._own[name]
            return _command(name, getattr(import_module(f"{commands.__name__}.{module}"), module))
        if name not in registered(COMMANDS):
            raise KeyError(name)
        return _command(name, load(COMMANDS, name))

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._own, *registered(COMMANDS)}))

    def __len__(self) -> int:
        return len(list(iter(self)))


class Group(TyperGroup):
    """The group of all commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = Commands()  # type: ignore[assignment]  # nobody adds another

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of the commands; none is imported."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """One by its name. Raises FlintError FL880 for what packages register wrongly."""
        try:
            return super().get_command(ctx, cmd_name)
        except FlintError as error:
            if error.code != "FL882":
                raise
            return UnusableCommand(cmd_name, error)


app = typer.Typer(
    name="flint",
    cls=Group,
    help="Find out what a JAX or PyTorch step would do on every device of a virtual mesh.",
    epilog="Exit status: 0 fine, 1 a check found something, 2 unusable input, 70 a bug in flint.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: it is the same everywhere, and rich costs 0.1 s
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        print_text(f"flint {version('flint-ir')}")
    except PackageNotFoundError:
        print_text("flint (not installed: run from a source tree)")
    raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Find out what a JAX or PyTorch step would do on every device of a virtual mesh."""


def run() -> None:
    """Run the command line and end the process."""
    print_any_character()
    try:
        app(prog_name="flint")
    except FlintError as error:  # of --version
        print_error(error)
        end_process(error.exit_code)
    except OSError as error:  # of --help
        print_error(lost_output(error))
        end_process(FlintError.exit_code)
    except SystemExit as end:
        signals().leave()
        end_process(end.code if isinstance(end.code, int) else int(end.code is not None))
