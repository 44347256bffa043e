"""Requests that nobody sent: arrivals and lengths drawn from distributions, the same for each seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from flint.errors import FlintError
from flint.tools.serve.requests.lengths import SHAREGPT, Length
from flint.tools.serve.requests.logs import read_log
from flint.tools.serve.requests.table import Floats, Ints, Prefixes, Requests
from flint.tools.serve.spec import Above0, AtLeast1, Natural, Rate, Spec, fill, parse_spec

#: Tokens of a block of a prefix that generated prompts share.
_PREFIX_BLOCK = 16
#: So many requests still fit into memory.
Most = Annotated[int, Field(ge=1, le=100_000_000)]
#: Times in nanoseconds keep their last digit for so long.
_LONGEST_S = 1e6


@dataclass(frozen=True)
class GeneratedLoad:
    """What generators take; docs/serve.md says what each option is."""

    n: Most = 1000
    seed: Natural = 0
    lengths: str | None = None
    input: Length = None
    output: Length = None
    prefix: Annotated[int, Field(ge=0, lt=1 << 31)] = 0
    burstiness: Above0 = 1.0  #: of `gamma:`
    rate: Rate = math.inf
    concurrency: AtLeast1 | None = None


@dataclass(frozen=True)
class LogOptions:
    """What `trace:FILE` takes."""

    path: Path
    n: AtLeast1 | None = None
    speed: Above0 = 1.0
    strict: bool = False


#: What stands behind the name, and options that it does not take.
_GENERATORS = {
    "constant": ("rate", ("concurrency", "burstiness")),
    "poisson": ("rate", ("concurrency", "burstiness")),
    "gamma": ("rate", ("concurrency",)),
    "concurrency": ("concurrency", ("rate", "burstiness")),
}


def requests_of(text: str) -> Requests:
    """The requests that `text` means: a generator, `trace:FILE,n=...`, or a file.

    Raises FlintError FL889 for what cannot be read, and what `read_log` raises.
    """
    name = text.partition(":")[0]
    if name not in (*_GENERATORS, "trace"):
        return read_log(Path(text))
    spec = parse_spec(text, "FL889")
    if not spec.first:
        raise FlintError(
            "FL889",
            f"'{text}' has nothing behind '{name}:'",
            help="write poisson:10/s, concurrency:16 or trace:FILE, then options",
        )
    if name == "trace":
        log = fill(LogOptions, spec, "FL889", path=spec.first)
        return read_log(log.path, n=log.n, speed=log.speed, strict=log.strict)
    first, without = _GENERATORS[name]
    return _generated(fill(GeneratedLoad, spec, "FL889", without, **{first: spec.first}), spec)


def _arrivals(load: GeneratedLoad, name: str, random: np.random.Generator) -> Floats:
    """Seconds, from 0."""
    if name == "constant" or math.isinf(load.rate):
        return np.arange(load.n) / load.rate
    gaps = random.gamma(load.burstiness, 1 / (load.rate * load.burstiness), load.n)
    gaps[0] = 0.0
    return np.cumsum(gaps)


def _generated(load: GeneratedLoad, spec: Spec) -> Requests:
    random = np.random.Generator(np.random.PCG64(load.seed))
    arrival_s = _arrivals(load, spec.name, random)
    if not arrival_s[-1] <= _LONGEST_S:
        raise FlintError(
            "FL889",
            f"'{spec.text}' takes {arrival_s[-1]:.3g} s until the last request arrives",
            help=f"raise the rate, or lower n: at most {_LONGEST_S:,.0f} s are replayed",
        )
    input, output = load.input, load.output
    notes: tuple[str, ...] = ()
    if load.lengths == "sharegpt":
        input, output = input or SHAREGPT[0], output or SHAREGPT[1]
        notes = ("lengths as in ShareGPT: lognormal with the means that Kwon et al. (2023) print",)
    elif load.lengths is not None:
        log = read_log(Path(load.lengths))
        rows = random.integers(0, len(log), load.n)
        input = input or (lambda random, n: log.input_tokens[rows])
        output = output or (lambda random, n: log.output_tokens[rows])
        notes = tuple(n for n in log.notes if "arriv" not in n)
    if input is None or output is None:
        raise FlintError(
            "FL889",
            f"'{spec.text}' does not say how long requests are",
            help="add lengths=sharegpt, or input=1024,output=128",
        )
    drawn = input(random, load.n)
    inputs: Ints = np.maximum(drawn, load.prefix + 1)
    if longer := int(np.count_nonzero(drawn < inputs)):
        notes += (f"{longer:,} of {load.n:,} prompts are prefix={load.prefix} and one token",)
    outputs = output(random, load.n)
    zeros = np.zeros(load.n, np.int64)
    prefixes = _prefixes(load.n, load.prefix // _PREFIX_BLOCK)
    return Requests(spec.text, arrival_s, inputs, outputs, zeros, prefixes, load.concurrency, notes)


def _prefixes(n: int, blocks: int) -> Prefixes | None:
    """Full blocks of the prefix; that all prompts begin so is what the hashes 0, 1, ... say."""
    if not blocks:
        return None
    start = np.arange(n + 1, dtype=np.int64) * blocks
    return Prefixes(start, np.tile(np.arange(blocks, dtype=np.int64), n), _PREFIX_BLOCK)
