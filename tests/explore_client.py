"""A client of a study that tests start and end: FOLDER [ADDRESS].

It explores a space with two processes of its own, or with those of a scheduler of Dask, and answers
signals as commands do.
"""

import signal
import sys
from pathlib import Path

from flint.cli.signals import signals, take_signals


def main(folder: Path, address: str = "") -> None:
    """Run it to its end."""
    import typer

    from flint.cli.exits import guarded

    try:
        guarded(lambda: _explore(folder, address))()
    except typer.Exit as end:
        sys.exit(end.exit_code)


def _explore(folder: Path, address: str) -> None:
    from flint.tools.explore.study.run import explore_space
    from flint.tools.explore.workers.local import LocalExecutor
    from tests.explore_points import space_of, work

    how = work(folder, seconds=0.03)
    with signals().unwinding():
        if address:
            from flint.tools.explore.workers.dask_pool import dask_executor

            opened = dask_executor(how, scheduler=address)
        else:
            opened = LocalExecutor(how, 2)
        with opened as executor:
            explore_space(space_of(folder), study=folder / "s.db", executor=executor)


if __name__ == "__main__":
    # Under nohup and in the background of a shell it is inherited as ignored, and would stay so.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    take_signals()
    main(Path(sys.argv[1]), *sys.argv[2:])
