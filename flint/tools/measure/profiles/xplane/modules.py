"""Programs that a profile holds: what XLA says of an instruction by its name.

A plane `/host:metadata` has the HloProto of each program that ran while it was recorded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import cached_property

from flint.errors import FlintError, Malformed
from flint.ir.op_class import Collective, OpClass
from flint.passes.hlo import shapes
from flint.passes.hlo.check import check_module
from flint.passes.hlo.collectives import COLLECTIVES, collective_kind, iota_groups
from flint.passes.hlo.module import (
    Computation,
    HloModule,
    Instruction,
    decode_module,
    scope_and_phase,
)
from flint.passes.hlo.op_classes import class_of
from flint.passes.hlo.work import work_of
from flint.tools.measure.profiles.profile import Compiled, ProfiledComm
from flint.tools.measure.profiles.xplane.planes import PlaneNames, Value, whole

# What XLA calls the kinds of its operations, as op classes and collectives.
#
# Names of categories are those of HloInstruction::ToCategory and of the TPU compiler's: a kind of
# fusion, a few words for groups of opcodes, else the opcode.

_OWN = {
    "convolution fusion": OpClass.COMPILED,
    "data formatting": OpClass.MOVE,
    "non-fusion elementwise": OpClass.ARITHMETIC,
    "custom-call": OpClass.CALL,
    "copy-start": OpClass.COPY,
    "copy-done": OpClass.COPY,
}
#: PyTorch's names of collectives, which Comm has.
_COMMS = {
    Collective.ALL_REDUCE: "allreduce",
    Collective.ALL_GATHER: "_allgather_base",
    Collective.REDUCE_SCATTER: "_reduce_scatter_base",
    Collective.ALL_TO_ALL: "all_to_all",
    Collective.PERMUTE: "collective_permute",
    Collective.BROADCAST: "broadcast",
}
_NUMBER = re.compile(r"(\.\d+|\.clone|\.remat\d*)+$")
#: Opcodes that only hold others.
CONTAINERS = frozenset(
    {"while", "conditional", "call", "async-start", "async-done", "async-update"}
)


def class_of_category(category: str) -> OpClass:
    """The class of what has this category: COMPILED for fusions, UNKNOWN if nothing is known."""
    own = _OWN.get(category)
    if own is not None:
        return own
    return OpClass.COMPILED if category.endswith("fusion") else class_of(category)


def stem(name: str) -> str:
    """The name of an instruction without what makes it unique: `fusion.12.remat` -> `fusion`."""
    return _NUMBER.sub("", name.lstrip("%"))


def collective_opcode(*words: str) -> str:
    """The collective that one of the words names (a category, an opcode, an instruction), or ""."""
    for word in words:
        opcode = stem(word).removesuffix("-start").removesuffix("-done").removesuffix(" fusion")
        if opcode in COLLECTIVES:
            return opcode
    return ""


def comm_name(opcode: str) -> str:
    """PyTorch's name of a collective of HLO, "" for what is none."""
    return _COMMS.get(COLLECTIVES.get(opcode.removesuffix("-start"), Collective.NONE), "")


_ID = re.compile(r"\((\d+)\)$")


@dataclass(frozen=True, slots=True)
class _KnownInstruction:
    """An instruction: its work, its collective if it is one with its groups, and what it reads."""

    compiled: Compiled
    comm: ProfiledComm | None
    groups: tuple[tuple[int, ...], ...]
    reads: tuple[str, ...]

    def comm_of(self, device: int) -> ProfiledComm | None:
        """The collective as a device takes part in it."""
        group = next((g for g in self.groups if device in g), ())
        return self.comm and replace(self.comm, ranks=group)


@dataclass(frozen=True)
class ModuleOfProfile:
    """One HLO module, its instructions by name. Those that make no sense are not there."""

    module: HloModule
    _found: dict[str, _KnownInstruction | None] = field(default_factory=dict)

    @cached_property
    def _places(self) -> dict[str, tuple[Computation, Instruction]]:
        return {i.name: (c, i) for c in self.module.computations.values() for i in c.instructions}

    def known(self, name: str) -> _KnownInstruction | None:
        """An instruction by name, None if there is none or nothing can be said of it."""
        if name not in self._found:
            place = self._places.get(name)
            try:
                self._found[name] = _known(self.module, *place) if place else None
            except (FlintError, Malformed):
                self._found[name] = None  # a profile is measured all the same
        return self._found[name]


