"""How far an exploration is: a line on stderr with points done, their rate, and the best so far."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from flint.cli.console import has_colour, is_terminal

if TYPE_CHECKING:
    from flint.tools.explore.answers.objectives import Objective
    from flint.tools.explore.result import Result
    from flint.tools.explore.study.run import Listener, Progress


@contextlib.contextmanager
def study_shown(objectives: Sequence[Objective], *, quiet: bool) -> Iterator[Listener | None]:
    """Give a listener that draws the line, or None where nobody would see it."""
    if quiet or not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichProgress

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    console = Console(stderr=True, no_color=not has_colour(sys.stderr))
    with RichProgress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("exploring", total=None)
        best = Best(objectives)

        def listen(progress: Progress) -> None:
            best.hear(progress.latest)
            text = best.text(progress.done - progress.reused)
            bar.update(
                task, completed=progress.done, total=progress.total or None, description=text
            )

        yield listen


class Best:
    """The best result so far, and the rate at which results come."""

    def __init__(self, objectives: Sequence[Objective]) -> None:
        self._objectives = tuple(objectives)
        self._began = time.monotonic()
        self._best: Result | None = None
        self._all: list[Result] = []

    def hear(self, latest: Sequence[Result]) -> None:
        """Take new results in."""
        from flint.tools.explore.answers.objectives import default_objective
        from flint.tools.explore.result import Status

        self._all += [r for r in latest if r.status is Status.FITS]
        if self._all:
            goal = (self._objectives or (default_objective(self._all),))[0]
            self._best = min(self._all, key=goal.order)

    def text(self, done: int) -> str:
        """`12.3/s, best 4.21 s: data=64,model=8 remat=none`."""
        from flint.text import format_duration

        seconds = max(time.monotonic() - self._began, 1e-3)
        rate = f"{done / seconds:.1f}/s"
        if self._best is None:
            return f"{rate}, nothing fits yet"
        p = self._best.point
        options = " ".join(f"{n}={v}" for n, v in (*p.settings, *p.pipeline))
        return (
            f"{rate}, best {format_duration(self._best.step_time_ns)}: {p.mesh} {options}".rstrip()
        )
