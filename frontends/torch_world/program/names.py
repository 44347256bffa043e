"""Names of recorded operators: the opcode of a row, and what an operator does whatever its form."""

from __future__ import annotations

from functools import lru_cache

from flint.frontends.torch_world.record.recording import Event

#: Lists of tensors in one call.
FOREACH = "_foreach_"
_ATTENTION_IS_CAUSAL = ("is_causal", "causal")


def opcode_of(event: Event) -> str:
    """`aten.mm` for `aten.mm.default`; `[causal]` or a reduction other than the sum is added.

    In-place operators keep their underscore (`aten.add_`).
    """
    opcode = without_overload(event.op)
    if event.comm is not None and event.comm.reduction not in ("", "sum"):
        return f"{opcode}[{event.comm.reduction}]"
    if ("attention" in opcode or "_attn" in opcode) and is_causal(event):
        return f"{opcode}[causal]"
    return opcode


def is_causal(event: Event) -> bool:
    """Whether an attention kernel masks what lies in the future (it may skip about half)."""
    if any(event.attributes.get(name) for name in _ATTENTION_IS_CAUSAL):
        return True
    return bool(event.attributes.get("custom_mask_type"))


@lru_cache(maxsize=4096)
def without_overload(op: str) -> str:
    """`aten.mm` for `aten.mm.default`; names without an overload stay."""
    return ".".join(op.split(".")[:2])


@lru_cache(maxsize=4096)
def base_name(op: str) -> str:
    """`add` for `aten.add_.Tensor`, `aten._foreach_add_.List` and `aten.add.out`.

    "" for operators that are not PyTorch's own.
    """
    parts = op.split(".")
    if parts[0] not in ("aten", "torch_attn") or len(parts) < 2:
        return ""
    name = parts[1].removeprefix(FOREACH)
    return name if name.startswith("__") else name.removesuffix("_")


def is_foreach(op: str) -> bool:
    """Whether the operator takes lists of tensors and does the same to each."""
    return op.startswith(f"aten.{FOREACH}")


def stream_names(streams: tuple[str, ...]) -> tuple[str, ...]:
    """Names of a program's streams: the first is `compute`, and no two are equal."""
    names = ["compute"]
    for index, name in enumerate(streams[1:], start=1):
        wanted = name or f"stream{index}"
        names.append(f"{wanted}.{index}" if wanted in names else wanted)
    return tuple(names)
