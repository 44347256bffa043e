"""Results of a made study: 48 points whose times and memory follow a rule that tests know."""

from __future__ import annotations

from flint.tools.explore.point import Point
from flint.tools.explore.result import ClassResult, Result, Status

CAPACITY = 80 * 2**30


def result(
    data: int, model: int, remat: str = "full", cluster: str = "h100-dgx", tokens: int = 2**20
) -> Result:
    """A point of a mesh: more devices are faster, `remat=none` is faster and needs more memory."""
    point = Point(f"data={data},model={model}", cluster, (("remat", remat),))
    devices = data * model
    compute = 64e9 / devices * (1.3 if remat == "full" else 1.0)
    exposed = {"data": 2e7 * data, "model": 1e8 * (model - 1)}
    memory = (300 if remat == "none" else 120) * 2**30 // model
    if memory > CAPACITY:
        return Result(
            point, Status.TOO_LARGE, devices, f"needs {memory} bytes", place="params['w']",
            memory_bytes=memory, capacity_bytes=CAPACITY,
        )  # fmt: skip
    time = compute + sum(exposed.values()) + 1e7
    return Result(
        point, Status.FITS, devices, step_time_ns=time, low_ns=0.9 * time, high_ns=1.1 * time,
        mfu=64e9 / devices / time / 2, tokens=tokens, memory_bytes=memory, capacity_bytes=CAPACITY,
        compute_ns=compute, exposed_ns=exposed, waiting_ns=1e7, memory={"parameters": memory},
        classes=(ClassResult("all", devices, time, memory),), notes=("a note of the estimate",),
    )  # fmt: skip


def study() -> list[Result]:
    """Two numbers of devices, their meshes, two kinds of remat; two more points are refused."""
    found = [
        result(devices // model, model, remat)
        for devices in (8, 16, 32, 64)
        for model in (1, 2, 4, 8)
        for remat in ("none", "full")
    ]
    for model in (16, 32):
        point = Point(f"data=1,model={model}", "h100-dgx", (("remat", "full"),))
        found.append(
            Result(point, Status.REFUSED, model, "does not divide", "FL103", "model.py:41")
        )
    return found
