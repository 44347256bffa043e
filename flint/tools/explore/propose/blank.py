"""A program without shardings: traced on one device, with names, roles and colours of its arguments."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from flint.tools.explore.propose.reading import Dims, Reading, read_program

if TYPE_CHECKING:
    from jax.extend.core import ClosedJaxpr

#: The number of a layer in a path: a component of its own, or what ends one.
_NUMBER = re.compile(r"(?<=[\[._/'])\d+(?=[\]._/']|$)")
#: A key of a path of `jax.tree_util`: ['wq'], [0], .mu
_KEY = re.compile(r"\[[^\]]*\]|\.\w+")
#: A colour that this share of all products' work contains may be the batch.
_MOST_WORK = 0.9


@dataclass(frozen=True)
class Blank:
    """A traced step, its arguments by name, and what was read of it."""

    program: ClosedJaxpr
    names: tuple[str, ...]
    reading: Reading
    results: tuple[str, ...] = ()  #: paths in what the step returns

    @cached_property
    def digest(self) -> str:
        """The same for the same program."""
        text = re.sub(r"0x[0-9a-f]+", "", str(self.program))
        return hashlib.sha256("\n".join((*self.names, *self.results, text)).encode()).hexdigest()

    @cached_property
    def flops(self) -> Mapping[int, float]:
        """Work of a step by colour: that of products which contain it."""
        found: dict[int, float] = defaultdict(float)
        for p in self.reading.products:
            dims = {*p.operands[0], *p.operands[1], *p.result}
            for colour in {self.reading.colours.of(n) for n in dims}:
                found[colour] += float(p.flops) * p.times
        return found

    @cached_property
    def multiplied(self) -> frozenset[int]:
        """Colours that products have: all but those of stacked layers."""
        return frozenset(self.flops)

    @cached_property
    def batch(self) -> int | None:
        """The colour that data parallelism splits: of an argument's first dimension, in most work.

        Of arguments that are none of the weights; None where nothing is such.
        """
        total = max(self.flops.values(), default=0.0)
        weights = self._of_weights
        found = [
            (self.reading.colours.of(dims[0]), number)
            for number, dims in enumerate(self.reading.arguments)
            if dims and self.reading.colours.sizes[dims[0]] > 1
        ]
        mine = [(c, n) for c, n in found if c not in weights and c in self.flops]
        most = [(c, n) for c, n in mine if self.flops[c] >= _MOST_WORK * total]
        if most:  # in an inference step weights are not known by what comes back: they are larger
            return min(most, key=lambda f: (self.held(f[0]), f[1]))[0]
        return max(mine, key=lambda f: (self.flops[f[0]], -f[1]))[0] if mine else None

    @cached_property
    def _of_weights(self) -> frozenset[int]:
        """Colours of arguments that come back: weights and state, where the step trains."""
        shapes = [self._shape(d) for d in self.reading.results]
        colours = [self.reading.colours_of(d) for d in self.reading.results]
        found: set[int] = set()
        for dims in self.reading.arguments:
            mine = self.reading.colours_of(dims)
            if len(dims) and any(
                s == self._shape(dims) and c == mine for s, c in zip(shapes, colours, strict=True)
            ):
                found |= set(mine)
        return frozenset(found)

    @cached_property
    def returned(self) -> dict[int, int]:
        """By number of a result the argument that it replaces: of its type, shape and colours.

        Of several that of the longest common end of both paths: moments are told from weights, in whatever
        order the step returns them. Where paths say nothing, the order of the arguments counts.
        """
        pairs = [
            (-_common_end(name, self.names[n]), number, n)
            for number, name in enumerate(self.results)
            for n in range(len(self.names))
            if self._is_alike(number, n)
        ]
        found: dict[int, int] = {}
        for _, number, n in sorted(pairs):
            if number not in found and n not in found.values():
                found[number] = n
        return found

    def _is_alike(self, result: int, argument: int) -> bool:
        jaxpr, colours = self.program.jaxpr, self.reading.colours_of
        out, given = self.reading.results[result], self.reading.arguments[argument]
        types = [
            getattr(v.aval, "dtype", None) for v in (jaxpr.outvars[result], jaxpr.invars[argument])
        ]
        same = types[0] == types[1] and colours(out) == colours(given)
        return bool(out) and same and self._shape(out) == self._shape(given)

    def _shape(self, dims: Dims) -> tuple[int, ...]:
        return tuple(self.reading.colours.sizes[n] for n in dims)

    def is_activation(self, dims: Dims) -> bool:
        """Whether a value has the dimension of the batch."""
        return self.batch is not None and self.batch in self.reading.colours_of(dims)

    @cached_property
    def _weights(self) -> frozenset[tuple[int, ...]]:
        """Colours of weights as a set of each, with and without a leading stacked dimension."""
        found = set()
        for dims in self.reading.arguments:
            if dims and not self.is_activation(dims):
                colours = self.reading.colours_of(dims)
                found.add(tuple(sorted(c for c in colours if c in self.multiplied)))
        return frozenset(found)

    def is_weight(self, dims: Dims) -> bool:
        """Whether a value has the dimensions of a weight: one in use, or the gradient of one."""
        colours = tuple(sorted(self.reading.colours_of(dims)))
        return not self.is_activation(dims) and colours in self._weights

    @cached_property
    def states(self) -> frozenset[int]:
        """Arguments that only the update reads: the optimizer's state."""
        from flint.passes import jax_private

        results = self.reading.results
        wanted = [not d or self.is_activation(d) for d in results]
        if not any(wanted) or all(wanted):
            return frozenset()
        used = jax_private.used_inputs(self.program.jaxpr, wanted)
        return frozenset(n for n, is_used in enumerate(used)
                         if not is_used and not self.is_activation(self.reading.arguments[n]))  # fmt: skip

    @cached_property
    def candidates(self) -> tuple[int, ...]:
        """Colours that an axis beside the data's may split, those of most work first."""
        sizes = self.reading.colours.sizes
        found = [c for c in self.flops if c != self.batch and sizes[c] > 1 and self.length(c) > 1]
        of_arguments = {c for d in self.reading.arguments for c in self.reading.colours_of(d)}
        found = [c for c in found if c in of_arguments]
        return tuple(sorted(found, key=lambda c: (-self.flops[c], -self.held(c), c)))

    def held(self, colour: int) -> int:
        """Bytes of arguments that have a colour."""
        return sum(self.argument_bytes(n) for n, d in enumerate(self.reading.arguments)
                   if colour in self.reading.colours_of(d))  # fmt: skip

    @cached_property
    def _lengths(self) -> Mapping[int, int]:
        found: dict[int, int] = {}
        for dims in (*self.reading.arguments, *self.reading.results):
            for n in dims:
                c = self.reading.colours.of(n)
                found[c] = math.gcd(found.get(c, 0), self.reading.colours.sizes[n])
        return found

    def length(self, colour: int) -> int:
        """What the lengths of a colour in arguments have in common: axes must divide it."""
        return self._lengths.get(colour, 1)

    def argument_bytes(self, number: int) -> int:
        """Bytes of an argument on one device that holds all of it."""
        aval: Any = self.program.jaxpr.invars[number].aval
        return int(math.prod(aval.shape)) * int(getattr(aval.dtype, "itemsize", 4))

    def name_of(self, colour: int) -> str:
        """What an argument calls a colour: `params['layers']['gate'] dimension 2`."""
        for number, dims in sorted(enumerate(self.reading.arguments), key=self._rank):
            for at, c in enumerate(self.reading.colours_of(dims)):
                if c == colour:
                    return f"{self.names[number]} dimension {at}"
        return f"a dimension of {self.reading.colours.sizes[colour]}"

    def _rank(self, argument: tuple[int, Dims]) -> tuple[bool, int]:
        return argument[0] in self.states, argument[0]


def blank_of(program: ClosedJaxpr, names: tuple[str, ...], results: tuple[str, ...] = ()) -> Blank:
    """Read a traced step; layers that differ in their number alone share their colours."""
    reading = read_program(program)
    _join_layers(reading, names)
    return Blank(program, names, reading, results)


def _common_end(one: str, other: str) -> int:
    """How many keys two paths of arrays have in common, from their ends."""
    keys = zip(_KEY.findall(one)[::-1], _KEY.findall(other)[::-1], strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], keys))


def _join_layers(reading: Reading, names: tuple[str, ...]) -> None:
    """Join colours that arguments of one path, the layer's number removed, have in one dimension."""
    paths: dict[int, set[tuple[str, int]]] = defaultdict(set)
    for name, dims in zip(names, reading.arguments, strict=True):
        for at, node in enumerate(dims):
            paths[reading.colours.of(node)].add((_NUMBER.sub("#", name), at))
    alike: dict[tuple[frozenset[tuple[str, int]], int], int] = {}
    for colour, found in paths.items():
        key = (frozenset(found), reading.colours.sizes[colour])
        reading.colours.join(alike.setdefault(key, colour), colour)
