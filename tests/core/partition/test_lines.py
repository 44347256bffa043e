"""Which whole numbers of a program run along one dimension, in the forms that JAX writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("jax")
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from flint.passes.mlir import functions_of, make_context
from flint.passes.partition.prepare.index_lines import IndexLine, line_of
from flint.passes.partition.prepare.inline import inline_calls

IOTA = IndexLine(0, 1, 0, 6)
Make = Callable[[Any], Any]


def negative_as_numpy(i: Any) -> Any:
    return jnp.where(i < 0, i + 6, i)


def in_a_loop(n: Any) -> Any:
    """The numbers come from outside, and no turn changes them."""
    first = jnp.arange(6) + 0 * lax.iota("int32", 6)
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + jnp.sum(s[1]), s[1]), (0, first))[0]


LINES: dict[str, tuple[Make, IndexLine | None]] = {
    "arange": (lambda n: jnp.arange(6), IOTA),
    "as a column": (lambda n: jnp.arange(6)[:, None], IOTA),
    "broadcast": (lambda n: jnp.broadcast_to(jnp.arange(6), (4, 6)), IndexLine(0, 1, 1, 6)),
    "transposed": (lambda n: jnp.broadcast_to(jnp.arange(6), (4, 6)).T, IOTA),
    "negative wrapped": (lambda n: negative_as_numpy(jnp.arange(6)), IOTA),
    "converted": (lambda n: jnp.arange(6).astype(jnp.uint8), IOTA),
    "clipped where nothing is": (lambda n: lax.clamp(0, jnp.arange(6), 5), IOTA),
    "a constant of numpy": (lambda n: jnp.asarray(np.arange(6, dtype=np.int32)), IOTA),
    "two of three": (lambda n: 3 * jnp.arange(6) + 2, IndexLine(2, 3, 0, 6)),
    "backwards": (lambda n: 5 - jnp.arange(6), IndexLine(5, -1, 0, 6)),
    "twice the same": (lambda n: jnp.arange(6) + jnp.arange(6), IndexLine(0, 2, 0, 6)),
    "one number": (lambda n: jnp.full((6,), 4), IndexLine(4)),
    "the place of a quantile": (
        lambda n: jnp.floor(jnp.full((6,), 0.7) * 10).astype(int),
        IndexLine(7),
    ),
    "of the program": (lambda n: jnp.arange(6) + n, None),
    "of two dimensions": (lambda n: jnp.arange(6)[:, None] + jnp.arange(4), None),
    "squares": (lambda n: jnp.arange(6) * jnp.arange(6), None),
    "cut off": (lambda n: lax.clamp(0, jnp.arange(6), 4), None),
    "chosen by each": (lambda n: jnp.where(jnp.arange(6) < 3, jnp.arange(6), 9), None),
    "wrapped by its type": (lambda n: jnp.arange(300).astype(jnp.uint8), None),
    "rounded by its type": (lambda n: jnp.arange(300).astype(jnp.bfloat16).astype(int), None),
    "as long as its type": (lambda n: jnp.arange(256).astype(jnp.uint8), IndexLine(0, 1, 0, 256)),
    "of four bits": (lambda n: jnp.asarray(np.arange(6), dtype=jnp.int4), None),
    "one number, cut off": (lambda n: lax.clamp(0, jnp.full((6,), 40), 31), IndexLine(31)),
    "not in order": (lambda n: jnp.asarray(np.array([0, 2, 1], dtype=np.int32)), None),
}


@pytest.fixture(scope="module", autouse=True)
def context() -> Iterator[None]:
    with make_context():
        yield


def module_of(make: Make) -> Any:
    from jaxlib.mlir import ir

    text = jax.jit(make).lower(jax.ShapeDtypeStruct((), jnp.int32)).as_text()
    module = ir.Module.parse(text)
    inline_calls(module)
    return module


@pytest.mark.parametrize("name", LINES)
def test_what_a_value_holds(name: str) -> None:
    make, expected = LINES[name]
    module = module_of(make)
    main = functions_of(module)["main"]
    returned = list(main.regions[0].blocks[0].operations)[-1].operands[0]
    assert line_of(returned) == expected
    if expected is not None:
        shape = np.asarray(jax.jit(make)(jnp.int32(1))).shape
        along = expected.dimension if expected.step else 0
        places = np.indices(shape)[along]
        assert (np.asarray(make(jnp.int32(1))) == expected.start + expected.step * places).all()


def test_what_a_loop_leaves_alone_is_what_it_began_as() -> None:
    from flint.passes.mlir import operations_named

    module = module_of(in_a_loop)
    [loop] = operations_named(module, "stablehlo.while")
    found = [line_of(argument) for argument in loop.regions[1].blocks[0].arguments]
    assert IOTA in found
    assert None in found  # the sum, which changes


@pytest.mark.parametrize(
    ("line", "is_iota", "ends"),
    [
        (IndexLine(0, 1, 0, 6), True, (0, 5)),
        (IndexLine(0, 1, 1, 2), True, (0, 1)),
        (IndexLine(0, 1, 0, 1), False, (0, 0)),  # one position: any number that is 0
        (IndexLine(1, 1, 0, 6), False, (1, 6)),
        (IndexLine(0, 2, 0, 6), False, (0, 10)),
        (IndexLine(5, -1, 0, 6), False, (0, 5)),
        (IndexLine(4), False, (4, 4)),
    ],
)
def test_lines_that_hold_the_number_of_each_position(
    line: IndexLine, is_iota: bool, ends: tuple[int, int]
) -> None:
    assert (line.is_iota, line.ends) == (is_iota, ends)
