"""Calls of jitted functions: what each was called with, how often, and which one is the step."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from flint.errors import FlintError, nearest
from flint.frontends.jax_world.values.places import asking_place
from flint.frontends.jax_world.work import Weight, Weights
from flint.text import plural

#: So many calls after the one that is wanted, a heavier function is no longer waited for.
CALLS_AFTER = 8
#: A program that has called jitted functions so often is in a loop that does not end.
MOST_CALLS = 20_000
#: So many calls of one function are waited for, to see how many tokens a program generates.
MOST_PASSES = 2_000


class StepDone(BaseException):
    """Ends the program: the step is there. Not an Exception, so that the program does not catch it."""


@dataclass(frozen=True)
class Choice:
    """Which call to capture: the `number`-th (from 1) of the function `name`.

    Without a name it is the function with most FLOPs in products among those that were called so
    often; if none was, the heaviest of all. Unless the number `is_exact`, a function that was called
    less often is captured at its last call.
    """

    name: str = ""
    number: int = 2
    is_exact: bool = False


@dataclass(frozen=True)
class Call:
    """One call of a jitted function: flat arguments, and what JAX knows of the function.

    Numbers grow from call to call, those of JAX's own functions included.
    """

    function: Function
    arguments: tuple[Any, ...]
    parameters: dict[str, Any]
    number: int = 0


@dataclass
class Function:
    """A jitted function of the program, told from others by name, source line and types.

    `run` are the first two of the last `run_length` calls, each of which reads what the one before made.
    """

    name: str
    place: str
    weight: Weight
    calls: int = 0
    kept: Call | None = field(default=None, repr=False)
    run: tuple[Call, ...] = field(default=(), repr=False)
    run_length: int = 0

    def follow(self, call: Call, *, goes_on: bool) -> None:
        """Note a call, which goes on with what the one before made, or begins anew."""
        self.run = (*self.run, call)[:2] if goes_on else (call,)
        self.run_length = self.run_length + 1 if goes_on else 1

    def described(self) -> str:
        """In a list for the user: name, line, calls and weight."""
        where = f" ({self.place})" if self.place else ""
        return f"{self.name}{where}: {plural(self.calls, 'call')} of {_shown_flops(self.weight)}"


def _shown_flops(weight: Weight) -> str:
    if not weight.flops:
        return plural(weight.equations, "equation")
    amount, unit = float(weight.flops), "FLOP"
    for bigger in ("kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, bigger
    return f"{amount:.3g} {unit} in products"


class Calls:
    """Every call of a program's own jitted functions, and when it may end."""

    def __init__(self, choice: Choice, weights: Weights | None = None) -> None:
        self._choice = choice
        self._weights = weights or Weights()
        self._functions: dict[tuple[Source, Any], Function] = {}
        self._seen: dict[int, tuple[Any, Function | None]] = {}
        self._total = 0

    def called(self, arguments: Sequence[Any], parameters: dict[str, Any]) -> Function | None:
        """Note a call, None if it is one of JAX's own functions. Raises FlintError FL239."""
        found = self._function(parameters["jaxpr"], str(parameters["name"]))
        if found is None:
            return None
        self._total += 1
        found.calls += 1
        if found.calls <= self._choice.number:
            found.kept = Call(found, tuple(arguments), parameters)
        if self._total > MOST_CALLS:
            raise self._endless(found)
        return found

    def may_end(self, function: Function) -> bool:
        """Whether the step is certain, after a call of `function`."""
        if self._choice.name:
            return _is_called(function, self._choice.name) and function.calls >= self._choice.number
        wanted = function.calls >= self._choice.number + CALLS_AFTER
        return wanted and self._best() is function

    @property
    def free(self) -> tuple[Function, ...]:
        """All functions, where no call was asked for and the program has not called too many."""
        is_free = self._choice == Choice() and self._total < MOST_CALLS
        return tuple(self._functions.values()) if is_free else ()

    def chosen(self) -> Call:
        """The call to capture. Raises FlintError FL231 if it never came."""
        best = self._best()
        if best is None or best.kept is None:
            raise self._never()
        return best.kept

    @property
    def is_certain(self) -> bool:
        """Whether a function with products was called as often as asked for.

        One without may be what prepares a step that never came.
        """
        best = self._best()
        return best is not None and best.calls >= self._choice.number and best.weight.flops > 0

    def note(self, chosen: Call) -> str:
        """A sentence on what is captured, with the other functions, heaviest first; or ""."""
        others = [f for f in self._ranked() if f is not chosen.function]
        beside = [f for f in others if f.calls + 1 >= chosen.function.calls > 1]
        others = [f for f in others if f.weight.flops or f.calls > 1]
        if not others:
            return ""
        number = min(chosen.function.calls, self._choice.number)
        listed = "; ".join(f.described() for f in others[:6])
        more = f" and {len(others) - 6} more" if len(others) > 6 else ""
        as_often = " and ".join(f.name for f in beside[:6])
        runs = f"; {as_often}, called equally often, may be part of the step" if beside else ""
        return (
            f"captured call {number} of {chosen.function.described()}; also jitted: "
            f"{listed}{more}{runs}; --step NAME captures another"
        )

    def _function(self, jaxpr: Any, name: str) -> Function | None:
        inner = getattr(jaxpr, "jaxpr", jaxpr)
        if id(inner) not in self._seen:
            self._seen[id(inner)] = (inner, self._told_apart(inner, name))
        return self._seen[id(inner)][1]

    def _told_apart(self, jaxpr: Any, name: str) -> Function | None:
        """The function that a jaxpr is of. One that is traced again for the same types is one."""
        source = source_of(jaxpr, name)
        if source is None:
            return None
        types = tuple((v.aval.shape, str(v.aval.dtype)) for v in jaxpr.invars)
        key = (source, types)
        if key not in self._functions:
            self._functions[key] = Function(source.name, source.place, self._weights.of(jaxpr))
        return self._functions[key]

    def _ranked(self) -> list[Function]:
        often = self._choice.number
        return sorted(
            self._functions.values(), key=lambda f: (f.calls >= often, f.weight), reverse=True
        )

    def _best(self) -> Function | None:
        name = self._choice.name
        named = [f for f in self._ranked() if not name or _is_called(f, name)]
        if self._choice.is_exact:
            named = [f for f in named if f.calls >= self._choice.number]
        return named[0] if named else None

    def _never(self) -> FlintError:
        known = self._ranked()
        if not self._choice.name or not known:
            return FlintError(
                "FL231",
                "the program ended without calling any function that jax.jit made",
                help="operations that are not jitted do not form a device program: jit the step",
            )
        name, number = self._choice.name, self._choice.number
        listed = "; ".join(f.described() for f in known[:8])
        meant = (
            ""
            if any(_is_called(f, name) for f in known)
            else nearest(name, [f.name for f in known])
        )
        return FlintError(
            "FL231",
            f"call {number} of '{name}' never came{meant}",
            help=f"the program called {listed}",
        )

    def _endless(self, function: Function) -> FlintError:
        place, library = asking_place()
        return FlintError(
            "FL239",
            f"the program has called jitted functions {MOST_CALLS:,} times, last "
            f"{function.described()}: the loop around it never ends",
            place=place or library or None,
            help="choose the function and the call to capture: --step NAME:N",
        )


