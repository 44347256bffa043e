"""Capture public models on several meshes: of examples/, benchmarks/models/ and of this folder.

    python benchmarks/sharing/known_examples.py /tmp/known/examples

The folder is for `known_models.py`. Captures that are there already are kept. `index.json` lists them: file, family, model, mesh,
options, code.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from flint import capturing
from flint.errors import FlintError
from flint.ir.workload import Workload
from flint.requests.capture import CaptureRequest

ROOT = Path(__file__).parents[2]
FOLDERS = (ROOT / "examples", ROOT / "benchmarks/models", ROOT / "benchmarks/sharing")
#: Captures of HuggingFace's and torchvision's models, one device each: model and family.
COMPARED = {
    "bert-small": ("BERT-small", "bert"),
    "vit": ("ViT-B/16", "vit"),
    "resnet-18": ("ResNet-18", "resnet"),
    "qwen1.5-0.5b": ("Qwen1.5-0.5B", "qwen"),
}


@dataclass(frozen=True, slots=True)
class Capture:
    """A row of `index.json`. `options` are those that are not usual, as the command has them."""

    file: str
    family: str
    model: str
    mesh: str
    options: str
    code: str


@dataclass(frozen=True, slots=True)
class Job:
    """An example on a mesh. A world job's settings are the arguments of a script."""

    family: str
    model: str
    example: str
    mesh: str
    settings: tuple[str, ...] = ()
    world: bool = False
    schedule: str | None = None
    microbatches: int | None = None

    @property
    def options(self) -> str:
        """Schedule and settings in one line."""
        schedule = (self.schedule,) if self.schedule else ()
        batches = (f"microbatches={self.microbatches}",) if self.microbatches else ()
        shown = (s for s in self.settings if not s.startswith("model="))
        return " ".join((*schedule, *batches, *shown))

    @property
    def file(self) -> str:
        """A name that no other job has."""
        words = f"{self.example} {self.mesh} {self.options} {self.model}"
        return "".join(c if c.isalnum() or c in ".-" else "_" for c in words) + ".flint"


def jobs() -> Iterator[Job]:
    """Every capture: model x mesh x options."""
    yield from _llama()
    yield from _served()
    yield from _others()
    yield from _pipelines()
    yield from _torch()
    yield from _of_trainers()
    yield from _encoders()


def _llama() -> Iterator[Job]:
    sizes = {"8b": ("8x8", "64x8", "16x4", "128x8"), "70b": ("64x8", "32x8"), "405b": ("512x8",)}
    for size, meshes in sizes.items():
        for mesh, parallel in product(meshes, ("fsdp+tp", "fsdp+tp+sp", "fsdp")):
            settings = (f"model={size}", f"parallel={parallel}")
            yield Job("llama", f"Llama-3-{size.upper()}", "llama_jax.py", mesh, settings)
        for mesh in meshes[:2]:
            settings = (f"model={size}", "remat=none")
            yield Job("llama", f"Llama-3-{size.upper()}", "llama_jax.py", mesh, settings)


def _served() -> Iterator[Job]:
    for size, mesh in product(("8b", "70b", "405b"), ("1x8", "8x8", "16x4")):
        name = f"Llama-3-{size.upper()}"
        yield Job("llama", name, "decode_jax.py", mesh, (f"model={size}",))
        yield Job("llama", name, "decode_jax.py", mesh, (f"model={size}", "cache=int8"))
    for size, mesh in product(("8b", "70b"), ("pool=4,data=1,model=8", "pool=4,data=2,model=8")):
        yield Job(
            "llama", f"Llama-3-{size.upper()}", "disaggregated_jax.py", mesh, (f"model={size}",)
        )


def _others() -> Iterator[Job]:
    for mesh, dispatch in product(("8x8", "64x8", "32x4"), ("alltoall", "einsum")):
        yield Job("mixtral", "Mixtral-8x7B", "mixtral_jax.py", mesh, (f"dispatch={dispatch}",))
    for mesh, spatial in product(("8x1", "32x2", "64x4"), ("false", "true")):
        yield Job("resnet", "ResNet-50", "resnet50_jax.py", mesh, (f"spatial={spatial}",))
    for mesh in ("4x16", "2x8", "8x8"):
        yield Job("ring attention", "ring-attention-4096", "ring_attention_jax.py", mesh)
    for mesh in ("4x8", "8x4"):
        yield Job("spmd pipeline", "spmd-pipeline-2560", "spmd_pipeline_jax.py", mesh)


def _pipelines() -> Iterator[Job]:
    meshes = ("pipe=8,data=1,model=8", "pipe=4,data=8,model=4")
    for size, mesh in product(("6.7b", "13b", "175b"), meshes):
        for schedule in ("1f1b", "zb-h1"):
            yield Job(
                *("gpt3", f"GPT-3-{size.upper()}", "gpt3_jax.py", mesh, (f"model={size}",)),
                schedule=schedule,
                microbatches=8,
            )
    for size, mesh in product(("8b", "70b"), ("pipe=4,data=8,model=8", "pipe=4,data=2,model=8")):
        yield Job(
            *("llama", f"Llama-3-{size.upper()}", "llama_jax.py:pipelined", mesh),
            (f"model={size}",),
            schedule="1f1b",
            microbatches=16,
        )


