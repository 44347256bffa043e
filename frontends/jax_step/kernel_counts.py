"""What a Pallas kernel does, counted from its body, its grid and its blocks.

Products (2 for each multiply-add) and transcendental functions of the body count once for each step of
the grid that reaches them: integers that follow from the position in the grid are computed for all
steps at once, so that loops and branches on them (causal attention) are exact. Of a branch that
depends on data, the one with most work counts, and the lesser of a known number and one that depends on
data is the known one: as if a paged cache was full. A loop with products whose bound depends on data
otherwise has no count, nor has a kernel that talks to other devices, or one without products that
calculates more than it moves: arithmetic by elements is taken to hide behind products or bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from flint.frontends.jax_stages.cut.jaxprs import scan_operands
from flint.passes.hlo.shapes import bits_of

if TYPE_CHECKING:
    from jax.extend.core import Jaxpr, JaxprEqn

#: More steps of a grid than this are not looked at one by one.
MOST_STEPS = 2**22
#: Operations by elements for each byte, above which they are not hidden: about what chips balance.
MOST_ARITHMETIC = 8
_ARITHMETIC_BY_ELEMENTS = frozenset(
    (
        *("add", "sub", "mul", "div", "rem", "max", "min", "select_n", "lt", "le", "gt"),
        *("ge", "eq", "ne", "and", "or", "xor", "not", "shift_left", "neg", "abs", "sign"),
        *("shift_right_logical", "shift_right_arithmetic", "integer_pow", "square", "clamp"),
        *("floor", "ceil", "round", "reduce_sum", "reduce_max", "reduce_min"),
    )
)
#: What signals other devices, or waits for them.
_REMOTE = frozenset({"get_barrier_semaphore"})
_TRANSCENDENTAL = frozenset(
    (
        *("exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "sin", "cos", "tan"),
        *("pow", "rsqrt", "sqrt", "cbrt", "erf", "erfc", "erf_inv", "atan2", "asin", "acos"),
        *("atan", "sinh", "cosh"),
    )
)

#: A scalar for each step of the grid (or for all of them), or None where it is not known.
Known: TypeAlias = NDArray[np.int64] | None


class _Unknown(Exception):
    """Something that no count can be made of."""


@dataclass(frozen=True)
class KernelCounts:
    """The work of one call. `bytes_accessed` is 0 for all operands and results once."""

    flops: int
    transcendentals: int
    bytes_accessed: int


def counts_of(body: Jaxpr, grid_mapping: Any, *, is_pipelined: bool) -> KernelCounts | None:
    """What a kernel does with `body` on the grid and blocks of a `pallas_call`, None if not known.

    `is_pipelined`: blocks are copied from memory where their index changes from one step of the
    grid to the next (TPUs). Elsewhere caches are in between, and every array counts once.
    """
    grid = grid_mapping.grid
    if not all(isinstance(size, int) for size in grid) or math.prod(grid) > MOST_STEPS:
        return None
    steps = np.indices(grid, dtype=np.int64).reshape(len(grid), math.prod(grid))
    counter = _Counter(steps, grid)
    try:
        counter.run(body, [None] * len(body.invars), np.ones((), dtype=np.int64))
        moved = _bytes(grid_mapping, steps)
    except _Unknown:
        return None
    if not counter.flops and counter.arithmetic > MOST_ARITHMETIC * moved:
        return None
    return KernelCounts(counter.flops, counter.transcendentals, moved if is_pipelined else 0)


class _Counter:
    """Adds up the work of jaxprs, each with how often every step of the grid runs it."""

    def __init__(self, steps: NDArray[np.int64], grid: Sequence[int]) -> None:
        self.steps, self.grid = steps, tuple(grid)
        self.count = steps.shape[1]
        self.flops = self.transcendentals = self.arithmetic = 0

    def run(self, jaxpr: Any, arguments: Sequence[Known], times: NDArray[np.int64]) -> list[Known]:
        """Count a jaxpr that runs `times` at each step; returns its results as far as known."""
        jaxpr, constants = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", ())
        known: dict[Any, Known] = dict(zip(jaxpr.invars, arguments, strict=True))
        known.update(
            (var, _scalar(value)) for var, value in zip(jaxpr.constvars, constants, strict=False)
        )

        def read(atom: Any) -> Known:
            return _scalar(atom.val) if hasattr(atom, "val") else known.get(atom)

        for equation in jaxpr.eqns:
            found = self._equation(equation, [read(v) for v in equation.invars], times)
            known.update(zip(equation.outvars, found, strict=False))
        return [read(v) for v in jaxpr.outvars]

    def _equation(self, e: JaxprEqn, values: list[Known], times: NDArray[np.int64]) -> list[Known]:
        name = e.primitive.name
        if name in ("program_id", "num_programs"):
            axis = int(e.params["axis"])
            return [
                self.steps[axis]
                if name == "program_id"
                else np.int64(self.grid[axis]) + np.zeros((), np.int64)
            ]
        if name in _CONTROL:
            return _CONTROL[name](self, e, values, times)
        if name == "dot_general":
            self.flops += self._total(times) * _product(e)
        elif "mma" in name or name in _REMOTE or "multimem" in name or _is_remote(e):
            raise _Unknown(name)  # products of Mosaic GPU have their sizes elsewhere
        elif name in _ARITHMETIC_BY_ELEMENTS:
            self.arithmetic += self._total(times) * math.prod(_shape(e))
        elif name in _TRANSCENDENTAL:
            self.transcendentals += self._total(times) * math.prod(e.outvars[0].aval.shape)
        elif (inner := _inner(e)) is not None:
            fits = len(getattr(inner, "jaxpr", inner).invars) == len(values)
            count = len(getattr(inner, "jaxpr", inner).invars)
            return self.run(inner, values if fits else [None] * count, times)
        return [_computed(name, e, values)] if len(e.outvars) == 1 else [None] * len(e.outvars)

    def _total(self, times: NDArray[np.int64]) -> int:
        return int(times.sum()) if times.shape else int(times) * self.count

    def scan(self, e: JaxprEqn, values: list[Known], times: NDArray[np.int64]) -> list[Known]:
        """A loop of known length. What it carries is not followed, except for constants."""
        constants, _ = scan_operands(e)
        inside = [*values[:constants], *[None] * (len(values) - constants)]
        self.run(e.params["jaxpr"], inside, times * np.int64(e.params["length"]))
        return [None] * len(e.outvars)

    def loop(self, e: JaxprEqn, values: list[Known], times: NDArray[np.int64]) -> list[Known]:
        """A `fori_loop` whose bounds are known; another one if it does nothing that counts."""
        first, second = int(e.params["cond_nconsts"]), int(e.params["body_nconsts"])
        carried = values[first + second :]
        body = e.params["body_jaxpr"]
        inside = [*values[first : first + second], *[None] * len(carried)]
        before = (self.flops, self.transcendentals)
        trips = _trips(e, values[:first], carried)
        self.run(body, inside, times * (np.int64(1) if trips is None else trips))
        if trips is None and (self.flops, self.transcendentals) != before:
            raise _Unknown("while")
        return [None] * len(e.outvars)

    def branches(self, e: JaxprEqn, values: list[Known], times: NDArray[np.int64]) -> list[Known]:
        """Each branch where it is taken; the one with most work where that is not known."""
        index, inside = values[0], values[1:]
        bodies = e.params["branches"]
        if index is not None:
            at = np.clip(index, 0, len(bodies) - 1)
            for number, body in enumerate(bodies):
                self.run(body, inside, times * (at == number))
            return [None] * len(e.outvars)
        before, found = (self.flops, self.transcendentals), []
        for body in bodies:
            self.flops, self.transcendentals = before
            self.run(body, inside, times)
            found.append((self.flops, self.transcendentals))
        self.flops, self.transcendentals = max(found)
        return [None] * len(e.outvars)


_CONTROL: Mapping[str, Callable[..., list[Known]]] = {
    "scan": _Counter.scan,
    "while": _Counter.loop,
    "cond": _Counter.branches,
}


def _shape(e: JaxprEqn) -> tuple[int, ...]:
    """The larger of the first operand's shape and the result's; none of scalars."""
    shapes = [getattr(v.aval, "shape", ()) for v in (*e.invars[:1], *e.outvars)]
    found: tuple[int, ...] = max(shapes, key=math.prod)
    return found or (0,)


def _is_remote(e: JaxprEqn) -> bool:
    """Whether a copy or a signal goes to another device."""
    if e.primitive.name not in ("dma_start", "semaphore_signal"):
        return False
    import jax

    tree = e.params.get("tree", e.params.get("args_tree"))
    parts = jax.tree.unflatten(tree, e.invars)
    at = len(parts) - 1 if e.primitive.name == "dma_start" else 3
    return len(parts) > at and bool(jax.tree.leaves(parts[at]))


def _inner(e: JaxprEqn) -> Any:
    """The jaxpr that an equation calls once (jit, run_scoped, custom derivatives), or None."""
    for key in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        found = e.params.get(key)
        if found is not None and hasattr(getattr(found, "jaxpr", found), "eqns"):
            return found
    return None


def _product(e: JaxprEqn) -> int:
    (contracted, _), _ = e.params["dimension_numbers"]
    lhs: tuple[int, ...] = e.invars[0].aval.shape
    result: tuple[int, ...] = e.outvars[0].aval.shape
    k: int = math.prod(lhs[d] for d in contracted)
    return 2 * k * math.prod(result)


def _trips(e: JaxprEqn, constants: list[Known], carried: list[Known]) -> Known:
    """How often a loop `i < bound`, `i += step` runs at each step of the grid; None if not known."""
    condition, body = e.params["cond_jaxpr"].jaxpr, e.params["body_jaxpr"].jaxpr
    values = dict(zip(condition.invars, [*constants, *carried], strict=True))
    if len(condition.eqns) != 1 or condition.eqns[0].primitive.name != "lt":
        return None
    counter, bound = condition.eqns[0].invars
    start = values.get(counter) if not hasattr(counter, "val") else None
    stop = _scalar(bound.val) if hasattr(bound, "val") else values.get(bound)
    if start is None or stop is None:
        return None
    place = list(condition.invars).index(counter) - len(constants)
    before = body.invars[len(body.invars) - len(carried) + place]
    written = body.outvars[place]
    step = next((_step(b, before) for b in body.eqns if written in b.outvars), 0)
    if not hasattr(bound, "val"):
        at = list(condition.invars).index(bound) - len(constants)
        if at >= 0 and body.outvars[at] is not body.invars[len(body.invars) - len(carried) + at]:
            return None  # the bound moves
    if step <= 0:
        return None
    trips: NDArray[np.int64] = np.maximum(-((start - stop) // step), 0)
    return trips


def _step(e: JaxprEqn, counter: Any) -> int:
    """What an equation adds to a counter; 0 if it does something else."""
    if e.primitive.name != "add":
        return 0
    left, right = e.invars
    if left is counter and hasattr(right, "val"):
        return int(right.val)
    return int(left.val) if right is counter and hasattr(left, "val") else 0


def _scalar(value: Any) -> Known:
    """An integer or truth value as an array, None of anything else."""
    if isinstance(value, bool | int | np.bool_ | np.integer):
        return np.asarray(int(value), dtype=np.int64)
    if getattr(value, "shape", None) == () and np.dtype(value.dtype).kind in "iub":
        return np.asarray(int(value), dtype=np.int64)
    return None


def _divided(a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.int64]:
    """Towards zero, as `lax.div`."""
    safe = np.where(b == 0, 1, b)
    found: NDArray[np.int64] = np.sign(a) * np.sign(safe) * (np.abs(a) // np.abs(safe))
    return found


_ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": _divided,
    "rem": lambda a, b: a - _divided(a, b) * b,
    "max": np.maximum,
    "min": np.minimum,
    "neg": np.negative,
    "sign": np.sign,
    "abs": np.abs,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "clamp": lambda low, x, high: np.clip(x, low, high),
    "select_n": lambda which, *cases: np.choose(which, np.broadcast_arrays(*cases)),
    "convert_element_type": lambda x: x,
    "shift_right_logical": np.right_shift,
    "shift_right_arithmetic": np.right_shift,
    "shift_left": np.left_shift,
    "squeeze": lambda x: x,
    "reshape": lambda x: x,
    "multiple_of": lambda x: x,
}
_LOGIC: Mapping[str, Callable[..., Any]] = {
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def _computed(name: str, e: JaxprEqn, values: list[Known]) -> Known:
    """The integer that an equation of known integers gives, for each step of the grid."""
    aval = e.outvars[0].aval
    if getattr(aval, "shape", None) != () or np.dtype(aval.dtype).kind not in "iub":
        return None
    if name == "and" and np.dtype(aval.dtype).kind == "b":
        for one in values:
            if one is not None and not one.any():
                return one  # false whatever the other is
    if name == "min" and sum(v is None for v in values) == 1:
        return next(v for v in values if v is not None)  # at most: as if what is paged was full
    if any(v is None for v in values) or not values:
        return None
    if name == "not":
        is_bool = np.dtype(aval.dtype).kind == "b"
        return np.asarray(1 - values[0] if is_bool else ~values[0], dtype=np.int64)  # type: ignore[operator]
    rule = _ARITHMETIC.get(name) or _LOGIC.get(name)
    return None if rule is None else np.asarray(rule(*values), dtype=np.int64)


# bytes ----------------------------------------------------------------------------------------


def _bytes(grid_mapping: Any, steps: NDArray[np.int64]) -> int:
    """What is copied between memory and the chip: a block whenever its index changes.

    Arrays without blocks, which a kernel copies from by itself, count once, whole.
    """
    return sum(_moved(mapping, steps) for mapping in grid_mapping.block_mappings)


#: Dimensions of blocks of which the index map gives the first element.
_BY_ELEMENT = ("Element", "BoundedSlice")


def _moved(mapping: Any, steps: NDArray[np.int64]) -> int:
    array = mapping.array_aval
    bits = bits_of(np.dtype(array.dtype).name) or 8 * int(array.dtype.itemsize)
    space = str(getattr(mapping.transformed_block_aval, "memory_space", "")).lower()
    if "any" in space or "hbm" in space:
        return -(-math.prod(map(int, array.shape)) * bits // 8)
    sizes = [
        int(getattr(d, "block_size", d if isinstance(d, int) else 1)) for d in mapping.block_shape
    ]
    index = _indices(mapping, steps)
    changes = _changes(index, steps.shape[1])
    elements = np.ones(int(changes.sum()), dtype=np.int64)
    for size, kind, whole, at in zip(sizes, mapping.block_shape, array.shape, index, strict=True):
        if at is None:
            elements *= min(size, whole)
        else:
            first = np.broadcast_to(at, steps.shape[1:])[changes]
            first = first if type(kind).__name__ in _BY_ELEMENT else first * size
            elements *= np.clip(whole - first, 0, size)
    return -(-int(elements.sum()) * bits // 8)


def _indices(mapping: Any, steps: NDArray[np.int64]) -> list[Known]:
    """The block's index in every dimension at each step; None where it depends on data."""
    jaxpr = mapping.index_map_jaxpr
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    given: list[Known] = [*steps]
    given += [None] * (len(inner.invars) - len(given))
    return _Counter(steps, ()).run(jaxpr, given, np.ones((), dtype=np.int64))[
        : len(mapping.block_shape)
    ]


def _changes(index: list[Known], count: int) -> NDArray[np.bool_]:
    """The steps at which some index is another than at the step before."""
    changes = np.zeros(count, dtype=np.bool_)
    changes[0] = True
    for at in index:
        if at is None:
            changes[:] = True
        elif at.shape:
            changes[1:] |= at[1:] != at[:-1]
    return changes
