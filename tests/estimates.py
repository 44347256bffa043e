"""Estimates for tests of what is shown of one."""

from __future__ import annotations

from functools import cache

import flint
from flint.backends.cost.estimate import Estimate
from tests.jax_pipelines import MESH, pipeline
from tests.zoo import Example, transformers


@cache
def zoo(name: str) -> flint.Trace:
    """A transformer of the zoo, captured."""
    example: Example = next(e for e in transformers() if e.name == name)
    return flint.trace(example.step(), example.mesh)


@cache
def layers() -> Estimate:
    """A training step in a scan over layers: gathers and reductions over two axes."""
    return zoo("llama_fsdp_tp").estimate("h100-dgx")


@cache
def pipelined() -> Estimate:
    """A pipeline of two stages and four microbatches."""
    return flint.trace(pipeline(schedule="1f1b"), MESH).estimate("h100-dgx")
