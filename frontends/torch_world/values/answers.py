"""Values that depend on data: what a fake tensor answers when the program reads it.

Fake tensors hold no data, so `.item()`, `.tolist()`, `nonzero` and mask indexing cannot be answered
by PyTorch. `Values` follows what can be known (constants, token counts under balanced routing) from
operator to operator, and answers from that, from the user's hints, or with FL233.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

import torch

from flint.errors import FlintError
from flint.frontends.torch_private import OpOverload, schema_of, storage_address
from flint.frontends.torch_world.values.following import Following
from flint.frontends.torch_world.values.kinds import (
    KNOWN_LIMIT,
    Classes,
    Even,
    Known,
    Value,
    balanced_counts,
    even_counts,
)

# Random numbers that are drawn on the host: these are real, as everything there is.

#: Indices are drawn up to this many, as a shuffled data set is read; numbers up to KNOWN_LIMIT.
INDEX_LIMIT = 2**24
Lookup = Callable[[torch.Tensor], Value | None]


@cache
def draws(func: OpOverload) -> bool:
    """Whether an operator draws random numbers and nothing else."""
    name: str = schema_of(func).name
    is_random = torch.Tag.nondeterministic_seeded in func.tags
    return bool(is_random and name.startswith("aten::") and "dropout" not in name)


def is_drawn(result: object) -> bool:
    """Whether a result is not too large to be drawn for real."""
    if not isinstance(result, torch.Tensor):
        return False
    return bool(result.numel() <= (KNOWN_LIMIT if result.dtype.is_floating_point else INDEX_LIMIT))


def drawn(
    func: OpOverload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: torch.Tensor,
    lookup: Lookup,
) -> torch.Tensor | None:
    """What a real tensor holds after `func`; None where it depends on what is not known.

    Runs outside all modes.
    """
    schema = schema_of(func)
    written = {a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write}
    names = [a.name for a in schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    only_shape = schema.name.endswith("_like")
    for name, arg in given.items():
        if not isinstance(arg, torch.Tensor):
            continue
        value = lookup(arg)
        if name in written or only_shape:
            given[name] = torch.empty(tuple(arg.shape), dtype=arg.dtype)
        elif isinstance(value, Known):
            given[name] = value.data
        else:
            return None
    for name in ("device", "pin_memory"):
        given.pop(name, None)
    real = _called(func, names, given)
    assert isinstance(real, torch.Tensor) and real.shape == result.shape, "as the fake one"
    return real


def _called(func: OpOverload, names: Sequence[str], given: Mapping[str, Any]) -> Any:
    """A call by name; operators take `self` by position alone."""
    first = names[0] if names and names[0] in given else None
    rest = {name: value for name, value in given.items() if name != first}
    return func(given[first], **rest) if first is not None else func(**rest)


aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class DataQuestion:
    """A call of an operator whose result depends on data."""

    func: OpOverload
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def option(self, index: int, name: str, default: object = None) -> Any:
        """The argument at `index`, or called `name`."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)


