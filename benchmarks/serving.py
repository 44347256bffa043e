"""Replays of logged requests beside what engines measured, and passes beside fresh captures: docs/serve.md.

    python -m benchmarks.serving                 # the logs
    python -m benchmarks.serving passes          # four models at six random sizes each, one of 8 layers at 50
    python -m benchmarks.serving passes llama-70b

Two runs of vLLM 0.19 of 300 requests (LLMServingSim), and engines at a concurrency (aiconfigurator),
of models that examples/serve_jax.py has in the precision of the row. Beside each stand the same
replay with the times of a roofline, and with those of BLIS's trained model.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import markdown
from flint.backends.cost.setting import setting_of
from flint.capturing import capture
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.serve.engine.engines import rules_of
from flint.tools.serve.replay import Pool, replay
from flint.tools.serve.requests.generated import requests_of
from flint.tools.serve.result import request_times
from flint.tools.serve.step_times import EngineTimes, PromptChunk
from flint.tools.serve.surface.surface import Surface, as_engines_run, surface_of

DATA = Path(__file__).parent / "data" / "serving_logs"
MODEL = str(Path(__file__).parent.parent / "examples" / "serve_jax.py")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ServedRun:
    """A run that was measured; `layers`, parameters in billions and cache bytes a token are for BLIS."""

    name: str
    split: str
    model: str
    cluster: str
    devices: int
    engine: str
    requests: str
    layers: int
    scale: tuple[str, ...] = ()
    ttft_s: float = 0.0
    tpot_s: float = 0.0

    def measured(self) -> dict[str, Floats]:
        """Seconds of each request, or the mean that is published."""
        if self.ttft_s:
            return {"ttft": np.array([self.ttft_s]), "tpot": np.array([self.tpot_s])}
        with open(self.requests, encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        at = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
        answer = at["last_token_s"] - at["first_token_s"]
        return {
            "ttft": at["first_token_s"] - at["queued_s"],
            "tpot": answer / (at["output_tokens"] - 1),
            "latency": at["last_token_s"] - at["queued_s"],
        }


def _log(name: str) -> str:
    return str(DATA / f"RTXPRO6000_{name}.csv")


_VLLM = "vllm:max_num_seqs=128,max_num_batched_tokens=2048"
_CLOSED = "concurrency:{0},input=1024,output={1},n={2}"
RUNS = (
    ServedRun(
        "vLLM log, Llama-3.1-8B", "fitted: sequence_us", "llama-8b", "rtx-pro-6000", 1, _VLLM,
        _log("Llama-3.1-8B"), 32,
    ),
    ServedRun(
        "vLLM log, Qwen3-32B, two GPUs", "held out", "qwen3-32b", "rtx-pro-6000", 2, _VLLM,
        _log("Qwen3-32B"), 64,
    ),
    ServedRun(
        "the same, links at a third", "looked at", "qwen3-32b", "rtx-pro-6000", 2, _VLLM,
        _log("Qwen3-32B"), 64, ("network=0.33x",),
    ),
    ServedRun(
        "vLLM, Qwen3-32B, 32 at a time", "looked at", "qwen3-32b", "h100-dgx", 2, "vllm",
        _CLOSED.format(32, 1024, 160), 64, ttft_s=0.23677, tpot_s=0.020064,
    ),
    ServedRun(
        "SGLang, Qwen3-32B, 64 at a time", "looked at", "qwen3-32b", "h100-dgx", 2, "sglang",
        _CLOSED.format(64, 128, 320), 64, ttft_s=2.53007, tpot_s=0.030122,
    ),
)  # fmt: skip


@dataclass(frozen=True)
class _Formula:
    """Times of passes by a formula of floating-point operations and bytes, in ns."""

    surface: Surface
    of: Callable[[float, float, float, int], float]
    longest: int | None = None

    @property
    def cache_tokens(self) -> int:
        return self.surface.cache_tokens

    def step_ns(
        self, decodes: int, decode_context: int, chunks: Sequence[PromptChunk] = ()
    ) -> float:
        memory, setting = self.surface.memory, self.surface.setting
        chip = setting.cluster.chip
        bandwidth = chip.memory_bandwidth_bytes_per_s.value / 1e9
        peak = chip.peak_flops_per_s["bf16"].value / 1e9
        new = sum(c.new for c in chunks)
        per_token = memory.weight_bytes  # two FLOP for each weight of two bytes
        prefill = per_token * new / peak
        cached = memory.token_bytes * (decode_context + sum(c.context for c in chunks)) / bandwidth
        return self.of(prefill, memory.weight_bytes / bandwidth, cached, decodes + len(chunks))

    def transfer_ns(self, tokens: int) -> float:
        return self.surface.transfer_ns(tokens)


def _roofline(prefill: float, weights: float, cached: float, batch: int) -> float:
    return max(prefill, weights) + cached


def _blis(layers: int) -> Callable[[float, float, float, int], float]:
    """With the rounded coefficients of docs/guide/latency-models.md (inference-sim, trained physics):
    0.15 of prefill's FLOPs, 1.9 and 1.4 of the cache's and weights' bytes, 32 us a layer, 4 a request, 126 a pass.
    """
    return lambda prefill, weights, cached, batch: (
        0.15 * prefill + 1.4 * weights + 1.9 * cached + 32e3 * layers + 4e3 * batch + 126e3
    )


def _times(run: ServedRun) -> Iterator[tuple[str, EngineTimes]]:
    captured = CaptureRequest(MODEL, mesh=str(run.devices), settings=(f"model={run.model}",))
    surface = surface_of(captured, EstimateRequest(cluster=run.cluster, scale=run.scale))
    rules = rules_of(run.engine)
    surface = replace(surface, most_new=rules.max_tokens, sequence_ns=rules.sequence_ns)
    yield "Flint", surface
    yield "roofline", _Formula(surface, _roofline)
    yield "BLIS", _Formula(surface, _blis(run.layers))


def _rows(run: ServedRun) -> Iterator[tuple[str, ...]]:
    measured, requests = run.measured(), requests_of(run.requests)
    errors: dict[str, list[str]] = {}
    for _, times in _times(run):
        found = request_times(replay(requests, Pool(times, rules_of(run.engine))))
        for quantity, true in measured.items():
            ours = found[quantity] / 1e9
            errors.setdefault(quantity, []).append(f"{(ours.mean() / true.mean() - 1) * 100:+.1f}")
            if len(errors[quantity]) == 1 and len(true) > 1:
                tail = np.percentile(ours, 99) / np.percentile(true, 99) - 1
                errors[quantity][0] += f", p99 {tail * 100:+.1f}"
    for quantity, found_errors in errors.items():
        unit = f"{measured[quantity].mean():.3g} s"
        yield (run.name, run.split, quantity, unit, *found_errors)


@dataclass(frozen=True)
class PassCase:
    """A model on a machine whose passes are held against fresh captures at random sizes."""

    model: str
    cluster: str
    devices: int
    points: int = 6
    settings: tuple[str, ...] = ()


PASSES = (
    PassCase("llama-8b", "h100-dgx", 2, 50, ("num_layers=8",)),
    PassCase("llama-8b", "rtx-pro-6000", 1),
    PassCase("llama-8b", "v5p", 8),
    PassCase("llama-70b", "h100-dgx", 8),
    PassCase("qwen3-32b", "b200-dgx", 2, 6, ("cache=fp8",)),
)


def _sizes(points: int) -> Iterator[tuple[int, int, int]]:
    """Random sizes, by turns of passes that decode and that prefill."""
    random = np.random.default_rng(11)
    for number in range(points):
        if number % 2:
            batch, new, context = random.integers((2, 2, 0), (17, 1500, 8000)).tolist()
        else:
            batch = int(np.exp(random.uniform(np.log(2), np.log(256))))
            new, context = 1, int(random.integers(16, 16000))
        yield batch, new, context


def pass_errors(case: PassCase) -> list[tuple[tuple[int, int, int], float]]:
    """Sizes, and how far a pass of the surface is off a fresh capture and estimate (0.01: 1 %)."""
    settings = (f"model={case.model}", *case.settings)
    captured = CaptureRequest(MODEL, mesh=str(case.devices), settings=settings)
    estimated = EstimateRequest(cluster=case.cluster)
    surface, found = surface_of(captured, estimated), []
    for batch, new, context in _sizes(case.points):
        sized = (*settings, f"batch={batch}", f"new={new}", f"context={context}")
        workload = capture(captured.but(settings=sized)).workload
        fresh = setting_of(workload, as_engines_run(workload, estimated)).timed()
        chunks = [PromptChunk(new, context)] * batch if new > 1 else []
        ns = surface.step_ns(0 if chunks else batch, 0 if chunks else batch * context, chunks)
        found.append(((batch, new, context), ns / fresh.timeline.total_ns - 1))
    return found


def _pass_rows(case: PassCase) -> tuple[str, ...]:
    errors = pass_errors(case)
    sizes, worst = max(errors, key=lambda e: abs(e[1]))
    mean = float(np.mean([abs(e) for _, e in errors]))
    machine = f"{case.devices} x {case.cluster}"
    shown = (" ".join((case.model, *case.settings)), machine, str(case.points))
    return (*shown, f"{mean:.3%}", f"{worst:+.3%}", "batch={}, new={}, context={}".format(*sizes))


def main() -> None:
    """Print the table that is asked for."""
    if sys.argv[1:2] == ["passes"]:
        cases = [case for case in PASSES if case.model in sys.argv[2:] or not sys.argv[2:]]
        columns = ("model", "machine", "passes", "mean off", "worst", "at")
        print(markdown(columns, [_pass_rows(case) for case in cases]))
        return
    head = ("run", "split", "mean of", "measured", "Flint %", "roofline %", "BLIS %")
    print(markdown(head, [row for run in RUNS for row in _rows(run)]))


if __name__ == "__main__":
    main()
