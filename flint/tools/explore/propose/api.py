"""`flint.propose`: shardings for a program that has none, in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.steps.entry import AnyStep
from flint.steps.step import Step, TorchStep
from flint.text import format_bytes
from flint.tools.explore.machine.cluster_changes import changed
from flint.tools.explore.propose.answer import Proposal, Sensitivity, ranked
from flint.tools.explore.propose.judge import Judge, Judged, Listener
from flint.tools.explore.propose.origin import ProgramOrigin, origin_of
from flint.tools.explore.propose.search import search
from flint.tools.explore.result import Status

#: Plans that are captured and estimated.
TRIES = 20
#: Of these, how many the compiler judges, and how many are estimated under other conditions.
_COMPILED, _ASKED = 3, 3
_NOT_TRIED = (
    "pipelines, gradient accumulation and recomputation change the program, not its shardings: write them "
    "(flint.Pipeline, jax.checkpoint) and propose again"
)


def propose(
    fn: Callable[..., Any] | AnyStep,
    args: Sequence[Any] = (),
    devices: int = 8,
    cluster: str | Path = "h100-dgx",
    *,
    kwargs: Mapping[str, Any] | None = None,
    memory: float = 1.0,
    tries: int = TRIES,
    compiler: str = "",
    study: str | Path | None = None,
    progress: Listener | None = None,
) -> Proposal:
    """Shardings for a program of one device, on `devices` of a `cluster`.

    `fn` is a JAX function of `args` and `kwargs` (pytrees of `jax.ShapeDtypeStruct`), a PyTorch module, or a
    `Step` or `TorchStep` with everything in it; nothing in it is sharded. `memory` is the share of a device's
    memory that a step may take, `tries` is how many plans are captured and estimated. The best three are
    compiled with `compiler` ("xla-gpu", "xla-tpu"), where that is said. The file `study` keeps results.

    Raises FlintError FL930 to FL939, see docs/errors.md, and what capturing the program raises.
    """
    step = _step(fn, args, kwargs or {})
    if not 0 < memory <= 1:
        raise FlintError("FL939", f"memory={memory:g} is not a share of a device's memory",
                         help="give more than 0 and at most 1")  # fmt: skip
    origin, on = origin_of(step), load_cluster(str(cluster))
    capacity = int(float(on.chip.memory_bytes.value) * memory)
    found = search(
        origin.blank, on, devices, capacity=capacity, tries=max(tries, 1), rests=origin.rests
    )
    judge = Judge(origin, on, str(cluster), capacity, kept=None if study is None else Path(study))
    judged = ranked(judge.judge(found.chosen, progress))
    _refuse_misfits(judged, capacity)
    if compiler:
        best = [j.priced for j in judged[:_COMPILED]]
        compiled = replace(judge, compiler=compiler).judge(best, progress)
        judged = (*ranked(compiled), *judged[_COMPILED:])
        _refuse_misfits(judged, capacity)
    told = tuple(_sensitivities(judge, judged, devices))
    return Proposal(origin, judged, found.priced, found.too_large, told, _notes(origin))


def _step(
    fn: Callable[..., Any] | AnyStep, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> AnyStep:
    if isinstance(fn, AnyStep):
        return fn
    if hasattr(fn, "named_parameters"):
        return TorchStep(fn, args, kwargs)
    return Step(fn, args, kwargs)


def _notes(origin: ProgramOrigin) -> tuple[str, ...]:
    if len(origin.rests) == 2:
        return (
            _NOT_TRIED,
            "of a PyTorch module the optimizer's state is split with its weights alone",
        )
    return (_NOT_TRIED,)


def _refuse_misfits(judged: Sequence[Judged], capacity: int) -> None:
    """Raise FlintError FL933 where nothing that was captured fits, or the first refusal where nothing was captured."""
    if judged[0].result.status is Status.FITS:
        return
    least = min((j for j in judged if j.result.status is Status.TOO_LARGE),
                key=lambda j: j.result.memory_bytes, default=None)  # fmt: skip
    if least is None:
        first = judged[0].result
        raise FlintError(
            first.code or "FL939",
            f"no plan could be captured: {first.reason}",
            place=first.place or None,
            help="capture the program on one device first: flint capture",
        )
    needed = least.result.memory_bytes
    kinds = sorted(least.result.memory.items(), key=lambda m: -m[1])
    most = kinds[0][0].replace("_", " ") if kinds else "arguments"
    raise FlintError(
        "FL933",
        f"no sharding fits: the smallest ({least.plan.mesh}) takes {format_bytes(needed)} of each device, "
        f"{format_bytes(needed - capacity)} too much, most of it for {most}",
        help="take more devices, a smaller batch, or jax.checkpoint around the layers",
    )


def _sensitivities(judge: Judge, judged: Sequence[Judged], devices: int) -> list[Sensitivity]:
    """What is best of the first plans with another bandwidth of the outermost tier that they use, and with more memory."""
    fit = [j.plan for j in judged if j.result.status is Status.FITS][:_ASKED]
    tiers = judge.cluster.network
    tier = next((n.name for n in tiers if not n.size or n.size >= devices), tiers[-1].name)
    on = {
        f"{words} the bandwidth of {tier}": changed(judge.cluster, ((f"{tier}.bandwidth", factor),))
        for factor, words in (("2x", "twice"), ("0.5x", "half"))
    }
    results = [judge.others(plan, tuple(on.values())) for plan in fit]
    found = []
    for at, condition in enumerate(on):
        times = [(r[at].step_time_ns, plan) for r, plan in zip(results, fit, strict=True)]
        ns, best = min(times)
        found.append(Sensitivity(condition, best, ns))
    priced = (j for j in judged if j.result.step_time_ns)
    fastest = min(priced, key=lambda j: (j.result.step_time_ns, j.plan))
    if fastest.result.status is Status.TOO_LARGE:
        more = format_bytes(fastest.result.memory_bytes - judge.capacity)
        found.append(Sensitivity(f"{more} more memory", fastest.plan, fastest.result.step_time_ns))
    return found
