"""What operations of one name, one sharding rule and the same tensors have in common.

A model that writes out its layers has thousands of operations of a few hundred sorts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flint.ir.mesh import Mesh
from flint.passes.extract.consistency import RULE, Axes, examine
from flint.passes.extract.implied import may_imply
from flint.passes.extract.tensors import Operation
from flint.passes.extract.work import RULES, work_of
from flint.passes.work.work import Work

_NO_AXES: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Alike:
    """What is the same for all of them.

    `work` is None where it depends on other attributes too. `read` and `written` are the bytes of
    all operands and all results, `split_over` the axes that shard any of them. `disagreement` says
    what is wrong between the tensors, `summed` over which axes they are summed. `implies` says
    whether they may need communication that Shardy does not spell out.
    """

    rule: Any
    work: Work | None
    read: int
    written: int
    split_over: frozenset[str]
    disagreement: str
    summed: Axes
    implies: bool


class Alikes:
    """Finds what operations have in common, once for all that are alike."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self._known: dict[tuple[Any, ...], Alike] = {}

    def of(self, o: Operation) -> Alike:
        """What `o` has in common with all that are like it. Tensors are compared by identity."""
        rule = o.op.attributes.get(RULE, None)
        key = (o.name, rule, o.operands, o.results)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._find(o, rule)
        return found

    def _find(self, o: Operation, rule: Any) -> Alike:
        tensors = (*o.operands, *o.results)
        disagreement, summed = examine(o, rule, self.mesh)
        return Alike(
            rule=rule,
            work=None if o.name in RULES else work_of(o),
            read=sum(t.num_bytes for t in o.operands),
            written=sum(t.num_bytes for t in o.results),
            split_over=_NO_AXES.union(*(t.split_over for t in tensors)),
            disagreement=disagreement,
            summed=summed,
            implies=may_imply(o),
        )
