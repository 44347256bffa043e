"""What stacks keep of a device's memory: measured on Megatron-core and torchtitan, and XLA:TPU's own peaks.

PyTorch: the bytes that its allocator reserved over those in use. Of Megatron-core both were measured
(SimuMax's B200; programs of one half are fitted on), and how far programs are apart, which other
stacks are assumed to be too. Of torchtitan GiB reserved are over those of Flint, for the two rows with
a compiler; `titan_gib` has those without one, which are held out. XLA:TPU: its heap over that of
Flint, of half of the programs of `benchmarks.compiled_memory`.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import mean, median, stdev

import flint
from benchmarks.compiled_memory import CLUSTERS, rows
from benchmarks.fits.fit import Constant, Fit
from benchmarks.models import llama_fsdp
from benchmarks.step_rows import read
from flint.backends.cost.estimate import estimate
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack
from flint.frontends.jax_step.meshes import abstract_mesh
from flint.ir.mesh import Mesh
from flint.requests.estimate import EstimateRequest

#: Stacks whose software is PyTorch too, and of which nothing was measured.
OTHERS = ("composer", "deepspeed", "inductor", "megatron-deepspeed", "pytorch-eager")
GIB = 2**30


def fits() -> Sequence[Fit]:
    """The shares of stacks."""
    torch, spread = ("reserved_share",), ("reserved_deviation",)
    tpu = ("heap_share",)
    return [
        Fit("memory.spread", "megatron", "", torch + spread, len(_logs()), _measured, {}, True),
        Fit("memory.reserved", "torchtitan", "", torch, 2, _reserved, {}),
        *(
            Fit("memory.reserved", name, "", torch, 2, partial(_as, "torchtitan", *torch), {}, True)
            for name in OTHERS
        ),
        *(
            Fit("memory.spread", name, "", spread, 2, partial(_as, "megatron", *spread), {}, True)
            for name in ("torchtitan", *OTHERS)
        ),
        Fit("memory.heap", "xla-tpu", "", tpu, len(_half()), _heap, {}),
        Fit(
            "memory.heap", "maxtext", "", tpu, len(_half()), partial(_as, "xla-tpu", *tpu), {}, True
        ),
    ]


def _as(stack: str, name: str) -> dict[str, Constant]:
    value = getattr(Stack.load(stack), name).value
    return {name: (value, "assumed", f"as stack {stack}")}


def _reserved() -> dict[str, Constant]:
    ratios = [measured / peak for _, kept, measured, peak in titan_gib() if kept == "titan"]
    share = math.exp(sum(map(math.log, ratios)) / len(ratios))
    source = "benchmarks.fits memory.reserved on torchtitan's table, Llama 8B with torch.compile"
    return {"reserved_share": (share, "fitted", source)}


def _logs() -> list[float]:
    """ln of bytes reserved over bytes allocated of Megatron-core's programs of half 0."""
    rows = [r for r in read("simumax/memory.csv") if not zlib.crc32(r["case"].encode()) % 2]
    return [math.log(float(r["reserved_gib"]) / float(r["allocated_gib"])) for r in rows]


def _measured() -> dict[str, Constant]:
    logs = _logs()
    source = "benchmarks.fits memory.spread on SimuMax's B200, max_memory_reserved over max_memory_allocated"
    found = {"reserved_share": math.exp(mean(logs)), "reserved_deviation": stdev(logs)}
    return {name: (value, "fitted", source) for name, value in found.items()}


def titan_gib() -> Iterator[tuple[int, str, float, float]]:
    """GPUs, what is kept (with or without a compiler), GiB reserved and GiB in use by Flint."""
    for row in read("torchtitan/tables.csv"):
        gpus = re.search(r"(\d+) GPUs\. Local batch size 2", row["table"])
        said = re.search(
            r"Techniques=FSDP( \+ torch.compile)?;.*Memory\(GiB\)=([\d.]+)", row["row"]
        )
        if not gpus or not said:
            continue
        kept = "titan" if said[1] else "titan-eager"
        mesh = {"data": int(gpus[1])}
        step = llama_fsdp.train(abstract_mesh(Mesh.parse(mesh)), micro_batch=2, kept=kept)
        workload = flint.trace(step, mesh).workload
        found = estimate(workload, EstimateRequest(Cluster.load("h100-500w"), stack="torchtitan"))
        yield int(gpus[1]), kept, float(said[2]), found.classes[0].memory.peak_bytes / GIB


def _half() -> list[str]:
    return [r.name for r in rows() if r.compiler == "tpu" and not r.half]


def _heap() -> dict[str, Constant]:
    plain = Stack.load("xla-tpu").model_copy(update={"heap_share": None})
    shares = []
    for row in rows():
        if row.compiler == "tpu" and not row.half:
            found = estimate(
                row.capture(), EstimateRequest(Cluster.load(CLUSTERS["tpu"]), stack=plain)
            )
            mine = found.classes[0].memory.peak_bytes - row.argument_bytes
            shares.append((row.peak_bytes - row.argument_bytes) / mine)
    source = "benchmarks.fits memory.heap on libtpu's peaks of half of benchmarks.compiled_memory"
    return {"heap_share": (median(shares), "fitted", source)}


if __name__ == "__main__":
    share = Stack.load("torchtitan").reserved_share
    for gpus, kept, measured, peak in titan_gib():
        total = peak * (share.value if share else 1.0)
        print(
            f"{gpus} GPUs, {kept}: {measured} GiB, Flint {total:.1f}, {total / measured - 1:+.1%}"
        )
