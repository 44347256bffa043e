"""How far a captured program is from the compiled one."""

from __future__ import annotations

from dataclasses import dataclass

from flint.passes.compilers.sides import Side, relative

#: Upper ends of the classes of a distance.
CLASSES = {"within 1 %": 0.01, "within 10 %": 0.10}


@dataclass(frozen=True)
class Comparison:
    """One program on both sides.

    `equal`: the same bytes of every kind of collective over the same axes. Else the distance is the
    larger of two relative differences from the compiled program: of the bytes that rings would
    send, and of the input bytes of all collectives. No kind counts as another.
    """

    name: str
    mesh: str
    captured: Side
    compiled: Side

    @property
    def is_equal(self) -> bool:
        """Whether every (kind, axes) has the same bytes on both sides; counts may differ."""
        mine, other = self.captured.collectives, self.compiled.collectives
        return {k: v[1] for k, v in mine.items()} == {k: v[1] for k, v in other.items()}

    @property
    def distance(self) -> float:
        """0 when equal in bytes, 1 when one side has none."""
        return max(
            abs(relative(self.captured.ring_bytes, self.compiled.ring_bytes)),
            abs(relative(self.captured.payload_bytes, self.compiled.payload_bytes)),
        )

    @property
    def ring_difference(self) -> float:
        """Captured minus compiled, of the compiled program's ring bytes."""
        return relative(self.captured.ring_bytes, self.compiled.ring_bytes)

    @property
    def verdict(self) -> str:
        """`equal`, one of CLASSES, or `off`."""
        if self.is_equal:
            return "equal"
        return next((name for name, most in CLASSES.items() if self.distance <= most), "off")
