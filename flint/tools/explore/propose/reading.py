"""A traced program read for its dimensions: which are sharded alike, and what products do with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from flint.frontends.jax_stages.cut.jaxprs import is_variable, scan_operands
from flint.frontends.jax_step.equations import bodies, place

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

# Dimensions that are sharded together: a union-find over the dimensions of all values of a program.

#: A value by its dimensions: one node of the union-find each.
Dims: TypeAlias = tuple[int, ...]


@dataclass
class Colours:
    """Nodes are dimensions of values; those of one colour are sharded alike or not at all.

    `sizes` holds the length of each node.
    """

    sizes: list[int] = field(default_factory=list)
    _parent: list[int] = field(default_factory=list)

    def new(self, shape: Sequence[int]) -> Dims:
        """Nodes for the dimensions of a new value."""
        first = len(self.sizes)
        self.sizes += shape
        self._parent += range(first, len(self.sizes))
        return tuple(range(first, len(self.sizes)))

    def of(self, node: int) -> int:
        """The colour of a node: the first node of those that are like it."""
        parent = self._parent
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def join(self, a: int, b: int) -> None:
        """Say that two dimensions are sharded alike. Dimensions of length 1 are never sharded."""
        if min(self.sizes[a], self.sizes[b]) > 1:
            a, b = sorted((self.of(a), self.of(b)))
            self._parent[b] = a

    def join_all(self, a: Dims, b: Dims) -> None:
        """Say it of two values of one shape."""
        for one, other in zip(a, b, strict=True):
            self.join(one, other)

    def join_where_equal(self, a: Dims, b: Dims) -> None:
        """Say it of those dimensions that are as long in both values."""
        for one, other in zip(a, b, strict=True):
            if self.sizes[one] == self.sizes[other]:
                self.join(one, other)

    def join_reshaped(self, a: Dims, b: Dims) -> None:
        """Of a reshape: in each group of dimensions with one product, the outermost ones.

        A dimension that is split keeps its shards in the outer part, one that is merged gets those of
        the outer one.
        """
        i = j = 0
        while i < len(a) and j < len(b):
            ends = [i + 1, j + 1]
            while ends[0] <= len(a) and ends[1] <= len(b):
                left = math.prod(self.sizes[n] for n in a[i : ends[0]])
                right = math.prod(self.sizes[n] for n in b[j : ends[1]])
                if left == right:
                    break
                ends[left > right] += 1
            outer = [next((n for n in part if self.sizes[n] > 1), None)
                     for part in (a[i : ends[0]], b[j : ends[1]])]  # fmt: skip
            if outer[0] is not None and outer[1] is not None:
                self.join(outer[0], outer[1])
            i, j = ends


@dataclass(frozen=True)
class Product:
    """A matrix product, convolution or look-up: what it reads and writes, by dimensions.

    `contracted` are pairs of dimensions that are summed over; `kept` maps dimensions of operands to those
    of the result. `times` is how often it runs in a step.
    """

    operands: tuple[Dims, Dims]
    result: Dims
    contracted: tuple[tuple[int, int], ...]
    kept: Mapping[int, int]
    flops: int
    times: int
    bytes_each: tuple[int, int, int]
    at: str


@dataclass(frozen=True)
class LoopValue:
    """A value that a loop hands on."""

    dims: Dims
    at: str


@dataclass
class Reading:
    """What was read of a program."""

    colours: Colours = field(default_factory=Colours)
    products: list[Product] = field(default_factory=list)
    carried: list[LoopValue] = field(default_factory=list)
    arguments: list[Dims] = field(default_factory=list)
    results: list[Dims] = field(default_factory=list)
    #: Bytes that equations write, by the dimensions of the result and how often, without products.
    written: list[tuple[Dims, int, int]] = field(default_factory=list)
    #: What scans stack for each of their turns: activations that the backward pass reads, most of it.
    stacked: list[tuple[Dims, int]] = field(default_factory=list)
    #: Names of effects that the program has.
    effects: tuple[str, ...] = ()

    def colours_of(self, dims: Dims) -> tuple[int, ...]:
        """The colours of a value's dimensions."""
        return tuple(map(self.colours.of, dims))


