"""The programs that are compiled: of examples/, of tests/zoo.py, and those of `written.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from flint.frontends.jax_step.program import capture_jax
from flint.frontends.model_file import Target, importable, load_step
from flint.steps.captured import Captured
from tests.zoo import Example, zoo

ROOT = Path(__file__).resolve().parents[2]
#: Programs of tests/zoo.py that run host code, for which there is no compiled program to read.
HOST = frozenset[str]()


class Sample(Protocol):
    """One program with a name that is unique among all."""

    @property
    def name(self) -> str:
        """Its name in the table."""

    @property
    def origin(self) -> str:
        """Where the program is, and its mesh."""

    def capture(self, platform: str) -> Captured:
        """The program as StableHLO, lowered for a platform ("cuda", "tpu")."""


@dataclass(frozen=True)
class Case:
    """A model file of examples/, the mesh and the settings of its entry."""

    name: str
    file: str
    mesh: str
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> str:
        """How to capture the program by hand."""
        settings = "".join(f" --set {k}={v}" for k, v in self.settings.items())
        return f"`examples/{self.file} --mesh {self.mesh}{settings}`"

    def capture(self, platform: str) -> Captured:
        """The program as StableHLO, lowered for a platform."""
        target = Target.parse(str(ROOT / "examples" / self.file))
        with importable(target.path.parent):
            loaded = load_step(target, self.mesh, settings=self.settings)
            step = replace(loaded.step, platform=platform)
            return capture_jax(step, loaded.mesh, loaded.source)


@dataclass(frozen=True)
class Small:
    """A program of tests/zoo.py or of `written.py`."""

    name: str
    file: str
    example: Callable[[], Example]

    @property
    def origin(self) -> str:
        """Where the program is."""
        return f"`{self.file}`, on {self.example().mesh}"

    def capture(self, platform: str) -> Captured:
        """The program as StableHLO, lowered for a platform."""
        example = self.example()
        return capture_jax(replace(example.step(), platform=platform), example.mesh)


def samples() -> Iterator[Sample]:
    """Every program: examples, models written as other people do, then the zoo."""
    from benchmarks.compilers.written import written

    yield from _examples()
    for file, examples in (("benchmarks/compilers/written.py", written()), ("tests/zoo.py", zoo())):
        for name, example in examples.items():
            yield Small(name, file, lambda example=example: example)


def is_operation(name: str) -> bool:
    """Whether a program is about one operation and no model."""
    return name.startswith(("op_", "nondividing_"))


def _examples() -> Iterator[Case]:
    llama = {"num_layers": "4", "seq": "2048"}
    for parallel, remat in [
        ("fsdp", "full"),
        ("tp", "full"),
        ("tp+sp", "full"),
        ("fsdp+tp", "full"),
        ("fsdp+tp", "none"),
        ("fsdp+tp+sp", "full"),
        ("fsdp+tp+sp", "none"),
    ]:
        settings = {**llama, "parallel": parallel, "remat": remat}
        yield Case(f"llama {parallel}, remat {remat}", "llama_jax.py", "4x4", settings)
    for dispatch in ("einsum", "alltoall"):
        settings = {"num_layers": "4", "seq": "1024", "dispatch": dispatch}
        yield Case(f"mixtral {dispatch}", "mixtral_jax.py", "4x4", settings)
    yield Case("resnet50", "resnet50_jax.py", "4x2")
    yield Case("resnet50 spatial", "resnet50_jax.py", "4x2", {"spatial": "true"})
    yield Case("ring attention", "ring_attention_jax.py", "2x8", {"seq": "16384"})
    yield Case("decode", "decode_jax.py", "2x8", {"num_layers": "4", "tokens": "4"})
    yield Case("llama 70B", "llama_jax.py", "64x8", {"model": "70b"})
    yield Case("spmd pipeline", "spmd_pipeline_jax.py", "4x8")
