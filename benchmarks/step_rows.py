"""The measured training steps in benchmarks/data/, each with the model code that ran.

A row becomes a `Case`: what to capture, on which mesh, and on which system it was measured. What a
source does not say is written where it is assumed.
"""

from __future__ import annotations

import csv
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.models import gpt_megatron, llama_fsdp, mpt_fsdp

DATA = Path(__file__).resolve().parent / "data"
Row = dict[str, str]


@dataclass(frozen=True)
class Case:
    """One measured step. `step` makes what is captured of a mesh; `half` 0 may be fitted on."""

    data: str
    label: str
    system: str
    mesh: dict[str, int]
    step: Callable[[Any], Any]
    measured_ns: float
    profile: str = "inductor"
    policy: str = "fsdp"

    @property
    def half(self) -> int:
        """0: rows on which a derate may be fitted; 1: held out. A hash of the label decides."""
        return zlib.crc32(self.label.encode()) % 2

    @property
    def order(self) -> int:
        """A fixed shuffle, for samples."""
        return zlib.crc32(("sample " + self.label).encode())


def read(path: str) -> list[Row]:
    """Rows of a table below benchmarks/data."""
    with (DATA / path).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _gpt(
    data: str, system: str, c: gpt_megatron.Gpt, axes: tuple[int, int, int], step_ns: float
) -> Case:
    pipe, replicas, model = axes
    label = (
        f"h{c.hidden} L{c.layers} s{c.seq} pp{pipe} dp{replicas} tp{model} "
        f"{c.microbatches}x{c.micro_batch} {c.recompute}"
    )
    mesh = {"pipe": pipe, "data": replicas, "model": model}
    step = partial(gpt_megatron.step, c=c)
    return Case(data, label, system, mesh, step, step_ns, profile="megatron")


def vtrain(name: str, file: str) -> Iterator[Case]:
    """Megatron-DeepSpeed on A100: each layer recomputed (`use_checkpoint` in vTrain's validation
    configurations), 1F1B, gradients reduced in 16 bits after the last microbatch (vTrain's model of
    them), no sequence parallelism (Megatron-DeepSpeed had none then), dropout, fused kernels.
    Computation waits for every collective and message: `async_op` came to Megatron later."""
    for row in read(f"vtrain/{file}"):
        pipe, data, model = (int(row[f"{w} parallelism"]) for w in ("pipeline", "data", "tensor"))
        micro = int(row["micro batch"])
        c = gpt_megatron.Gpt(
            hidden=int(row["hidden size"]),
            layers=int(row["# layers"]),
            heads=int(row["attention heads"]),
            seq=int(row["sequence length"]),
            micro_batch=micro,
            microbatches=int(row["global batch"]) // data // micro,
            recompute="full",
            sequence_parallel=False,
        )
        step_ns = float(row["iteration time (ms)"]) * 1e6
        case = _gpt(name, "vtrain", c, (pipe, data, model), step_ns)
        yield replace(case, policy="blocking")


def megatron() -> Iterator[Case]:
    """Megatron-LM on Selene, arXiv 2205.05198, table 5. "full": all layers recomputed, tensor
    parallelism alone; "seqsel": selective recomputation and sequence parallelism. Gradients are
    accumulated in 32 bits (Megatron-LM's default). 175B has three stages on each rank."""
    for row in read("megatron/step_times_a100.csv"):
        selective = row["mode"] == "seqsel"
        micro = int(row["microbatch"])
        c = gpt_megatron.Gpt(
            hidden=int(row["hidden"]),
            layers=int(row["layers"]),
            heads=int(row["heads"]),
            seq=int(row["seq"]),
            micro_batch=micro,
            microbatches=int(row["batch"]) // int(row["dp"]) // micro,
            chunks=int(row["interleaving"]),
            recompute="selective" if selective else "full",
            sequence_parallel=selective,
            gradient_dtype="float32",
        )
        axes = (int(row["pp"]), int(row["dp"]), int(row["tp"]))
        yield _gpt("Megatron", "selene", c, axes, float(row["measured_step_s"]) * 1e9)


