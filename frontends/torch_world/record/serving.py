"""Recorded inference: a prefill and the passes that decode are told apart, and each kind of these is kept once.

A pass goes from one call of the outermost module to the next. Passes of one kind run the same operators
in one order; what they read may grow, as a cache does. A run of them is one loop over the pass in its
middle, whose sizes are the mean of sizes that grow by equal steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, pairwise

from flint.errors import FlintError
from flint.frontends.torch_world.program.op_classes import class_of
from flint.frontends.torch_world.program.work import work_of
from flint.frontends.torch_world.record.recording import (
    CommKind,
    Event,
    Freed,
    PassLoop,
    Recording,
    TensorInfo,
)
from flint.ir.op_class import ATTENTION, PRODUCT
from flint.ir.program import Phase

#: A pass that needs so many times fewer flops than the one before it decodes, and that one prefilled.
_FEWER = 1.5
#: Prefills need at least so much of the flops of the heaviest pass: drafts that are verified are none.
_OF_HEAVIEST = 0.5

#: Where an output is in a pass: number of the event, number of the output.
_Place = tuple[int, int]


@dataclass(frozen=True)
class _Pass:
    """Events `start` and following of a recording."""

    start: int
    events: Sequence[Event]

    @cached_property
    def flops(self) -> int:
        """Of products and attention."""
        heavy = (e for e in self.events if class_of(e.op) in PRODUCT | ATTENTION)
        return sum(work_of(e).flops for e in heavy)

    @cached_property
    def kind(self) -> tuple[object, ...]:
        """What is equal in passes that differ in sizes only."""
        return tuple(
            (e.op, e.module, e.stream, e.is_view, len(e.inputs), len(e.outputs), _network(e))
            for e in self.events
        )

    @cached_property
    def fresh(self) -> Mapping[int, _Place]:
        """Storages that the pass makes, and where."""
        found: dict[int, _Place] = {}
        seen: set[int] = set()
        for number, event in enumerate(self.events):
            seen.update(t.storage for t in event.inputs)
            for place, tensor in enumerate(event.outputs):
                if tensor.storage not in seen:
                    seen.add(tensor.storage)
                    found[tensor.storage] = number, place
        return found

    def feeds(self, other: _Pass) -> bool:
        """Whether `other` reads what this pass makes or writes."""
        made = {*self.fresh, *(s for e in self.events for s in e.writes)}
        return any(t.storage in made for e in other.events for t in e.inputs)


def _network(event: Event) -> object:
    comm = event.comm
    return comm and (comm.kind, comm.collective, comm.group, comm.peer)


def condensed(recording: Recording, calls: Sequence[tuple[int, int]], part: str = "") -> Recording:
    """The recording with its passes in the phases PREFILL and DECODE, equal kinds of the latter as loops.

    `calls` are outermost modules by number, each with the event before which it was called. What is no
    generation of tokens stays as it is. Of several generations the last is kept: those before warm up.
    Of a `part`, "prefill" or "decode", alone the latter is one pass: the middle one of the kind that
    runs most often. Raises FlintError FL729 for a part of what generates nothing.
    """
    parts = _parts(_passes(recording.events, calls))
    if parts is None:
        if part:
            raise FlintError(
                "FL729",
                f"no {part} was found: the program does not call one module again with what it made before",
                help="omit --step: --steps 0 records all of the program",
            )
        return recording
    prefills, decodes = parts
    runs = [list(run) for _, run in groupby(decodes, key=lambda p: p.kind)]
    kept = _Kept(recording.freed)
    if part == "decode":
        kept.add(_middle(max(runs, key=len)), Phase.DECODE, {})
    else:
        for one in prefills:
            kept.add(one, Phase.PREFILL, {})
    for run in runs if not part else ():
        kept.add_loop(run)
    return replace(
        recording, events=tuple(kept.events), loops=tuple(kept.loops), freed=tuple(kept.freed)
    )


def _middle(run: Sequence[_Pass]) -> _Pass:
    return run[(len(run) - 1) // 2]


def _passes(events: Sequence[Event], calls: Sequence[tuple[int, int]]) -> list[_Pass]:
    """The passes, by calls of the module that is called first of those that are called as often as the heaviest."""
    held: Counter[int] = Counter()
    ends = [*(start for _, start in calls[1:]), len(events)]
    for (module, start), end in zip(calls, ends, strict=False):
        held[module] += end - start
    times = Counter(module for module, _ in calls)
    again = [module for module in times if times[module] > 1]
    if not again:
        return []
    often = times[max(again, key=lambda module: held[module])]
    leads = next(module for module in times if times[module] == often)
    starts = [0, *[start for module, start in calls if module == leads][1:], len(events)]
    return [_Pass(a, events[a:b]) for a, b in pairwise(starts)]


def _parts(passes: Sequence[_Pass]) -> tuple[Sequence[_Pass], Sequence[_Pass]] | None:
    """The passes that prefill, of a prompt in pieces several, and those that decode; None for other programs."""
    every = [e for p in passes for e in p.events]
    if len(passes) < 2 or any(e.phase != Phase.FORWARD or _is_message(e) for e in every):
        return None  # a stage of a pipeline is called for each microbatch
    flops = [p.flops for p in passes]
    large = _OF_HEAVIEST * max(flops)
    last = [n for n, (a, b) in enumerate(pairwise(flops)) if a > _FEWER * b and a >= large]
    if not last and flops[1] <= flops[0]:
        return None
    decodes = last[-1] + 1 if last else 1  # without a cache, passes grow from the first on
    begin = decodes - 1
    while begin and last and _FEWER * flops[begin - 1] >= flops[decodes - 1]:
        begin -= 1
    grows = all(a <= b for a, b in pairwise(flops[decodes:]))
    follows = all(a.feeds(b) for a, b in pairwise(passes[decodes - 1 :]))
    return (passes[begin:decodes], passes[decodes:]) if grows and follows else None


def _is_message(event: Event) -> bool:
    return event.comm is not None and event.comm.kind in (CommKind.SEND, CommKind.RECV)


@dataclass
class _Kept:
    """The events that are kept, and under which numbers.

    `freed` is what a pass that is kept makes and lets go of, of all that the program `let_go` of; `same` gives the
    storage of a loop's body for that of a pass that is not kept.
    """

    let_go: Sequence[Freed]
    freed: list[Freed] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    loops: list[PassLoop] = field(default_factory=list)
    _numbers: dict[int, int] = field(default_factory=dict)
    _same: dict[int, int] = field(default_factory=dict)

    def add(self, one: _Pass, phase: Phase, names: Mapping[int, int]) -> None:
        """Keep a pass, whose storages have other `names`."""

        def named(tensors: Sequence[TensorInfo]) -> tuple[TensorInfo, ...]:
            return tuple(
                replace(t, storage=names[t.storage]) if t.storage in names else t for t in tensors
            )

        moved = len(self.events) - one.start
        self.freed += [
            Freed(storage, events + moved)
            for storage, events in self.let_go
            if 0 < events - one.start <= len(one.events) and storage in one.fresh
        ]
        for number, e in enumerate(one.events, start=one.start):
            self._numbers[number] = len(self.events)
            waits = tuple(self._numbers[w] for w in e.waits if w in self._numbers)
            writes = tuple(names.get(s, s) for s in e.writes)
            read, made = named(e.inputs), named(e.outputs)
            self.events.append(
                replace(e, inputs=read, outputs=made, writes=writes, waits=waits, phase=phase)
            )

    def add_loop(self, run: Sequence[_Pass]) -> None:
        """Keep the pass in the middle of a run of one kind, as what each of them does."""
        first, body = run[0], _middle(run)
        names: dict[int, int] = {}
        for before, now in _inputs(first, body):
            if now not in body.fresh:
                names.setdefault(now, self._same.get(before, before))
        made = {at: body.events[at[0]].outputs[at[1]] for at in body.fresh.values()}
        carries: dict[int, TensorInfo] = {}
        for before, now in _inputs(*run[:2]) if len(run) > 1 else ():
            if (at := first.fresh.get(now)) in made:
                carries.setdefault(self._same.get(before, before), made[at])
        start = len(self.events)
        self.add(body, Phase.DECODE, names)
        self.loops.append(PassLoop(start, len(self.events), len(run), tuple(carries.items())))
        for one in run:
            self._same.update((s, made[at].storage) for s, at in one.fresh.items() if at in made)


def _inputs(one: _Pass, other: _Pass) -> Iterator[tuple[int, int]]:
    """The storages that two passes of one kind read at the same place."""
    for a, b in zip(one.events, other.events, strict=True):
        for x, y in zip(a.inputs, b.inputs, strict=True):
            yield x.storage, y.storage