def read_program(program: ClosedJaxpr) -> Reading:
    """Read a traced program, and all jaxprs in it, once for each call."""
    found = Reading(effects=tuple(sorted({type(e).__name__ for e in program.effects})))
    reader = _Reader(found)
    jaxpr = program.jaxpr
    found.arguments = [reader.new(v) for v in jaxpr.invars]
    found.results = reader.body(jaxpr, found.arguments, 1)
    return found


@dataclass
class _Reader:
    found: Reading

    def new(self, atom: Any) -> Dims:
        return self.found.colours.new(tuple(getattr(atom.aval, "shape", ())))

    def body(self, jaxpr: Jaxpr, arguments: Sequence[Dims], times: int) -> list[Dims]:
        """The results of a jaxpr for these arguments, `times` a step."""
        known: dict[Any, Dims] = dict(zip(jaxpr.invars, arguments, strict=True))
        known |= {v: self.new(v) for v in jaxpr.constvars}

        def of(atom: Any) -> Dims:
            if not is_variable(atom):
                return self.new(atom)
            return known[atom]

        for equation in jaxpr.eqns:
            results = self.equation(equation, [of(a) for a in equation.invars], times)
            known.update(zip(equation.outvars, results, strict=True))
        return [of(a) for a in jaxpr.outvars]

    def equation(self, e: JaxprEqn, operands: list[Dims], times: int) -> list[Dims]:
        name = e.primitive.name
        if name in _LOOPS:
            return _LOOPS[name](self, e, operands, times)
        inside = bodies(e)
        if name not in _RULES and len(inside) == 1:
            body = inside[0]
            if len(body.invars) == len(operands) and len(body.outvars) == len(e.outvars):
                return self.body(body, operands, times)
        results = [self.new(v) for v in e.outvars]
        if name in _RULES:
            _RULES[name](self, e, operands, results, times)
        else:
            self._alike(operands, results)
        if name not in _PRODUCTS and name not in _FUSED_AWAY:
            for dims, v in zip(results, e.outvars, strict=True):
                self.found.written.append((dims, _item(v), times))
        return results

    def product(
        self,
        e: JaxprEqn,
        operands: list[Dims],
        result: Dims,
        contracted: tuple[tuple[int, int], ...],
        flops: int,
        times: int,
    ) -> None:
        """Note a product, with the dimensions of operands that its result keeps."""
        of, summed = self.found.colours.of, {n for pair in contracted for n in pair}
        kept: dict[int, int] = {}
        for dims in operands[:2]:
            free = list(result)
            for n in (n for n in dims if n not in summed):
                to = next((m for m in free if of(m) == of(n)), None)
                if to is not None:
                    kept[n] = to
                    free.remove(to)
        items = (_item(e.invars[0]), _item(e.invars[1]), _item(e.outvars[0]))
        pair, at = (operands[0], operands[1]), place(e) or ""
        made = Product(pair, result, contracted, kept, flops, times, items, at)
        self.found.products.append(made)

    def _alike(self, operands: list[Dims], results: list[Dims]) -> None:
        """An operation element by element, or one of which nothing is known: values of one shape."""
        sizes = self.found.colours.sizes
        for result in results:
            shape = [sizes[n] for n in result]
            for operand in operands:
                if [sizes[n] for n in operand] == shape:
                    self.found.colours.join_all(operand, result)


def _item(atom: Any) -> int:
    return int(getattr(getattr(atom.aval, "dtype", None), "itemsize", 4))


# rules of single operations ------------------------------------------------------------------


