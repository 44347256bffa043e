"""The measured training steps in benchmarks/data/, each with the model code that ran.

A row becomes a `Case`: what a user would type to have its estimate, and what was measured. What a
source does not say is written where it is assumed.
"""

from __future__ import annotations

import csv
import importlib
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).resolve().parent / "data"
Row = dict[str, str]
Option = int | str | bool


@dataclass(frozen=True)
class Case:
    """One measured step: `options` of the entry of a model in benchmarks/models, on a `mesh`.

    `preset` is the machine, `stack` whose software ran; `half` 0 may be fitted on.
    """

    data: str
    label: str
    preset: str
    stack: str
    model: str
    mesh: dict[str, int]
    options: Mapping[str, Option]
    measured_ns: float

    @property
    def half(self) -> int:
        """0: rows on which constants may be fitted; 1: held out. A hash of the label decides."""
        return zlib.crc32(self.label.encode()) % 2

    @property
    def order(self) -> int:
        """A fixed shuffle, for samples."""
        return zlib.crc32(("sample " + self.label).encode())

    @property
    def command(self) -> str:
        """What a user types for the estimate."""
        mesh = ",".join(f"{axis}={size}" for axis, size in self.mesh.items())
        given = " ".join(f"--set {name}={_typed(value)}" for name, value in self.options.items())
        return (
            f"flint capture benchmarks/models/{self.model}.py --mesh {mesh} {given} -o step.flint "
            f"&& flint estimate step.flint -c {self.preset} --stack {self.stack}"
        )

    def step(self, mesh: Any) -> Any:
        """What is captured of a mesh."""
        return importlib.import_module(f"benchmarks.models.{self.model}").train(
            mesh, **self.options
        )


