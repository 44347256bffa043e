"""Finding layers and scopes in a traced model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.frontends.jax_stages.cut.digests import Digests
from flint.frontends.jax_stages.cut.flow import Flow, flow_of
from flint.frontends.jax_stages.cut.jaxprs import (
    Flops,
    inlined,
    is_call,
    reads,
    scan_operands,
    scope,
)
from flint.frontends.jax_stages.cut.slices import sliced_rows
from flint.frontends.jax_stages.cut.trace import Traced, from_parameters
from flint.frontends.jax_step.equations import bodies

if TYPE_CHECKING:
    from jax.extend.core import JaxprEqn


Path = tuple[str, ...]


@dataclass(frozen=True)
class FoundLayers:
    """Equal layers in a program: the iterations of the scan at equation `scan`, or a list.

    `spans` are the first and the last equation of each layer of a list.
    """

    name: str
    count: int
    scan: int | None = None
    spans: tuple[tuple[int, int], ...] = ()


def opened_for_layers(traced: Traced, path: Path, work: Flops) -> Traced:
    """`traced` with jitted calls inlined until the layers `path` are found, or nothing is left."""
    return _opened(traced, [path], work, lambda t, p: find_layers(t, p, work) is not None)


def opened_for_scopes(traced: Traced, paths: Sequence[Path], work: Flops) -> Traced:
    """`traced` with jitted calls inlined until each of `paths` is found, or nothing is left."""

    def is_found(traced: Traced, path: Path) -> bool:
        if find_scope(traced, path) is not None:
            return True
        return path[-1].isdigit() and find_layers(traced, path[:-1], work) is not None

    return _opened(traced, paths, work, is_found)


def _opened(
    traced: Traced, paths: Sequence[Path], work: Flops, is_found: Callable[[Traced, Path], bool]
) -> Traced:
    while True:
        missing = [p for p in paths if not is_found(traced, p)]
        if not missing:
            return traced
        program = inlined(traced.program, partial(_holds_any, missing))
        if program is traced.program:
            program = inlined(program, _is_most(traced, work))
        if program is traced.program:
            return traced
        traced = replace(traced, program=program)


def _list_of(path: Path) -> Path:
    """`encoder/3` is layer 3 of the list `encoder`."""
    return path[:-1] if path[-1].isdigit() else path


def _is_most(traced: Traced, work: Flops) -> Callable[[Any], bool]:
    whole = work.of(traced.program.equations)
    return lambda equation: 2 * work.of_one(equation) > whole


def _holds_any(paths: Sequence[Path], equation: JaxprEqn) -> bool:
    return any(_holds(equation, p) for p in paths)


def _holds(equation: JaxprEqn, path: Path, outer: Path = ()) -> bool:
    """Whether a call stands in the scope `path`, or what it calls does somewhere."""
    here = outer + scope(equation)
    if any(_after(here, p) is not None for p in (path, _list_of(path))):
        return True
    return is_call(equation) and any(
        _holds(e, path, here) for b in bodies(equation) for e in b.eqns
    )


# scopes ---------------------------------------------------------------------------------------


def find_scope(traced: Traced, path: Path) -> int | None:
    """The first equation in the scope `path`, or None."""
    for index, equation in enumerate(traced.program.equations):
        if _after(scope(equation), path) is not None:
            return index
    return None


def known_scopes(traced: Traced) -> list[str]:
    """Every scope of the program's equations, in order, with those around it."""
    found: dict[str, None] = {}
    for equation in traced.program.equations:
        parts = scope(equation)
        for end in range(1, len(parts) + 1):
            found["/".join(parts[:end])] = None
    return list(found)


def _after(parts: Path, path: Path) -> int | None:
    """The number of parts up to the end of the first occurrence of `path` in them, or None."""
    for start in range(len(parts) - len(path) + 1):
        if parts[start : start + len(path)] == path:
            return start + len(path)
    return None


