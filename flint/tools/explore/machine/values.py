"""A change of a cluster: where it is, and its value read as what stands there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from flint.cluster.models import Cluster, NetworkKind
from flint.cluster.tables import Quantity, SourceKind
from flint.errors import FlintError, nearest
from flint.tools.explore.machine.paths import PathTarget, ValueForm, target_of
from flint.tools.explore.machine.quantities import (
    EXAMPLES,
    SUFFIXES,
    AmountOrFactor,
    KeyUnit,
    amount_of,
)


class Topology(NamedTuple):
    """A kind of network, of a torus perhaps with its shape."""

    kind: NetworkKind
    shape: tuple[int, ...] = ()


#: What a change may say.
Said: TypeAlias = AmountOrFactor | Topology | int | float | bool | str | tuple[int, ...]
_SHAPE = re.compile(r"\d{1,9}(x\d{1,9}){0,2}")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class MachineChange:
    """`value` at `target`; an Amount for a quantity, else as the model has it."""

    target: PathTarget
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
        assert isinstance(amount, AmountOrFactor), self.said
        value = amount.value
        if amount.is_factor:
            if before is None:
                raise FlintError(
                    "FL868",
                    f"{self.said}: the cluster's file has no value there to multiply",
                    help=f"give the number itself, such as {EXAMPLES[self.target.unit]}",
                )
            value *= before.value
        return Quantity(value=value, kind=SourceKind.ASSUMED, source=f"explore: {self.said}")


def read_change(cluster: Cluster, path: str, text: str) -> MachineChange:
    """What `path=text` changes in a cluster.

    Raises FlintError FL868 for a path that leads nowhere, or a value that cannot be read.
    """
    target = target_of(cluster, path)
    return MachineChange(target, _value(target, path, text), path, text)


@lru_cache(maxsize=4096)
def _value(target: PathTarget, path: str, text: str) -> Said:
    found = _READERS[target.form](target, text)
    if found is None:
        raise FlintError(
            "FL868", f"{path}={text}: {_wrong(target, text)}", help=f"write {_example(target)}"
        )
    return found


def _wrong(target: PathTarget, text: str) -> str:
    unit = target.unit
    if target.form is ValueForm.QUANTITY and unit and amount_of(text, unit, needs_unit=False):
        return f"a number without its unit: one of {', '.join(SUFFIXES[unit])}"
    if target.form is ValueForm.KIND:
        kinds = [kind.value for kind in NetworkKind]
        return f"should be one of {', '.join(kinds)} or torus:4x4x8{nearest(text, kinds)}"
    what = f"{target.form} of {unit}" if unit else target.form
    return f"should be {what}"


def _example(target: PathTarget) -> str:
    examples = {
        ValueForm.QUANTITY: f"{EXAMPLES[target.unit]}, or 2x for twice the value",
        ValueForm.WHOLE: "8",
        ValueForm.PLAIN: "2 or 1.5",
        ValueForm.FLAG: "true or false",
        ValueForm.KIND: "switch, ring, fully-connected, or torus:4x4x8 with its shape",
        ValueForm.SHAPE: "4x4x8: one size for each of 1 to 3 dimensions",
        ValueForm.CLUSTER: "the name of a preset, or the path of a TOML file",
    }
    return examples[target.form]


def _plain(target: PathTarget, text: str) -> float | None:
    amount = amount_of(text, KeyUnit.NONE, needs_unit=False)
    return None if amount is None or amount.is_factor else amount.value


def _kind(target: PathTarget, text: str) -> Topology | None:
    name, colon, shape = text.partition(":")
    kind = next((kind for kind in NetworkKind if kind.value == name), None)
    if kind is None or not colon:
        return None if kind is None else Topology(kind)
    sizes = _shape(target, shape) if kind is NetworkKind.TORUS else None
    return None if sizes is None else Topology(kind, sizes)


def _shape(target: PathTarget, text: str) -> tuple[int, ...] | None:
    return tuple(map(int, text.split("x"))) if _SHAPE.fullmatch(text) else None


_READERS: Mapping[ValueForm, Callable[[PathTarget, str], Said | None]] = {
    ValueForm.QUANTITY: lambda at, text: amount_of(text, at.unit, needs_unit=at.is_short),
    ValueForm.WHOLE: lambda _, text: int(text) if re.fullmatch(r"\d{1,13}", text) else None,
    ValueForm.PLAIN: _plain,
    ValueForm.FLAG: lambda _, text: _FLAGS.get(text),
    ValueForm.KIND: _kind,
    ValueForm.SHAPE: _shape,
    ValueForm.CLUSTER: lambda _, text: text or None,
}
