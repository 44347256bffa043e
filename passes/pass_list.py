"""Passes by name, as people write them: `reassociate,fuse-chains{blocks=shared again=false}`.

Every pass in the table below can be written. Its options are the fields of the dataclass, with `-`
for `_`: numbers, `true` and `false`, words, members of enumerations, and several of them with commas
between.
"""

from __future__ import annotations

import pkgutil
import re
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any

from flint.errors import FlintError, nearest
from flint.passes.base import Pass
from flint.text import spelled_word

#: Where each pass is, below `flint.passes`: only those that a profile or a line names are imported.
_PLACES = {
    "combine-collectives": "rewrites.combine_collectives:CombineCollectives",
    "copy-overwritten": "fusion.xla_gpu.copy_overwritten:CopyOverwritten",
    "copy-carried": "fusion.xla_gpu.copy_carried:CopyCarried",
    "delay-past-loops": "rewrites.delay_past_loops:DelayPastLoops",
    "drop-dead-code": "rewrites.dead_code:DropDeadCode",
    "expand-ragged": "fusion.xla_gpu.expand_ragged:ExpandRagged",
    "fold-all-reduces": "rewrites.reduce_scatter:FoldAllReduces",
    "fold-gathers": "rewrites.fold_gathers:FoldGathers",
    "form-reduce-scatter": "rewrites.reduce_scatter:FormReduceScatter",
    "fuse": "fusion.kernels:Fuse",
    "fuse-attention": "fusion.attention:FuseAttention",
    "fuse-chains": "fusion.chains:FuseChains",
    "fuse-kernels": "fusion.kernels:FuseKernels",
    "fuse-tpu-products": "fusion.tpu:FuseTpuProducts",
    "fuse-convolutions": "rewrites.library_convolutions:FuseConvolutions",
    "join-collectives": "fusion.xla_gpu.join_collectives:JoinCollectives",
    "merge-products": "fusion.xla_gpu.merge_products:MergeProducts",
    "narrow-collectives": "rewrites.narrow_collectives:NarrowCollectives",
    "read-slices": "fusion.tpu:ReadSlices",
    "reassociate": "rewrites.reassociate:ReassociateAllReduce",
    "select-scatters": "fusion.select_scatters:SelectScatters",
    "separate-layers": "rewrites.separate_layers:SeparateLayers",
    "sink-fills": "rewrites.sink_fills:SinkFills",
    "sort-top-k": "fusion.xla_gpu.sort_top_k:SortTopK",
    "split-products": "fusion.xla_gpu.split_products:SplitProducts",
    "split-reductions": "fusion.xla_gpu.split_reductions:SplitReductions",
    "sum-after-loops": "rewrites.sum_after_loops:SumAfterLoops",
    "sum-products": "fusion.xla_gpu.sum_products:SumProducts",
    "library-convolutions": "rewrites.library_convolutions:LibraryConvolutions",
    "turn-operands": "rewrites.turn_operands:TurnOperands",
    "turn-results": "fusion.blas:TurnResults",
    "use-blas": "fusion.blas:UseBlas",
    "write-slices": "fusion.tpu:WriteSlices",
}
_VALUE = r'(?:"[^"]*"|[^\s"{},]+)'
_OPTION = re.compile(rf"\s*([A-Za-z][\w-]*)=({_VALUE}(?:,{_VALUE})*)(?=\s|$)")
_PASS = re.compile(r'\s*([\w+-]+)\s*(?:\{((?:[^{}"]|"[^"]*")*)\})?\s*(,|$)')
#: How values of each type are read.
_WORDS = {"true": True, "false": False}


@cache
def known_passes() -> Mapping[str, type[Pass]]:
    """Every pass that can be written, by name."""
    return MappingProxyType({name: _pass_class(name) for name in _PLACES})


@cache
def _pass_class(name: str) -> type[Pass]:
    found: type[Pass] = pkgutil.resolve_name(f"flint.passes.{_PLACES[name]}")
    return found


