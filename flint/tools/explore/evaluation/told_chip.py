"""Which chip a capture is told: scripts ask for it, compilers compile for it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TypeAlias

from flint.io.scratch import scratch_folder
from flint.tools.explore.machine.text import cluster_text
from flint.tools.explore.point import Pairs, Point
from flint.tools.explore.subject import Subject

#: A cluster, and the changes of its chip.
Told: TypeAlias = tuple[str, Pairs]


@dataclass
class ToldChips:
    """The clusters that captures of a subject name: files of their own where points change the chip."""

    subject: Subject
    _open: ExitStack = field(default_factory=ExitStack, init=False, repr=False)
    _files: dict[Told, str] = field(default_factory=dict, init=False, repr=False)

    def of(self, point: Point) -> Told:
        """What says which chip is told; the same for all points where none is."""
        if not (self.subject.world or self.subject.compiler):
            return "", ()
        of_chip = (c for c in point.changes if c[0].partition(".")[0] == "chip")
        return point.cluster, tuple(of_chip)

    def cluster(self, point: Point) -> str:
        """The cluster that is named. Raises FlintError as `cluster_text` does."""
        told = self.of(point)
        if not told[1]:
            return point.cluster
        if told not in self._files:
            file = self._open.enter_context(scratch_folder()) / "machine.toml"
            file.write_text(cluster_text(*told, file.stem, file.parent), encoding="utf-8")
            self._files[told] = str(file)
        return self._files[told]

    def close(self) -> None:
        """Remove the files."""
        self._files.clear()
        self._open.close()
