"""Requests that nobody sent: arrivals and lengths drawn from distributions, the same for each seed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flint.errors import FlintError
from flint.tools.serve.requests.lengths import SHAREGPT, Length, length
from flint.tools.serve.requests.logs import read_log
from flint.tools.serve.requests.table import Floats, Ints, Prefixes, Requests, table
from flint.tools.serve.spec import Spec, fill, number, option, parse_spec, rate, switch, whole

#: Tokens of a block of a prefix that generated prompts share.
_PREFIX_BLOCK = 16
GENERATORS = ("poisson", "constant", "gamma", "concurrency")


@dataclass(frozen=True)
class Load:
    """What `poisson:`, `constant:`, `gamma:` and `concurrency:` take."""

    n: int = option(whole(1), "how many requests", 1000)
    seed: int = option(whole(0), "the seed of arrivals and lengths", 0)
    lengths: str | None = option(str, "sharegpt, or a file whose lengths are drawn")
    input: Length | None = option(length, "tokens of prompts")
    output: Length | None = option(length, "tokens of answers")
    prefix: int = option(whole(0), "first tokens that all prompts have in common", 0)
    burstiness: float = option(
        number(above=True), "shape of the gamma distribution: below 1 in bursts, 1 as poisson", 1.0
    )


@dataclass(frozen=True)
class LogOptions:
    """What `trace:FILE` takes."""

    n: int | None = option(whole(1), "how many requests are read")
    speed: float = option(number(above=True), "how many times as fast they come", 1.0)
    strict: bool = option(switch, "refuse rows out of order", False)


def requests_of(text: str) -> Requests:
    """The requests that `text` means: a generator, `trace:FILE,n=...`, or a file.

    Raises FlintError FL889 for a generator that cannot be read, and what `read_log` raises.
    """
    name = text.partition(":")[0]
    if name in GENERATORS:
        return _generated(parse_spec(text, "FL889"))
    if name == "trace":
        spec = parse_spec(text, "FL889")
        if not spec.first:
            raise FlintError("FL889", f"'{text}' names no file", help="write trace:FILE,n=1000")
        log = fill(LogOptions, spec, "FL889")
        return read_log(Path(spec.first), n=log.n, speed=log.speed, strict=log.strict)
    return read_log(Path(text))


def _generated(spec: Spec) -> Requests:
    load = fill(Load, spec, "FL889")
    if "burstiness" in spec.options and spec.name != "gamma":
        raise FlintError("FL889", f"only gamma: takes burstiness, not '{spec.name}'")
    read = whole(1) if spec.name == "concurrency" else rate
    try:
        first = read(spec.first or "")
    except ValueError as error:
        raise FlintError(
            "FL889",
            f"'{spec.text}' does not begin with {error}",
            help="poisson:10/s, concurrency:16",
        ) from None
    random = np.random.Generator(np.random.PCG64(load.seed))
    closed = spec.name == "concurrency"
    arrival_s = np.zeros(load.n) if closed else _arrivals(spec.name, first, load, random)
    inputs, outputs, notes = _lengths(load, random, spec)
    inputs = np.maximum(inputs, load.prefix + 1) if load.prefix else inputs
    return table(
        spec.text,
        arrival_s,
        inputs,
        outputs,
        prefixes=_prefixes(load),
        concurrency=int(first) if closed else None,
        notes=notes,
    )


def _arrivals(name: str, per_s: float, load: Load, random: np.random.Generator) -> Floats:
    if math.isinf(per_s):
        return np.zeros(load.n)
    if name == "constant":
        return np.arange(load.n) / per_s
    gaps = random.gamma(load.burstiness, 1 / (per_s * load.burstiness), load.n)
    gaps[0] = 0.0
    return np.cumsum(gaps)


def _lengths(
    load: Load, random: np.random.Generator, spec: Spec
) -> tuple[Ints, Ints, tuple[str, ...]]:
    input, output = load.input, load.output
    notes: tuple[str, ...] = ()
    if load.lengths == "sharegpt":
        input, output = input or SHAREGPT[0], output or SHAREGPT[1]
        notes = ("lengths as in ShareGPT: lognormal with the means that Kwon et al. (2023) print",)
    elif load.lengths is not None:
        log = read_log(Path(load.lengths))
        rows = random.integers(0, len(log), load.n)
        drawn = (log.input_tokens[rows], log.output_tokens[rows])
        notes = tuple(n for n in log.notes if "arriv" not in n)
        return (
            input.draw(random, load.n) if input else drawn[0],
            output.draw(random, load.n) if output else drawn[1],
            notes,
        )
    if input is None or output is None:
        raise FlintError("FL889", f"'{spec.text}' does not say how long requests are",
                         help="add lengths=sharegpt, or input=1024,output=128")  # fmt: skip
    return input.draw(random, load.n), output.draw(random, load.n), notes


def _prefixes(load: Load) -> Prefixes | None:
    """Full blocks of the prefix; that all prompts begin so is what the hashes 0, 1, ... say."""
    blocks = load.prefix // _PREFIX_BLOCK
    if not blocks:
        return None
    start = np.arange(load.n + 1, dtype=np.int64) * blocks
    return Prefixes(start, np.tile(np.arange(blocks, dtype=np.int64), load.n), _PREFIX_BLOCK)