def _numbered(parts: Path, path: Path) -> tuple[Path, int] | None:
    """What stands before `path`, and the number after it: `path/3` or `path_3`; None if none."""
    end = _after(parts, path)
    if end is not None and end < len(parts) and parts[end].isdigit():
        return parts[: end - len(path)], int(parts[end])
    pattern = re.compile(re.escape(path[-1]) + r"[_.]?(\d+)")
    for start in range(len(parts) - len(path) + 1):
        last = pattern.fullmatch(parts[start + len(path) - 1])
        if last and parts[start : start + len(path) - 1] == path[:-1]:
            return parts[:start], int(last.group(1))
    return None


# layers ---------------------------------------------------------------------------------------


def find_layers(traced: Traced, path: Path, work: Flops) -> FoundLayers | None:
    """The layers called `path`, or the only ones there are if that is "layers"; None if none.

    Raises FlintError FL241 if there are several.
    """
    flow = flow_of(traced.program, traced.described, work)
    found = _by_scope(flow, path) or _scan(traced, path)
    found = found or _by_parameters(flow, traced, path) or _by_calls(flow, path, work)
    if found is None and path == ("layers",):
        found = _unnamed(flow, traced, work)
    return found


def _unnamed(flow: Flow, traced: Traced, work: Flops) -> FoundLayers | None:
    found = _scan(traced, ())
    if found is not None:
        return found
    lists = [_by_parameters(flow, traced, p) for p in _parameter_lists(traced)]
    named = sorted((f for f in lists if f is not None), key=lambda f: f.spans)
    if len(named) > 1:
        raise _several([f.name for f in named])
    return named[0] if named else _by_calls(flow, (), work)


def _several(names: Sequence[str]) -> FlintError:
    return FlintError(
        "FL241",
        f"the model has several groups of layers: {', '.join(names)}",
        help=f'name the one to cut ("{names[0]}:4,8"), or give scopes at which stages begin, '
        'such as "encoder/3,decoder"',
    )


def _by_scope(flow: Flow, path: Path) -> FoundLayers | None:
    """Layers in scopes `path/0`, `path/1`, ... or `path_0`, `path_1`, ..."""
    spans: dict[Path, dict[int, tuple[int, int]]] = {}
    for index, equation in enumerate(flow.program.equations):
        found = _numbered(scope(equation), path) if flow.live[index] else None
        if found is not None:
            inside = spans.setdefault(found[0], {})
            inside[found[1]] = (inside.get(found[1], (index, index))[0], index)
    if len(spans) > 1:
        raise _several(["/".join((*before, *path)) for before in spans])
    for inside in spans.values():
        return _list("/".join(path), inside)
    return None


def _list(name: str, spans: Mapping[int, tuple[int, int]]) -> FoundLayers | None:
    """Layers of a list, or None where they are not numbered 0, 1, ... one after the other."""
    ordered = [spans[i] for i in sorted(spans)]
    follow = all(a[1] < b[0] for a, b in pairwise(ordered))
    if not ordered or sorted(spans) != list(range(len(spans))) or not follow:
        return None
    return FoundLayers(name, len(ordered), spans=tuple(ordered))


def _scan(traced: Traced, path: Path) -> FoundLayers | None:
    """The scan over stacked parameters in the scope `path`."""
    stacked = from_parameters(traced)
    found = []
    for index, equation in enumerate(traced.program.equations):
        if equation.primitive.name != "scan" or _after(scope(equation), path) is None:
            continue
        first = sum(scan_operands(equation))
        if any(a in stacked for a in reads(equation.replace(invars=equation.invars[first:]))):
            found.append(index)
    if len(found) > 1:
        scopes = ["/".join(scope(traced.program.equations[i])) or "(no scope)" for i in found]
        raise _several(scopes)
    name = "/".join(path) or "layers"
    return next(
        (FoundLayers(name, traced.program.equations[i].params["length"], scan=i) for i in found),
        None,
    )


