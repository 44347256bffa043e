"""Follows what is known of tensors from operator to operator, and through collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from flint.frontends.torch_private import OpOverload, schema_of, script_type, storage_address
from flint.frontends.torch_world.values.hints import Hints, Surroundings
from flint.frontends.torch_world.values.kinds import (
    KNOWN_LIMIT,
    Classes,
    Even,
    Known,
    Magnitude,
    Value,
    settled,
)
from flint.frontends.torch_world.values.rules import MAKERS as SIGNED
from flint.frontends.torch_world.values.rules import Call, Found, Rule, rule_of

#: From the name of an operator and its arguments to what it finds, None if nothing is assumed.
Assumption = Callable[[str, Sequence[Any]], bool | None]
_SLOT = "_flint_value"


class Following(Hints):
    """Runs operators for real where all inputs are known, and asks rules where they are not."""

    def __init__(self, hints: Mapping[str, Any], around: Surroundings) -> None:
        super().__init__(hints, around)
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

    def follow(
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
            self.forget(op.written(args, kwargs))
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
            self.forget(op.written(args, kwargs))
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
        self.forget(outputs)
        base = name.rpartition("::")[2]
        if base.startswith("broadcast"):
            values = [self._sent(args[1], int(args[2]), value) for value in values]
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
        if base.startswith("broadcast"):
            value = self._sent(args[-1], int(args[1]), value)
        with self._around.without_modes():
            return _over_ranks(base, value, rank, size, _reduction(args), result.numel())

    def _sent(self, group: Any, root: int, own: Value | None) -> Value | None:
        """What a broadcast brings: the root's value if it is known, else the same as here."""
        exact = own.data if isinstance(own, Known) and not own.made_up else None
        with self._around.without_modes():
            found = self._around.sent(group, root, exact)
        return own if found is exact or found is None else Known(found)

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

    def forget(self, written: Sequence[Any]) -> None:
        for tensor in written:
            storage = int(storage_address(tensor.untyped_storage()))
            if storage in self._writes:
                self._writes[storage] += 1


# Their rules hold whatever is known of the inputs.
_UNASKED = (
    frozenset(
        (
            *("topk", "argmax", "argsort", "multinomial", "eq", "ne", "isnan", "isinf"),
            *("isfinite", "isin", "zero_", "fill_"),
        )
    )
    | SIGNED
)
_MAKERS = (
    "zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full randint randperm"
)
_COMPUTED_MAKERS = frozenset(
    f"{_MAKERS} arange eye scalar_tensor linspace tril_indices triu_indices".split()
)


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
            always=_is_of_aten(name, _UNASKED | _COMPUTED_MAKERS)
            or name.endswith(("lift_fresh", "::broadcast", "::broadcast_")),
            is_c10d=name.startswith("c10d::"),
            is_functional_collective=collective,
            reproducible=name.startswith(("aten::", "prims::"))
            and "empty" not in name
            and torch.Tag.nondeterministic_seeded not in func.tags,
            writes=tuple(writes),
        )

    def is_computable(self, result: object, has_inputs: bool) -> bool:
        """Whether a small, reproducible result comes out of computing for real."""
        if not self.reproducible or not (has_inputs or _is_of_aten(self.name, _COMPUTED_MAKERS)):
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


def _is_of_aten(name: str, listed: frozenset[str]) -> bool:
    space, _, operator = name.partition("::")
    return space == "aten" and operator in listed


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
