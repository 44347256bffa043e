"""Plans judged for real: captured through XLA's partitioner and estimated; results are kept in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError, Malformed
from flint.ir.mesh import Mesh
from flint.text import format_bytes
from flint.tools.explore.evaluation.evaluate import result_of
from flint.tools.explore.point import Point
from flint.tools.explore.propose.plan import ShardingPlan
from flint.tools.explore.result import Result, Status
from flint.tools.explore.study.fingerprint import versions

if TYPE_CHECKING:
    from flint.cluster.models import Cluster
    from flint.tools.explore.propose.origin import ProgramOrigin
    from flint.tools.explore.propose.search import PricedPlan
    from flint.tracing import Trace

#: Hears of results: how many are known, how many there are, and the latest.
Listener = Callable[[int, int, Result], None]


@dataclass(frozen=True)
class Judged:
    """A plan, what it was thought to cost, and what came of it."""

    priced: PricedPlan
    result: Result

    @property
    def plan(self) -> ShardingPlan:
        """The plan."""
        return self.priced.plan


@dataclass(frozen=True)
class Judge:
    """Captures plans of one program on one cluster. `kept` is a file of results, which later runs reuse."""

    origin: ProgramOrigin
    cluster: Cluster
    name: str
    capacity: int
    compiler: str = ""
    kept: Path | None = None
    _last: dict[ShardingPlan, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def others(self, plan: ShardingPlan, clusters: Sequence[Cluster]) -> list[Result]:
        """What comes of one plan on clusters with other numbers, from one capture."""
        known = self._known()
        found = []
        for cluster in clusters:
            judge = replace(self, cluster=cluster, compiler="")
            judge._last.update(self._last)
            key = judge._key(plan)
            if key not in known:
                known[key] = judge._result(plan)
                self._keep(key, known[key])
            self._last.clear()
            self._last.update(judge._last)
            found.append(known[key])
        return found

    def judge(
        self, plans: Sequence[PricedPlan], listener: Listener | None = None
    ) -> tuple[Judged, ...]:
        """What came of each plan, in their order. Raises FlintError FL938 for a file that holds something else."""
        known = self._known()
        found = []
        for number, priced in enumerate(plans, 1):
            key = self._key(priced.plan)
            if key not in known:
                known[key] = self._result(priced.plan)
                self._keep(key, known[key])
            found.append(Judged(priced, known[key]))
            if listener is not None:
                listener(number, len(plans), known[key])
        return tuple(found)

    def _result(self, plan: ShardingPlan) -> Result:
        point = Point(mesh=plan.mesh, cluster=self.name)
        try:
            found = result_of(point, self._traced(plan).estimate(self.cluster))
        except FlintError as error:
            why = (error.message, error.code or "", error.place or "")
            return Result(point, Status.REFUSED, plan.devices, *why)
        if found.memory_bytes > self.capacity and found.status is Status.FITS:
            over = format_bytes(found.memory_bytes - self.capacity)
            return replace(
                found, status=Status.TOO_LARGE, reason=f"it takes {over} more than --memory allows"
            )
        return found

    def _traced(self, plan: ShardingPlan) -> Trace:
        """The capture of a plan; the last one is kept."""
        from flint.tracing import trace_step

        if plan not in self._last:
            self._last.clear()
            lowered: dict[str, Any] = {"compiler": self.compiler}
            lowered |= {"chip": self.name} if self.compiler else {}
            step, mesh = self.origin.step(plan), Mesh.parse(dict(plan.axes))
            self._last[plan] = trace_step(step, mesh, **lowered)
        found: Trace = self._last[plan]
        return found

    def _key(self, plan: ShardingPlan) -> str:
        said = (
            *(self.origin.blank.digest, repr(plan), self.cluster.model_dump_json()),
            *(str(self.capacity), self.compiler, json.dumps(versions(), sort_keys=True)),
        )
        return hashlib.sha256("\n".join(said).encode()).hexdigest()

    def _known(self) -> dict[str, Result]:
        if self.kept is None or not self.kept.exists():
            return {}
        found: dict[str, Result] = {}
        lines = self.kept.read_text(encoding="utf-8").splitlines(keepends=True)
        for line in lines:
            try:
                said: dict[str, Any] = json.loads(line)
                found[said["key"]] = Result.from_json(said["result"])
            except (ValueError, KeyError, TypeError, Malformed) as error:
                if not line.endswith("\n"):
                    break  # a run ended while it wrote this
                raise FlintError(
                    "FL938", f"{self.kept} holds no results of flint propose",
                    help="choose another file for --study",
                ) from error  # fmt: skip
        return found

    def _keep(self, key: str, result: Result) -> None:
        if self.kept is None:
            return
        line = json.dumps({"key": key, "result": result.to_json()}, sort_keys=True) + "\n"
        try:
            with self.kept.open("a+", encoding="utf-8") as file:
                file.seek(max(0, file.tell() - 1))
                line = line if file.tell() == 0 or file.read(1) in ("", "\n") else "\n" + line
                file.write(line)
        except OSError as error:
            raise FlintError("FL502", f"cannot write {self.kept}: {error.strerror}",
                             help="choose another file for --study") from error  # fmt: skip
