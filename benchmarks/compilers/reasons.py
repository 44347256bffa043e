"""Why programs differ from the compiled ones: for each, a section of docs/compilers.md."""

from __future__ import annotations

_TABLES = "[tables on two axes](#tables-on-two-axes)"
_SUMS = "[sums that are not merged](#sums-that-are-not-merged)"
_SMALL = "[not looked into](#not-looked-into)"

#: Reason by name of the program.
REASONS: dict[str, str] = {
    **dict.fromkeys(("gpt2 fsdp table by rows", "gpt2 fsdp tp"), _TABLES),
    "gpt2 fsdp tp table by hidden": _TABLES,
    **dict.fromkeys(("vit data", "encoder decoder tp", "context parallel"), _SUMS),
    "gpt2 fsdp": _SMALL,
    "op_cond": "[an operation that is the result](#an-operation-that-is-the-result)",
    "ulysses": "[constants are exchanged](#constants-are-exchanged)",
}
