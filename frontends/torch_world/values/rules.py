"""How what is known of tensors passes through operators whose inputs are not all known.

A rule gets the call and its fake result, and returns a `Value` per result (None: nothing is known).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch

from flint.frontends.torch_world.values.kinds import Classes, Even, Known, Magnitude, Value, settled

Found = Value | Sequence[Value | None] | None


@dataclass(frozen=True, slots=True)
class Call:
    """An operator, its arguments, its fake result, and how to look up what is known of a tensor."""

    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    result: Any
    lookup: Callable[[Any], Value | None]

    def value(self, index: int) -> Value | None:
        """What is known of the tensor that is argument `index`."""
        given = self.args[index] if index < len(self.args) else None
        return self.lookup(given) if isinstance(given, torch.Tensor) else None

    def option(self, index: int, name: str, default: object = None) -> Any:
        """The argument at `index`, or called `name`."""
        return self.args[index] if index < len(self.args) else self.kwargs.get(name, default)


Rule = Callable[[Call], Found]

#: Operators whose results hold what their first operand holds: views, copies, choices of elements.
_SAME = (
    "view _unsafe_view reshape permute transpose t select slice expand clone _to_copy detach alias "
    "index index_select gather unsqueeze squeeze unbind split split_with_sizes chunk flip repeat "
    "as_strided unfold roll diagonal "
    "all_to_all_single all_gather_into_tensor reduce_scatter_tensor"
)


def rule_of(name: str) -> Rule | None:
    """The rule of an operator by the name of its packet (`aten::sum`), overloads alike."""
    packet = name.rpartition("::")[2]
    rule = _RULES.get(packet)
    return _with_signs(packet, rule) if name.startswith("aten::") else rule


def _with_signs(packet: str, rule: Rule | None) -> Rule:
    def found(call: Call) -> Found:
        value = rule(call) if rule is not None else None
        if value is not None:
            return value
        signs: Found = magnitude_of(packet, call.args, call.kwargs, call.result, call.lookup)
        return signs

    return found


def _same(call: Call) -> Found:
    value = call.value(0)
    if value is None or isinstance(value, Known):
        return None
    if isinstance(call.result, (list, tuple)):
        return [value] * len(call.result)
    return value


def _index_in(dimension: int) -> Rule:
    """Operators that return positions along a dimension: router choices."""

    def rule(call: Call) -> Found:
        source = call.args[0]
        if source.dim() == 0:
            return None
        place = call.option(dimension, "dim", -1)
        if place is None:
            return None
        classes = Classes(int(source.shape[place]))
        return (None, classes) if isinstance(call.result, (list, tuple)) else classes

    return rule


def _sort(call: Call) -> Found:
    value = call.value(0)
    return (value, None) if isinstance(value, Classes) else None


def _randint(call: Call) -> Found:
    numbers = [arg for arg in call.args if isinstance(arg, int)]
    low = numbers[0] if len(numbers) > 1 else 0
    return Classes(numbers[-1]) if numbers and low == 0 else None


def _filled(level: int, made_up: bool = False) -> Rule:
    def rule(call: Call) -> Found:
        return settled(Fraction(level), call.result, made_up)

    return rule


def _full(call: Call) -> Found:
    fill = next((arg for arg in call.args[1:] if isinstance(arg, (int, float))), None)
    fill = call.kwargs.get("fill_value", fill)
    if fill is None or not math.isfinite(fill) or isinstance(fill, float):
        return None
    return settled(Fraction(int(fill)), call.result, made_up=False)


def _scatter(call: Call) -> Found:
    """One class per row marked in zeros: a routing map."""
    target, index = call.value(0), call.args[2]
    zeros = (isinstance(target, Even) and target.level == 0) or (
        isinstance(target, Known) and not bool(target.data.any())
    )
    source = call.option(3, "value", call.kwargs.get("src"))
    if not zeros or not _is_one(source, call):
        return None
    level = Fraction(index.numel(), max(call.args[0].numel(), 1))
    return Even(level) if level <= 1 else None


def _scatter_add(call: Call) -> Found:
    """Ones added at unknown places: token counts."""
    target, source = call.value(0), call.args[3]
    if not isinstance(target, Known) or target.data.any() or not _is_one(source, call):
        return None
    return settled(Fraction(source.numel(), max(call.args[0].numel(), 1)), call.result)


def _is_one(source: object, call: Call) -> bool:
    if not isinstance(source, torch.Tensor):
        return bool(source == 1)
    value = call.lookup(source)
    if isinstance(value, Even):
        return value.level == 1
    return isinstance(value, Known) and bool((value.data == 1).all())


def _compare(equal: bool) -> Rule:
    def rule(call: Call) -> Found:
        level = _equal_level(call, call.args[0], call.args[1])
        if level is None:
            return None
        known = call.value(0)
        made_up = not isinstance(known, Even) or known.made_up
        found = settled(level if equal else 1 - level, call.result, made_up)
        return _of_source(found, known)

    return rule


def _equal_level(call: Call, left: torch.Tensor, right: torch.Tensor | float) -> Fraction | None:
    """How often `left == right`, where that can be said."""
    if left is right:
        return Fraction(1)  # isnan and isfinite compare a tensor with itself
    if isinstance(right, float) and not math.isfinite(right):
        return Fraction(0)
    known, other = call.lookup(left), right
    if isinstance(right, torch.Tensor):
        value = call.lookup(right)
        if not isinstance(value, Known):
            return None
        if value.data.numel() != 1:
            return _one_hot_level(left, known, value.data)
        other = value.data.item()
    if isinstance(known, Classes):
        return Fraction(1, known.count) if 0 <= other < known.count else Fraction(0)
    if isinstance(known, Known) and known.data.numel():
        return Fraction(int((known.data == other).sum()), known.data.numel())
    exact = isinstance(known, Even) and (
        not known.made_up or known.level in (0, 1) and other in (0, 1)
    )
    if isinstance(known, Even) and exact:
        return Fraction(int(known.level == other))
    if not left.dtype.is_floating_point and isinstance(other, int) and other < 0:
        return Fraction(0)  # ignored labels and padding are taken not to occur
    return None


def _one_hot_level(
    left: torch.Tensor, known: Value | None, classes: torch.Tensor
) -> Fraction | None:
    """`index.unsqueeze(-1) == arange(classes)`, which is how one_hot is computed."""
    last = classes.dim() > 0 and left.dim() > 0 and left.shape[-1] == 1
    if not last or left.dtype.is_floating_point or classes.numel() != classes.shape[-1]:
        return None
    # Classes that no index names (a spare one for padding) leave the share of the others as it is.
    return Fraction(1, known.count if isinstance(known, Classes) else int(classes.numel()))


def _order(below: Callable[[int], int]) -> Rule:
    """`index < bound` and its kin; `below` gives how many whole classes satisfy `index < bound`."""

    def rule(call: Call) -> Found:
        known, bound = call.value(0), call.args[1]
        if isinstance(bound, torch.Tensor):
            value = call.lookup(bound)
            if not isinstance(value, Known) or value.data.numel() != 1:
                return None
            bound = value.data.item()
        if isinstance(known, Even) and not known.made_up:
            return None
        if not isinstance(known, Classes):
            return None
        inside = min(max(below(int(bound)), 0), known.count)
        return _of_source(settled(Fraction(inside, known.count), call.result), known)

    return rule


def _of_source(found: Value, known: Value | None) -> Value:
    """A mask that was made of classes knows of which."""
    if isinstance(found, Even) and isinstance(known, Classes):
        return replace(found, source=known.source)
    return found


def _complement(rule: Rule) -> Rule:
    def other(call: Call) -> Found:
        found = rule(call)
        if isinstance(found, Even):
            return replace(found, level=1 - found.level)
        if isinstance(found, Known):
            return Known(~found.data, made_up=True)
        return None

    return other


def _not(call: Call) -> Found:
    value = call.value(0)
    return replace(value, level=1 - value.level) if isinstance(value, Even) else None


def _both(of_one: _Combined, apart: _Combined) -> Rule:
    """`of_one` is exact for two bounds of one tensor of classes, as in `(i >= low) & (i < high)`;
    `apart` is what two draws have in common on average."""

    def rule(call: Call) -> Found:
        left, right = (_level(call, arg) for arg in call.args[:2])
        if left is None or right is None:
            return None
        one, other = (getattr(call.value(index), "source", 0) for index in (0, 1))
        return Even(of_one(left, right), source=one) if one == other else Even(apart(left, right))

    return rule


_Combined = Callable[[Fraction, Fraction], Fraction]
_times = _both(*2 * [lambda left, right: left * right])
_and = _both(
    lambda left, right: max(left + right - 1, Fraction(0)), lambda left, right: left * right
)
_or = _both(lambda left, right: min(left + right, Fraction(1)), lambda a, b: a + b - a * b)


def _multiply(call: Call) -> Found:
    if any(_level_everywhere(call.value(index)) == 0 for index in (0, 1)):
        return settled(Fraction(0), call.result)
    return (_and if call.result.dtype == torch.bool else _times)(call)


def _where(call: Call) -> Found:
    """A condition that has one answer everywhere chooses one of the two."""
    level = _level_everywhere(call.value(0))
    if level not in (0, 1):
        return None
    return _as_result(call.value(1 if level else 2), call.result)


def _masked_fill(call: Call) -> Found:
    """As above: where nothing is masked, nothing changes."""
    if _level_everywhere(call.value(1)) != 0:
        return None
    return _as_result(call.value(0), call.result)


def _as_result(value: Value | None, result: torch.Tensor) -> Value | None:
    """What is known of an operand that became the result, broadcast and converted with it."""
    if not isinstance(value, Known):
        return value
    data = value.data.expand(tuple(result.shape)).to(result.dtype).clone()
    return Known(data, value.made_up)


def _level_everywhere(value: Value | None) -> Fraction | None:
    if isinstance(value, Even):
        return value.level
    if isinstance(value, Known) and value.data.numel():
        share = int(value.data.count_nonzero())
        return Fraction(share, value.data.numel())
    return None


def _level(call: Call, given: object) -> Fraction | None:
    if isinstance(given, int):
        return Fraction(given)
    value = call.lookup(given) if isinstance(given, torch.Tensor) else None
    if isinstance(value, Even):
        return value.level
    if isinstance(value, Known) and value.data.numel() == 1:
        number = value.data.item()
        return Fraction(int(number)) if number == int(number) else None
    if isinstance(value, Known) and value.data.dtype == torch.bool:
        level = _level_everywhere(value)
        return level if level in (0, 1) else None
    return None


def _sum(call: Call) -> Found:
    value = call.value(0)
    if not isinstance(value, Even) or not call.result.numel():
        return None
    ratio = Fraction(call.args[0].numel(), call.result.numel())
    return settled(value.level * ratio, call.result, value.made_up)


def _where_even(found: Callable[[Even, torch.Tensor], Value]) -> Rule:
    def rule(call: Call) -> Found:
        value = call.value(0)
        return found(value, call.result) if isinstance(value, Even) else None

    return rule


def _extreme(of_classes: Callable[[int], int]) -> Rule:
    """The largest or smallest of `range(count)`."""

    def rule(call: Call) -> Found:
        value = call.value(0)
        if isinstance(call.result, (list, tuple)) or not isinstance(value, Classes):
            return None
        return settled(Fraction(of_classes(value.count)), call.result)

    return rule


def _histogram(call: Call) -> Found:
    total = call.args[0].numel()
    return settled(Fraction(total, max(call.result.numel(), 1)), call.result)


#: Operators of each rule.
_OF_RULE: Mapping[Rule, str] = {
    _same: _SAME,
    lambda call: call.value(0): "wait_tensor",
    _index_in(2): "topk",
    _index_in(1): "argmax argsort",  # argsort in inference mode alone: else it comes as a sort
    _sort: "sort",
    _randint: "randint",
    lambda call: Classes(int(call.args[0].shape[-1])): "multinomial",
    _filled(0): "zeros zeros_like new_zeros zero_",
    _filled(1): "ones ones_like new_ones",
    _full: "full full_like new_full fill_",
    _scatter: "scatter scatter_",
    _scatter_add: "scatter_add scatter_add_ index_add index_add_",
    _compare(True): "eq",
    _compare(False): "ne",
    # isin is of marks, such as the end of a text: it does not come
    _filled(0, made_up=True): "isin isnan isinf",
    _filled(1, made_up=True): "isfinite",
    _order(lambda bound: bound): "lt",
    _order(lambda bound: bound + 1): "le",
    _complement(_order(lambda bound: bound)): "ge",
    _complement(_order(lambda bound: bound + 1)): "gt",
    _not: "logical_not bitwise_not",
    _and: "logical_and bitwise_and",
    _or: "logical_or bitwise_or",
    _where: "where",
    _masked_fill: "masked_fill masked_fill_",
    _multiply: "mul",
    _sum: "sum",
    _where_even(lambda value, result: value): "mean",
    _where_even(lambda value, result: settled(Fraction(int(value.level > 0)), result)): "any",
    _where_even(lambda value, result: settled(Fraction(int(value.level == 1)), result)): "all",
    _extreme(lambda count: count - 1): "max amax",
    _extreme(lambda count: 0): "min amin",
    _histogram: "histc",
}
_RULES = {name: rule for rule, names in _OF_RULE.items() for name in names.split()}


# Numbers that are finite and not below zero, because they are norms: what gradient checks ask for.
#
# A norm that is compared with zero or less has one answer in a run that goes well, and libraries ask
# (`norm < 0`) before they step.

Lookup = Callable[[Any], Value | None]
#: Operators whose results are never below zero, whatever they read.
MAKERS = frozenset(
    ("linalg_vector_norm", "norm", "_foreach_norm", "abs", "square", "exp", "rand", "softplus")
)
#: Those whose results are not, where no tensor is; their numbers are dimensions.
_OF_TENSORS = frozenset(
    ("sqrt", "sum", "mean", "max", "amax", "min", "amin", "stack", "cat", "prod", "reciprocal")
)
#: Those whose results are not, where neither a tensor nor a number is.
_OF_NUMBERS = frozenset(
    (
        *("add", "mul", "div", "clamp", "clamp_min", "clamp_max", "maximum", "minimum", "pow"),
        *("_foreach_mul", "_foreach_div", "_foreach_add"),
    )
)
_BELOW = {"lt": 0, "le": 0, "ge": 1, "gt": 1}


def magnitude_of(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any, lookup: Lookup
) -> Any:
    """What is known of a result because of signs: a Value, a list of them, or None."""
    name = name.removesuffix("_")
    if name in MAKERS:
        return _each(result)
    if name in _OF_TENSORS and _all_positive(_only_tensors(args), lookup):
        return _each(result)
    if name in _OF_NUMBERS and _all_positive((*args, *kwargs.values()), lookup):
        return _each(result)
    if name in _BELOW and isinstance(lookup(args[0]), Magnitude):
        bound = _number(args[1], lookup)
        strict = name in ("lt", "ge")
        if bound is not None and (bound < 0 or (bound == 0 and strict)):
            return settled(Fraction(_BELOW[name]), result)
    return None


def _each(result: Any) -> Any:
    if isinstance(result, (list, tuple)):
        return [_each(entry) for entry in result]
    known = isinstance(result, torch.Tensor) and result.dtype.is_floating_point
    return Magnitude() if known else None


def _only_tensors(args: Sequence[Any]) -> list[Any]:
    lists = (list, tuple)
    return [a for a in args if isinstance(a, torch.Tensor) or (isinstance(a, lists) and a)]


def _all_positive(args: Sequence[Any], lookup: Lookup) -> bool:
    """Whether all tensors and numbers are not below zero, and one is a tensor."""
    tensors = False
    for arg in args:
        if isinstance(arg, (list, tuple)):
            if any(isinstance(entry, torch.Tensor) for entry in arg):
                tensors = True
                if not _all_positive(arg, lookup):
                    return False
        elif isinstance(arg, torch.Tensor):
            tensors = True
            number = _number(arg, lookup)
            if not isinstance(lookup(arg), Magnitude) and not _is_positive(number):
                return False
        elif isinstance(arg, (int, float)) and not _is_positive(arg):
            return False
    return tensors


def _is_positive(number: float | None) -> bool:
    return number is not None and number >= 0 and math.isfinite(number)


def _number(given: Any, lookup: Lookup) -> float | None:
    if isinstance(given, (int, float)):
        return float(given)
    value = lookup(given) if isinstance(given, torch.Tensor) else None
    if isinstance(value, Even) and value.level >= 0:
        return float(value.level)
    if isinstance(value, Known) and value.data.numel() == 1:
        return float(value.data.item())
    return None