def _typed(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def read(path: str) -> list[Row]:
    """Rows of a table below benchmarks/data."""
    with (DATA / path).open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def _gpt(data: str, on: tuple[str, str], axes: tuple[int, int, int], options: Mapping[str, Option],
         step_ns: float) -> Case:  # fmt: skip
    """A GPT of gpt_megatron.py over pipe, data and model."""
    pipe, replicas, model = axes
    o = options
    label = (
        f"h{o['hidden']} L{o['num_layers']} s{o['seq']} pp{pipe} dp{replicas} tp{model} "
        f"{o['microbatches']}x{o['micro_batch']} {o['recompute']}"
    )
    mesh = {"pipe": pipe, "data": replicas, "model": model}
    return Case(data, label, *on, "gpt_megatron", mesh, options, step_ns)


def vtrain(name: str, file: str) -> Iterator[Case]:
    """Megatron-DeepSpeed on A100: each layer recomputed (`use_checkpoint` in vTrain's validation
    configurations), 1F1B, gradients reduced in 16 bits after the last microbatch (vTrain's model of
    them), no sequence parallelism (Megatron-DeepSpeed had none then), dropout, fused kernels."""
    for row in read(f"vtrain/{file}"):
        pipe, data, model = (int(row[f"{w} parallelism"]) for w in ("pipeline", "data", "tensor"))
        micro = int(row["micro batch"])
        options: dict[str, Option] = {
            "hidden": int(row["hidden size"]),
            "num_layers": int(row["# layers"]),
            "heads": int(row["attention heads"]),
            "seq": int(row["sequence length"]),
            "micro_batch": micro,
            "microbatches": int(row["global batch"]) // data // micro,
            "recompute": "full",
            "sequence_parallel": False,
        }
        step_ns = float(row["iteration time (ms)"]) * 1e6
        on = ("a100-80-hdr4", "megatron-deepspeed")
        yield _gpt(name, on, (pipe, data, model), options, step_ns)


def megatron() -> Iterator[Case]:
    """Megatron-LM on Selene, arXiv 2205.05198, table 5. "full": all layers recomputed, tensor
    parallelism alone; "seqsel": selective recomputation and sequence parallelism. Gradients are
    accumulated in 32 bits (Megatron-LM's default). 175B has three stages on each rank."""
    for row in read("megatron/step_times_a100.csv"):
        selective = row["mode"] == "seqsel"
        micro = int(row["microbatch"])
        options: dict[str, Option] = {
            "hidden": int(row["hidden"]),
            "num_layers": int(row["layers"]),
            "heads": int(row["heads"]),
            "seq": int(row["seq"]),
            "micro_batch": micro,
            "microbatches": int(row["batch"]) // int(row["dp"]) // micro,
            "chunks": int(row["interleaving"]),
            "recompute": "selective" if selective else "full",
            "sequence_parallel": selective,
            "gradient_dtype": "float32",
        }
        axes = (int(row["pp"]), int(row["dp"]), int(row["tp"]))
        step_ns = float(row["measured_step_s"]) * 1e9
        yield _gpt("Megatron", ("a100-80-dgx", "megatron"), axes, options, step_ns)


#: llm_foundry's names of GPUs -> presets. Its nodes of H100 have eight 400 Gb/s adapters.
FOUNDRY = {"h100_80gb": "h100-dgx", "a100_40gb": "a100-40-dgx"}


def llm_foundry() -> Iterator[Case]:
    """MPT with PyTorch FSDP: every microbatch reduces its gradients (Composer's default), in
    bfloat16: Composer's DEFAULT names no type for that, so it is that of the parameters, as with
    PURE. Rows in 8-bit floating point (TransformerEngine) are left out: the model code has no such
    layers."""
    for row in read("llm_foundry/training_throughput.csv"):
        if row["Precision"] == "amp_fp8":
            continue
        options: dict[str, Option] = {
            "model": row["Model"],
            "seq": int(row["SeqLen (T)"]),
            "micro_batch": int(row["MicroBatchSize"]),
            "accumulate": int(row["GradAccum"]),
            "recompute": row["Activation Checkpointing"] == "True",
        }
        gpus = int(row["# GPUs"])
        o = options
        label = f"{o['model']} s{o['seq']} {gpus} GPUs {o['accumulate']}x{o['micro_batch']}"
        seconds = float(row["GlobalBatchSize (T)"]) / float(row["Throughput (T/s)"])
        data = f"LLM Foundry {row['GPU'].split('_')[0].upper()}"
        on = (FOUNDRY[row["GPU"]], "composer")
        yield Case(data, label, *on, "mpt_fsdp", {"data": gpus}, options, seconds * 1e9)


#: What of a row of torchtitan's tables says how it ran.
_COMPILED, _EAGER, _LONG = "FSDP + torch.compile;", "Techniques=FSDP;", "Table 2"
TITAN = "h100-500w"


def torchtitan() -> Iterator[Case]:
    """Llama 3.1 8B on H100 of 500 W. FSDP2 with and without torch.compile: sequences of 8,192, two for
    each GPU. Long sequences: products in 8 bits, compiled, all recomputed, one sequence for each
    group of context parallelism. The last two are PyTorch programs; no constant is fitted on them."""
    for row in read("torchtitan/tables.csv"):
        speed = float(_found(r"TPS/GPU=([\d,]+)", row["row"]).replace(",", ""))
        if row["table"].startswith(_LONG):
            yield _titan_long(row["row"], speed)
            continue
        gpus, step_ns = int(_found(r"(\d+) GPUs", row["table"])), 2 * 8192 / speed * 1e9
        if _COMPILED in row["row"]:
            options: dict[str, Option] = {"model": "llama3.1-8b", "micro_batch": 2, "kept": "titan"}
            yield Case(
                "torchtitan", f"8B compile {gpus} GPUs", TITAN, "torchtitan", "llama_fsdp",
                {"data": gpus}, options, step_ns,
            )  # fmt: skip
        elif _EAGER in row["row"]:
            yield Case(
                "torchtitan eager", f"8B {gpus} GPUs", TITAN, "pytorch-eager", "llama_titan",
                {"data": gpus, "context": 1, "model": 1}, {"batch": 2}, step_ns,
            )  # fmt: skip
        else:
            raise ValueError(f"torchtitan/tables.csv has a row of a new kind: {row['row']}")


def _titan_long(row: str, speed: float) -> Case:
    """A row of the table of long sequences; `speed` is tokens per second and GPU."""
    shards, parts, seq = (
        int(_found(rf"{name}[ =](\d+)", row)) for name in ("FSDP", "CP", "Sequence Length")
    )
    options: dict[str, Option] = {
        "seq": seq, "batch": 1, "recompute": "full", "float8": True, "compiled": True,
    }  # fmt: skip
    return Case(
        "torchtitan float8, long", f"8B s{seq} FSDP {shards} CP {parts}", TITAN, "torchtitan",
        "llama_titan", {"data": shards, "context": parts, "model": 1}, options,
        seq / parts / speed * 1e9,
    )  # fmt: skip


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise ValueError(f"no {pattern} in {text}")
    return match[1]


def tpu_recipes() -> Iterator[Case]:
    """MaxText on v6e, all chips as one FSDP axis (`ici_fsdp_parallelism` -1). Remat "custom" keeps
    queries, keys, values and output projections, offloaded to the host, which is taken to be
    hidden; "full" keeps nothing."""
    for row in read("tpu_recipes/training_step_times.csv"):
        chips = int(float(row["chips_derived"]))
        micro = int(float(row["per_device_batch_size"]))
        model, options = "llama_fsdp", dict[str, Option]()
        if row["model_name"].startswith("gpt_3_175b"):
            model = "mpt_fsdp"
            options = {"model": "175b", "micro_batch": micro, "recompute": True}
        else:
            size = "mistral-7b" if "mistral" in row["model_name"] else "llama3.1-8b"
            options = {"model": size, "micro_batch": micro, "kept": "maxtext", "scan": True}
        yield Case(
            "TPU recipes", f"{row['model_name']} {chips} chips", "v6e", "maxtext", model,
            {"data": chips}, options, float(row["step_time_s"]) * 1e9,
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