@dataclass
class Programs:
    """The programs of a profile, by id and by name."""

    by_id: dict[str, ModuleOfProfile] = field(default_factory=dict)
    by_name: dict[str, ModuleOfProfile] = field(default_factory=dict)

    def add(self, metadata: PlaneNames) -> int:
        """The programs of a plane of metadata; returns how many of them could not be read."""
        failed = 0
        for key, name, stats in metadata.descriptions():
            proto = stats.get("Hlo Proto", stats.get("hlo_proto"))
            if not isinstance(proto, bytes):
                continue
            try:
                module = decode_module(proto, "a program of the profile")
                check_module(module)
            except (FlintError, Malformed):
                failed += 1
                continue
            program = ModuleOfProfile(module)
            found = _ID.search(name)
            self.by_id[found[1] if found else str(key)] = program
            self.by_name[module.proto.name] = program
        return failed

    def known(self, stats: dict[str, Value], instruction: str) -> _KnownInstruction | None:
        """What is known of an instruction that an event names."""
        program = self.by_id.get(str(whole(stats.get("program_id"), -1)))
        if program is None:
            program = self.by_name.get(_ID.sub("", str(stats.get("hlo_module", ""))))
        return program.known(instruction) if program else None


def _known(module: HloModule, computation: Computation, i: Instruction) -> _KnownInstruction:
    operands = module.operands(computation, i)
    work = work_of(i, computation, module)
    dtype, shape = shapes.first(i.shape)
    read, written = sum(shapes.num_bytes(o.shape) for o in operands), shapes.num_bytes(i.shape)
    scope, phase = scope_and_phase(i)
    compiled = Compiled(
        opcode=work.called or f"hlo.{i.opcode.removesuffix('-start')}",
        op=work.class_or(class_of(i.opcode)),
        work=work,
        shape=shape,
        dtype=dtype,
        operand_bytes=read if work.operand_bytes is None else work.operand_bytes,
        result_bytes=written if work.result_bytes is None else work.result_bytes,
        scope=scope,
        phase=phase,
    )
    sent = _collective(module, computation, i)
    groups = _groups(sent[1], module) if sent else ()
    comm = _comm(sent[1], groups, module.operands(*sent)) if sent else None
    return _KnownInstruction(compiled, comm, groups, tuple(o.name for o in operands))


def _collective(
    module: HloModule, computation: Computation, i: Instruction
) -> tuple[Computation, Instruction] | None:
    """The collective that an instruction is, or the one that its fusion holds."""
    if collective_kind(i.opcode):
        return computation, i
    if i.opcode not in ("fusion", "async-start"):
        return None
    inside = [(c, j) for c in module.called(i) for j in c.instructions if collective_kind(j.opcode)]
    return inside[0] if len(inside) == 1 else None


def _comm(
    i: Instruction, groups: tuple[tuple[int, ...], ...], operands: list[Instruction]
) -> ProfiledComm:
    data = operands[:1] if i.opcode.startswith("ragged") else operands
    return ProfiledComm(
        name=comm_name(i.opcode),
        in_elements=sum(shapes.num_elements(o.shape) for o in data),
        out_elements=-1,
        dtype=shapes.first(data[0].shape)[0] if data else "",
        group_size=max((len(g) for g in groups), default=0),
        pairs=tuple((p.source, p.target) for p in i.source_target_pairs),
    )


def _groups(i: Instruction, module: HloModule) -> tuple[tuple[int, ...], ...]:
    """Groups of devices as far as they are listed; () where they are not, and of permutations."""
    devices = i.collective_device_list
    if i.source_target_pairs:
        return ()
    for holder, name in ((i, "iota_groups"), (devices, "iota_replica_group_list")):
        if holder.HasField(name):
            iota = getattr(holder, name)
            found = iota_groups(
                iota.num_replica_groups,
                iota.num_devices_per_group,
                list(iota.iota_reshape_dims),
                list(iota.iota_transpose_perm),
            )
            return tuple(tuple(g) for g in found.tolist())
    listed = tuple(tuple(g.replica_ids) for g in devices.replica_groups or i.replica_groups)
    everyone = tuple(range(module.num_replicas * module.num_partitions))
    return listed if any(listed) else (everyone,) if everyone else ()
