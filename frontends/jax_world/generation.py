"""A jitted prefill and a jitted decode step that a script calls, put together: one call, and a loop.

What is between the calls (sampling, a position that is counted) is put where it ran. Whether that generates
tokens is not decided here: `flint.passes.rewrites.generation` judges all programs alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from flint.frontends.jax_world.runtime.lowering import abstract
from flint.frontends.user_code import user_error
from flint.passes import jax_private
from flint.passes.locations import decode_location
from flint.passes.mlir import functions_of

if TYPE_CHECKING:
    from jax import Array
    from jaxlib.mlir import ir

    from flint.frontends.jax_world.calls import Call, Function

#: A result by the numbers of its call and its own, or something else by its identity.
_Key: TypeAlias = tuple[int, int]
_Values: TypeAlias = "dict[_Key, Array]"


@dataclass(frozen=True)
class Generation:
    """Two calls of a run, whose arguments `changing` differ, what made those of the first, and what is between."""

    before: Sequence[Call]
    first: Call
    second: Call
    between: Sequence[Call]
    changing: Sequence[int]

    @property
    def name(self) -> str:
        """The functions with products, in order."""
        heavy = [c.function.name for c in (*self.before, self.first) if c.function.weight.flops]
        return " + ".join(dict.fromkeys(heavy))


def generation_in(functions: Iterable[Function]) -> Generation | None:
    """Calls that generate tokens, perhaps: of the function that ran most often."""
    found = filter(None, map(_run_of, functions))
    return max(found, key=lambda g: g.first.function.run_length, default=None)


def _run_of(function: Function) -> Generation | None:
    """The run of a function, if products of others, less often called, made what it begins with."""
    if len(function.run) < 2 or not function.weight.writes:
        return None
    first, second = function.run
    pairs = enumerate(zip(first.arguments, second.arguments, strict=True))
    changing = [n for n, (a, b) in pairs if not _is_same(a, b)]
    before = _makers([first.arguments[n] for n in changing], function)
    heavy = [c for c in before if c.function.weight.flops]
    if not heavy or any(2 * c.function.calls > function.calls for c in heavy):
        return None
    before = [c for c in before if c.number >= heavy[0].number]
    between = _makers([second.arguments[n] for n in changing], function, since=first.number)
    return Generation(before, first, second, between, changing)


def _makers(values: Iterable[object], apart_from: Function, since: int = 0) -> list[Call]:
    """The calls that values are made by, in order, without those of one function."""
    found: dict[int, Call] = {}
    todo = list(values)
    while todo:
        call = made_by(todo.pop())[0]
        if call is None or call.function is apart_from or call.number in found:
            continue
        if call.number > since:
            found[call.number] = call
            todo += call.arguments
    return [found[n] for n in sorted(found)]


def made_by(value: object) -> tuple[Call | None, int]:
    """The call that a value is a result of, and which; None for others."""
    return getattr(jax_private.key_bits(value), "made_by", None) or (None, 0)


def _key(value: object) -> _Key:
    call, place = made_by(value)
    return (call.number, place) if call else (-1, id(jax_private.key_bits(value)))


def _is_same(a: object, b: object) -> bool:
    if hasattr(a, "aval") or hasattr(b, "aval"):
        return _key(a) == _key(b)
    return bool(np.array_equal(np.asarray(a), np.asarray(b)))


def lowered_generation(found: Generation) -> ir.Module:
    """StableHLO of the calls before, and of a loop around the call and what is between.

    Raises FlintError FL203 where JAX does not take them together.
    """
    import jax

    calls = (*found.before, found.first, *found.between)
    made, donated = {c.number for c in calls}, set[str]()
    names: dict[_Key, str] = {}
    given: dict[str, object] = {}
    for call in calls:
        labels = call.parameters["jaxpr"].jaxpr.debug_info.safe_arg_names(len(call.arguments))
        gone = call.parameters["donated_invars"]
        for value, label, is_donated in zip(call.arguments, labels, gone, strict=True):
            key = _key(value)
            if key[0] in made or not np.ndim(value):
                continue
            name = names.setdefault(key, label if label not in given else f"{label}.{len(given)}")
            given[name] = abstract(value)
            donated |= {name} if is_donated else set()

    def step(**given: Array) -> list[Array]:
        return _steps(found, {key: given[name] for key, name in names.items()})

    jitted = jax.jit(step, donate_argnames=tuple(sorted(donated)))
    try:
        module: ir.Module = jitted.trace(**given).lower().compiler_ir("stablehlo")
    except Exception as error:
        raise user_error(error, f"lowering {found.name}", found.first.function.place) from error
    _name_arguments(module)
    return module


def _name_arguments(module: ir.Module) -> None:
    """Arguments have the names that they have in the script, not those of keywords."""
    from jaxlib.mlir import ir

    with module.context:
        for argument in functions_of(module)["main"].regions[0].blocks[0].arguments:
            name = decode_location(argument.location)[0]
            own = name.removeprefix("given['").removesuffix("']")
            argument.set_location(ir.Location.name(own))


def _steps(found: Generation, known: _Values) -> list[Array]:
    import jax

    first, changing = found.first, found.changing
    for call in found.before:
        _run(call, known)
    given = _arguments(first, known)

    def decode(carry: list[Array], _: None) -> tuple[list[Array], None]:
        now = dict(zip(changing, carry, strict=True))
        inside = {**known, **{_key(first.arguments[n]): c for n, c in now.items()}}
        _run(first, inside, [now.get(n, value) for n, value in enumerate(given)])
        for call in found.between:
            _run(call, inside)
        return [_next(found, inside, n, c) for n, c in now.items()], None

    start = [given[n] for n in changing]
    last: list[Array] = jax.lax.scan(decode, start, length=first.function.run_length)[0]
    return last


def _run(call: Call, known: _Values, arguments: Sequence[object] = ()) -> None:
    given = arguments or _arguments(call, known)
    results = jax_private.jitted_calls().jit_p.bind(*given, **call.parameters)
    known |= {(call.number, n): result for n, result in enumerate(results)}


def _arguments(call: Call, known: _Values) -> list[Any]:
    pairs = zip(call.arguments, call.parameters["jaxpr"].jaxpr.invars, strict=True)
    found = [(known.get(_key(a)), a, v.aval.dtype) for a, v in pairs]
    return [np.asarray(a, dtype) if f is None else f for f, a, dtype in found]


def _next(found: Generation, known: _Values, place: int, now: Array) -> Array:
    """What an argument is in the next iteration: made by this one, or a number that is counted."""
    after = found.second.arguments[place]
    if (made := known.get(_key(after))) is not None:
        return made
    numbers = [_number(a) for a in (found.first.arguments[place], after)]
    if any(n is None or not np.issubdtype(n.dtype, np.integer) for n in numbers):
        return now
    return now + np.subtract(*reversed(numbers)).astype(now.dtype)


def _number(value: object) -> np.ndarray[Any, Any] | None:
    known = getattr(value, "known", None)
    if hasattr(value, "aval") and known is None:
        return None
    return np.asarray(value if known is None else known.data)
