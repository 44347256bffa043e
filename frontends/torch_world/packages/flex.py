"""FlexAttention: one kernel each way, of the blocks that its mask leaves.

PyTorch compiles it for CUDA alone. Which blocks are left says the mask itself: it is evaluated for
real, on the host, for every pair of a query and a key.
"""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from flint.frontends.torch_private import FakeTensor, without_modes
from flint.frontends.torch_world.packages.attention import Square, attend
from flint.frontends.torch_world.packages.package import tell
from flint.frontends.torch_world.runtime.patching import after_import

MODULE = "torch.nn.attention.flex_attention"
#: Pairs of queries and keys that a mask is asked for; of longer sequences some rows of blocks are.
_MOST_PAIRS = 1 << 31
_SCORES = "_flint_scores"


@contextlib.contextmanager
def flex_replaced() -> Iterator[None]:
    """Inside, `flex_attention` is recorded as a kernel."""
    undo: list[Callable[[], None]] = []

    def replace_it() -> None:
        module: Any = sys.modules[MODULE]
        original = module.flex_attention
        module.flex_attention = flex_attention
        undo.append(lambda: setattr(module, "flex_attention", original))

    with after_import(MODULE, replace_it):
        try:
            yield
        finally:
            for each in undo:
                each()


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Attention of (sequences, heads, length, size); changes of scores cost nothing beside products."""
    queries, keys = query.shape[-2], key.shape[-2]
    square = Square(query.shape[0] * query.shape[1], queries, keys)
    if block_mask is not None:
        scores = scores_of(block_mask)
        if scores < queries * keys:
            square = replace(square, keys=max(-(-scores // queries), 1), scores=scores)
    out, lse = attend(query, key, value, square, of="flex")
    lse = lse.view(query.shape[:-1])
    if return_aux is not None:
        most = torch.empty_like(lse) if return_aux.max_scores else None
        kinds: Any = sys.modules[MODULE]
        return out, kinds.AuxOutput(lse=lse if return_aux.lse else None, max_scores=most)
    return (out, lse) if return_lse else out


def scores_of(block_mask: Any) -> int:
    """Scores of one head in blocks that a mask does not leave out whole, on average over heads."""
    known: int | None = getattr(block_mask, _SCORES, None)
    if known is None:
        heads = int(block_mask.kv_num_blocks.shape[1])
        known = _measured(block_mask.mask_mod, heads, block_mask.seq_lengths, block_mask.BLOCK_SIZE)
        setattr(block_mask, _SCORES, known)
    return known


def _measured(mask: Any, heads: int, lengths: tuple[int, int], block: Any) -> int:
    on_host = _Hosted()
    hosted = on_host.function(mask)
    with without_modes(), torch.no_grad():
        try:
            found = [_blocks(hosted, head, lengths, block) for head in range(heads)]
        except Exception as error:  # noqa: BLE001 - the user's function
            tell(
                f"the mask of FlexAttention ({_place(mask)}) could not be evaluated "
                f"({type(error).__name__}): all of its blocks are counted"
            )
            return lengths[0] * lengths[1]
    if on_host.zeros:
        tell(
            f"the mask of FlexAttention ({_place(mask)}) reads tensors, which hold no data: its "
            "blocks are counted as if the tensors held zeros (all tokens in one document)"
        )
    return sum(found) // heads


def _blocks(mask: Any, head: int, lengths: tuple[int, int], block: tuple[int, int]) -> int:
    """Scores in the blocks of one head that hold any, up to the ends of the sequences."""
    queries, keys = lengths
    rows, columns = block
    starts = list(range(0, queries, rows))
    step = max(queries * keys // _MOST_PAIRS, 1)
    total = 0
    of_keys = torch.arange(keys)
    widths = torch.tensor([min(columns, keys - at) for at in range(0, keys, columns)])
    index = (torch.tensor(0), torch.tensor(head))
    for start in starts[::step]:
        of_queries = torch.arange(start, min(start + rows, queries))
        seen = mask(*index, of_queries[:, None], of_keys[None, :])
        seen = torch.as_tensor(seen).expand(len(of_queries), keys).any(0)
        padded = torch.nn.functional.pad(seen, (0, len(widths) * columns - keys))
        left = padded.view(-1, columns).any(1)
        total += int((widths * left).sum()) * len(of_queries)
    return total * len(starts) // len(starts[::step])


class _Hosted:
    """Copies of functions whose captured tensors are on the host: known ones, or zeros."""

    def __init__(self) -> None:
        self.zeros = 0
        self._made: dict[int, Any] = {}

    def function(self, given: Any) -> Any:
        if not isinstance(given, types.FunctionType):
            return given
        if id(given) not in self._made:
            self._made[id(given)] = given  # of one that refers to itself
            cells = tuple(
                types.CellType(self._value(c.cell_contents)) for c in given.__closure__ or ()
            )
            names = {n: self._value(v) for n, v in given.__globals__.items() if _is_tensor(v)}
            scope = {**given.__globals__, **names} if names else given.__globals__
            made = types.FunctionType(
                given.__code__, scope, given.__name__, given.__defaults__, cells
            )
            made.__kwdefaults__ = given.__kwdefaults__
            self._made[id(given)] = made
        return self._made[id(given)]

    def _value(self, given: Any) -> Any:
        if _is_tensor(given):
            return self._tensor(given)
        if isinstance(given, tuple | list):
            return type(given)(self._value(v) for v in given)
        return self.function(given)

    def _tensor(self, given: Any) -> Any:
        slot = getattr(given, "_flint_value", None)
        known = getattr(slot[0], "data", None) if slot else None
        if isinstance(known, torch.Tensor):
            return known
        self.zeros += 1
        with without_modes():
            return torch.zeros(tuple(given.shape), dtype=given.dtype, device="cpu")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, FakeTensor)


def _place(mask: Any) -> str:
    code = getattr(mask, "__code__", None)
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}" if code else str(mask)