#: llm_foundry's names of GPUs -> the system's name here.
FOUNDRY = {"h100_80gb": "foundry-h100", "a100_40gb": "foundry-a100-40"}


def llm_foundry() -> Iterator[Case]:
    """MPT with PyTorch FSDP: every microbatch reduces its gradients (Composer's default), in
    bfloat16: Composer's DEFAULT names no type for that, so it is that of the parameters, as with
    PURE. Rows in 8-bit floating point (TransformerEngine) are left out: the model code has no such
    layers."""
    for row in read("llm_foundry/training_throughput.csv"):
        if row["Precision"] == "amp_fp8":
            continue
        hidden, layers, heads = mpt_fsdp.SIZES[row["Model"]]
        c = mpt_fsdp.Mpt(
            hidden,
            layers,
            heads,
            int(row["SeqLen (T)"]),
            micro_batch=int(row["MicroBatchSize"]),
            accumulate=int(row["GradAccum"]),
            recompute=row["Activation Checkpointing"] == "True",
        )
        gpus = int(row["# GPUs"])
        label = f"{row['Model']} s{c.seq} {gpus} GPUs {c.accumulate}x{c.micro_batch}"
        seconds = float(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"])
        system = FOUNDRY[row["GPU"]]
        yield Case(
            f"LLM Foundry {row['GPU'].split('_')[0].upper()}", label, system, {"data": gpus},
            partial(mpt_fsdp.step, c=c), seconds * 1e9,
        )  # fmt: skip


def torchtitan() -> Iterator[Case]:
    """Llama 3.1 8B with FSDP2 and torch.compile, sequences of 8,192, two for each GPU. The rows
    without a compiler and those in 8-bit floating point are left out."""
    for row in read("torchtitan/tables.csv"):
        gpus = re.search(r"(\d+) GPUs", row["table"])
        speed = re.search(r"TPS/GPU=([\d,]+)", row["row"])
        if "FSDP + torch.compile;" not in row["row"] or not gpus or not speed:
            continue
        c = replace(llama_fsdp.SIZES["llama3.1-8b"], micro_batch=2, kept="titan")
        seconds = c.micro_batch * c.seq / float(speed[1].replace(",", ""))
        yield Case(
            "torchtitan", f"8B compile {gpus[1]} GPUs", "titan", {"data": int(gpus[1])},
            partial(llama_fsdp.step, c=c), seconds * 1e9,
        )  # fmt: skip


def tpu_recipes() -> Iterator[Case]:
    """MaxText on v6e, all chips as one FSDP axis (`ici_fsdp_parallelism` -1). Remat "custom" keeps
    queries, keys, values and output projections, offloaded to the host, which is taken to be
    hidden; "full" keeps nothing."""
    for row in read("tpu_recipes/training_step_times.csv"):
        chips = int(float(row["chips_derived"]))
        micro = int(float(row["per_device_batch_size"]))
        step: Callable[[Any], Any]
        if row["model_name"].startswith("gpt_3_175b"):
            gpt = mpt_fsdp.Mpt(12_288, 96, 96, micro_batch=micro, recompute=True)
            step = partial(mpt_fsdp.step, c=gpt)
        else:
            size = "mistral-7b" if "mistral" in row["model_name"] else "llama3.1-8b"
            llama = replace(llama_fsdp.SIZES[size], micro_batch=micro, kept="maxtext", scan=True)
            step = partial(llama_fsdp.step, c=llama)
        yield Case(
            "TPU recipes", f"{row['model_name']} {chips} chips", "v6e", {"data": chips},
            step, float(row["step_time_s"]) * 1e9, profile="xla-tpu",
        )  # fmt: skip


def all_cases() -> list[Case]:
    """Every row that is priced, by data set."""
    return [
        *vtrain("vTrain single node", "ground_truth_single.csv"),
        *vtrain("vTrain 512 GPUs", "ground_truth_multi.csv"),
        *megatron(),
        *llm_foundry(),
        *torchtitan(),
        *tpu_recipes(),
    ]
