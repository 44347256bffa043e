"""Values that depend on data: what a fake tensor answers when the program reads it.

Fake tensors hold no data, so `.item()`, `.tolist()`, `nonzero` and mask indexing cannot be answered
by PyTorch. `Values` follows what can be known (constants, token counts under balanced routing) from
operator to operator, and answers reads from that, from the user's hints, or with FL233.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from flint.errors import FlintError
from flint.frontends.torch_private import OpOverload, schema_of, script_type, storage_address
from flint.frontends.torch_world.values.kinds import (
    KNOWN_LIMIT,
    Classes,
    Even,
    Known,
    Magnitude,
    Value,
    balanced_counts,
    even_counts,
    settled,
)
from flint.frontends.torch_world.values.magnitudes import MAKERS as SIGNED
from flint.frontends.torch_world.values.random import drawn, draws, is_drawn
from flint.frontends.torch_world.values.rules import Call, Found, Rule, rule_of

aten = torch.ops.aten
#: From the name of an operator and its arguments to what it finds, None if nothing is assumed.
Assumption = Callable[[str, Sequence[Any]], bool | None]
_PLACE = re.compile(r"\.py:\d+$")
_SLOT = "_flint_value"
#: So often a line may be told the same made-up value; texts are generated token by token.
MOST_REPEATS = 10_000


@dataclass(frozen=True)
class Surroundings:
    """What `Values` needs to know from whoever runs the program.

    `place` and `module` say where the program is (`train.py:88`, `layers.0.moe`).
    `without_modes` is a context in which operators compute with real tensors.
    `group_position` gives rank and size of a process group, from its name or itself.
    `call` runs an operator on fake tensors. `on_host` says which tensors are the host's.
    """

    place: Callable[[], str]
    module: Callable[[], str]
    without_modes: Callable[[], AbstractContextManager[object]]
    group_position: Callable[[Any], tuple[int, int]]
    call: Callable[[OpOverload, Sequence[Any], Mapping[str, Any]], object] = (
        lambda f, args, kwargs: f(*args, **kwargs)
    )
    on_host: Callable[[torch.Tensor], bool] = lambda tensor: False


class Values:
    """Runs operators on fake tensors and answers those that need data.

    `hints` maps globs over module paths, or `file.py:line`, to values. Raises FL233 for a value
    that neither the policy nor a hint gives, FL237 for a hint that does not fit.
    """

    def __init__(self, hints: Mapping[str, Any], around: Surroundings) -> None:
        self._hints = dict(hints)
        self._used: set[str] = set()
        self._around = around
        self._told: dict[str, dict[str, None]] = {}
        #: Lines at which the policy or a hint said how data falls into parts: tokens of experts.
        self.shares: dict[str, None] = {}
        self._repeats: dict[tuple[str, str, str], int] = {}
        self._writes: dict[int, int] = {}  # into the memory of known tensors
        self._ops: dict[OpOverload, _AskedOperator] = {}
        self._assumed: Assumption | None = None

    @contextmanager
    def assuming(self, assumed: Assumption) -> Iterator[None]:
        """Inside, comparisons find what `assumed` says, by name and arguments; None: as ever."""
        before, self._assumed = self._assumed, assumed
        try:
            yield
        finally:
            self._assumed = before

    def set_number(self, tensor: torch.Tensor, number: float) -> None:
        """Say what number a policy gives a tensor."""
        with self._around.without_modes():
            self.set(tensor, Known(torch.full(tuple(tensor.shape), number), made_up=True))

    @property
    def warnings(self) -> tuple[str, ...]:
        """One sentence for each place where a value was made up, in the order of the program."""
        unused = (f"hint '{key}' was never used" for key in self._hints if key not in self._used)
        told = (f"{what}: {_some(list(answers))}" for what, answers in self._told.items())
        return (*told, *unused)

    def run(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """`func(*args, **kwargs)`, or its answer where fake tensors have none."""
        answer = _ANSWERS.get(func)
        if answer is not None:
            return answer(self, func, args, kwargs)
        result = self._around.call(func, args, kwargs)
        if draws(func) and is_drawn(result) and self._around.on_host(result):
            self._draw(func, args, kwargs, result)
        else:
            self._follow(func, args, kwargs, result)
        return result

    def _draw(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
    ) -> None:
        """The host's random numbers are real: programs shuffle, crop and choose with them."""
        self._forget([result])
        with self._around.without_modes():
            real = drawn(func, args, kwargs, result, self.lookup)
        if real is not None:
            self.set(result, Known(real))

    def tolist(self, tensor: torch.Tensor) -> object:
        """`tensor.tolist()`."""
        value, dtype = self.lookup(tensor), tensor.dtype
        hint = self._hint(lambda given: _fits(given, tensor), modules=value is None)
        if hint is not None:
            self._share()
            return hint
        if isinstance(value, Known):
            with self._around.without_modes():
                numbers, flat = value.data.tolist(), value.data.flatten().tolist()
            if value.made_up:
                self._share()
                self._tell(*_counts(flat))
            return numbers
        if dtype.is_floating_point:
            self._tell(f".tolist() of {tensor.numel()} numbers", "1.0 each")
            with self._around.without_modes():
                return torch.ones(tuple(tensor.shape)).tolist()
        raise self._unknown(f".tolist() of a tensor {_shape(tensor)}", _list_hint(tensor))

    def numpy(self, tensor: torch.Tensor) -> Any:
        """`tensor.numpy()`: what is known, ones for numbers that are not, else FL233."""
        value = self.lookup(tensor)
        if isinstance(value, Known):
            if value.made_up:
                self._tell(
                    f".numpy() of {tensor.numel()} numbers", "as they follow from the policy"
                )
            with self._around.without_modes():
                return value.data.clone().numpy()
        if tensor.dtype.is_floating_point:
            self._tell(f".numpy() of {tensor.numel()} numbers", "1.0 each")
            with self._around.without_modes():
                return torch.ones(tuple(tensor.shape), dtype=tensor.dtype).numpy()
        raise self._unknown(f".numpy() of a tensor {_shape(tensor)}", _list_hint(tensor))

    def numbers(self, data: Any) -> Any:
        """A list of lists, as `torch.tensor` takes it, with numbers in the place of tensors."""
        if isinstance(data, (list, tuple)):
            return [self.numbers(entry) for entry in data]
        return data.tolist() if isinstance(data, torch.Tensor) else data

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The values of a tensor as a real one, None where they do not follow from the program."""
        value = self.lookup(tensor)
        return value.data if isinstance(value, Known) and not value.made_up else None

    def known_list(self, tensor: torch.Tensor) -> object:
        """The elements of a small tensor that follow from the program, None of any other."""
        real = self.known(tensor) if tensor.numel() <= KNOWN_LIMIT else None
        if real is None:
            return None
        with self._around.without_modes():
            return real.tolist()

    def lookup(self, tensor: torch.Tensor) -> Value | None:
        """What is known of a tensor now."""
        slot = getattr(tensor, _SLOT, None)
        if slot is not None:
            value, storage, writes = slot
            return value if self._writes.get(storage, 0) == writes else None
        constant = tensor if type(tensor) is torch.Tensor else getattr(tensor, "constant", None)
        if constant is None or constant.numel() > KNOWN_LIMIT:
            return None
        with self._around.without_modes():
            if type(tensor) is torch.Tensor:
                return Known(constant) if constant.device.type == "cpu" else None
            value = Known(constant.clone())
        self.set(tensor, value)
        return value

    def set(self, tensor: torch.Tensor, value: Value) -> None:
        """Say what is known of a tensor, until something writes into its memory."""
        storage = int(storage_address(tensor.untyped_storage()))
        setattr(tensor, _SLOT, (value, storage, self._writes.setdefault(storage, 0)))

    def _follow(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], result: object
    ) -> None:
        op = self._ops.get(func) or self._ops.setdefault(func, _AskedOperator.of(func))
        tensors = _tensors(args)
        if kwargs:
            tensors += _tensors(kwargs.values())
        known = [self.lookup(tensor) for tensor in tensors]
        any_known = any(value is not None for value in known)
        if self._assumed is not None and self._assume(op.name, args, result):
            return
        if not any_known and not op.always:
            self._forget(op.written(args, kwargs))
            return
        if op.is_c10d:
            self._collective(op.name, args)
            return
        found: Found = None
        if op.is_functional_collective:
            found = self._functional(op.name, args, result)
        else:
            found = self._compute(op, args, kwargs, result, known)
            if found is None and op.rule is not None:
                with self._around.without_modes():
                    found = op.rule(Call(args, kwargs, result, self.lookup))
        mirrored = bool(known) and all(isinstance(value, Known) for value in known)
        if not mirrored or found is None:
            self._forget(op.written(args, kwargs))
        self._store(result, found)

    def _assume(self, name: str, args: Sequence[Any], result: object) -> bool:
        assert self._assumed is not None, "only called where something is assumed"
        answer = self._assumed(name.rpartition("::")[2], args)
        if answer is None or not isinstance(result, torch.Tensor):
            return False
        with self._around.without_modes():
            self._store(result, settled(Fraction(int(answer)), result))
        return True

    def _compute(
        self,
        op: _AskedOperator,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: object,
        known: list[Value | None],
    ) -> Found:
        """The operator on real tensors, where all of its inputs are known."""
        exact = [value for value in known if isinstance(value, Known)]
        if len(exact) != len(known) or not op.is_computable(result, bool(known)):
            return None
        if "device" not in kwargs and not known:
            kwargs = {**kwargs, "device": "cpu"}
        real_args = [self._real(arg) for arg in args]
        real_kwargs = {key: self._real(arg) for key, arg in kwargs.items() if key != "pin_memory"}
        try:
            with self._around.without_modes(), torch.no_grad():
                real = op.func(*real_args, **real_kwargs)
        except (RuntimeError, NotImplementedError, TypeError):
            return None  # the host has no kernel for these types: nothing is known, then
        made_up = any(value.made_up for value in exact)
        if real is None:
            return ()  # lists updated in place
        if isinstance(real, torch.Tensor):
            return Known(real, made_up)
        if isinstance(real, (list, tuple)):
            return [Known(r, made_up) if isinstance(r, torch.Tensor) else None for r in real]
        return None

    def _real(self, arg: object) -> object:
        if isinstance(arg, torch.Tensor):
            value = self.lookup(arg)
            assert isinstance(value, Known), "only called where all inputs are known"
            return value.data
        if isinstance(arg, (list, tuple)):
            return [self._real(entry) for entry in arg]
        return "cpu" if isinstance(arg, torch.device) else arg

    def _collective(self, name: str, args: Sequence[Any]) -> None:
        """c10d operators, which write into tensors that they are given."""
        outputs, inputs, group = _c10d_operands(name, args)
        rank, size = self._around.group_position(group)
        values = [self.lookup(tensor) for tensor in inputs]
        self._forget(outputs)
        base = name.rpartition("::")[2]
        for index, output in enumerate(outputs):
            source = values[index % len(values)] if values else None
            with self._around.without_modes():
                value = _over_ranks(base, source, rank, size, _reduction(args), output.numel())
            if value is not None:
                self.set(output, value)

    def _functional(self, name: str, args: Sequence[Any], result: object) -> Value | None:
        """Collectives that return their result; the group comes last."""
        value = self.lookup(args[0]) if isinstance(args[0], torch.Tensor) else None
        if not isinstance(result, torch.Tensor):
            return None
        rank, size = self._around.group_position(args[-1])
        base = name.rpartition("::")[2]
        with self._around.without_modes():
            return _over_ranks(base, value, rank, size, _reduction(args), result.numel())

    def _store(self, result: object, found: Found) -> None:
        if found is None:
            return
        if isinstance(result, torch.Tensor):
            if isinstance(found, (Known, Even, Classes, Magnitude)):
                self.set(result, found)
            return
        if isinstance(result, (list, tuple)) and isinstance(found, (list, tuple)):
            for tensor, value in zip(result, found, strict=False):
                if isinstance(tensor, torch.Tensor) and value is not None:
                    self.set(tensor, value)

    def _forget(self, written: Sequence[Any]) -> None:
        for tensor in written:
            storage = int(storage_address(tensor.untyped_storage()))
            if storage in self._writes:
                self._writes[storage] += 1

    def _share(self) -> None:
        self.shares[self._around.place() or self._around.module() or "?"] = None

    def _tell(self, what: str, answer: str) -> None:
        place = self._around.place() or self._around.module() or "?"
        told = f"{place}: {what}"
        self._told.setdefault(told, {})[answer] = None
        self._guard(place, what, answer)

    def _guard(self, place: str, what: str, answer: str) -> None:
        """Raise FlintError FL239 at a line that is told the same again and again."""
        key = (place, what, answer)
        self._repeats[key] = self._repeats.get(key, 0) + 1
        if self._repeats[key] == MOST_REPEATS:
            raise FlintError(
                "FL239",
                f"the loop at {place} does not end: it was told {MOST_REPEATS:,} times that "
                f"{what} is {answer}",
                place=place,
                help=f'give the value that ends it: --hint "{place}=..."',
            )

    def _hint(self, fits: Callable[[Any], bool], places: bool = True, modules: bool = True) -> Any:
        """The first hint for this line or module for which `fits` is true, or None."""
        place, module = self._around.place(), self._around.module()
        for key, given in self._hints.items():
            by_place = _PLACE.search(key) is not None
            if by_place and not (places and _is_place(place, key)):
                continue
            if not by_place and not (modules and _is_inside(module, key)):
                continue
            if fits(given):
                self._used.add(key)
                return given
            if by_place:
                raise FlintError(
                    "FL237",
                    f"hint '{key}' is {given!r}, which does not fit the value read there",
                    place=place,
                    help="give a number for .item(), nonzero and masks, and a list of the "
                    "tensor's length for .tolist() and counts",
                )
        return None

    def _unknown(self, what: str, example: str) -> FlintError:
        place, module = self._around.place(), self._around.module()
        key = place or module
        return FlintError(
            "FL233",
            f"{what} depends on data, which a capture does not have",
            place=f"{place}  {module}".strip() or None,
            help=f'give the value: --hint "{key}={example}", or hints={{"{key}": {example}}}',
        )

    def _read_scalar(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool | int | float:
        tensor = args[0]
        value, dtype = self.lookup(tensor), tensor.dtype
        if isinstance(value, Known) and not value.made_up:
            return self._number(value)
        hint = self._hint(lambda given: isinstance(given, (bool, int, float)))
        if hint is not None:
            self._guard(self._around.place(), "its hint", str(hint))
            return bool(hint) if dtype == torch.bool else hint
        answer = self._number(value) if isinstance(value, Known) else _scalar(value, dtype)
        if answer is not None:
            self._tell(f".item() of {_indefinite(dtype)}", str(answer))
            return answer
        what = "the condition" if dtype == torch.bool else f".item() of {_indefinite(dtype)}"
        raise self._unknown(what, "true" if dtype == torch.bool else "1")

    def _number(self, value: Known) -> bool | int | float:
        with self._around.without_modes():
            number: bool | int | float = value.data.item()
        return number

    def _total(self, value: Known) -> int:
        with self._around.without_modes():
            return int(value.data.sum())

    def _nonzero(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        mask = args[0]
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
        hint = self._hint(lambda given: isinstance(given, int) and 0 <= given <= mask.numel())
        if hint is not None:
            return int(hint)
        value = self.lookup(mask)
        if isinstance(value, Known):
            with self._around.without_modes():
                return int(value.data.count_nonzero())
        if isinstance(value, Even) and value.level <= 1:
            count = round(value.level * int(mask.numel()))
            self._share()
            self._tell(f"{what} of a mask of {mask.numel()}, balanced", f"{count} are set")
            return count
        raise self._unknown(f"the number of elements that {what} finds in {_shape(mask)}", "1")

    def _masked_select(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        source, mask = args[0], args[1]
        return source.new_empty((self._number_set(mask, "masked_select"),))

    def _index(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """Masks among the indices become positions, as PyTorch does it on a real device."""
        source, indices = args[0], list(args[1])
        if not any(index is not None and _is_mask(index) for index in indices):
            result = func(*args, **kwargs)
            self._follow(func, args, kwargs, result)
            return result
        spread: list[Any] = []
        for index in indices:
            if index is None or not _is_mask(index):
                spread.append(index)
                continue
            positions = self._nonzero(func, [index], {})
            spread.extend(positions.select(1, column) for column in range(index.dim()))
        return func(source, spread, **kwargs)

    def _bincount(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        tokens = args[0]
        weights = args[1] if len(args) > 1 else kwargs.get("weights")
        least = int(args[2] if len(args) > 2 else kwargs.get("minlength", 0))
        value = self.lookup(tokens)
        bins = max(least, value.count if isinstance(value, Classes) else 0)
        if not bins:
            hint = self._hint(lambda given: isinstance(given, list) and bool(given))
            if hint is None:
                raise self._unknown("the length of bincount()", "[8, 8]")
            bins = len(hint)
        dtype = weights.dtype if weights is not None else torch.int64
        result = tokens.new_empty((bins,), dtype=dtype)
        if weights is None:
            self._count(result, tokens.numel(), bins)
        return result

    def _histc(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        bins = int(args[1] if len(args) > 1 else kwargs.get("bins", 100))
        result = args[0].new_empty((bins,))
        self._count(result, args[0].numel(), bins)
        return result

    def _count(self, result: torch.Tensor, total: int, bins: int) -> None:
        """Tokens per expert: the module's hint where one is given, balanced otherwise."""
        self._share()
        hint = self._hint(
            lambda given: isinstance(given, list) and len(given) == bins, places=False
        )
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

    def _unique(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        tensor = args[0]
        value = self.lookup(tensor)
        if isinstance(value, Classes):
            count = min(value.count, tensor.numel())
            self._tell(f"unique() of {tensor.numel()} indices", f"all {count} occur")
        else:
            hint = self._hint(lambda given: isinstance(given, int) and given > 0)
            if hint is None:
                raise self._unknown(f"the number of results of unique() of {_shape(tensor)}", "1")
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

    def _repeat_interleave(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        repeats = args[0]
        size = kwargs.get("output_size")
        value = self.lookup(repeats)
        if size is None:
            hint = self._hint(lambda given: isinstance(given, int) and given >= 0)
            if hint is not None:
                size = int(hint)
            elif isinstance(value, Known):
                size = self._total(value)
            else:
                raise self._unknown("the length of repeat_interleave()", "1")
        return repeats.new_empty((size,))

    def _equal(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """`torch.equal` and `torch.allclose`: known values, or one tensor twice."""
        left, right = (self.lookup(arg) for arg in args[:2])
        if isinstance(left, Known) and isinstance(right, Known):
            with self._around.without_modes():
                return bool(func(left.data, right.data, *args[2:], **kwargs))
        if args[0].shape != args[1].shape and func is aten.equal.default:
            return False
        if _are_one(args[0], args[1]):
            return True
        hint = self._hint(lambda given: isinstance(given, (bool, int)))
        if hint is None:
            raise self._unknown(f"torch.{schema_of(func).name.partition('::')[2]}()", "true")
        return bool(hint)

    def _pack(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of sequences one step after the other, and how many sequences each step has."""
        x, lengths = args[:2]
        sizes: Any = self.tolist(lengths)
        steps = [sum(size > step for size in sizes) for step in range(max(sizes))]
        data = x.new_empty((sum(sizes), *x.shape[2:]))
        counts = lengths.new_empty((len(steps),), dtype=torch.int64)
        known = self.lookup(lengths)
        with self._around.without_modes():
            made_up = not isinstance(known, Known) or known.made_up
            self.set(counts, Known(torch.tensor(steps), made_up))
        return data, counts

    def _ctc(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of each sequence, and its states at each step: a blank beside each target."""
        scores, target_lengths = args[0], args[3]
        steps, batch = scores.shape[:2]
        states = (batch, steps, 2 * max(target_lengths, default=0) + 1)
        return scores.new_empty((batch,)), scores.new_empty(states)

    def _least_squares(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[torch.Tensor, ...]:
        """Of matrices of full rank, which the driver for CUDA takes them to be."""
        a, b = args[0], args[1]
        *outer, rows, columns = a.shape
        sides = b.shape[-1:] if b.dim() == a.dim() else ()
        residuals = (*outer, *sides) if rows > columns else (0,)
        solution = b.new_empty((*outer, columns, *sides))
        rank, singular = a.new_empty((0,), dtype=torch.int64), a.new_empty((0,))
        return solution, b.new_empty(residuals), rank, singular

    def _unscale(self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> object:
        """The gradient scaler finds no overflow."""
        found = self.lookup(args[1])
        result = func(*args, **kwargs)
        if found is not None:
            self.set(args[1], found)
        return result

    def _unpack(
        self, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> torch.Tensor:
        """The gradient of sequences that were packed."""
        made: torch.Tensor = args[0].new_empty(args[1])
        return made


Answer = Callable[[Values, OpOverload, Sequence[Any], Mapping[str, Any]], object]

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

# Their rules hold whatever is known of the inputs.
_UNASKED = frozenset(
    f"aten::{name}"
    for name in [
        "topk",
        "argmax",
        "argsort",
        "multinomial",
        "eq",
        "ne",
        "isnan",
        "isinf",
        "isfinite",
        "isin",
        "zero_",
        "fill_",
    ]
) | {f"aten::{name}" for name in SIGNED}
_MAKERS = frozenset(
    f"aten::{name}"
    for name in [
        "zeros",
        "ones",
        "full",
        "zeros_like",
        "ones_like",
        "full_like",
        "new_zeros",
        "new_ones",
        "new_full",
        "randint",
        "randperm",
    ]
)
_COMPUTED_MAKERS = _MAKERS | {
    f"aten::{n}"
    for n in ("arange", "eye", "scalar_tensor", "linspace", "tril_indices", "triu_indices")
}


@dataclass(frozen=True, slots=True, eq=False)
class _AskedOperator:
    """What there is to know of an operator before it runs.

    `always` says that its results may be known when nothing is known of its inputs.
    """

    func: OpOverload
    name: str
    rule: Rule | None
    always: bool
    is_c10d: bool
    is_functional_collective: bool
    reproducible: bool
    writes: tuple[tuple[int, str], ...]

    @staticmethod
    def of(func: OpOverload) -> _AskedOperator:
        """Look it up, once for each operator."""
        schema = schema_of(func)
        name: str = schema.name
        collective = name.startswith("_c10d_functional::") and not name.endswith("wait_tensor")
        writes = (
            (index, argument.name)
            for index, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        return _AskedOperator(
            func=func,
            name=name,
            rule=rule_of(name),
            always=name in _UNASKED or name in _COMPUTED_MAKERS or name.endswith("lift_fresh"),
            is_c10d=name.startswith("c10d::"),
            is_functional_collective=collective,
            reproducible=name.startswith(("aten::", "prims::"))
            and "empty" not in name
            and torch.Tag.nondeterministic_seeded not in func.tags,
            writes=tuple(writes),
        )

    def is_computable(self, result: object, has_inputs: bool) -> bool:
        """Whether a small, reproducible result comes out of computing for real."""
        if not self.reproducible or not (has_inputs or self.name in _COMPUTED_MAKERS):
            return False
        results = result if isinstance(result, (list, tuple)) else (result,)
        return all(not isinstance(r, torch.Tensor) or r.numel() <= KNOWN_LIMIT for r in results)

    def written(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Tensors that the operator changes in place."""
        if self.is_c10d:
            return _c10d_operands(self.name, args)[0]
        given = (
            args[index] if index < len(args) else kwargs.get(name) for index, name in self.writes
        )
        return _tensors(given)


def _tensors(arguments: Iterable[object]) -> list[Any]:
    found: list[Any] = []
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            found.append(argument)
        elif isinstance(argument, (list, tuple)):
            found += _tensors(argument)
    return found


def _c10d_operands(name: str, args: Sequence[Any]) -> tuple[list[Any], list[Any], Any]:
    """Outputs, inputs and group of a c10d operator.

    Those with separate buffers name the output first; the others work in place.
    """
    groups = [arg for arg in args if isinstance(arg, torch.ScriptObject)]
    tensors = [arg for arg in args if _tensors([arg])]
    outputs = _tensors(tensors[:1])
    inputs = _tensors(tensors[1:2]) if len(tensors) > 1 else outputs
    if name.endswith(("::send", "::barrier")):
        outputs = []
    return outputs, inputs, groups[0] if groups else None


def _reduction(args: Sequence[Any]) -> str:
    """`sum`, `avg`, `max` ... of a collective's arguments, `sum` where none is given."""
    for arg in args:
        if isinstance(arg, str) and arg.lower() in ("sum", "avg", "max", "min", "product"):
            return arg.lower()
        if isinstance(arg, torch.ScriptObject) and "ReduceOp" in str(script_type(arg)):
            return str(torch.distributed.ReduceOp.RedOpType(int(arg.op())).name).lower()
    return "sum"


def _over_ranks(
    name: str, value: Value | None, rank: int, size: int, reduction: str, numel: int
) -> Value | None:
    """What a collective returns here when every rank of the group puts in the same value."""
    name = name.strip("_").replace("single", "")
    factor = size if reduction == "sum" else 1
    reduces = "reduce" in name
    if isinstance(value, Even):
        return Even(value.level * factor, value.made_up) if reduces else value
    if not isinstance(value, Known):
        return value if isinstance(value, Magnitude) or not reduces else None
    data = value.data.flatten()
    if name.startswith(("allreduce", "all_reduce")):
        data = data * factor
    elif name.startswith(("reduce_scatter", "reducescatter")):
        data = data.chunk(size)[rank] * factor if data.numel() % size == 0 else data[:0]
    elif name.startswith(("allgather", "all_gather")):
        data = data.repeat(max(numel // max(data.numel(), 1), 1))
    elif name.startswith(("alltoall_base", "all_to_all")):
        data = data.chunk(size)[rank].repeat(size) if data.numel() % size == 0 else data[:0]
    elif not name.startswith("broadcast"):
        return None
    shape = value.data.shape if data.numel() == value.data.numel() else data.shape
    return Known(data.reshape(shape), value.made_up) if data.numel() == numel else None


def _scalar(value: Value | None, dtype: torch.dtype) -> bool | int | float | None:
    """The policy for one number that is not known: None where it has none."""
    if isinstance(value, Even) and value.level.denominator == 1:
        return bool(value.level) if dtype == torch.bool else int(value.level)
    if dtype.is_floating_point:
        return float(value.level) if isinstance(value, Even) else 1.0
    return None


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _is_place(place: str, key: str) -> bool:
    return place == key or place.endswith("/" + key) or key.endswith("/" + place)


def _is_inside(module: str, glob: str) -> bool:
    """Whether the glob matches the module or one that holds it."""
    parts = module.split(".")
    return any(fnmatch.fnmatchcase(".".join(parts[:n]), glob) for n in range(1, len(parts) + 1))


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
    return str([1] * min(int(tensor.numel()), 4))


def _counts(numbers: list[Any]) -> tuple[str, str]:
    """What was read and the answer: `.tolist() of 16 token counts`, `balanced, 512 each`."""
    low, high = int(min(numbers, default=0)), int(max(numbers, default=0))
    each = f"{low} each" if low == high else f"{low} to {high} each"
    return f".tolist() of {len(numbers)} token counts", f"balanced, {each}"


def _some(answers: list[str]) -> str:
    """The first three of the answers that one line of the program got."""
    more = [f"and {len(answers) - 3} more"] if len(answers) > 3 else []
    return " ".join([", ".join(answers[:3]), *more])