def _is_called(function: Function, name: str) -> bool:
    return function.name == name or function.place == name


# Which function of the program a jaxpr was traced from.

_SOURCE = re.compile(r" at (.*):(\d+)$")
#: What `jax.pmap` jits is a function of its own around the program's: file, and its name there.
_PMAP = ("/jax/_src/pmap.py", "_fun")


@dataclass(frozen=True)
class Source:
    """A function's name, and `file.py:line` of its definition ("" where nothing says)."""

    name: str
    place: str


def source_of(jaxpr: Any, name: str) -> Source | None:
    """The function that a jaxpr was traced from, called `name`; None for functions of JAX's own."""
    match = _SOURCE.search(str(getattr(jaxpr.debug_info, "func_src_info", "")))
    if match is None:
        return Source(name, "")
    if _is_jax(match[1]):
        return _pmapped(jaxpr) if match[1].replace(os.sep, "/").endswith(_PMAP[0]) else None
    return Source(name, f"{os.path.basename(match[1])}:{match[2]}")


@cache
def _is_jax(file: str) -> bool:
    import jax

    return os.path.realpath(file).startswith(
        os.path.dirname(os.path.realpath(jax.__file__)) + os.sep
    )


def _pmapped(jaxpr: Any) -> Source | None:
    """The function inside `jax.pmap`, by the frames in which its operations were traced."""
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            inner = equation.params["jaxpr"]
            for operation in getattr(inner, "jaxpr", inner).eqns:
                traceback = operation.source_info.traceback
                found = _called_by_pmap(traceback.frames if traceback is not None else ())
                if found is not None:
                    return found
    return None


def _called_by_pmap(frames: Sequence[Any]) -> Source | None:
    """The outermost function of the program that pmap's own calls; `frames` begin innermost."""
    found = None
    for frame in frames:
        name = frame.function_name.rpartition(".")[2]
        if name == _PMAP[1] and frame.file_name.replace(os.sep, "/").endswith(_PMAP[0]):
            return found
        if not _is_jax(frame.file_name):
            line = frame.function_start_line
            found = Source(name, f"{os.path.basename(frame.file_name)}:{line}")
    return None