def _by_parameters(flow: Flow, traced: Traced, path: Path) -> FoundLayers | None:
    """Layers that are told apart by the parameters they read: `params['layers'][3]['wq']`."""
    spans: dict[int, tuple[int, int]] = {}
    for index, numbers in _parameter_numbers(flow, traced, path):
        if len(numbers) > 1:
            return None
        (number,) = numbers
        spans[number] = (spans.get(number, (index, index))[0], index)
    found = _list("/".join(path), spans)
    return found and replace(found, spans=_settled(flow, found.spans))


def _parameter_numbers(flow: Flow, traced: Traced, path: Path) -> Iterator[tuple[int, set[int]]]:
    """Anchored equations that read parameters of the list `path`, and the numbers of these.

    Parameters of a list are `path[3]`, or row 3 of what is stacked in `path`.
    """
    numbers: dict[Any, set[int]] = {}
    stacked = set()
    for variable, argument in traced.described.items():
        keys = _keys(argument.name) if argument.is_parameter else ()
        found = _numbered(keys, path)
        if found is not None:
            numbers[variable] = {found[1]}
        elif _after(keys, path) is not None:
            stacked.add(variable)
    for index, equation in enumerate(flow.program.equations):
        rows = sliced_rows(equation) if stacked.intersection(reads(equation)) else None
        if rows is not None and rows[1] == rows[0] + 1:
            numbers[equation.outvars[0]] = {rows[0]}
        read: set[int] = set().union(*(numbers.get(v, set()) for v in reads(equation)))
        if read and flow.anchored[index] and flow.live[index]:
            yield index, read
        elif read:
            numbers |= dict.fromkeys(equation.outvars, read)


def _keys(name: str) -> Path:
    """`params['layers'][3].wq` as ("params", "layers", "3", "wq")."""
    return tuple(re.findall(r"[^\[\]'\".]+", name))


def _parameter_lists(traced: Traced) -> list[Path]:
    """The names of lists among the parameters that have at least two entries."""
    numbers: dict[Path, set[str]] = {}
    for argument in traced.described.values():
        keys = _keys(argument.name) if argument.is_parameter else ()
        for end in range(1, len(keys)):
            if keys[end].isdigit():
                numbers.setdefault(keys[1:end] or keys[:1], set()).add(keys[end])
            else:
                numbered = re.fullmatch(r"(.*?)[_.]?(\d+)", keys[end])
                if numbered and numbered.group(1):
                    path = (*keys[1:end], numbered.group(1))
                    numbers.setdefault(path, set()).add(numbered.group(2))
    return [p for p, found in numbers.items() if len(found) > 1]


def _by_calls(flow: Flow, path: Path, work: Flops) -> FoundLayers | None:
    """Calls of equal jitted or rematerialized functions, those that do most of the work."""
    digests, groups = Digests(), dict[Any, list[int]]()
    for index, equation in enumerate(flow.program.equations):
        inside = _after(scope(equation), path) is not None
        if inside and is_call(equation) and flow.anchored[index] and work.of_one(equation):
            groups.setdefault(digests.of_call(equation), []).append(index)
    repeated = [g for g in groups.values() if len(g) > 1]
    if not repeated:
        return None
    calls = max(repeated, key=lambda g: work.of(flow.program.equations[i] for i in g))
    spans = _settled(flow, [(i, i) for i in calls])
    return FoundLayers("/".join(path) or "layers", len(calls), spans=spans)


def _settled(flow: Flow, spans: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Layers that begin where the fewest values cross, the latest such place before their own."""
    counts = flow.crossing_counts()
    starts = [spans[0][0]]
    for (_, end), (start, _) in pairwise(spans):
        starts.append(min(range(start, end, -1), key=lambda i: counts[i]))
    ends = [*(s - 1 for s in starts[1:]), spans[-1][1]]
    return tuple(zip(starts, ends, strict=True))
