"""Memory that microbatches in flight hold: what each keeps between its passes, and how many there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flint.passes.pipeline.parts import Key, Part, Saved, StageParts
from flint.passes.pipeline.plan import Plan
from flint.passes.pipeline.units import Unit, Work
from flint.staged import Port, Role


def in_flight(order: Sequence[Unit], chunk: int) -> int:
    """The most microbatches of a chunk whose saved activations a position holds at one time."""
    own = [u for u in order if u.chunk == chunk]
    works = {u.work for u in own}
    release = Work.WEIGHT_BACKWARD if Work.WEIGHT_BACKWARD in works else Work.BACKWARD
    held = most = 0
    for unit in own:
        held += (unit.work is Work.FORWARD) - (unit.work is release)
        most = max(most, held)
    return most


def saved_keys(parts: StageParts) -> dict[Key, tuple[Part, int]]:
    """What a backward pass reads of its microbatch's forward pass: key to (part, PARAMETER row)."""
    gathered = parts.gather.outputs if parts.gather is not None else {}
    given = parts.backward.outputs if parts.backward is not None else {}
    found: dict[Key, tuple[Part, int]] = {}
    for part in parts.backward_passes:
        for key, row in part.inputs.items():
            if is_saved(key) and key not in gathered and key not in given:
                found.setdefault(key, (part, row))
    return found


def is_saved(key: Key) -> bool:
    """Whether a backward pass reads this from an earlier pass of its microbatch."""
    return isinstance(key, Saved) or (isinstance(key, Port) and key.role is Role.INPUT)


def saved_bytes(parts: StageParts) -> int:
    """Bytes of activations that one microbatch keeps on a device until its backward pass."""
    return sum(int(part.program.result_bytes[row]) for part, row in saved_keys(parts).values())


def memory_of(plan: Plan, position: int) -> list[Mapping[str, object]]:
    """For each stage of a position: its label, microbatches in flight, bytes that each one keeps."""
    captured = plan.captured
    return [
        {
            "stage": stage,
            "label": captured.labels[stage],
            "in_flight": in_flight(plan.orders[position], chunk),
            "saved_bytes_per_microbatch": saved_bytes(plan.parts[captured.stages[stage]]),
        }
        for chunk, stage in enumerate(plan.stages_of(position))
    ]
