"""All rules, in one place: what refuses a profile, what is told of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import chain

import numpy as np

from flint.errors import FlintError
from flint.ir.program import Collective
from flint.tools.measure.profiles.comms import collective_of, input_bytes, message_kind
from flint.tools.measure.profiles.contradictions import ranks
from flint.tools.measure.profiles.contradictions.ranks import Checked, Rule, ms, some
from flint.tools.measure.profiles.operators.types import element_type
from flint.tools.measure.profiles.profile import ActivityKind, Profile, ProfiledComm, Signature

# Sizes, shapes and speeds that cannot be.

#: No memory of a device, and no link, moves more: ten times what HBM of 2026 does.
_MOST_BYTES_PER_S = 2e14
#: No device calculates more: ten times the fastest of 2026 in 4 bits.
_MOST_FLOPS_PER_S = 2e17
#: No device has more memory, where the profile does not say its own.
_MOST_MEMORY_BYTES = 1 << 41
_Shape = tuple[int, ...]


def sizes_of_collective_differ(c: Checked) -> Iterator[str]:
    """Inputs and outputs that are not as the collective makes them."""
    wrong = [m for m in c.profile.comms if _in_and_out_differ(m)]
    if wrong:
        m = wrong[0]
        yield (
            f"{len(wrong)} collectives have outputs that do not fit their inputs: {m.name} of "
            f"{m.in_elements:,} elements gives {m.out_elements:,} among {m.group_size} ranks"
        )


def _in_and_out_differ(m: ProfiledComm) -> bool:
    read, stored, size = m.in_elements, m.out_elements, m.group_size
    if read <= 0 or stored <= 0 or size < 2 or message_kind(m.name):
        return False
    match collective_of(m.name):
        case Collective.ALL_REDUCE:
            return read != stored
        case Collective.ALL_GATHER if "coalesced" not in m.name:
            return stored != read * size and "all" in m.name
        case Collective.REDUCE_SCATTER if "coalesced" not in m.name:
            return read != stored * size
    return False


def size_is_negative(c: Checked) -> Iterator[str]:
    """Numbers of elements below nothing."""
    wrong = [m for m in c.profile.comms if min(m.in_elements, m.out_elements) < -1]
    if wrong:
        yield f"{wrong[0].name} sends {min(wrong[0].in_elements, wrong[0].out_elements):,} elements"


def splits_do_not_add_up(c: Checked) -> Iterator[str]:
    """Splits of an all-to-all that are not one for each rank, or do not divide its elements."""
    for m in c.profile.comms:
        for splits, elements in ((m.in_splits, m.in_elements), (m.out_splits, m.out_elements)):
            if not splits or not m.group_size:
                continue
            rows = sum(splits)
            if len(splits) != m.group_size or (rows and elements > 0 and elements % rows):
                yield f"splits of {m.name} do not fit {elements:,} elements for {m.group_size} ranks"
                return


def collective_is_too_large(c: Checked) -> Iterator[str]:
    """A collective of more bytes than the device has."""
    most = _memory(c)
    large = [m for m in c.profile.comms if input_bytes(m) > most]
    if large:
        yield f"{large[0].name} sends {input_bytes(large[0]):,} bytes of a device that has {most:,}"


def tensor_is_too_large(c: Checked) -> Iterator[str]:
    """Tensors of more bytes than the device has."""
    most = _memory(c)
    for signature in c.profile.signatures:
        for shape, dtype in zip(signature.shapes, signature.types, strict=False):
            element = element_type(dtype)
            if (
                element and math.prod(shape) * element[1] > 4 * most
            ):  # of views that repeat elements
                yield f"a tensor of {list(shape)} is larger than the memory of the device"
                return


def dimension_is_negative(c: Checked) -> Iterator[str]:
    """Shapes with a dimension below 0, of arguments and of results."""
    for signature in c.profile.signatures:
        listed = chain.from_iterable(signature.lists)
        results = (shape for shape, _ in signature.outputs or ())
        for shape in chain(signature.shapes, listed, results):
            if any(d < 0 for d in shape):
                yield f"a tensor has the shape {list(shape)}"
                return


def memory_is_exceeded(c: Checked) -> Iterator[str]:
    """A peak above the memory of the device."""
    has = c.profile.device_memory_bytes
    if 0 < has < c.profile.peak_bytes:
        yield f"the allocator held {c.profile.peak_bytes:,} bytes of a device that has {has:,}"


def _memory(c: Checked) -> int:
    return c.profile.device_memory_bytes or _MOST_MEMORY_BYTES


def copy_is_too_fast(c: Checked) -> Iterator[str]:
    """Copies and collectives of more bytes a second than any device moves."""
    a = c.profile.activities
    moved = a.num_bytes[c.rows].astype(np.float64)
    sent = np.array([input_bytes(m) for m in c.profile.comms] + [0], dtype=np.float64)
    moved = np.maximum(moved, sent[a.comm[c.rows]])
    fast = moved > _MOST_BYTES_PER_S * np.maximum(a.duration_ns[c.rows], 1.0) / 1e9
    if fast.any():
        row = int(c.rows[np.argmax(fast)])
        yield (
            f"{int(fast.sum()):,} copies or collectives move more than {_MOST_BYTES_PER_S / 1e12:,.0f} TB/s "
            f"('{c.profile.strings[a.name[row]][:60]}')"
        )


def kernel_is_too_fast(c: Checked) -> Iterator[str]:
    """Products of more operations a second than any device does."""
    a, o = c.profile.activities, c.profile.operators
    rows = c.rows[a.operator[c.rows] >= 0]
    taken = np.bincount(a.operator[rows], a.duration_ns[rows], minlength=len(o.start_ns))
    for at in np.unique(a.operator[rows]).tolist():
        name = c.profile.strings[o.name[at]]
        if name not in _FIT or o.signature[at] < 0:
            continue
        flops = _product_flops(name, c.profile.signatures[o.signature[at]].shapes)
        if flops > _MOST_FLOPS_PER_S * max(taken[at], 1.0) / 1e9 and taken[at] > 0:
            yield (
                f"{name} does {flops:.2e} operations in {taken[at]:,.0f} ns: no device is that fast"
            )
            return


def _product_flops(name: str, shapes: tuple[_Shape, ...]) -> float:
    if name not in ("aten::mm", "aten::bmm") or len(shapes) < 2 or len(shapes[1]) < 2:
        return 0.0
    return 2.0 * math.prod(shapes[0]) * shapes[1][-1]


def shapes_do_not_fit(c: Checked) -> Iterator[str]:
    """Operators whose arguments cannot go together."""
    o = c.profile.operators
    pairs = {(int(n), int(s)) for n, s in zip(o.name, o.signature, strict=True) if s >= 0}
    wrong: Counter[str] = Counter()
    example = ""
    for name, signature in sorted(pairs):
        said = c.profile.strings[name].partition(".")[0]
        found = c.profile.signatures[signature]
        if said in _FIT and not _fits(_FIT[said], found):
            wrong[said] += 1
            example = (
                example or f"{said} of {' and '.join(str(list(s)) for s in found.shapes if s)}"
            )
    if wrong:
        yield f"shapes of operators do not fit ({some(list(wrong))}): {example}"


def _fits(fit: Callable[[tuple[_Shape, ...]], bool], signature: Signature) -> bool:
    try:
        return fit(signature.shapes)
    except IndexError:
        return True  # what is missing contradicts nothing


def _multiply(a: _Shape, b: _Shape) -> bool:
    return not a or not b or a[-1] == b[-2 if len(b) > 1 else 0]


def _batched(a: _Shape, b: _Shape) -> bool:
    return not a or not b or (a[0] == b[0] and a[2] == b[1])


def _broadcast(a: _Shape, b: _Shape) -> bool:
    pairs = zip(reversed(a), reversed(b), strict=False)
    return all(x == y or 1 in (x, y) for x, y in pairs)


def _convolve(x: _Shape, weight: _Shape) -> bool:
    return len(x) != len(weight) or len(x) < 3 or weight[1] == 0 or x[1] % weight[1] == 0


def _attend(q: _Shape, k: _Shape, v: _Shape) -> bool:
    return not q or not k or not v or (q[-1] == k[-1] and k[-2] == v[-2])


#: Whether the arguments of an operator can go together, of those that say it by their shapes.
_FIT: dict[str, Callable[[tuple[_Shape, ...]], bool]] = {
    "aten::mm": lambda s: _multiply(s[0], s[1]),
    "aten::bmm": lambda s: _batched(s[0], s[1]),
    "aten::addmm": lambda s: _multiply(s[1], s[2]),
    "aten::baddbmm": lambda s: _batched(s[1], s[2]),
    "aten::matmul": lambda s: _multiply(s[0], s[1]),
    "aten::linear": lambda s: not s[0] or not s[1] or s[0][-1] == s[1][-1],
    **{f"aten::conv{n}d": lambda s: _convolve(s[0], s[1]) for n in (1, 2, 3)},
    **{f"aten::{op}": lambda s: _broadcast(s[0], s[1]) for op in ("add", "sub", "mul", "div")},
    "aten::scaled_dot_product_attention": lambda s: _attend(s[0], s[1], s[2]),
}


# Times that cannot be.

#: Clocks of host and device are aligned as well as this.
_CLOCKS_NS = 1e6
#: Kernels of one stream that overlap by less are as exact as clocks are.
_TOLERANCE_NS = 1_000.0
_MINUTE_NS = 6e10
#: Part of a stream's time, of kernels, of operators, from which something is told.
_WORTH_TELLING = 0.01


def everything_is_twice(c: Checked) -> Iterator[str]:
    """At least half of the kernels are there again, with the same times."""
    copies, kernels = _copies(c), len(c.profile.activities.start_ns)
    if kernels > 1 and copies >= kernels / 2:
        yield (
            f"{copies:,} of {kernels:,} kernels appear twice, with the same name, stream and times"
        )


def something_is_twice(c: Checked) -> Iterator[str]:
    """Kernels that are there again."""
    if copies := _copies(c):
        yield f"{copies:,} kernels appear twice, with the same name, stream and times"


def _copies(c: Checked) -> int:
    """Kernels, however short, that another one repeats."""
    a = c.profile.activities
    lasting = a.duration_ns > 0
    rows = np.stack(
        (a.name[lasting], a.stream[lasting], a.start_ns[lasting], a.duration_ns[lasting]), axis=1
    )
    return len(rows) - len(np.unique(rows, axis=0))


def stream_overlaps(c: Checked) -> Iterator[str]:
    """Kernels that run at once on one stream, which runs one at a time."""
    a = c.profile.activities
    for stream in np.unique(a.stream[c.rows]).tolist():
        rows = c.rows[a.stream[c.rows] == stream]
        rows = rows[np.argsort(a.start_ns[rows], kind="stable")]
        over = np.maximum.accumulate(a.end_ns[rows])[:-1] - a.start_ns[rows][1:]
        shared = np.minimum(over, a.duration_ns[rows][1:])
        shared = np.where(shared > _TOLERANCE_NS, shared, 0.0)
        if shared.sum() > _WORTH_TELLING * a.duration_ns[rows].sum():
            yield (
                f"{int((shared > 0).sum()):,} kernels begin on stream {stream} before the one ahead of them "
                f"ends ({ms(shared.sum())} in all): they are played back at once"
            )


def kernel_is_too_long(c: Checked) -> Iterator[str]:
    """Kernels of more than a minute."""
    a = c.profile.activities
    longest = int(c.rows[np.argmax(a.duration_ns[c.rows])])
    if a.duration_ns[longest] > _MINUTE_NS:
        name = c.profile.strings[a.name[longest]][:60]
        yield f"a kernel takes {a.duration_ns[longest] / 1e9:,.0f} s ('{name}')"


def pause_is_too_long(c: Checked) -> Iterator[str]:
    """A device that does nothing for more than a minute within a step."""
    a = c.profile.activities
    rows = c.rows[np.argsort(a.start_ns[c.rows], kind="stable")]
    idle = a.start_ns[rows][1:] - np.maximum.accumulate(a.end_ns[rows])[:-1]
    if len(idle) and idle.max() > _MINUTE_NS:
        yield f"the device is idle for {idle.max() / 1e9:,.0f} s within the step"


def kernels_take_no_time(c: Checked) -> Iterator[str]:
    """Kernels of 0 ns."""
    a = c.profile.activities
    kernels = c.rows[a.kind[c.rows] == ActivityKind.KERNEL]
    none = int((a.duration_ns[kernels] <= 0).sum())
    if none > 0.1 * len(kernels):
        yield f"{none:,} of {len(kernels):,} kernels take no time"


def kernel_runs_before_its_launch(c: Checked) -> Iterator[str]:
    """Kernels that begin before the host asked for them."""
    a, calls = c.profile.activities, c.profile.calls
    rows = c.rows[a.call[c.rows] >= 0]
    early = calls.start_ns[a.call[rows]] - a.start_ns[rows]
    if len(early) and early.max() > _CLOCKS_NS:
        yield (
            f"{int((early > _CLOCKS_NS).sum()):,} kernels begin before they are launched, by up to "
            f"{ms(early.max())}: clocks of host and device differ"
        )


def steps_overlap(c: Checked) -> Iterator[str]:
    """Annotations of steps that are open at the same time on one thread."""
    marks = c.profile.marks
    named = [i for i, s in enumerate(c.profile.strings) if s.startswith("ProfilerStep#")]
    rows = np.flatnonzero(np.isin(marks.name, named) & ~marks.on_device)
    ends = marks.start_ns[rows] + marks.duration_ns[rows]
    over = np.maximum.accumulate(ends)[:-1] - marks.start_ns[rows][1:] if len(rows) else ends
    if len(over) and over.max() > _CLOCKS_NS:
        yield f"annotations of steps overlap, by up to {ms(over.max())}"


def operators_cross(c: Checked) -> Iterator[str]:
    """Operators of one thread that begin within another and end after it."""
    o = c.profile.operators
    crossing = 0
    for thread in np.unique(o.thread).tolist():
        rows = np.flatnonzero(o.thread == thread)  # in order of their start
        ends = o.start_ns[rows] + o.duration_ns[rows]
        reached = np.maximum.accumulate(ends)[:-1]
        within = o.start_ns[rows][1:] < reached - _CLOCKS_NS
        crossing += int((within & (ends[1:] > reached + _CLOCKS_NS)).sum())
    if crossing > _WORTH_TELLING * len(o.start_ns):
        yield f"{crossing:,} operators end after their caller"


def gradient_comes_first(c: Checked) -> Iterator[str]:
    """Operators of the backward pass that begin before the forward ones that they belong to."""
    o = c.profile.operators
    known = o.sequence >= 0
    first: dict[int, float] = {}
    for row in np.flatnonzero(known & ~o.is_backward).tolist():
        first.setdefault(int(o.sequence[row]), float(o.start_ns[row]))
    rows = np.flatnonzero(known & o.is_backward).tolist()
    early = [r for r in rows if o.start_ns[r] < first.get(int(o.sequence[r]), -np.inf) - _CLOCKS_NS]
    if early:
        yield f"{len(early):,} operators of the backward pass run before their forward ones"


def call_of_another_vendor(c: Checked) -> Iterator[str]:
    """Calls of one vendor's runtime on a device of the other's."""
    names = {c.profile.strings[n] for n in np.unique(c.profile.calls.name).tolist()}
    hip, cuda = (any(n.startswith(prefix) for n in names) for prefix in ("hip", "cuda"))
    device = c.profile.device
    if (hip and not cuda and "NVIDIA" in device) or (cuda and not hip and "AMD" in device):
        yield f"calls of {'HIP' if hip else 'CUDA'} ran on '{device[:40]}'"


#: Nothing can be made of a profile that says one of these, by the code of the error.
REFUSED: Mapping[str, tuple[Rule, ...]] = {
    "FL833": (
        ranks.world_is_too_large,
        ranks.rank_is_outside,
        ranks.group_is_outside,
        ranks.group_repeats_a_rank,
        ranks.group_is_of_another_size,
        ranks.rank_is_not_in_its_group,
        ranks.peer_is_outside,
        ranks.permutation_meets,
    ),
    "FL834": (everything_is_twice,),
    "FL835": (size_is_negative, dimension_is_negative),
}
#: What these say is wrong somewhere: the numbers are as the profile has them.
TOLD: tuple[Rule, ...] = (
    ranks.message_to_itself,
    ranks.group_has_two_lists,
    something_is_twice,
    stream_overlaps,
    kernel_is_too_long,
    pause_is_too_long,
    kernels_take_no_time,
    kernel_runs_before_its_launch,
    steps_overlap,
    operators_cross,
    gradient_comes_first,
    call_of_another_vendor,
    sizes_of_collective_differ,
    splits_do_not_add_up,
    collective_is_too_large,
    tensor_is_too_large,
    memory_is_exceeded,
    copy_is_too_fast,
    kernel_is_too_fast,
    shapes_do_not_fit,
)
_HELP = {
    "FL833": "the file is damaged, or was merged from several jobs: record it again",
    "FL834": "a tool joined a file with itself: give the profiler's own file",
    "FL835": "the file is damaged, or a tool wrote it: give the profiler's own file",
}


def refuse(profiles: Mapping[int, Profile], world: int) -> None:
    """Raise FlintError FL833 (ranks and groups), FL834 (everything twice), FL835 (sizes below 0)."""
    for rank, profile in profiles.items():
        checked = Checked(rank, world, profile, np.arange(len(profile.activities.start_ns)))
        for code, rules in REFUSED.items():
            for rule in rules:
                for sentence in rule(checked):
                    raise FlintError(
                        code, f"the profile contradicts itself: {sentence}", help=_HELP[code]
                    )


def told(checked: Checked) -> list[str]:
    """What else cannot be, in sentences."""
    return [f"contradiction: {sentence}" for rule in TOLD for sentence in rule(checked)]
