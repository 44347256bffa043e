"""Who evaluates the points of `flint explore`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from flint.cli.signals import signals
from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.tools.explore.subject import Subject
    from flint.tools.explore.workers.schedule import Executor


@contextlib.contextmanager
def workers(
    subject: Subject, *, dask: str | None, scheduler: str | None, jobs: int, verbose: bool
) -> Iterator[Executor]:
    """Who evaluates points: processes of this machine, or workers of Dask. They end with the block.

    Raises FlintError FL867 for both options at once, and as `dask_executor` does.
    """
    from flint.tools.explore.workers.local import LocalExecutor
    from flint.tools.explore.workers.work import work_of

    if dask is not None and scheduler is not None:
        raise FlintError(
            "FL867", "--dask and --scheduler exclude each other", help="omit one of them"
        )
    work = work_of(subject)
    with signals().unwinding():
        if dask is None and scheduler is None:
            with LocalExecutor(work, jobs, verbose) as local:
                yield local
            return
        from flint.tools.explore.workers.dask_pool import dask_executor, find_kind

        kind = find_kind(dask) if dask is not None else None
        with dask_executor(work, kind=kind, scheduler=scheduler or "", jobs=jobs) as remote:
            yield remote