def parse_passes(text: str) -> tuple[Pass, ...]:
    """The passes that `text` says, in order.

    Raises FlintError FL408 for a pass that is not there, FL409 for its options.
    """
    return tuple(_made(name, options) for name, options in _split(text))


def spelled_pass(one: Pass) -> str:
    """A pass with the options that are not its defaults: what `parse_passes` takes."""
    given = [
        f"{_dashed(field.name)}={_spelled(getattr(one, field.name))}"
        for field in fields(one)
        if getattr(one, field.name) != field.default
    ]
    return one.name + (f"{{{' '.join(given)}}}" if given else "")


def described(one: type[Pass]) -> tuple[str, str]:
    """A pass with all options as its class has them, and the first sentence of its docstring."""
    options = " ".join(_default(field, _types(one)[field.name]) for field in fields(one))
    summary = " ".join((one.__doc__ or "").split("\n\n")[0].split())
    return one.name + (f"{{{options}}}" if options else ""), summary


def _default(field: Field[Any], kind: Any) -> str:
    if field.default is MISSING:
        return f"{_dashed(field.name)}={kind.__name__.upper()}"
    return f"{_dashed(field.name)}={_spelled(field.default)}"


def _split(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text) or text[at - 1 :] == ",":
        found = _PASS.match(text, at)
        if found is None:
            raise FlintError(
                "FL408",
                f"{text[at:][:40]!r} is not the name of a pass",
                help="write reassociate,fuse-chains{blocks=shared}",
            )
        yield found[1], found[2] or ""
        at = found.end()


def _made(name: str, options: str) -> Pass:
    if name not in _PLACES:
        raise FlintError(
            "FL408",
            f"there is no pass '{name}'{nearest(name, list(_PLACES))}",
            help="the passes are " + ", ".join(_PLACES),
        )
    one = _pass_class(name)
    given = dict(_options(name, options, _types(one)))
    for field in fields(one):
        if field.default is MISSING and field.name not in given:
            what = f"{name}{{{_dashed(field.name)}=...}}"
            raise FlintError(
                "FL409", f"pass {name} needs its option {_dashed(field.name)}", help=what
            )
    return one(**given)


def _options(name: str, text: str, kinds: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    at = 0
    while text[at:].strip():
        found = _OPTION.match(text, at)
        if found is None:
            raise FlintError(
                "FL409",
                f"{text[at:].strip()[:40]!r} is not an option of {name}",
                help="options are name=value, separated by spaces",
            )
        option, at = found[1].replace("-", "_"), found.end()
        if option not in kinds:
            known = [_dashed(k) for k in kinds]
            raise FlintError(
                "FL409",
                f"pass {name} has no option '{found[1]}'{nearest(found[1], known)}",
                help=f"its options are {', '.join(known)}" if known else "it has none",
            )
        yield option, _value(f"{name}{{{found[1]}}}", found[2], kinds[option])


def _value(where: str, text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        values = re.findall(_VALUE, text)
        return tuple(_value(where, v, inner) for v in values if v != '""')
    word = text.strip('"')
    try:
        if kind is bool:
            return _WORDS[word]
        return _member(kind, word) if issubclass(kind, Enum) else kind(word)
    except (KeyError, ValueError):
        names = [m.name.lower() for m in kind] if issubclass(kind, Enum) else ["true", "false"]
        help = f"one of {', '.join(names)}" if kind not in (int, float, str) else None
        raise FlintError(
            "FL409", f"{where}: {text} is not of type {kind.__name__}", help=help
        ) from None


def _member(kind: type[Enum], word: str) -> Enum:
    return {m.name.lower(): m for m in kind}[word]


def _spelled(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_spelled, value)) or '""'
    if isinstance(value, bool | Enum):
        return (value.name if isinstance(value, Enum) else str(value)).lower()
    return spelled_word(value) if isinstance(value, str) else str(value)


def _dashed(name: str) -> str:
    return name.replace("_", "-")


@cache
def _types(one: type[Pass]) -> dict[str, Any]:
    hints = typing.get_type_hints(one)
    return {field.name: hints[field.name] for field in fields(one)}
