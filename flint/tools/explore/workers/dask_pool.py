"""Points evaluated by workers of Dask: of this machine, of SLURM, of Kubernetes, or of a scheduler.

Workers come and go: what one had begun, another one does. They have to see the model's file at the
same path, with the same versions of Flint and Python. A worker evaluates one group at a time.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, nearest
from flint.io.processes import processors
from flint.tools.explore.study.fingerprint import versions
from flint.tools.explore.workers.work import (
    KILLED_TWICE,
    Done,
    EvaluationWork,
    PointGroup,
    evaluate_group,
    failed,
    limit_of,
)

if TYPE_CHECKING:
    from distributed import Client

#: How long to wait for a scheduler, and for the first worker of one on this machine, in seconds.
_CONNECT_SECONDS = 20
_WORKER_SECONDS = 60
#: Workers that a group may take with it: this one and one more.
_MOST_KILLED = 1


class DaskKind(StrEnum):
    """Where workers are started."""

    LOCAL = "local"  #: processes of this machine
    SLURM = "slurm"  #: jobs, as dask-jobqueue's configuration describes them
    KUBERNETES = "k8s"  #: pods, by the operator of dask-kubernetes


class DaskExecutor:
    """Evaluates groups on the workers of a client. Made by `dask_executor`."""

    def __init__(self, work: EvaluationWork, client: Client) -> None:
        self._work, self._client = work, client
        self._checked: set[str] = set()

    def run(self, groups: Iterable[PointGroup]) -> Iterator[Done]:
        """What became of each group, as they finish.

        Raises FlintError FL867 where the scheduler ends, or a worker has other versions.
        """
        from distributed import as_completed

        waiting, running = iter(groups), as_completed()
        begun: dict[Any, PointGroup] = {}
        try:
            while True:
                for group in islice(waiting, max(0, self._room() - len(begun))):
                    future = self._client.submit(evaluate_group, self._work, group, pure=False)
                    begun[future] = group
                    running.add(future)
                if not begun:
                    return
                future = next(running)
                yield self._ended(future, begun.pop(future))
        finally:
            with contextlib.suppress(Exception):  # of a scheduler that is gone
                self._client.cancel(list(begun))

    def _room(self) -> int:
        """Groups that are sent ahead: enough that no worker waits."""
        self._check_versions()
        return 2 * max(1, len(self._workers()))

    def _workers(self) -> dict[str, Any]:
        found: dict[str, Any] = self._client.scheduler_info(n_workers=-1)["workers"]
        return found

    def _ended(self, future: Any, group: PointGroup) -> Done:
        from concurrent.futures import CancelledError

        from distributed import KilledWorker

        try:
            done: Done = future.result()
        except KilledWorker:
            limit = limit_of(self._work, group)  # a worker that passes it ends itself
            return failed(group, f"{KILLED_TWICE}, from outside or at its limit of {limit:g} s")
        except (CancelledError, OSError, TimeoutError) as error:
            raise _lost() from error
        return done

    def _check_versions(self) -> None:
        """Raise FlintError FL867 if a new worker would say something else than this process."""
        new = [name for name in self._workers() if name not in self._checked]
        if not new:
            return
        here = versions()
        for worker, there in self._client.run(versions, workers=new, on_error="ignore").items():
            other = [f"{n} {there.get(n)}" for n in here if there.get(n) != here[n]]
            if other:
                raise FlintError(
                    "FL867",
                    f"the worker {worker} has {', '.join(other)}, but this process has other versions",
                    help="install the same versions there, otherwise results would differ",
                )
            self._checked.add(worker)


@contextlib.contextmanager
def dask_executor(
    work: EvaluationWork, *, kind: DaskKind | None = None, scheduler: str = "", jobs: int = 0
) -> Iterator[DaskExecutor]:
    """An executor on the workers of a scheduler ("tcp://HOST:8786"), or on `jobs` that are started.

    Those that were started end with it. Raises FlintError FL867 for packages that are missing and a
    scheduler or workers that cannot be reached.
    """
    _require("distributed", "dask[distributed]")
    import dask
    from distributed import Client

    settings = {
        "distributed.scheduler.allowed-failures": _MOST_KILLED,
        # A worker holds the group that it evaluates and no other, which would be blamed if it dies.
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.comm.timeouts.connect": _CONNECT_SECONDS,
        "distributed.logging.distributed": "error",
    }
    with dask.config.set(settings), contextlib.ExitStack() as open_:
        try:
            address = scheduler or open_.enter_context(_cluster(kind or DaskKind.LOCAL, jobs))
            client = open_.enter_context(Client(address, timeout=_CONNECT_SECONDS))
            if scheduler or kind is DaskKind.LOCAL:
                client.wait_for_workers(1, timeout=_WORKER_SECONDS)
        except (OSError, TimeoutError, ValueError) as error:
            raise _unreachable(scheduler or str(kind), error) from error
        yield DaskExecutor(replace(work, run=uuid.uuid4().hex), client)


def _cluster(kind: DaskKind, jobs: int) -> contextlib.AbstractContextManager[Any]:
    """A cluster of Dask's with so many workers, each with one thread."""
    if kind is DaskKind.LOCAL:
        from distributed import LocalCluster

        return LocalCluster(
            n_workers=jobs or processors(),
            threads_per_worker=1,
            memory_limit=0,  # nothing is kept on workers that could be moved away
            dashboard_address=None,
            silence_logs="CRITICAL",
        )
    if kind is DaskKind.SLURM:
        jobqueue = _require("dask_jobqueue", "dask-jobqueue")
        cluster = jobqueue.SLURMCluster()
        cluster.scale(jobs=jobs or 1)
    else:
        kubernetes = _require("dask_kubernetes.operator", "dask-kubernetes")
        cluster = kubernetes.KubeCluster(name="flint-explore", n_workers=jobs or 1)
    found: contextlib.AbstractContextManager[Any] = cluster
    return found


def find_kind(name: str) -> DaskKind:
    """The kind of a name. Raises FlintError FL867 for another one."""
    known = [kind.value for kind in DaskKind]
    if name not in known:
        raise FlintError(
            "FL867",
            f"--dask {name}{nearest(name, known)}: workers cannot be started there",
            help="one of " + ", ".join(known) + "; or --scheduler tcp://HOST:8786",
        )
    return DaskKind(name)


def _require(module: str, distribution: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        extra = "'flint-ir[explore]'" if module == "distributed" else distribution
        raise FlintError(
            "FL867",
            f"{distribution} is not installed",
            help=f"pip install {extra}, or evaluate only with processes of this machine",
        ) from error


def _unreachable(what: str, error: Exception) -> FlintError:
    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    return FlintError(
        "FL867",
        f"Dask cannot be used at {what}: {said}",
        help="start `dask scheduler` and `dask worker ADDRESS`, and give its address to --scheduler",
    )


def _lost() -> FlintError:
    return FlintError(
        "FL867",
        "the Dask scheduler ended while points were evaluated",
        help="run the same command again, with or without this --scheduler: finished points are kept",
    )
