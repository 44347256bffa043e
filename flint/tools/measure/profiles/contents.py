"""What an activity of a profile is, as columns of a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flint.frontends.torch_world.program.build import flags_of
from flint.frontends.torch_world.program.groups import Messages
from flint.frontends.torch_world.program.names import is_causal, opcode_of, without_overload
from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.operands import read as read_by
from flint.frontends.torch_world.program.operands import results
from flint.frontends.torch_world.program.work import moved_bytes
from flint.frontends.torch_world.record.recording import Comm as Message
from flint.frontends.torch_world.record.recording import CommKind
from flint.ir.mesh import Group, Mesh
from flint.ir.op_class import ATTENTION, OpClass
from flint.ir.program import CAUSAL, Collective, Flag, Kind
from flint.passes.axes import pairs_to_route
from flint.passes.hlo.collectives import COLLECTIVES
from flint.passes.tensors import dtype_name
from flint.passes.work import host_copies
from flint.tools.measure.profiles.attribution import ActivityOrigin
from flint.tools.measure.profiles.comms import (
    collective_of,
    comm_of_own_operator,
    described,
    group_of_members,
    input_bytes,
    library_of,
    members_of,
    message_kind,
    result_bytes,
)
from flint.tools.measure.profiles.operators.events import ReadEvent, read, recorded_name
from flint.tools.measure.profiles.operators.types import element_type
from flint.tools.measure.profiles.profile import (
    ActivityKind,
    ProfiledComm,
    class_of_kernel,
    element_of_kernel,
)
from flint.tools.measure.profiles.ranks import Recorded
from flint.tools.measure.profiles.xplane.modules import class_of_category

#: Opcode of a kernel that no operator launched.
KERNEL = "kernel"
#: A kernel's name is kept up to so many characters: templates have thousands.
_MOST_NAME = 200
_WORD = re.compile(r"[^a-z0-9]+")
_TO_HOST = re.compile(r"(?i)DtoH|Device ?-> ?(Host|Pinned|Pageable)|CopyDeviceToHost")
_FROM_HOST = re.compile(r"(?i)HtoD|(Host|Pinned|Pageable) ?-> ?Device|CopyHostToDevice")


@dataclass(frozen=True, slots=True)
class Content:
    """Opcode, kind and columns of a row, for `ProgramBuilder.add`."""

    opcode: str
    kind: Kind = Kind.COMPUTE
    columns: Mapping[str, Any] = field(default_factory=dict)


class Contents:
    """Contents of the activities of one rank's step."""

    def __init__(
        self,
        recorded: Recorded,
        mesh: Mesh,
        groups: tuple[tuple[int, ...], ...],
        world: int,
        messages: Messages,
        unmatched: frozenset[int],
        problems: Counter[str],
    ) -> None:
        self._profile, self._rank = recorded.profile, recorded.rank
        self._mesh, self._groups, self._world = mesh, groups, world
        self._messages, self._unmatched, self._problems = messages, unmatched, problems
        self._group_of: dict[tuple[int, ...], Group] = {}
        self._origins: Mapping[int, ActivityOrigin] = {}
        self._main: dict[int, int] = {}
        self._numbers: dict[int, int] = {}

    def prepare(self, rows: NDArray[np.int64], origins: Mapping[int, ActivityOrigin]) -> None:
        """Numbers operators' calls and finds the longest kernel of each."""
        self._origins = origins
        duration = self._profile.activities.duration_ns
        for row in rows.tolist():
            operator = origins[row].operator
            if operator < 0:
                continue
            self._numbers.setdefault(operator, len(self._numbers) + 1)
            main = self._main.get(operator)
            if main is None or duration[row] > duration[main]:
                self._main[operator] = row

    def of(self, row: int) -> Content:
        """The content of one activity."""
        found = self._bare(row)
        origin = self._origins[row]
        name = self._profile.strings[self._profile.activities.name[row]]
        own = {
            "name": name[:_MOST_NAME], "scope": origin.scope, "phase": origin.phase,
            "launcher": self._numbers.get(origin.operator, 0),
        }  # fmt: skip
        said = {k: v for k, v in found.columns.items() if v != ""}
        return Content(found.opcode, found.kind, {**own, **said})

    def _bare(self, row: int) -> Content:
        a = self._profile.activities
        name = self._profile.strings[a.name[row]]
        if self._profile.communicates[row]:
            return self._communication(row)
        if a.compiled[row] >= 0:
            return self._of_compiler(row)
        if ActivityKind(int(a.kind[row])) is ActivityKind.COPY:
            copied = self._host_copy(row, name)
            if copied is not None:
                return copied
        operator = self._origins[row].operator
        if operator < 0:
            return self._kernel(row, name)
        if self._main[operator] != row:
            return Content(self._opcode(operator), columns={"op": OpClass.OTHER})
        return self._operator(operator, name)

    def _opcode(self, operator: int) -> str:
        name = self._profile.strings[self._profile.operators.name[operator]]
        return without_overload(recorded_name(name))

    def _operator(self, operator: int, kernel: str) -> Content:
        operators = self._profile.operators
        name = self._profile.strings[operators.name[operator]]
        signature = int(operators.signature[operator])
        in_lists = element_of_kernel(kernel)
        found = (
            read(name, self._profile.signatures[signature], in_lists) if signature >= 0 else None
        )
        if found is None:
            op = class_of_kernel(kernel)
            return Content(self._opcode(operator), columns={"op": op, "flags": Flag.UNPRICED})
        return Content(opcode_of(found.event), columns=_work_columns(found))

    def _of_compiler(self, row: int) -> Content:
        said = self._profile.compiled[self._profile.activities.compiled[row]]
        operator = self._origins[row].operator
        if operator >= 0 and self._main[operator] != row:
            return Content(said.opcode, columns={"op": OpClass.OTHER})
        work = said.work
        columns = {
            "op": work.class_or(said.op), "flops": work.flops, "dims": work.dims,
            "product": work.product, "mask": work.mask, "dtype": said.dtype, "shape": said.shape,
            "operand_bytes": said.operand_bytes, "result_bytes": said.result_bytes,
            "scope": said.scope, "phase": said.phase,
            "flags": Flag.UNPRICED if work.unpriced else 0,
        }  # fmt: skip
        return Content(said.opcode, columns=columns)

    def _kernel(self, row: int, name: str) -> Content:
        """A kernel, copy or fill that no operator launched."""
        a = self._profile.activities
        kind, moved = ActivityKind(int(a.kind[row])), int(a.num_bytes[row])
        if kind is not ActivityKind.KERNEL:
            op = OpClass.COPY if kind is ActivityKind.COPY else OpClass.FILL
            read_bytes = moved if kind is ActivityKind.COPY else 0
            columns = {"op": op, "operand_bytes": read_bytes, "result_bytes": moved}
            return Content(KERNEL, columns=columns)
        category = self._profile.strings[a.category[row]]
        op = class_of_category(category) if category else class_of_kernel(name)
        columns = {"op": op, "flags": Flag.UNPRICED}
        if a.flops[row] >= 0 or a.bytes_accessed[row] >= 0:
            columns = {
                "op": op or OpClass.OTHER, "flops": max(int(a.flops[row]), 0),
                "operand_bytes": max(int(a.bytes_accessed[row]), 0),
            }  # fmt: skip
        opcode = f"hlo.{category.replace(' ', '-')}" if category else KERNEL
        return Content(opcode, columns=columns)

    def _host_copy(self, row: int, name: str) -> Content | None:
        to_host, from_host = _TO_HOST.search(name), _FROM_HOST.search(name)
        if not to_host and not from_host:
            return None
        op = OpClass.TO_HOST if to_host else OpClass.FROM_HOST
        moved = int(self._profile.activities.num_bytes[row])
        columns = {"op": op, "operand_bytes": moved, "result_bytes": moved}
        return Content(host_copies.OPCODES[op], columns=columns)

    def _communication(self, row: int) -> Content:
        comm = described(self._profile, row, self._world)
        opcode = self._comm_opcode(row, comm)
        if comm is None:
            return self._unsized(row, opcode)
        moved = input_bytes(comm)
        if row in self._unmatched:
            return self._alone(opcode, comm, OpClass.COMMUNICATION)
        if self._profile.activities.comm[row] < 0 and comm_of_own_operator(
            self._profile, int(self._profile.activities.operator[row])
        ):
            self._problems[
                "collectives of an engine's own that do not name their group, assumed to use the only one"
            ] += 1
        kind = message_kind(comm.name)
        if kind is not None:
            return self._message(row, opcode, comm, kind, moved)
        if comm.pairs and moved:
            return self._permutation(opcode, comm, moved)
        collective, members = collective_of(comm.name), members_of(comm, self._profile, self._world)
        if len(members) == 1 or comm.group_size == 1:
            return self._alone(opcode, comm, OpClass.MOVE)
        if collective is Collective.NONE or len(members) < 2 or moved < 1:
            return self._unsized(row, opcode)
        columns = {
            "collective": collective, "group": self._group(members), "comm_bytes": moved,
            "operand_bytes": moved, "result_bytes": result_bytes(comm), "flags": Flag.ASYNC,
            "op": OpClass.ADD if collective in _REDUCING else OpClass.MOVE,
            **_typed(comm),
        }  # fmt: skip
        return Content(opcode, Kind.COLLECTIVE, columns)

    def _unsized(self, row: int, opcode: str) -> Content:
        """Communication of which the kind, the bytes, the group or the other end is not known."""
        if self._profile.says_communication[row]:
            self._problems[
                f"kernels of {library_of(self._profile, row)} that do not say how much they "
                "send to whom: they count as communication and keep their measured time"
            ] += 1
        return Content(opcode, columns={"op": OpClass.COMMUNICATION, "flags": Flag.UNPRICED})

    def _comm_opcode(self, row: int, comm: ProfiledComm | None) -> str:
        compiled = int(self._profile.activities.compiled[row])
        if compiled >= 0:
            return self._profile.compiled[compiled].opcode
        category = self._profile.strings[self._profile.activities.category[row]]
        if category in COLLECTIVES:  # XLA's
            return f"hlo.{category}"
        for operator in self._profile.operators.around(int(self._profile.activities.operator[row])):
            name = self._profile.strings[self._profile.operators.name[operator]]
            if name.startswith(("c10d::", "_c10d_functional::", "symm_mem::")):
                return without_overload(recorded_name(name))
        if not self._profile.says_communication[row]:
            return KERNEL
        library = _WORD.sub("_", library_of(self._profile, row))
        return f"{library}.{comm.name.lstrip('_')}" if comm is not None else f"{library}.kernel"

    def _alone(self, opcode: str, comm: ProfiledComm, op: OpClass) -> Content:
        """Of one rank, or without a partner: a kernel that moves its bytes."""
        moved = input_bytes(comm)
        columns = {"op": op, "operand_bytes": moved, "result_bytes": moved, **_typed(comm)}
        return Content(opcode, columns=columns)

    def _permutation(self, opcode: str, comm: ProfiledComm, moved: int) -> Content:
        """What each of some ranks sends to one other."""
        columns = {
            "collective": Collective.PERMUTE, "route": pairs_to_route(comm.pairs, self._mesh),
            "comm_bytes": moved, "operand_bytes": moved, "result_bytes": moved, "flags": Flag.ASYNC,
            "op": OpClass.MOVE, **_typed(comm),
        }  # fmt: skip
        return Content(opcode, Kind.COLLECTIVE, columns)

    def _message(
        self, row: int, opcode: str, comm: ProfiledComm, kind: Kind, moved: int
    ) -> Content:
        if not 0 <= comm.peer < self._world or comm.peer == self._rank or moved < 1:
            return self._unsized(row, opcode)
        sends = kind is Kind.SEND
        said = Message(
            CommKind.SEND if sends else CommKind.RECV, Collective.NONE, comm.group, moved, comm.peer
        )
        members = members_of(comm, self._profile, self._world)
        group = self._group(members) if len(members) > 1 else Group()
        route, channel = self._messages.of(said, group)
        columns = {
            "route": route, "channel": channel, "comm_bytes": moved, "flags": Flag.ASYNC,
            "operand_bytes": moved if sends else 0, "result_bytes": 0 if sends else moved,
            **_typed(comm),
        }  # fmt: skip
        return Content(opcode, kind, columns)

    def _group(self, members: tuple[int, ...]) -> Group:
        found = self._group_of.get(members)
        if found is None:
            found = group_of_members(members, self._mesh, self._groups)
            self._group_of[members] = found
        return found


_REDUCING = (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER)


def _typed(comm: ProfiledComm) -> dict[str, Any]:
    found = element_type(comm.dtype)
    if found is None:
        return {}
    elements = comm.out_elements if comm.out_elements > 0 else comm.in_elements
    return {"dtype": dtype_name(found[0]), "shape": (max(elements, 0),)}


def _work_columns(found: ReadEvent) -> dict[str, Any]:
    event = found.event
    work, op = found.work, class_of(event.op)
    reads, stored = read_by(event), results(event)
    operand_bytes, stored_bytes = moved_bytes(work, reads, stored, found.visible_bytes)
    seen = (stored or event.inputs)[:1]
    return {
        "op": work.class_or(op),
        "operand_bytes": operand_bytes,
        "result_bytes": stored_bytes,
        "flops": work.flops,
        "dims": work.dims,
        "product": work.product,
        "mask": CAUSAL if op in ATTENTION and is_causal(event) else work.mask,
        "flags": flags_of(event, work, op),
        "dtype": dtype_name(seen[0].dtype) if seen else "",
        "shape": seen[0].shape if seen else (),
    }