def _torch() -> Iterator[Job]:
    for size, mesh in product(("8b", "70b"), ("64x8", "8x8")):
        for parallel in ("fsdp+tp", "fsdp+tp+sp"):
            settings = (f"model={size}", f"parallel={parallel}")
            yield Job("llama", f"Llama-3-{size.upper()}", "torch_llama.py", mesh, settings)
    for mesh in ("8", "32"):
        yield Job("resnet", "ResNet-50", "torch_resnet50_ddp.py", mesh, world=True)
        yield Job("dlrm", "DLRM", "torch_dlrm.py", mesh, world=True)
        yield Job("deepseek-moe", "DeepSeekMoE-16B", "torch_deepseek_moe.py", mesh, world=True)


def _of_trainers() -> Iterator[Job]:
    """The same models as Megatron, torchtitan, MaxText and LLM Foundry run them: other code."""
    for mesh, kept in product(("8", "256"), ("titan", "maxtext")):
        settings = (f"kept={kept}", f"scan={str(kept == 'maxtext').lower()}")
        yield Job("llama", "Llama-3-8B", "llama_fsdp.py", mesh, settings)
    meshes = ("pipe=1,data=1,model=8", "pipe=4,data=2,model=8")
    for size, mesh in product(("8b", "70b"), meshes):
        settings = (f"model=llama3-{size}",)
        yield Job("llama", f"Llama-3-{size.upper()}", "llama_megatron.py", mesh, settings)
    gpt3 = {"6.7B": (4096, 32, 32), "13B": (5120, 40, 40), "175B": (12_288, 96, 96)}
    for (size, (hidden, layers, heads)), mesh in product(gpt3.items(), meshes):
        settings = (f"hidden={hidden}", f"num_layers={layers}", f"heads={heads}")
        yield Job("gpt3", f"GPT-3-{size}", "gpt_megatron.py", mesh, settings)
    for size, mesh in product(("1b", "7b", "30b"), ("8", "64")):
        yield Job("mpt", f"MPT-{size.upper()}", "mpt_fsdp.py", mesh, (f"model={size}",))
    for mesh in ("data=8,context=1,model=1", "data=4,context=1,model=2"):
        yield Job("llama", "Llama-3-8B", "llama_titan.py", mesh)


def _encoders() -> Iterator[Job]:
    names = {
        "bert": {"base": "BERT-base", "large": "BERT-large"},
        "vit": {"b16": "ViT-B/16", "l16": "ViT-L/16", "h16": "ViT-H/16"},
        "t5": {"base": "T5-base", "large": "T5-large", "11b": "T5-11B"},
    }
    for family, models in names.items():
        for (size, name), mesh in product(models.items(), ("8x1", "8x4", "32x2")):
            for training in ("true", "false"):
                settings = (f"model={size}", f"training={training}")
                yield Job(family, name, f"encoders_jax.py:{family}", mesh, settings)
    for size, mesh in product(("7b", "13b", "70b"), ("8x8", "64x8", "32x4")):
        for parallel in ("fsdp+tp", "fsdp"):
            settings = (f"model={size}", f"parallel={parallel}")
            yield Job("llama", f"Llama-2-{size.upper()}", "llama2_jax.py", mesh, settings)


def compared(folder: Path) -> Iterator[Capture]:
    """Copies of the captures that comparisons with measured steps have."""
    for name, (model, family) in COMPARED.items():
        source = ROOT / "benchmarks/compare_models" / f"{name}.flint"
        shutil.copyfile(source, folder / source.name)
        mesh = "x".join(map(str, Workload.load(source).mesh.sizes))
        yield Capture(
            source.name, family, model, mesh, "", "resnet_ddp" if "res" in name else "huggingface"
        )


def capture(job: Job, folder: Path) -> Capture:
    """Capture a job to its file, if it is not there."""
    path = folder / job.file
    if not path.exists():
        name, _, entry = job.example.partition(":")
        source = next(folder / name for folder in FOLDERS if (folder / name).exists())
        model = str(source) + (f":{entry}" if entry else "")
        pipeline = {"schedule": job.schedule, "microbatches": job.microbatches}
        if job.world:
            options = CaptureRequest(model, job.mesh, world=True, script_arguments=job.settings)
        else:
            options = CaptureRequest(model, job.mesh, settings=job.settings, **pipeline)
        capturing.capture(options).workload.save(path)
    code = "llama_jax" if job.example == "llama2_jax.py" else job.example.partition(".py")[0]
    return Capture(job.file, job.family, job.model, job.mesh, job.options, code)


def main() -> None:
    """Capture all jobs; those that fail are named and left out."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = [asdict(one) for one in compared(folder)]
    for job in jobs():
        try:
            found.append(asdict(capture(job, folder)))
        except FlintError as error:
            print(f"{job.file}: {error}", file=sys.stderr)
        (folder / "index.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(found)} captures in {folder}")


if __name__ == "__main__":
    main()
