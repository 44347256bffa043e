"""Surface: what any pass of an engine takes, from a few captures of its model."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from flint.backends.cost.chips.kernels import KernelKind
from flint.backends.cost.collectives import duration_ns
from flint.backends.cost.collectives.algorithm import CollectiveCall
from flint.backends.cost.estimate import estimate_of
from flint.backends.cost.memory.memory import MemoryUse
from flint.backends.cost.network.torus import Span
from flint.backends.cost.replay.plan import cluster_for
from flint.backends.cost.setting import Setting, Timed, setting_of
from flint.backends.cost.simulate.exposure import labels_of, shares
from flint.backends.cost.software import family_of
from flint.errors import FlintError
from flint.ir.program import Collective
from flint.ir.workload import Workload
from flint.log import stage
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.serve.step_times import PromptChunk
from flint.tools.serve.surface.captured import PassCaptures, captures
from flint.tools.serve.surface.lines import OtherLayers, PassLines, PassPart, lines_of
from flint.tools.serve.surface.memory import EngineMemory, engine_memory
from flint.tools.serve.surface.sizes import DECODE_POINTS, PREFILL_POINTS, PassSizes

#: PassCaptures of so many numbers of tokens are priced together.
_BLOCK = 256
#: Contexts that decoding is priced at, in tokens; between them it is a straight line.
_CONTEXTS = tuple(sorted({0, *(round(16 * 2 ** (n / 4)) for n in range(72))}))
#: What times in a timeline may be off the sum of a pass's kernels before a note says so.
CLOSE = 0.01


@dataclass
class _ByCount:
    """A part of a pass by a number of tokens or sequences, priced in blocks when asked."""

    lines: PassLines
    part: PassPart
    sizes: tuple[int, int]  #: what of (batch, new) is the count: 1 where it is, else 0
    known: dict[int, list[float]] = field(default_factory=dict)

    def ns(self, count: int) -> float:
        if not count:
            return 0.0
        block, at = divmod(count, _BLOCK)
        if block not in self.known:
            counts = np.arange(block * _BLOCK, (block + 1) * _BLOCK)
            sizes = np.ones((_BLOCK, 3))
            sizes[:, 2] = 0
            for axis, follows in enumerate(self.sizes):
                if follows:
                    sizes[:, axis] = np.maximum(counts, 1)
            self.known[block] = self.lines.ns(self.part, sizes).tolist()
        return self.known[block][at]


@dataclass(frozen=True, eq=False)
class Surface:
    """Times of passes of one engine on one machine, and its memory.

    A pass takes what its tokens, its sequences and the attention of each sequence take, one after the
    other, as engines run kernels. Sequences that decode together count with their mean context;
    chunks of prompts as many equal ones with as much attention. An engine adds `sequence_ns` for each
    sequence. Four times of five all passes take from 1 / `factor` to `factor` times as long. `most_new`, `most_sequences` and `most_context` are the largest of what it serves. `notes` say what it rests on.
    """

    decode: PassLines
    prefill: PassLines
    memory: EngineMemory
    setting: Setting
    late: tuple[float, float]
    notes: tuple[str, ...] = ()
    factor: float = 1.0
    memory_share: float = 0.9
    most_new: int = 2048
    most_sequences: int = 256
    most_context: int = 8192
    longest: int | None = None
    sequence_ns: float = 0.0
    _parts: dict[str, _ByCount] = field(default_factory=dict)
    _decoding: dict[int, tuple[float, list[float]]] = field(default_factory=dict)
    _chunks: dict[tuple[float, float, float], float] = field(default_factory=dict)

    @property
    def cache_tokens(self) -> int:
        """Tokens that the caches of one engine hold together."""
        return self.memory.cache_tokens(self.memory_share, self.largest_pass_bytes)

    @property
    def largest_pass_bytes(self) -> int:
        """Activations of the largest pass: one prompt behind the longest context, or all that decode."""
        prompt = PassSizes(1, self.most_new, max(self.most_context - self.most_new, 0))
        decode = PassSizes(self.most_sequences, 1, self.most_context)
        return max(self.memory.pass_bytes(sizes) for sizes in (prompt, decode))

    @property
    def memory_bytes(self) -> int:
        """Of a device, with the whole cache."""
        memory, cache = self.memory, round(self.cache_tokens * self.memory.token_bytes)
        return memory.weight_bytes + memory.runtime_bytes + self.largest_pass_bytes + cache

    def step_ns(
        self, decodes: int, decode_context: int, chunks: Sequence[PromptChunk] = ()
    ) -> float:
        """Nanoseconds of one pass, see `EngineTimes.step_ns`."""
        alone, attention = self._decoding_ns(decodes, decode_context) if decodes else (0.0, 0.0)
        if not chunks:
            return (alone + attention) * self.late[0] + self.sequence_ns * decodes
        new = decodes + sum(chunk.new for chunk in chunks)
        found = self._part("tokens", self.prefill, PassPart.TOKENS, (0, 1)).ns(new)
        last = self._part("sequences", self.prefill, PassPart.SEQUENCES, (1, 0))
        found += last.ns(decodes + sum(chunk.logits for chunk in chunks))
        found += attention + self._chunks_ns(chunks)
        return found * self.late[1] + self.sequence_ns * (decodes + len(chunks))

    def longer(self, by: float) -> Surface:
        """The surface whose chip takes `by` times as long."""
        return replace(self, late=(self.late[0] * by, self.late[1] * by))

    def transfer_ns(self, tokens: int) -> float:
        """Nanoseconds to send the cache of some tokens: each device sends its part to another node."""
        cluster = self.setting.cluster
        outermost = Span(len(cluster.network) - 1, 2)
        sent = round(self.memory.token_bytes * tokens)
        call = CollectiveCall(Collective.NONE, sent, (outermost,))
        return duration_ns(call, cluster)

    def _part(
        self, name: str, lines: PassLines, part: PassPart, sizes: tuple[int, int]
    ) -> _ByCount:
        if name not in self._parts:
            self._parts[name] = _ByCount(lines, part, sizes)
        return self._parts[name]

    def _decoding_ns(self, decodes: int, decode_context: int) -> tuple[float, float]:
        """Of sequences that decode what their number says if they are alone, and their attention."""
        if decodes not in self._decoding:
            sizes = np.array([(decodes, 1, c) for c in _CONTEXTS], dtype=np.float64)
            alone = self._part("decode", self.decode, PassPart.TOKENS, (1, 0)).ns(decodes)
            alone += self._part("last", self.decode, PassPart.SEQUENCES, (1, 0)).ns(decodes)
            self._decoding[decodes] = alone, self.decode.ns(PassPart.ATTENTION, sizes).tolist()
        mean, (alone, times) = decode_context / decodes, self._decoding[decodes]
        at = min(max(bisect_left(_CONTEXTS, mean), 1), len(_CONTEXTS) - 1)
        low, high = _CONTEXTS[at - 1], _CONTEXTS[at]
        return alone, times[at - 1] + (times[at] - times[at - 1]) * (mean - low) / (high - low)

    def _chunks_ns(self, chunks: Sequence[PromptChunk]) -> float:
        key = alike(chunks)
        if key not in self._chunks:
            self._chunks[key] = float(self.prefill.ns(PassPart.ATTENTION, np.array([key]))[0])
        return self._chunks[key]


def alike(chunks: Sequence[PromptChunk]) -> tuple[float, float, float]:
    """Batch, new and context of equal chunks: as many, as many new tokens, as many scores."""
    count, new = len(chunks), sum(c.new for c in chunks) / len(chunks)
    scores = sum(c.new * (c.context + c.new / 2) for c in chunks) / count
    return count, new, max(scores / new - new / 2, 0.0)


_POINTS = (*DECODE_POINTS, *PREFILL_POINTS)


def passes_of(captured: CaptureRequest) -> PassCaptures:
    """The captures that `surface_on` prices. Raises FlintError FL893 (no such model), and as capturing."""
    return captures(captured, _POINTS)


def surface_of(captured: CaptureRequest, estimated: EstimateRequest) -> Surface:
    """Capture a model at `DECODE_POINTS` and `PREFILL_POINTS` and price it on a machine.

    Raises what `passes_of` and `surface_on` do.
    """
    return surface_on(passes_of(captured), estimated)


def surface_on(passes: PassCaptures, estimated: EstimateRequest) -> Surface:
    """Price the passes of a model on a machine.

    Raises FlintError FL893 (a model without a cache), FL894 (its passes are several programs), FL895 (no
    memory), and what estimating raises.
    """
    estimated = as_engines_run(passes.workloads[0], estimated)
    try:
        with stage("surface"):
            return _surface(passes, estimated)
    except OtherLayers:
        return surface_on(passes.in_full(), estimated)


def _surface(passes: PassCaptures, estimated: EstimateRequest) -> Surface:
    count = len(DECODE_POINTS)
    first, last = passes.whole or (None, None)
    decode = _family(passes.workloads[:count], DECODE_POINTS, estimated, first, 0)
    prefill = _family(passes.workloads[count:], PREFILL_POINTS, estimated, last, -1)
    uses, sizes = [*decode.uses, *prefill.uses], np.array(_POINTS, dtype=np.float64)
    whole = [family.whole for family in (decode, prefill) if family.whole is not None]
    memory = engine_memory(uses, sizes, whole)
    return Surface(
        decode.lines,
        prefill.lines,
        memory,
        prefill.setting,
        (decode.late, prefill.late),
        _notes(decode, prefill),
        max(decode.factor, prefill.factor),
    )


def as_engines_run(workload: Workload, request: EstimateRequest) -> EstimateRequest:
    """On GPUs kernels as torch.compile makes them, attention fused, in CUDA graphs; else as estimates."""
    if request.stack is not None or request.profile is not None:
        return request
    if family_of(cluster_for(workload, request.cluster)) != "gpu":
        return request
    return request.but(stack="serving", profile="inductor")


@dataclass(frozen=True, eq=False)
class _Family:
    lines: PassLines
    uses: Sequence[MemoryUse]
    setting: Setting
    late: float
    spread: float
    whole: MemoryUse | None  #: with all layers, if `uses` are of few
    factor: float  #: see `Surface`


def _family(
    workloads: Sequence[Workload],
    points: Sequence[PassSizes],
    request: EstimateRequest,
    whole: Workload | None,
    whole_at: int,
) -> _Family:
    """PassCaptures of one kind. The rank class that ends last at the first point stands for all ranks.

    `whole` has all layers, if the others have few; it is of the point `whole_at`.
    """
    settings = [setting_of(workload, request) for workload in workloads]
    timed = [setting.timed() for setting in settings]
    classes = {len(s.kernels.classes) for s in settings}
    if len(classes) > 1:
        raise FlintError("FL894", "passes of several sizes have other rank classes")
    slowest = int(np.argmax([c.total_ns for c in timed[0].timeline.classes]))
    number = settings[0].kernels.classes[slowest].program
    programs = [s.kernels.programs[number] for s in settings]
    ns = [t.priced.prices[number].ns for t in timed]
    sizes = np.array(points, dtype=np.float64)
    first = settings[0]
    named = programs, ns, first.pricing_of_kernels(), sizes, [str(p) for p in points]
    lines = lines_of(*named)
    summed = sum(lines.ns(part, sizes) for part in PassPart)
    late = np.array([t.timeline.total_ns for t in timed]) / summed
    uses = [s.memory()[slowest] for s in settings]
    memory, priced = None, timed[whole_at]
    if whole is not None:
        first = setting_of(whole, request)
        priced = first.timed()
        lines = lines_of(*named, first.kernels.programs[number], whole_at)
        summed = sum(lines.ns(part, sizes[whole_at][None]) for part in PassPart)
        late *= priced.timeline.total_ns / summed / late[whole_at]
        memory = first.memory()[slowest]
    of_first = first if whole is not None else settings[whole_at]
    factor = _factor(of_first, priced)
    return _Family(lines, uses, first, float(np.mean(late)), float(np.ptp(late)), memory, factor)


def _factor(setting: Setting, timed: Timed) -> float:
    """How far a pass may be off, as its estimate says."""
    parts = [
        shares(c, labels_of(setting.kernels.programs[of.program]))
        for c, of in zip(timed.timeline.classes, setting.kernels.classes, strict=True)
    ]
    found = estimate_of(setting, timed, setting.memory(), parts)
    return found.interval.high_ns / found.step_time_ns if found.interval else 1.0


def _notes(decode: _Family, prefill: _Family) -> tuple[str, ...]:
    found = []
    for family, name in ((decode, "decode"), (prefill, "prefill")):
        if abs(family.late - 1) > CLOSE or family.spread > CLOSE:
            found.append(
                f"passes that {name} take {family.late:.3g} times (within {family.spread:.2g}) as long as "
                "their kernels one after the other: launches are late, or communication overlaps"
            )
    found += _unfused(decode.lines)
    return tuple(found)


#: The pass that says how much attention is not fused, and the least share of it that is told.
_TOLD_AT, _TOLD = PassSizes(64, 1, 1024), 0.02


def _unfused(lines: PassLines) -> list[str]:
    """What a pass does with whole caches beside fused attention, which engines do not."""
    sizes = np.array([_TOLD_AT], dtype=np.float64)
    mine = np.flatnonzero(lines.parts == PassPart.ATTENTION)
    beside = mine[lines.base.kind[mine] != KernelKind.ATTENTION]
    if not len(beside):
        return []
    fused = (
        "beside fused attention" if len(beside) < len(mine) else "of attention that is not fused"
    )
    ns = lines.kernels_ns(beside, sizes)[0] * lines.counts[beside]
    share = float(ns.sum() / sum(lines.ns(part, sizes)[0] for part in PassPart))
    if share < _TOLD:
        return []
    worst = int(beside[ns.argmax()])
    kind = KernelKind(int(lines.base.kind[worst])).name.lower()
    told = (
        f"{share:.0%} of a pass that decodes ({_TOLD_AT}) are kernels over whole caches {fused}, "
        f"most of it {kind} ({lines.places[worst] or 'no line'}): engines write caches in place, "
        "and fuse what the model writes out"
    )
    return [told]
