"""ProfileBuilder: events go in one at a time, in any order, a Profile comes out.

Columns grow as packed rows, so that a recording of some million events takes some hundred megabytes.
Ids of the format (correlation, external id) become rows of tables when all are there (tables.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flint.ir.builder import Table
from flint.tools.measure.profiles.profile import (
    ActivityKind,
    CallKind,
    Compiled,
    Profile,
    ProfiledComm,
    Signature,
)
from flint.tools.measure.profiles.source import too_large
from flint.tools.measure.profiles.tables import PackedColumns, ProfileTables

#: Characters of names and of arguments that a profile may have: what repeats counts once.
MOST_TEXT = 1 << 28


@dataclass
class ProfileBuilder:
    """Collects events of one rank. Ids are the format's, -1 for none; times in nanoseconds."""

    format: str
    rank: int = -1
    world_size: int = 0
    device: str = ""
    device_memory_bytes: int = 0
    processors: int = 0
    peak_bytes: int = 0
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._strings: Table[str] = Table({"": 0})
        self._signatures: Table[Signature] = Table()
        self._comms: Table[ProfiledComm] = Table()
        self._compiled: Table[Compiled] = Table()
        self._tensors: Table[tuple[tuple[int, ...], tuple[int, ...]]] = Table()
        self._threads: Table[Any] = Table()
        self._operators = PackedColumns(
            name="i", start_ns="d", duration_ns="d", thread="i", external="q", signature="i",
            sequence="q", is_backward="?", comm="i", tensors="i", record="q",
        )  # fmt: skip
        self._calls = PackedColumns(
            kind="B", name="i", start_ns="d", duration_ns="d", thread="i", correlation="q",
            external="q", stream="i", waits="q",
        )  # fmt: skip
        self._activities = PackedColumns(
            kind="B", name="i", start_ns="d", duration_ns="d", stream="i", num_bytes="q",
            correlation="q", external="q", comm="i", flops="q", bytes_accessed="q", category="i",
            compiled="i",
        )  # fmt: skip
        self._waits = PackedColumns(waiter="i", waited="i")
        self._syncs = PackedColumns(correlation="q", stream="i", waited="i", record="q")
        self._characters = 0
        self._marks = PackedColumns(
            name="i", start_ns="d", duration_ns="d", thread="i", on_device="?"
        )

    @property
    def names(self) -> Iterable[str]:
        """Names that were added so far."""
        return self._strings

    def text(self, value: str) -> int:
        """Number of a string. Raises FlintError FL806 for more text than a profile has."""
        found = self._strings.get(value)
        if found is None:
            self._more_text(len(value))
            found = self._strings[value] = len(self._strings)
        return found

    def _more_text(self, characters: int) -> None:
        self._characters += characters + 64
        if self._characters > MOST_TEXT:
            raise too_large(None, "more distinct names and arguments than a profile can have")

    def signature(self, value: Signature) -> int:
        """Number of a signature. Raises FlintError FL806 for too many."""
        found = self._signatures.get(value)
        if found is None:
            self._more_text(64 * (1 + len(value.shapes)))
            found = self._signatures[value] = len(self._signatures)
        return found

    def comm(self, value: ProfiledComm) -> int:
        """Number of a collective's description."""
        return self._comms.index(value)

    def compiled(self, value: Compiled) -> int:
        """Number of what a compiler says."""
        return self._compiled.index(value)

    def add_operator(
        self,
        name: str,
        start_ns: float,
        duration_ns: float,
        thread: object,
        *,
        external: int = -1,
        signature: int = -1,
        sequence: int = -1,
        is_backward: bool = False,
        comm: int = -1,
        tensors: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
        record: int = -1,
    ) -> None:
        """An operator of the framework. `thread` is anything that tells threads apart."""
        self._operators.add(
            self.text(name), start_ns, duration_ns, self._threads.index(thread), external,
            signature, sequence, is_backward, comm,
            -1 if tensors is None else self._tensors.index(tensors), record,
        )  # fmt: skip

    def add_call(
        self,
        kind: CallKind,
        name: str,
        start_ns: float,
        duration_ns: float,
        thread: object,
        *,
        correlation: int = -1,
        external: int = -1,
        stream: int = -1,
        waits_for: int = -1,
    ) -> None:
        """A call of the runtime; `waits_for` is the correlation of the last call that it waits for.

        For a copy that the host waits for (`cudaMemcpy`) that is the call's own correlation.
        """
        self._calls.add(
            kind, self.text(name), start_ns, duration_ns, self._threads.index(thread),
            correlation, external, stream, waits_for,
        )  # fmt: skip

    def add_activity(
        self,
        kind: ActivityKind,
        name: str,
        start_ns: float,
        duration_ns: float,
        stream: int,
        *,
        num_bytes: int = 0,
        correlation: int = -1,
        external: int = -1,
        comm: int = -1,
        flops: int = -1,
        bytes_accessed: int = -1,
        category: str = "",
        compiled: int = -1,
    ) -> int:
        """What ran on the device; returns its number, for `add_wait`."""
        self._activities.add(
            kind, self.text(name), start_ns, duration_ns, stream, num_bytes, correlation,
            external, comm, flops, bytes_accessed, self.text(category), compiled,
        )  # fmt: skip
        return len(self._activities) - 1

    def add_wait(self, waiter: int, waited: int) -> None:
        """One activity waits for another, beside what calls and streams say."""
        self._waits.add(waiter, waited)

    def add_sync(
        self, correlation: int, *, stream: int = -1, waited_stream: int = -1, record: int = -1
    ) -> None:
        """What a synchronization record says of the call of that correlation.

        `stream` waits, or the host waits for it; `waited_stream` is the one on which the call of
        correlation `record` put the event.
        """
        self._syncs.add(correlation, stream, waited_stream, record)

    def add_mark(
        self, name: str, start_ns: float, duration_ns: float, thread: object, *, on_device: bool
    ) -> None:
        """An annotation."""
        self._marks.add(
            self.text(name), start_ns, duration_ns, self._threads.index(thread), on_device
        )

    def build(self, origin_ns: int = 0) -> Profile:
        """The profile, with `origin_ns` the wall clock of time 0, in ns (0: not known)."""
        tables = ProfileTables(
            self._operators,
            self._calls,
            self._activities,
            self._marks,
            self._syncs,
            self._waits,
            pageable=tuple(at for name, at in self._strings.items() if "Pageable" in name),
        )
        return Profile(
            format=self.format,
            rank=self.rank,
            world_size=self.world_size,
            device=self.device,
            origin_ns=origin_ns,
            strings=tuple(self._strings),
            operators=tables.operators,
            calls=tables.calls,
            activities=tables.activities,
            marks=tables.marks,
            signatures=tuple(self._signatures),
            comms=tuple(c.placed(self.groups, self.world_size) for c in self._comms),
            tensors=tuple(self._tensors),
            compiled=tuple(self._compiled),
            waits=tables.waits,
            groups=dict(self.groups),
            device_memory_bytes=self.device_memory_bytes,
            processors=self.processors,
            peak_bytes=self.peak_bytes,
            warnings=tuple(self.warnings),
        )


def texts(values: Sequence[object]) -> tuple[str, ...]:
    """Values as a profiler's file may have them, as text."""
    return tuple(v if isinstance(v, str) else str(v) for v in values)
