"""Logs of requests that people have, by the names of their columns; docs/serve.md has the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flint.errors import FlintError


@dataclass(frozen=True)
class LogFormat:
    """Which columns of a log hold what. Each has one of several names, in any case."""

    name: str
    input: tuple[str, ...]
    output: tuple[str, ...]
    #: Times of arrival, each with its unit in seconds; None: dates.
    arrival: tuple[tuple[str, float | None], ...]
    priority: tuple[str, ...] = ("priority",)
    hashes: str = "hash_ids"
    #: Tokens of a block that a hash stands for.
    block_tokens: int = 512


#: The first that fits is taken. Azure: github.com/Azure/AzurePublicDataset. BurstGPT:
#: github.com/HPMLL/BurstGPT. Mooncake: github.com/kvcache-ai/Mooncake (FAST25-release). Vidur:
#: github.com/microsoft/vidur. The last is what Flint's own users write.
FORMATS = (
    LogFormat("azure", ("ContextTokens",), ("GeneratedTokens",), (("TIMESTAMP", None),)),
    LogFormat("burstgpt", ("Request tokens",), ("Response tokens",), (("Timestamp", 1.0),)),
    LogFormat("mooncake", ("input_length",), ("output_length",), (("timestamp", 1e-3),)),
    LogFormat("vidur", ("num_prefill_tokens",), ("num_decode_tokens",), (("arrived_at", 1.0),)),
    LogFormat(
        "plain",
        ("input_tokens", "prompt_tokens", "input_toks"),
        ("output_tokens", "completion_tokens", "output_toks"),
        (
            ("arrival_s", 1.0),
            ("queued_s", 1.0),
            ("arrival_ms", 1e-3),
            ("queued_ms", 1e-3),
            ("arrival_time_ns", 1e-9),
            ("arrival", 1.0),
            ("timestamp", None),
        ),
    ),
)


@dataclass(frozen=True)
class LogColumns:
    """The columns of one file: names as it writes them. Without `arrival` all arrive at once."""

    format: LogFormat
    input: str
    output: str
    arrival: str | None
    unit_s: float | None
    priority: str | None
    hashes: str | None


def columns_of(names: Sequence[str], where: str) -> LogColumns:
    """The columns of a file that has `names`. Raises FlintError FL884 where no format fits."""
    known = {name.strip().lower(): name for name in reversed(names)}
    for form in FORMATS:
        found = _columns(form, known)
        if found and (found.arrival or form is FORMATS[-1]):
            return found
    raise FlintError(
        "FL884",
        f"{where} is no log of requests that is known: it has {', '.join(names)[:300] or 'no names'}",
        help="name the columns input_tokens, output_tokens and arrival_s; docs/serve.md lists formats",
    )


def _columns(form: LogFormat, known: dict[str, str]) -> LogColumns | None:
    tokens = [
        next((known[n.lower()] for n in names if n.lower() in known), None)
        for names in (form.input, form.output, form.priority)
    ]
    arrival = next(((known[n.lower()], u) for n, u in form.arrival if n.lower() in known), None)
    if tokens[0] is None or tokens[1] is None:
        return None
    name, unit = arrival or (None, 1.0)
    return LogColumns(form, tokens[0], tokens[1], name, unit, tokens[2], known.get(form.hashes))
