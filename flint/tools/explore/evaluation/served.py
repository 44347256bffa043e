"""ServedEvaluator: points that are replays of requests, each model captured once for all of its points."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.text import format_count, plural
from flint.tools.explore.machine.cluster_changes import changed
from flint.tools.explore.point import Point
from flint.tools.explore.result import PERCENTILES, SERVED, Result, Status
from flint.tools.explore.subject import Subject, captured, estimated
from flint.tools.serve.asked import served_as
from flint.tools.serve.result import TimeSpread
from flint.tools.serve.serve import Served, Surfaces, serve


class ServedEvaluator:
    """Evaluates points of one subject, in one process."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject
        self._surfaces: dict[Point, Surfaces] = {}

    def evaluate(self, points: Sequence[Point]) -> list[Result]:
        """A result for each point, in their order; all are of one `program`.

        What a user can mend, no room for a cache, and requests that come faster than they are served, make a
        point REFUSED, anything else that is raised FAILED.
        """
        return [self._one(point) for point in points]

    def _one(self, point: Point) -> Result:
        try:
            return self._served(point)
        except FlintError as error:
            reason = error.message, error.code or "", error.place or ""
            return Result(point, Status.REFUSED, 1, *reason)
        except Exception as error:  # noqa: BLE001  one point's fault is no other's
            said = traceback.format_exception_only(error)[-1].strip()
            return Result(point, Status.FAILED, 1, said)

    def _served(self, point: Point) -> Result:
        asked = captured(self.subject, point)
        if point.program not in self._surfaces:
            self._surfaces = {point.program: Surfaces(asked)}  # two models at a time are too many
        cluster = changed(load_cluster(point.cluster), point.changes)
        on = estimated(self.subject, point).but(cluster=cluster)
        known = self._surfaces[point.program]
        found = serve(asked, on, served_as(dict(point.serve)), known, sure=False)
        return _result(point, found)


def _result(point: Point, found: Served) -> Result:
    s, surface = found.summary, found.surfaces[0]
    fullest = max(found.surfaces, key=lambda f: f.memory_bytes / f.memory.capacity_bytes)
    if s.overload or s.not_ended:
        why = (
            f"requests come faster than they are served: {format_count(round(s.overload.asked_tokens_per_s))} tokens/s arrive, "
            f"{format_count(round(s.overload.served_tokens_per_s))} are served; what ends first: {s.overload.resource}"
            if s.overload
            else f"{plural(s.not_ended[0].requests, 'request')} without an end: {s.not_ended[0].reason}"
        )
        return Result(point, Status.REFUSED, found.devices, why, "FL898")
    served = {
        f"{quantity}_p{p}": getattr(spread, f"p{p}")
        for quantity in SERVED
        if (spread := getattr(s, f"{quantity}_ns")) is not None
        for p in PERCENTILES
    }
    goodput = s.goodput.requests_per_s if s.goodput else s.requests_per_s
    return Result(
        point,
        Status.FITS,
        found.devices,
        ttft_ns=s.ttft_ns.mean,
        tpot_ns=s.tpot_ns.mean if isinstance(s.tpot_ns, TimeSpread) else 0.0,
        memory_bytes=fullest.memory_bytes,
        capacity_bytes=fullest.memory.capacity_bytes,
        taken={"stack": surface.setting.stack.name, "profile": surface.setting.profile},
        price_per_hour=found.summed(lambda cluster: cluster.price_per_hour) / found.devices,
        power_w=found.summed(lambda cluster: cluster.chip.power_w) / found.devices,
        notes=found.notes,
        served={
            **served,
            "goodput": goodput,
            "requests_per_s": s.requests_per_s,
            "output_tokens_per_s": s.output_tokens_per_s,
        },
    )