class Values(Following):
    """Runs operators on fake tensors and answers those that need data.

    `hints` maps globs over module paths, or `file.py:line`, to values. Raises FL233 for a value
    that neither the policy nor a hint gives, FL237 for a hint that does not fit.
    """

    def run(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """`func(*args, **kwargs)`, or its answer where fake tensors have none."""
        answer = _ANSWERS.get(func)
        if answer is not None:
            found = self._exact(func, args, kwargs) if func in _SIZED_BY_DATA else None
            return answer(self, DataQuestion(func, args, kwargs)) if found is None else found
        result = self._around.call(func, args, kwargs)
        if draws(func) and is_drawn(result) and self._around.on_host(result):
            self._draw(func, args, kwargs, result)
        else:
            self.follow(func, args, kwargs, result)
        return result

    def _exact(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor | tuple[torch.Tensor, ...] | None:
        """The results, with their values, of an operator all of whose data follow from the program."""
        given = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
        if any(self.known(tensor) is None for tensor in given):
            return None
        with self._around.without_modes():
            real = func(*map(self._real, args), **{k: self._real(a) for k, a in kwargs.items()})
        made = []
        for data in real if isinstance(real, tuple) else (real,):
            made.append(given[0].new_empty(tuple(data.shape), dtype=data.dtype))
            self.set(made[-1], Known(data))
        return tuple(made) if isinstance(real, tuple) else made[0]

    def _draw(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """The host's random numbers are real: programs shuffle, crop and choose with them."""
        self.forget([result])
        with self._around.without_modes():
            real = drawn(func, args, kwargs, result, self.lookup)
        if real is not None:
            self.set(result, Known(real))

    def tolist(self, tensor: torch.Tensor) -> object:
        value, dtype = self.lookup(tensor), tensor.dtype
        hint = self.hint(lambda given: _fits(given, tensor), modules=value is None)
        if hint is not None:
            self.share()
            return hint
        if isinstance(value, Known):
            with self._around.without_modes():
                numbers, flat = value.data.tolist(), value.data.flatten().tolist()
            if value.made_up:
                self.share()
                self.tell(*_counts(flat))
            return numbers
        if dtype.is_floating_point:
            self.tell(f".tolist() of {tensor.numel()} numbers", "1.0 each")
            with self._around.without_modes():
                return torch.ones(tuple(tensor.shape)).tolist()
        example, entries = _list_hint(tensor), tensor.numel()
        raise self.unknown(f".tolist() of a tensor {_shape(tensor)}", example, entries)

    def numpy(self, tensor: torch.Tensor) -> Any:
        """`tensor.numpy()`: what is known, ones for numbers that are not, else FL233."""
        value = self.lookup(tensor)
        if isinstance(value, Known):
            if value.made_up:
                self.tell(f".numpy() of {tensor.numel()} numbers", "as they follow from the policy")
            with self._around.without_modes():
                return value.data.clone().numpy()
        if (hint := self.hint(lambda given: _fits(given, tensor))) is not None:
            self.share()
            with self._around.without_modes():
                return torch.tensor(hint, dtype=tensor.dtype).numpy()
        if tensor.dtype.is_floating_point:
            self.tell(f".numpy() of {tensor.numel()} numbers", "1.0 each")
            with self._around.without_modes():
                return torch.ones(tuple(tensor.shape), dtype=tensor.dtype).numpy()
        example, entries = _list_hint(tensor), tensor.numel()
        raise self.unknown(f".numpy() of a tensor {_shape(tensor)}", example, entries)

    def numbers(self, data: Any) -> Any:
        """A list of lists, as `torch.tensor` takes it, with numbers instead of tensors."""
        if isinstance(data, (list, tuple)):
            return [self.numbers(entry) for entry in data]
        return data.tolist() if isinstance(data, torch.Tensor) else data

    def _read_scalar(self, asked: DataQuestion) -> bool | int | float:
        tensor = asked.args[0]
        value, dtype = self.lookup(tensor), tensor.dtype
        if isinstance(value, Known) and not value.made_up:
            return self._number(value)
        hint = self.hint(lambda given: isinstance(given, (bool, int, float)))
        if hint is not None:
            self.guard(self._around.place(), "its hint", str(hint))
            return bool(hint) if dtype == torch.bool else hint
        answer = self._number(value) if isinstance(value, Known) else _scalar(value, dtype)
        if answer is not None:
            self.tell(f".item() of {_indefinite(dtype)}", str(answer))
            return answer
        what = "the condition" if dtype == torch.bool else f".item() of {_indefinite(dtype)}"
        raise self.unknown(what, "true" if dtype == torch.bool else "1")

    def _number(self, value: Known) -> bool | int | float:
        with self._around.without_modes():
            number: bool | int | float = value.data.item()
        return number

    def _total(self, value: Known) -> int:
        with self._around.without_modes():
            return int(value.data.sum())

    def _nonzero(self, asked: DataQuestion) -> torch.Tensor:
        mask = asked.args[0]
        value = self.lookup(mask)
        if isinstance(value, Known):
            with self._around.without_modes():
                real = value.data.nonzero()
            result = mask.new_empty(tuple(real.shape), dtype=torch.int64)
            self.set(result, Known(real, value.made_up))
            return result
        count = self._number_set(mask, "nonzero()")
        return mask.new_empty((count, mask.dim()), dtype=torch.int64)

    def _number_set(self, mask: torch.Tensor, what: str) -> int:
        """How many elements of a mask are true."""
        hint = self.hint(lambda given: isinstance(given, int) and 0 <= given <= mask.numel())
        if hint is not None:
            return int(hint)
        value = self.lookup(mask)
        if isinstance(value, Known):
            with self._around.without_modes():
                return int(value.data.count_nonzero())
        if isinstance(value, Even) and value.level <= 1:
            count = round(value.level * int(mask.numel()))
            if value.made_up:
                self.share()
                self.tell(f"{what} of a mask of {mask.numel()}, balanced", f"{count} are set")
            return count
        raise self.unknown(f"the number of elements that {what} finds in {_shape(mask)}", "1")

    def _masked_select(self, asked: DataQuestion) -> torch.Tensor:
        source, mask = asked.args[0], asked.args[1]
        return source.new_empty((self._number_set(mask, "masked_select"),))

    def _index(self, asked: DataQuestion) -> object:
        """Masks among the indices become positions, as PyTorch does it on a real device."""
        source, indices = asked.args[0], list(asked.args[1])
        if not any(index is not None and _is_mask(index) for index in indices):
            result = asked.func(*asked.args, **asked.kwargs)
            self.follow(asked.func, asked.args, asked.kwargs, result)
            return result
        spread: list[Any] = []
        for index in indices:
            if index is None or not _is_mask(index):
                spread.append(index)
                continue
            positions = self._nonzero(DataQuestion(asked.func, [index], {}))
            spread.extend(positions.select(1, column) for column in range(index.dim()))
        return asked.func(source, spread, **asked.kwargs)

    def _bincount(self, asked: DataQuestion) -> torch.Tensor:
        tokens = asked.args[0]
        weights = asked.option(1, "weights")
        least = int(asked.option(2, "minlength", 0))
        value = self.lookup(tokens)
        bins = max(least, value.count if isinstance(value, Classes) else 0)
        if not bins:
            hint = self.hint(lambda given: isinstance(given, list) and bool(given))
            if hint is None:
                raise self.unknown("the length of bincount()", "[8, 8]")
            bins = len(hint)
        dtype = weights.dtype if weights is not None else torch.int64
        result = tokens.new_empty((bins,), dtype=dtype)
        if weights is None:
            self._count(result, tokens.numel(), bins)
        return result

    def _histc(self, asked: DataQuestion) -> torch.Tensor:
        bins = int(asked.option(1, "bins", 100))
        result = asked.args[0].new_empty((bins,))
        self._count(result, asked.args[0].numel(), bins)
        return result

    def _count(self, result: torch.Tensor, total: int, bins: int) -> None:
        """Tokens per expert: the module's hint where one is given, balanced otherwise."""
        self.share()
        hint = self.hint(lambda given: isinstance(given, list) and len(given) == bins, places=False)
        if hint is None:
            with self._around.without_modes():
                self.set(result, even_counts(Fraction(total, bins), (bins,), result.dtype))
            return
        if sum(hint) != total:
            raise FlintError(
                "FL237",
                f"the hint for '{self._around.module()}' counts {sum(hint)} of {total} tokens",
                place=self._around.place() or None,
                help=f"give {bins} counts whose sum is {total}",
            )
        with self._around.without_modes():
            self.set(result, Known(torch.tensor(hint).to(result.dtype)))

    def _unique(self, asked: DataQuestion) -> tuple[torch.Tensor, ...]:
        tensor = asked.args[0]
        value = self.lookup(tensor)
        if isinstance(value, Classes):
            count = min(value.count, tensor.numel())
            self.tell(f"unique() of {tensor.numel()} indices", f"all {count} occur")
        else:
            hint = self.hint(lambda given: isinstance(given, int) and given > 0)
            if hint is None:
                raise self.unknown(f"the number of results of unique() of {_shape(tensor)}", "1")
            count = int(hint)
        values = tensor.new_empty((count,))
        inverse = tensor.new_empty(tuple(tensor.shape), dtype=torch.int64)
        counts = tensor.new_empty((count,), dtype=torch.int64)
        spread = balanced_counts(tensor.numel(), count) if count else []
        self.set(inverse, Classes(max(count, 1)))
        with self._around.without_modes():
            self.set(counts, Known(torch.tensor(spread), made_up=True))
            if isinstance(value, Classes):
                self.set(values, Known(torch.arange(count).to(tensor.dtype), made_up=True))
        return values, inverse, counts

    def _repeat_interleave(self, asked: DataQuestion) -> torch.Tensor:
        repeats = asked.args[0]
        size = asked.kwargs.get("output_size")
        value = self.lookup(repeats)
        if size is None:
            hint = self.hint(lambda given: isinstance(given, int) and given >= 0)
            if hint is not None:
                size = int(hint)
            elif isinstance(value, Known):
                size = self._total(value)
            else:
                raise self.unknown("the length of repeat_interleave()", "1")
        return repeats.new_empty((size,))

    def _equal(self, asked: DataQuestion) -> bool:
        """`torch.equal` and `torch.allclose`: known values, or one tensor twice."""
        left, right = (self.lookup(arg) for arg in asked.args[:2])
        if isinstance(left, Known) and isinstance(right, Known):
            with self._around.without_modes():
                return bool(asked.func(left.data, right.data, *asked.args[2:], **asked.kwargs))
        if asked.args[0].shape != asked.args[1].shape and asked.func is aten.equal.default:
            return False
        if _are_one(asked.args[0], asked.args[1]):
            return True
        hint = self.hint(lambda given: isinstance(given, (bool, int)))
        if hint is None:
            raise self.unknown(f"torch.{schema_of(asked.func).name.partition('::')[2]}()", "true")
        return bool(hint)

    def _pack(self, asked: DataQuestion) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of sequences one step after the other, and how many sequences each step has."""
        x, lengths = asked.args[:2]
        sizes: Any = self.tolist(lengths)
        steps = [sum(size > step for size in sizes) for step in range(max(sizes))]
        data = x.new_empty((sum(sizes), *x.shape[2:]))
        counts = lengths.new_empty((len(steps),), dtype=torch.int64)
        known = self.lookup(lengths)
        with self._around.without_modes():
            made_up = not isinstance(known, Known) or known.made_up
            self.set(counts, Known(torch.tensor(steps), made_up))
        return data, counts

    def _ctc(self, asked: DataQuestion) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each sequence, and its states at each step: a blank beside each target."""
        scores, target_lengths = asked.args[0], asked.args[3]
        steps, batch = scores.shape[:2]
        states = (batch, steps, 2 * max(target_lengths, default=0) + 1)
        return scores.new_empty((batch,)), scores.new_empty(states)

    def _least_squares(self, asked: DataQuestion) -> tuple[torch.Tensor, ...]:
        """Of matrices of full rank, which the driver for CUDA takes them to be."""
        a, b = asked.args[0], asked.args[1]
        *outer, rows, columns = a.shape
        sides = b.shape[-1:] if b.dim() == a.dim() else ()
        residuals = (*outer, *sides) if rows > columns else (0,)
        solution = b.new_empty((*outer, columns, *sides))
        rank, singular = a.new_empty((0,), dtype=torch.int64), a.new_empty((0,))
        return solution, b.new_empty(residuals), rank, singular

    def _unscale(self, asked: DataQuestion) -> object:
        """The gradient scaler finds no overflow."""
        found = self.lookup(asked.args[1])
        result = asked.func(*asked.args, **asked.kwargs)
        if found is not None:
            self.set(asked.args[1], found)
        return result

    def _unpack(self, asked: DataQuestion) -> torch.Tensor:
        """The gradient of sequences that were packed."""
        made: torch.Tensor = asked.args[0].new_empty(asked.args[1])
        return made


#: Operators whose results have values that follow from all of their data, or sizes that do.
_SIZED_BY_DATA = frozenset(
    (
        *(aten.bincount.default, aten.histc.default, aten._unique2.default),
        *(aten.unique_consecutive.default, aten.unique_dim.default, aten.repeat_interleave.Tensor),
    )
)
Answer = Callable[[Values, DataQuestion], object]

_ANSWERS: dict[OpOverload, Answer] = {
    aten._local_scalar_dense.default: Values._read_scalar,
    aten.item.default: Values._read_scalar,
    aten.nonzero.default: Values._nonzero,
    aten.masked_select.default: Values._masked_select,
    aten.index.Tensor: Values._index,
    aten.bincount.default: Values._bincount,
    aten.histc.default: Values._histc,
    aten._unique2.default: Values._unique,
    aten.unique_consecutive.default: Values._unique,
    aten.unique_dim.default: Values._unique,
    aten.repeat_interleave.Tensor: Values._repeat_interleave,
    aten._pack_padded_sequence.default: Values._pack,
    aten._pack_padded_sequence_backward.default: Values._unpack,
    aten._ctc_loss.default: Values._ctc,
    aten.linalg_lstsq.default: Values._least_squares,
    aten.equal.default: Values._equal,
    aten.allclose.default: Values._equal,
    aten._amp_foreach_non_finite_check_and_unscale_.default: Values._unscale,
}


def _scalar(value: Value | None, dtype: torch.dtype) -> bool | int | float | None:
    """The policy for one number that is not known: None where it has none."""
    if isinstance(value, Even) and value.level.denominator == 1:
        return bool(value.level) if dtype == torch.bool else int(value.level)
    if dtype.is_floating_point:
        return float(value.level) if isinstance(value, Even) else 1.0
    return None


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _fits(given: object, tensor: torch.Tensor) -> bool:
    if tensor.dim() == 0:
        return isinstance(given, (bool, int, float))
    return isinstance(given, list) and len(given) == tensor.shape[0]


def _are_one(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two tensors are the same elements of one memory."""
    if left is right:
        return True
    stored = (storage_address(t.untyped_storage()) for t in (left, right))
    same = len(set(stored)) == 1 and left.storage_offset() == right.storage_offset()
    return same and left.shape == right.shape and left.stride() == right.stride()


def _shape(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _indefinite(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"{'an' if name.startswith('int') else 'a'} {name} tensor"


def _list_hint(tensor: torch.Tensor) -> str:
    if tensor.dim() != 1:
        return "[[1, ...], ...]"
    return str([1] * len(tensor)) if len(tensor) <= 8 else "[1, 1, ...]"


def _counts(numbers: list[Any]) -> tuple[str, str]:
    """What was read and the answer: `.tolist() of 16 token counts`, `balanced, 512 each`."""
    low, high = int(min(numbers, default=0)), int(max(numbers, default=0))
    each = f"{low} each" if low == high else f"{low} to {high} each"
    return f".tolist() of {len(numbers)} token counts", f"balanced, {each}"
