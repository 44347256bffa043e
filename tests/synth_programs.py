"""Captured programs and a generator that has only counted them, for tests of synthetic workloads."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from flint.capturing import CaptureOptions, captured
from flint.ir.workload import Workload
from flint.tools.share.synth.asked import CONDITIONS
from flint.tools.share.synth.codec.draft import FEATURES
from flint.tools.share.synth.generator import Generator
from flint.tools.share.synth.learn import Example, example_of, lessons_of
from flint.tools.share.synth.memory import Memory
from flint.tools.share.synth.model.ngrams import count_ngrams
from flint.tools.share.synth.model.row_model import untrained
from flint.tools.share.synth.model.weights import Sizes

ROOT = Path(__file__).parents[1]
#: File, mesh and settings: scans forward and backward, experts, serving, rings, patches.
PROGRAMS = (
    ("examples/llama_jax.py", "4x2", ("num_layers=3", "seq=64")),
    ("examples/llama_jax.py", "4x2", ("num_layers=3", "seq=64", "remat=none")),
    ("examples/llama_jax.py", "8x1", ("num_layers=3", "seq=64", "parallel=fsdp")),
    ("examples/llama_jax.py", "2x4", ("num_layers=5", "seq=64", "parallel=fsdp+tp+sp")),
    ("examples/mixtral_jax.py", "4x2", ("num_layers=2", "dispatch=einsum")),
    ("examples/mixtral_jax.py", "4x2", ("num_layers=2", "dispatch=alltoall")),
    ("examples/decode_jax.py", "2x4", ()),
    ("examples/ring_attention_jax.py", "2x4", ()),
)


@cache
def workloads() -> tuple[Workload, ...]:
    """The programs, captured once a process."""
    return tuple(
        captured(CaptureOptions(str(ROOT / file), mesh, settings=settings)).workload
        for file, mesh, settings in PROGRAMS
    )


@cache
def examples() -> tuple[Example, ...]:
    """What a generator learns from."""
    found = [example_of(w, family) for family, w in enumerate(workloads())]
    return tuple(e for e in found if e is not None)


@cache
def counting_generator() -> Generator:
    """A generator whose network has random weights, and whose counts are those of the programs."""
    lessons = lessons_of(examples(), least_programs=1)
    sizes = Sizes(vocabulary=len(lessons.vocabulary), features=FEATURES, conditions=CONDITIONS)
    counts = count_ngrams(
        [s.templates for s in lessons.sequences],
        [s.weight for s in lessons.sequences],
        len(lessons.vocabulary),
    )
    model = replace(untrained(sizes), ngrams=counts)
    memory = Memory.of(e.steps for e in examples())
    return Generator(model, lessons.vocabulary, tuple(e.asked for e in examples()), memory)
