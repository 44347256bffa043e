"""A change of a cluster: where it is, and its value read as what stands there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from flint.cluster.models import Cluster, NetworkKind
from flint.cluster.tables import Quantity, SourceKind
from flint.errors import FlintError, nearest
from flint.tools.explore.machine.paths import Form, Target, target_of
from flint.tools.explore.machine.quantities import EXAMPLES, SUFFIXES, Amount, Unit, amount_of


class Topology(NamedTuple):
    """A kind of network, of a torus perhaps with its shape."""

    kind: NetworkKind
    shape: tuple[int, ...] = ()


#: What a change may say.
Said: TypeAlias = Amount | Topology | int | float | bool | str | tuple[int, ...]
_SHAPE = re.compile(r"\d{1,9}(x\d{1,9}){0,2}")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Change:
    """`value` at `target`; an Amount for a quantity, else as the model has it."""

    target: Target
    value: Said
    path: str
    text: str

    @property
    def said(self) -> str:
        """As a user writes it."""
        return f"{self.path}={self.text}"

    def quantity(self, before: Quantity | None) -> Quantity:
        """The number that it makes of the one before. Raises FL868 for a factor of none."""
        amount = self.value
        assert isinstance(amount, Amount), self.said
        value = amount.value
        if amount.is_factor:
            if before is None:
                raise FlintError(
                    "FL868",
                    f"{self.said}: the cluster's file says nothing there to multiply",
                    help=f"give the number itself, as {EXAMPLES[self.target.unit]}",
                )
            value *= before.value
        return Quantity(value=value, kind=SourceKind.ASSUMED, source=f"explore: {self.said}")


def read_change(cluster: Cluster, path: str, text: str) -> Change:
    """What `path=text` changes in a cluster.

    Raises FlintError FL868 for a path that leads nowhere, or a value that cannot be read.
    """
    target = target_of(cluster, path)
    return Change(target, _value(target, path, text), path, text)


@lru_cache(maxsize=4096)
def _value(target: Target, path: str, text: str) -> Said:
    found = _READERS[target.form](target, text)
    if found is None:
        raise FlintError(
            "FL868", f"{path}={text}: {_wrong(target, text)}", help=f"write {_example(target)}"
        )
    return found


def _wrong(target: Target, text: str) -> str:
    unit = target.unit
    if target.form is Form.QUANTITY and unit and amount_of(text, unit, needs_unit=False):
        return f"a number without its unit: one of {', '.join(SUFFIXES[unit])}"
    if target.form is Form.KIND:
        kinds = [kind.value for kind in NetworkKind]
        return f"should be one of {', '.join(kinds)} or torus:4x4x8{nearest(text, kinds)}"
    what = f"{target.form} of {unit}" if unit else target.form
    return f"should be {what}"


def _example(target: Target) -> str:
    examples = {
        Form.QUANTITY: f"{EXAMPLES[target.unit]}, or 2x for twice what it is",
        Form.WHOLE: "8",
        Form.PLAIN: "2 or 1.5",
        Form.FLAG: "true or false",
        Form.KIND: "switch, ring, fully-connected, or torus:4x4x8 with its shape",
        Form.SHAPE: "4x4x8: one size for each of 1 to 3 dimensions",
        Form.CLUSTER: "the name of a preset, or the path of a TOML file",
    }
    return examples[target.form]


def _amount(target: Target, text: str) -> Amount | None:
    return amount_of(text, target.unit, needs_unit=target.is_short)


def _whole(target: Target, text: str) -> int | None:
    return int(text) if re.fullmatch(r"\d{1,13}", text) else None


def _plain(target: Target, text: str) -> float | None:
    amount = amount_of(text, Unit.NONE, needs_unit=False)
    return None if amount is None or amount.is_factor else amount.value


def _flag(target: Target, text: str) -> bool | None:
    return _FLAGS.get(text)


def _kind(target: Target, text: str) -> Topology | None:
    name, colon, shape = text.partition(":")
    kind = next((kind for kind in NetworkKind if kind.value == name), None)
    if kind is None or not colon:
        return None if kind is None else Topology(kind)
    sizes = _shape(target, shape) if kind is NetworkKind.TORUS else None
    return None if sizes is None else Topology(kind, sizes)


def _shape(target: Target, text: str) -> tuple[int, ...] | None:
    return tuple(map(int, text.split("x"))) if _SHAPE.fullmatch(text) else None


def _cluster(target: Target, text: str) -> str | None:
    return text or None


_READERS = {
    Form.QUANTITY: _amount,
    Form.WHOLE: _whole,
    Form.PLAIN: _plain,
    Form.FLAG: _flag,
    Form.KIND: _kind,
    Form.SHAPE: _shape,
    Form.CLUSTER: _cluster,
}