def _broadcast(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    for n, to in zip(i[0], e.params["broadcast_dimensions"], strict=True):
        r.found.colours.join(n, o[0][to])


def _reshape(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    r.found.colours.join_reshaped(i[0], o[0])


def _transpose(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    r.found.colours.join_all(tuple(i[0][p] for p in e.params["permutation"]), o[0])


def _reduce(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    axes = set(e.params["axes"])
    kept = [n for n in range(len(i[0])) if n not in axes]
    for operand in i:
        for result in o:
            if len(operand) == len(i[0]) and len(result) == len(kept):
                r.found.colours.join_all(tuple(operand[n] for n in kept), result)


def _squeeze(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    gone = {d % len(i[0]) for d in e.params["dimensions"]}
    r.found.colours.join_all(tuple(n for d, n in enumerate(i[0]) if d not in gone), o[0])


def _same_rank(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    """Slices, pads, concatenations, running sums: dimensions that keep their length."""
    for operand in i:
        for result in o:
            if len(operand) == len(result) > 0:
                r.found.colours.join_where_equal(operand, result)


def _update_slice(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    r.found.colours.join_all(i[0], o[0])
    r.found.colours.join_where_equal(i[1], o[0])


def _select(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    for operand in i:
        if len(operand) == len(o[0]):
            r.found.colours.join_all(operand, o[0])


def _gather(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], times: int) -> None:
    d, sizes = e.params["dimension_numbers"], r.found.colours.sizes
    windows = [n for n in range(len(i[0]))
               if n not in d.collapsed_slice_dims and n not in d.operand_batching_dims]  # fmt: skip
    for result, operand in zip(d.offset_dims, windows, strict=True):
        if sizes[o[0][result]] == sizes[i[0][operand]]:
            r.found.colours.join(o[0][result], i[0][operand])
    batch = [n for n in range(len(o[0])) if n not in d.offset_dims]
    for result, index in zip(batch, i[1][:-1], strict=True):
        r.found.colours.join(o[0][result], index)
    for operand, index in zip(d.operand_batching_dims, d.start_indices_batching_dims, strict=True):
        r.found.colours.join(i[0][operand], i[1][index])
    looked = tuple((i[0][n], i[0][n]) for n in d.collapsed_slice_dims)
    r.product(e, i, o[0], looked, 0, times)


def _scatter(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], times: int) -> None:
    d, colours = e.params["dimension_numbers"], r.found.colours
    colours.join_all(i[0], o[0])
    batching = tuple(d.operand_batching_dims)
    windows = [n for n in range(len(i[0]))
               if n not in d.inserted_window_dims and n not in batching]  # fmt: skip
    for update, operand in zip(d.update_window_dims, windows, strict=True):
        if colours.sizes[i[2][update]] == colours.sizes[i[0][operand]]:
            colours.join(i[2][update], i[0][operand])
    batch = [n for n in range(len(i[2])) if n not in d.update_window_dims]
    summed = []
    for update, index in zip(batch, i[1][:-1], strict=True):
        colours.join(i[2][update], index)
        summed.append((i[2][update], index))
    for operand, index in zip(batching, d.scatter_indices_batching_dims, strict=True):
        colours.join(i[0][operand], i[1][index])
    if e.primitive.name == "scatter-add":
        r.product(e, [i[2], i[1]], o[0], tuple(summed), 0, times)


def _dot(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], times: int) -> None:
    (left_c, right_c), (left_b, right_b) = e.params["dimension_numbers"]
    left, right, sizes = i[0], i[1], r.found.colours.sizes
    pairs = [(left[a], right[b]) for a, b in zip(left_c, right_c, strict=True)]
    batch = [(left[a], right[b]) for a, b in zip(left_b, right_b, strict=True)]
    for a, b in (*pairs, *batch):
        r.found.colours.join(a, b)
    free = [n for d, n in enumerate(left) if d not in (*left_c, *left_b)]
    free += [n for d, n in enumerate(right) if d not in (*right_c, *right_b)]
    for n, result in zip([*(a for a, _ in batch), *free], o[0], strict=True):
        r.found.colours.join(n, result)
    count = math.prod(sizes[n] for n in o[0]) * math.prod(sizes[a] for a, _ in pairs)
    r.product(e, i, o[0], tuple(pairs), 2 * count, times)


def _ragged(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], times: int) -> None:
    left, right, sizes = i[0], i[1], r.found.colours.sizes
    if not len(left) == len(o[0]) == 2 or len(right) != 3:
        return
    r.found.colours.join(left[0], o[0][0])
    r.found.colours.join(left[1], right[1])
    r.found.colours.join(right[2], o[0][1])
    count = 2 * sizes[left[0]] * sizes[left[1]] * sizes[right[2]]
    r.product(e, i, o[0], ((left[1], right[1]),), count, times)


def _convolution(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], times: int) -> None:
    d, sizes = e.params["dimension_numbers"], r.found.colours.sizes
    left, kernel, out = (d.lhs_spec, d.rhs_spec, d.out_spec)
    if e.params.get("batch_group_count", 1) == 1:
        r.found.colours.join(i[0][left[0]], o[0][out[0]])
    is_grouped = e.params.get("feature_group_count", 1) > 1
    pairs = () if is_grouped else ((i[0][left[1]], i[1][kernel[1]]),)
    for a, b in pairs:
        r.found.colours.join(a, b)
    r.found.colours.join(i[1][kernel[0]], o[0][out[1]])
    if is_grouped and sizes[i[0][left[1]]] == sizes[o[0][out[1]]]:
        r.found.colours.join(i[0][left[1]], o[0][out[1]])
    inner = math.prod(sizes[i[1][n]] for n in kernel[1:])
    r.product(e, i, o[0], pairs, 2 * inner * math.prod(sizes[n] for n in o[0]), times)


def _nothing(r: _Reader, e: JaxprEqn, i: list[Dims], o: list[Dims], _: int) -> None:
    """Values that are made of nothing."""


_Rule: TypeAlias = Callable[[_Reader, Any, list[Dims], list[Dims], int], None]
_RULES: dict[str, _Rule] = {
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "squeeze": _squeeze,
    "select_n": _select,
    "gather": _gather,
    "dot_general": _dot,
    "ragged_dot": _ragged,
    "ragged_dot_general": _ragged,
    "conv_general_dilated": _convolution,
    "dynamic_update_slice": _update_slice,
    "iota": _nothing,
    **dict.fromkeys(("scatter-add", "scatter", "scatter-mul", "scatter_add"), _scatter),
    **dict.fromkeys(("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and",
                     "reduce_or", "argmax", "argmin"), _reduce),
    **dict.fromkeys(("slice", "dynamic_slice", "pad", "concatenate", "split", "cumsum",
                     "top_k", "reduce_window_sum", "reduce_window_max"), _same_rank),
}  # fmt: skip
#: What compilers compute where it is read.
_FUSED_AWAY = (
    "broadcast_in_dim",
    "iota",
    "reshape",
    "squeeze",
    "convert_element_type",
    "transpose",
)
_PRODUCTS = ("dot_general", "ragged_dot", "ragged_dot_general", "conv_general_dilated")


# loops ---------------------------------------------------------------------------------------


def _scan(r: _Reader, e: JaxprEqn, operands: list[Dims], times: int) -> list[Dims]:
    constants, carried = scan_operands(e)
    body, trips = bodies(e)[0], int(e.params["length"])
    carry = operands[constants : constants + carried]
    inside = [*operands[: constants + carried], *(d[1:] for d in operands[constants + carried :])]
    results = r.body(body, inside, times * trips)
    where = place(e) or ""
    for before, after in zip(carry, results[:carried], strict=True):
        r.found.colours.join_all(before, after)
        r.found.carried.append(LoopValue(before, where))
    layers = [r.found.colours.new((trips,)) for _ in results[carried:]]
    stacks = [(*a, *b) for a, b in zip(layers, results[carried:], strict=True)]
    r.found.stacked += zip(stacks, map(_item, e.outvars[carried:]), strict=True)
    return [*results[:carried], *stacks]


def _while(r: _Reader, e: JaxprEqn, operands: list[Dims], times: int) -> list[Dims]:
    skipped, constants = int(e.params["cond_nconsts"]), int(e.params["body_nconsts"])
    carry = operands[skipped + constants :]
    results = r.body(e.params["body_jaxpr"].jaxpr, operands[skipped:], times)
    for before, after in zip(carry, results, strict=True):
        r.found.colours.join_all(before, after)
        r.found.carried.append(LoopValue(before, place(e) or ""))
    return results


def _cond(r: _Reader, e: JaxprEqn, operands: list[Dims], times: int) -> list[Dims]:
    results: list[Dims] = []
    for branch in e.params["branches"]:
        found = r.body(branch.jaxpr, operands[1:], times)
        for one, other in zip(results, found, strict=False):
            r.found.colours.join_all(one, other)
        results = results or found
    return results


_LOOPS = {"scan": _scan, "while": _while, "cond": _cond}
