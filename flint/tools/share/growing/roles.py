"""What a variable is to the model, by what the program does with it.

| role | is |
|---|---|
| layers | the trip count of loops that go along stacked arrays, the innermost of them with most FLOPs |
| batch | the first dimension of whole-numbered arguments (tokens, labels); without any, of most rows |
| sequence | twice in the scores of attention; else the second dimension of tokens |
| head_size | what scores are summed over |
| kv_heads, heads | of scores, dimensions of both operands (other than the batch); with those of queries alone |
| width | the dimension that most elements of weights have |
| vocabulary | what look-ups with tokens go along, and what else is as long and shares no dimension with layers |
| experts | of products with weights alone on one side, the dimension of both operands |
| slots | of products with such weights, the dimension of the result that is of no weight, batch or sequence |
| ffn | of weights of layers that have the width, the longest other dimension |

A role may have several variables: a product (heads are key-value heads times queries of each), or equal ones (an
embedding and the last projection have a vocabulary each, which no row makes equal).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from flint.ir.op_class import OpClass
from flint.tools.share.growing.structure import (
    Powers,
    ProgramStructure,
    Sum,
    layer_variables,
    variables_of,
)

#: Roles in the order in which they are told.
ROLES = (
    *("layers", "batch", "sequence", "width", "ffn", "heads", "kv_heads", "head_size"),
    *("vocabulary", "experts", "slots"),
)
#: The share of weights' elements that has the width.
_MOST = 0.6


@dataclass(frozen=True, slots=True)
class SizeRole:
    """A role, and variables whose product it is, `times` a number. With `equal` each of them is it by itself.

    `is_certain`: whether two signs agree, or there is no other candidate.
    """

    name: str
    variables: tuple[int, ...]
    equal: bool = False
    is_certain: bool = True
    times: int = 1


def roles_of(structure: ProgramStructure) -> dict[str, SizeRole]:
    """The roles that a workload has."""
    finder = _Finder(structure)
    found: dict[str, SizeRole] = {}
    for name in ROLES:
        role = getattr(finder, name)
        if role is not None:
            found[name] = replace(role, times=_times(structure, role))
    return found


def _times(structure: ProgramStructure, role: SizeRole) -> int:
    """The number that variables of a role are multiplied by where weights, or else any rows, have it."""
    if role.equal:
        return 1
    for rows in (structure.weights, range(len(structure.program))):
        found = Counter(
            coefficient
            for row in rows
            for e in structure.dims(row)
            for monomial, coefficient in e.terms[:1]
            if len(e.terms) == 1
            and sorted(f for f in monomial if isinstance(f, int)) == sorted(role.variables)
        )
        if found:
            return found.most_common(1)[0][0]
    return 1


def _variables(role: SizeRole | None) -> frozenset[int]:
    return frozenset(role.variables if role else ())


class _Finder:
    def __init__(self, structure: ProgramStructure) -> None:
        self.structure = structure
        self.value = {v.number: v.value for v in structure.sizes.variables}
        self._loops, self._batch = structure.loops, structure.batch

    # loops and inputs -------------------------------------------------------------------------------

    @cached_property
    def layers(self) -> SizeRole | None:
        found = layer_variables(self.structure)
        return SizeRole("layers", found, equal=True) if found else None

    @cached_property
    def batch(self) -> SizeRole | None:
        found = self._of_inputs(0)
        if found is not None:
            return SizeRole("batch", (found,))
        return SizeRole("batch", tuple(self._batch), is_certain=False) if self._batch else None

    def _of_inputs(self, place: int) -> int | None:
        """The one variable that a dimension of whole-numbered arguments is made of."""
        found: Counter[int] = Counter()
        for row in self.structure.inputs:
            dims = self.structure.dims(row)
            if place < len(dims):
                found.update(dims[place].variables - self._loops)
        return found.most_common(1)[0][0] if found else None

    # attention --------------------------------------------------------------------------------------

    @cached_property
    def _scores(self) -> tuple[Sum, ...]:
        """Products for which both operands have heads, and whose result has one length twice.

        One device may have one head of one sequence: then the length is of no weight.
        """
        products = [s for s in self.structure.sums if s.is_product and self._twice(s)]
        with_heads = tuple(s for s in products if variables_of(s.batch))
        return with_heads or tuple(s for s in products if self._twice(s) - self._weight_variables)

    def _twice(self, one: Sum) -> frozenset[int]:
        """Variables that the result of a product has from either operand, as queries and keys have a length."""
        return frozenset(
            f
            for f, n in one.result.items()
            if isinstance(f, int) and n == 2 and one.left[f] == one.right[f] == 1
        ) - variables_of(one.contracted)

    @cached_property
    def sequence(self) -> SizeRole | None:
        squares = Counter(self._twice(s) - self._batch for s in self._scores)
        squares.pop(frozenset(), None)
        told = self._of_inputs(1)
        if squares:
            of_tokens = [q for q in squares if told in q]
            chosen = of_tokens[0] if of_tokens else squares.most_common(1)[0][0]
            return SizeRole(
                "sequence", tuple(sorted(chosen)), is_certain=bool(of_tokens) or len(squares) == 1
            )
        if told is not None and told not in self._batch:
            return SizeRole("sequence", (told,), is_certain=False)
        return self._longest_kept()

    def _longest_kept(self) -> SizeRole | None:
        """Of a step that decodes: what scores of one query are along, and weights are not."""
        found: Counter[int] = Counter()
        for one in self.structure.sums:
            if one.is_product and variables_of(one.batch):
                new = variables_of(one.result) & (variables_of(one.right) ^ variables_of(one.left))
                found.update(new - self._weight_variables - self._batch - self._loops)
        if not found:
            return None
        best = max(found, key=lambda v: (self.value[v], found[v]))
        return SizeRole("sequence", (best,), is_certain=False)

    @cached_property
    def _attention(self) -> tuple[Sum, ...]:
        """Products of queries and keys: of one sequence twice, or of a sequence with what weights have not."""
        if self._scores:
            return tuple(s for s in self._scores if self._sequence <= self._twice(s))
        return tuple(
            s
            for s in self.structure.sums
            if s.is_product
            and self._sequence & variables_of(s.result)
            and variables_of(s.batch) - self._batch
            and not self._sequence & variables_of(s.contracted)
        )

    @cached_property
    def _sequence(self) -> frozenset[int]:
        return _variables(self.sequence)

    @cached_property
    def head_size(self) -> SizeRole | None:
        found = Counter(v for s in self._attention for v in variables_of(s.contracted))
        for other in (*self._sequence, *self._batch):
            found.pop(other, None)
        if not found:
            return None
        return SizeRole("head_size", (found.most_common(1)[0][0],), is_certain=len(found) == 1)

    @cached_property
    def kv_heads(self) -> SizeRole | None:
        found = self._of_attention(lambda s: variables_of(s.batch))
        return SizeRole("kv_heads", found) if found and self._queries else None

    @cached_property
    def _queries(self) -> tuple[int, ...]:
        """Queries of each key-value head: of one operand and the result."""
        return self._of_attention(
            lambda s: {
                v for v in variables_of(s.result) if s.left[v] + s.right[v] == s.result[v] == 1
            }
        )

    @cached_property
    def heads(self) -> SizeRole | None:
        found = self._of_attention(lambda s: variables_of(s.batch)) + self._queries
        return SizeRole("heads", found) if found else None

    def _of_attention(self, tell: Callable[[Sum], Iterable[int]]) -> tuple[int, ...]:
        found: Counter[int] = Counter()
        for one in self._attention:
            found.update(tell(one))
        for other in (*self._sequence, *self._batch):
            found.pop(other, None)
        most = max(found.values(), default=0)
        return tuple(sorted(v for v, n in found.items() if 2 * n > most))

    # weights ----------------------------------------------------------------------------------------

    @cached_property
    def _weights(self) -> tuple[tuple[Powers, int], ...]:
        """Factors of the dimensions of each weight one by one, and its elements."""
        told = ((self.structure.powers(row), row) for row in self.structure.weights)
        return tuple((factors, self._elements(row)) for factors, row in told if factors is not None)

    def _elements(self, row: int) -> int:
        p = self.structure.program
        return math.prod(p.shapes[int(p.shape[row])])

    @cached_property
    def _weight_variables(self) -> frozenset[int]:
        alone = {v for f, _ in self._weights for v in variables_of(f)}
        return frozenset(alone - self._batch - self._loops)

    @cached_property
    def _dimensions(self) -> Counter[frozenset[int]]:
        """Elements of weights by the variables of each dimension."""
        found: Counter[frozenset[int]] = Counter()
        for row in self.structure.weights:
            dims = {e.variables for e in self.structure.dims(row) if len(e.terms) == 1}
            for variables in dims:
                if variables and not variables & (self._loops | self._batch | self._sequence):
                    found[variables] += self._elements(row)
        return found

    @cached_property
    def width(self) -> SizeRole | None:
        if not self._dimensions:
            return None
        whole = sum(elements for _, elements in self._weights)
        (best, elements), *_ = self._dimensions.most_common(1)
        return SizeRole("width", tuple(sorted(best)), is_certain=elements > _MOST * whole)

    @cached_property
    def _width(self) -> frozenset[int]:
        return _variables(self.width)

    @cached_property
    def vocabulary(self) -> SizeRole | None:
        looked = self._looked_up()
        if not looked:
            return None
        first = max(looked, key=lambda v: (looked[v], self.value[v]))
        equal = [
            v
            for v in self._weight_variables
            if self.value[v] == self.value[first] and not self._is_of_layers(v)
        ]
        return SizeRole("vocabulary", tuple(sorted({first, *equal})), equal=True)

    def _looked_up(self) -> Counter[int]:
        found: Counter[int] = Counter()
        for one in self.structure.sums:
            if self.structure.program.op[one.row] == OpClass.GATHER:
                gone = variables_of(one.contracted) & self._weight_variables
                found.update(v for v in gone if not self._is_of_layers(v))
        return found

    def _is_of_layers(self, variable: int) -> bool:
        return any(variable in f and self._loops & variables_of(f) for f, _ in self._weights)

    @cached_property
    def experts(self) -> SizeRole | None:
        found: Counter[int] = Counter()
        known = self._batch | self._sequence | self._width | _variables(self.heads)
        for one in self.structure.sums:
            if self._has_weight(one) and one.row not in self._attention_rows:
                found.update(variables_of(one.batch) & self._weight_variables - known)
        if not found:
            return None
        best = max(found, key=lambda v: found[v])
        return SizeRole("experts", (best,), is_certain=len(found) == 1)

    def _has_weight(self, one: Sum) -> bool:
        """Whether an operand of a product has dimensions of weights alone."""
        sides = [variables_of(side) - self._loops for side in (one.left, one.right)]
        return one.is_product and any(side and side <= self._weight_variables for side in sides)

    @cached_property
    def _attention_rows(self) -> frozenset[int]:
        return frozenset(s.row for s in self._attention)

    @cached_property
    def slots(self) -> SizeRole | None:
        experts = _variables(self.experts)
        known = self._batch | self._sequence | self._loops | self._weight_variables
        found = {
            v
            for s in self.structure.sums
            if s.is_product and experts & variables_of(s.batch)
            for v in variables_of(s.result) - known
        }
        lengths = {self.value[v] for v in found}
        return SizeRole("slots", tuple(sorted(found)), equal=True) if len(lengths) == 1 else None

    @cached_property
    def ffn(self) -> SizeRole | None:
        of_others = (self.heads, self.head_size, self.vocabulary, self.experts)
        known = self._width.union(*map(_variables, of_others))
        found = Counter[frozenset[int]]()
        for variables, elements in self._dimensions.items():
            if not variables & known and self._is_beside_width(variables):
                found[variables] = elements
        if not found:
            return None
        (best, _), *others = found.most_common()
        return SizeRole("ffn", tuple(sorted(best)), is_certain=not others)

    def _is_beside_width(self, variables: Iterable[int]) -> bool:
        wanted = set(variables) | self._width
        return any(
            wanted <= variables_of(f) and (not self._loops or self._loops & variables_of(f))
            for f, _ in self._weights
        )
