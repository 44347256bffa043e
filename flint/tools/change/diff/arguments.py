"""The arguments of two captures, paired: by name, or as what only changed its name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

from flint.text import plural
from flint.tools.change.diff.cause import Cause, CauseKind
from flint.tools.change.diff.snapshot import Argument

#: Arguments that a sentence names.
_NAMED = 2


class Arguments:
    """Arguments of both sides, paired by name, and those that only changed their name."""

    def __init__(self, a: Sequence[Argument], b: Sequence[Argument]) -> None:
        first, second = _by_name(a), _by_name(b)
        gone = {n: v for n, v in first.items() if n not in second}
        new = {n: v for n, v in second.items() if n not in first}
        self.renamed = list(_renames(gone, new))
        for old, name in self.renamed:
            del gone[old], new[name]
        self.gone, self.new = list(gone), list(new)
        #: (before, after) of what has a partner and is not as it was.
        self.pairs = [
            pair for name in first if name in second for pair in _unequal(first[name], second[name])
        ]

    def sharding(self) -> list[Cause]:
        """One cause for each way in which shardings differ."""
        found: dict[tuple[str, str], list[str]] = {}
        for old, new in self.pairs:
            if old.sharding != new.sharding and old.shape == new.shape:
                found.setdefault((old.sharding, new.sharding), []).append(old.name)
        return [
            Cause(CauseKind.SHARDING, f"{old} -> {new} of {names_of(names)}")
            for (old, new), names in found.items()
        ]

    def counts(self) -> list[tuple[Argument, Argument]]:
        """Those of which there are more or fewer layers."""
        return [(old, new) for old, new in self.pairs if old.count != new.count]

    def donation(self) -> list[Cause]:
        """Arguments whose place results took, and do not take now, and the other way round."""
        changed = [(o, n) for o, n in self.pairs if {o.is_donated, n.is_donated} == {False, True}]
        said = {
            "no longer donated": [old.name for old, _ in changed if old.is_donated],
            "donated now": [old.name for old, _ in changed if not old.is_donated],
        }
        return [
            Cause(CauseKind.DONATION, f"{names_of(names)} {what}")
            for what, names in said.items()
            if names
        ]

    def others(self) -> list[Cause]:
        """Arguments that are there on one side only."""
        said = []
        if self.new:
            said.append(f"{names_of(self.new)} added")
        if self.gone:
            said.append(f"{names_of(self.gone)} removed")
        return [Cause(CauseKind.ARGUMENTS, "; ".join(said))] if said else []


def _by_name(arguments: Iterable[Argument]) -> dict[str, list[Argument]]:
    found: dict[str, list[Argument]] = {}
    for argument in arguments:
        found.setdefault(argument.name, []).append(argument)
    return found


def _identity(a: Argument) -> Hashable:
    return a.dtype, a.shape, a.sharding, a.count


def _whole(a: Argument) -> Hashable:
    return _identity(a), a.is_donated


def _renames(
    gone: Mapping[str, Sequence[Argument]], new: Mapping[str, Sequence[Argument]]
) -> Iterator[tuple[str, str]]:
    """Names of arguments that are the same under another name, in order."""
    waiting: dict[Hashable, list[str]] = {}
    for name, arguments in new.items():
        waiting.setdefault(tuple(map(_identity, arguments)), []).append(name)
    for name, arguments in gone.items():
        same = waiting.get(tuple(map(_identity, arguments)))
        if same:
            yield name, same.pop(0)


def _unequal(a: Sequence[Argument], b: Sequence[Argument]) -> Iterator[tuple[Argument, Argument]]:
    """Variants of one name that have no equal on the other side, in order."""
    mine, theirs = Counter(map(_whole, a)), Counter(map(_whole, b))
    left = [x for x in a if mine[_whole(x)] > theirs[_whole(x)]]
    right = [x for x in b if theirs[_whole(x)] > mine[_whole(x)]]
    return zip(left, right, strict=False)


def names_of(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    rest = len(names) - _NAMED
    return f"{shown} and {plural(rest, 'other argument')}" if rest > 0 else shown
