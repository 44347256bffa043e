"""Operator and arguments -> an event as a recording has it, whose work PyTorch's rules know."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from flint.frontends.torch_world.program.names import FOREACH
from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.work import PER_ELEMENT, is_known, work_of
from flint.frontends.torch_world.record.recording import Event, TensorInfo
from flint.ir.op_class import ELEMENTWISE, OpClass
from flint.passes.work.work import Work
from flint.tools.measure.profiles.operators import moves, packages, products, rows
from flint.tools.measure.profiles.operators.arguments import GivenTensor, SignatureArguments
from flint.tools.measure.profiles.operators.call import (
    CallEffects,
    Form,
    OperatorCall,
    broadcast,
    lies_as,
    tensor,
)
from flint.tools.measure.profiles.operators.types import element_type, promoted
from flint.tools.measure.profiles.profile import Signature

# Operators element by element, and on lists of tensors: shapes of results.

#: Operators whose results are truth values.
_COMPARING = frozenset(
    ("eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not", "isin")
    + ("logical_and", "logical_or", "logical_xor")
)
#: Operators that make floating point of whole numbers.
_FLOATING = frozenset(
    ("div", "sqrt", "rsqrt", "exp", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh")
    + ("sigmoid", "reciprocal", "erf", "expm1", "atan", "atan2")
)


def element_by_element(call: OperatorCall) -> CallEffects | None:
    """Operands are stretched to one shape; `where` reads its condition, too."""
    tensors = call.given.tensors
    if not tensors:
        return None
    if call.in_place:
        return CallEffects(tensors, (tensors[0],), (0,))
    valued = tensors[1:] if call.base == "where" and len(tensors) > 1 else tensors
    made = tensor(broadcast(tensors), _result_type(call, valued))
    return CallEffects(tensors, (lies_as(made, tensors),))


def _result_type(call: OperatorCall, valued: tuple[GivenTensor, ...]) -> str:
    if call.base in _COMPARING:
        return "i1"
    if call.base == "masked_fill":
        return valued[0].dtype
    found = promoted([(t.dtype, bool(t.shape)) for t in valued])
    whole = found.startswith(("i", "ui"))
    return "f32" if whole and call.base in _FLOATING else found


def on_lists(call: OperatorCall) -> CallEffects | None:
    """`_foreach_add_(first, second, ...)`: the first list is changed, or one like it is made."""
    first = call.given.list_at(0)
    if not first:
        return None
    tensors = call.given.tensors
    if call.in_place:
        return CallEffects(tensors, (), tuple(range(len(first))))
    return CallEffects(tensors, tuple(tensor(t.shape, t.dtype) for t in first))


def fused_optimizer(call: OperatorCall) -> CallEffects | None:
    """Parameters, gradients and states as lists: all but the gradients are changed."""
    lists = [call.given.list_at(i) for i in range(len(call.given))]
    if not lists or not lists[0]:
        return None
    inputs = tuple(t for some in lists for t in some)
    writes: list[int] = []
    at = 0
    for number, some in enumerate(lists):
        if number != 1:
            writes += range(at, at + len(some))
        at += len(some)
    return CallEffects(inputs, (), tuple(writes))


#: Operators of one library that are PyTorch's own by another name.
_ALIASES = {
    "_convolution": "convolution",
    "cudnn_convolution": "convolution",
    "miopen_convolution": "convolution",
    "miopen_depthwise_convolution": "convolution",
    "mkldnn_convolution": "convolution",
    "miopen_batch_norm": "cudnn_batch_norm",
    "miopen_batch_norm_backward": "cudnn_batch_norm_backward",
    "relu6": "hardtanh",
}
_FORMS: dict[str, Form] = {**moves.FORMS, **rows.FORMS, **products.FORMS}


@dataclass(frozen=True, slots=True)
class ReadEvent:
    """An event with its work, and for each of its storages the bytes that are read of it at most."""

    event: Event
    work: Work
    covered: tuple[int, ...]

    def visible_bytes(self, info: TensorInfo) -> int:
        """Bytes of a tensor, elements that strides of 0 repeat counted once."""
        found = self.covered[info.storage] if info.storage < len(self.covered) else info.num_bytes
        return min(found, info.num_bytes)


@lru_cache(maxsize=1 << 14)
def recorded_name(name: str) -> str:
    """`aten.add_.default` for `aten::add_`; names of other packages keep their own."""
    namespace, _, operator = name.rpartition("::")
    if not namespace:
        return operator
    base = operator.removesuffix("_") if not operator.startswith("__") else operator
    alias = _ALIASES.get(base) if namespace == "aten" else None
    written = alias + ("_" if operator.endswith("_") else "") if alias else operator
    return f"{namespace.replace('::', '.')}.{written}.default".replace(" ", "_")


def knows(name: str) -> bool:
    """Whether the work of an operator can be told, given its arguments."""
    op = recorded_name(name)
    return (op.startswith("aten.") and is_known(op)) or packages.form_of(name) is not None


@lru_cache(maxsize=1 << 15)
def read(name: str, signature: Signature, in_lists: str = "f32") -> ReadEvent | None:
    """The event of a call; None where arguments do not tell what it does.

    `in_lists` is the type of tensors in lists, which PyTorch's profiler omits.
    """
    try:
        return _read(name, signature, in_lists)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        # Rules take arguments as PyTorch gives them: those of a profile may be cut, or of another
        # version of the operator. What they do not fit is not known.
        return None


def _read(name: str, signature: Signature, in_lists: str) -> ReadEvent | None:
    op = recorded_name(name)
    given = SignatureArguments(signature, in_lists)
    base, in_place = _base(op)
    call = OperatorCall(base if op.startswith("aten.") else op, given, in_place)
    own = _base(f"aten.{name.rpartition('::')[2]}")[0]
    found = _form(name, op, own if own in _ALIASES else base)(call)
    if found is None or any(n < 0 for t in (*found.inputs, *found.outputs) for n in t.shape):
        return None  # arguments of another overload, or damaged ones
    return _event(op, found, _said(signature))


def _base(op: str) -> tuple[str, bool]:
    operator = op.split(".")[1] if op.count(".") else op
    name = operator.removeprefix(FOREACH)
    special = name.startswith("__")
    in_place = name.startswith("__i") if special else name.endswith("_")
    return (name if special else name.removesuffix("_")), in_place


def _form(name: str, op: str, base: str) -> Form:
    special = packages.form_of(name)
    if special is not None:
        return special
    if not op.startswith("aten."):
        return _nothing
    if op.startswith(f"aten.{FOREACH}"):
        return on_lists
    if base.startswith("_fused_") and base[len("_fused_") :] in ("adam", "adamw", "sgd", "adagrad"):
        return fused_optimizer
    form = _FORMS.get(base)
    if form is not None:
        return form
    if class_of(op) in ELEMENTWISE or base in PER_ELEMENT:
        return element_by_element
    return _inputs_only if class_of(op) is not OpClass.UNKNOWN else _nothing


def _inputs_only(call: OperatorCall) -> CallEffects | None:
    """Operators whose class is known and whose results are not: about as large as the first input."""
    tensors = call.given.tensors
    return CallEffects(tensors, (tensors[0],) if tensors else ()) if tensors else None


def _nothing(call: OperatorCall) -> CallEffects | None:
    return None


def _said(signature: Signature) -> tuple[GivenTensor, ...]:
    found = []
    for shape, named in signature.outputs or ():
        dtype = element_type(named)
        if dtype is not None:
            found.append(tensor(shape, dtype[0]))
    return tuple(found)


def _event(op: str, found: CallEffects, said: tuple[GivenTensor, ...]) -> ReadEvent:
    """Each tensor has memory of its own; what is changed in place has that of its input."""
    inputs = [t.info(i) for i, t in enumerate(found.inputs)]
    outputs: list[TensorInfo] = []
    made = said if said and not found.writes else found.outputs
    for number, t in enumerate(made):
        home = found.writes[number] if number < len(found.writes) else len(inputs) + number
        outputs.append(t.info(home))
    covered = [t.covered_bytes for t in found.inputs] + [t.num_bytes for t in made]
    event = Event(
        op, tuple(inputs), tuple(outputs), writes=found.writes, attributes=dict(found.attributes),
        work=found.work,
    )  # fmt: skip
    return ReadEvent(event, work_of(event), tuple(covered))
