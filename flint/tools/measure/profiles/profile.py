"""Profile: what one process did with one device while it was recorded, whichever tool recorded it.

Every reader (Kineto, Chakra, xplane, Nsight) makes the same tables of columns, times in nanoseconds
from `Profile.origin_ns`. Rows of a table are in order of their start. Nothing of the machine is kept
but the name, memory and processors of its device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from flint.ir.arrays import Float64s, Int32s, Int64s, Mask
from flint.ir.op_class import OpClass
from flint.ir.program import Phase
from flint.passes.work.work import Work
from flint.tools.measure.profiles.comm_kernels import (
    BY_NAME,
    calculates,
    comm_of_kernel,
    comm_of_operator,
)

# What names of kernels tell where no operator does: the one place that knows them.
#
# A name gives a class and never work: such rows are unpriced.

_CLASSES: tuple[tuple[re.Pattern[str], OpClass], ...] = (
    (
        re.compile(
            r"(?i)flash_bwd|fmha.*bwd|bwd.*fmha|attn_bwd|mha_bwd|attention.*(bwd|backward)"
        ),
        OpClass.ATTENTION_BACKWARD,
    ),
    (
        re.compile(
            r"(?i)flash_fwd|fmha|attn_fwd|mha_fwd|paged_attention|flash_attn|unified_attention"
            r"|decode_attention|batch_?prefill|batch_?decode|mla_"
        ),
        OpClass.ATTENTION,
    ),
    (re.compile(r"(?i)conv2d|conv3d|igemm_|_conv_fwd|_conv_bwd|winograd"), OpClass.CONVOLUTION),
    (
        re.compile(
            r"(?i)gemm|Cijk_|nvjet|cutlass.*(tensorop|Kernel2)|cublas|wgmma|_matmul|^bmm_|gemv|splitK"
        ),
        OpClass.MATMUL,
    ),
    (re.compile(r"(?i)softmax"), OpClass.SOFTMAX),
    (re.compile(r"(?i)(layer|rms|group|batch)_?norm"), OpClass.NORM),
    (re.compile(r"(?i)topk|top_k"), OpClass.TOP_K),
    (re.compile(r"(?i)radixsort|sort_kernel|bitonic"), OpClass.SORT),
    (re.compile(r"(?i)adam|multi_tensor.*optim"), OpClass.OPTIMIZER),
    (re.compile(r"(?i)reduce_kernel"), OpClass.REDUCE),
    (re.compile(r"(?i)CatArray"), OpClass.CONCATENATE),
    (re.compile(r"(?i)gather_kernel|indexSelect|index_elementwise"), OpClass.GATHER),
    (re.compile(r"(?i)FillFunctor|memset"), OpClass.FILL),
    (re.compile(r"(?i)copy_kernel|memcpy|transpose"), OpClass.COPY),
    (re.compile(r"(?i)act_and_mul|rotary|(vectorized|unrolled)?_?elementwise_kernel|^triton_poi"), OpClass.FUNCTION),
    (re.compile(r"^triton_(red|per)"), OpClass.REDUCE),
)  # fmt: skip
_BF16, _F16, _F32 = re.compile(r"BFloat16|bfloat16|bf16"), re.compile(r"Half|half|f16"), re.compile(r"float|f32")  # fmt: skip
_OPAQUE = re.compile(r"OpaqueType<(\d+)u?>")


@lru_cache(maxsize=1 << 14)
def class_of_kernel(name: str) -> OpClass:
    """The class that a kernel's name tells; UNKNOWN for most."""
    return next((c for pattern, c in _CLASSES if pattern.search(name)), OpClass.UNKNOWN)


@lru_cache(maxsize=1 << 14)
def element_of_kernel(name: str) -> str:
    """StableHLO's name of the type of elements that a kernel's name tells, f32 for none."""
    opaque = _OPAQUE.search(name)
    if opaque:
        return {"1": "ui8", "2": "bf16", "8": "i64"}.get(opaque[1], "f32")
    for pattern, dtype in ((_BF16, "bf16"), (_F32, "f32"), (_F16, "f16")):
        if pattern.search(name):
            return dtype
    return "f32"


class CallKind(IntEnum):
    """What a call of the driver or the runtime means for the device."""

    OTHER = 0
    LAUNCH = 1  #: of a kernel, a copy, a memset
    GRAPH = 2  #: of a whole graph: several activities have one launch
    WAIT_DEVICE = 3  #: the host waits for all that was launched
    WAIT_STREAM = 4  #: the host waits for a stream
    WAIT_EVENT = 5  #: the host waits for an event
    RECORD_EVENT = 6  #: an event is put on a stream
    STREAM_WAIT = 7  #: a stream waits for an event of another


class ActivityKind(IntEnum):
    """What runs on the device."""

    KERNEL = 0
    COPY = 1  #: between memories, `num_bytes` of them
    FILL = 2


@dataclass(frozen=True, slots=True)
class Signature:
    """Arguments of an operator, one entry for each: interned, as calls repeat.

    A tensor has a shape and a type as the profiler writes it ("c10::BFloat16", "float"); a list of
    tensors has several, in `lists`. `values` are scalars and lists as text, "" for tensors. `outputs`
    are shapes and types of results where the format has them (execution traces), else None.
    """

    shapes: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]
    strides: tuple[tuple[int, ...], ...] = ()
    values: tuple[str, ...] = ()
    lists: tuple[tuple[tuple[int, ...], ...], ...] = ()
    outputs: tuple[tuple[tuple[int, ...], str], ...] | None = None


@dataclass(frozen=True, slots=True)
class ProfiledComm:
    """What a collective or message says of itself.

    `name` is the framework's ("allreduce", "_allgather_base", "send", ...), sizes are in elements of
    `dtype`, -1 where nothing is said. `ranks` is () where they are not listed in full. `peer` is the
    global rank at the other end of a message, -1 if there is none; `pairs` are sources and targets of a
    permutation. `turn` is the number of the call in its group, -1 where nothing counts it.
    """

    name: str
    in_elements: int
    out_elements: int
    dtype: str
    group: str = ""
    group_size: int = 0
    ranks: tuple[int, ...] = ()
    peer: int = -1
    in_splits: tuple[int, ...] = ()
    out_splits: tuple[int, ...] = ()
    turn: int = -1
    pairs: tuple[tuple[int, int], ...] = ()

    def placed(self, groups: Mapping[str, tuple[int, ...]], world: int = 0) -> ProfiledComm:
        """With the ranks of its group where only that is named; one as large as the world has all."""
        ranks = self.ranks or groups.get(self.group, ())
        if not ranks and self.group_size == world > 1:
            ranks = tuple(range(world))
        if not ranks or (self.group_size and len(ranks) != self.group_size):
            return self
        return replace(self, ranks=ranks, group_size=len(ranks))


@dataclass(frozen=True, slots=True)
class Compiled:
    """What a compiler's own program says of an operation, where the profile holds that program.

    `opcode` is the compiler's, `op` its class, `shape` and `dtype` (numpy's names, "bfloat16") those of
    the first result. `scope` and `phase` are read from the names that the framework gave it.
    """

    opcode: str
    op: OpClass
    work: Work
    shape: tuple[int, ...]
    dtype: str
    operand_bytes: int
    result_bytes: int
    scope: str
    phase: Phase


@dataclass(frozen=True, eq=False)
class Operators:
    """Operators of the framework on the host, nested.

    `parent` is a row of this table, `signature` an index into `Profile.signatures`, `comm` into
    `Profile.comms`; -1 for none. `sequence` pairs a forward operator with its backward one (-1), which
    `is_backward`. `tensors` is an index into `Profile.tensors` where identities were recorded, else -1.
    `record` is the number that PyTorch's profiler and its execution trace give to the same call (-1).
    """

    name: Int32s
    start_ns: Float64s
    duration_ns: Float64s
    thread: Int32s
    parent: Int32s
    signature: Int32s
    sequence: Int64s
    is_backward: NDArray[np.bool_]
    comm: Int32s
    tensors: Int32s
    record: Int64s

    def around(self, row: int) -> Iterator[int]:
        """An operator and those around it, from the innermost out; nothing for -1."""
        while row >= 0:
            yield row
            row = int(self.parent[row])


@dataclass(frozen=True, eq=False)
class HostCalls:
    """Calls of the driver and the runtime on the host.

    `operator` is the innermost operator that made the call. `stream` is the stream that waits or is
    waited for (-1: not known, or all), `waits_for` the activity that ends what is waited for (-1: not
    known).
    """

    kind: NDArray[np.uint8]
    name: Int32s
    start_ns: Float64s
    duration_ns: Float64s
    thread: Int32s
    operator: Int32s
    stream: Int32s
    waits_for: Int32s


@dataclass(frozen=True, eq=False)
class Activities:
    """Kernels, copies and fills on the device.

    `call` launched it, `operator` is the innermost operator around that; -1 where nothing says it.
    `flops` and `bytes_accessed` are those that the profiler gives (XLA's), else -1; `category` (an
    index into `Profile.strings`, 0 is "") is the compiler's name of what it does, `compiled` an index
    into `Profile.compiled` (-1).
    """

    kind: NDArray[np.uint8]
    name: Int32s
    start_ns: Float64s
    duration_ns: Float64s
    stream: Int32s
    num_bytes: Int64s
    call: Int32s
    operator: Int32s
    comm: Int32s
    flops: Int64s
    bytes_accessed: Int64s
    category: Int32s
    compiled: Int32s

    @property
    def end_ns(self) -> Float64s:
        """When each ends."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, eq=False)
class Marks:
    """Annotations: steps, parts of a step, modules; on the host, or as the device saw them."""

    name: Int32s
    start_ns: Float64s
    duration_ns: Float64s
    thread: Int32s
    on_device: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Profile:
    """One rank's recording.

    `rank` and `world_size` are -1 and 0 where nothing says them. `groups` are process groups by name,
    with their ranks. `device_memory_bytes` and `processors` are 0 where nothing says them. `tensors`
    are ids of the tensors that operators read and wrote, where they were recorded. `waits`, (count, 2),
    are rows of activities: the first waits for the second, beside what calls and streams say.
    `warnings` say what the file lacked, and what was omitted.
    """

    format: str
    rank: int
    world_size: int
    device: str
    origin_ns: int
    strings: tuple[str, ...]
    operators: Operators
    calls: HostCalls
    activities: Activities
    marks: Marks
    signatures: tuple[Signature, ...] = ()
    comms: tuple[ProfiledComm, ...] = ()
    tensors: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] = ()
    compiled: tuple[Compiled, ...] = ()
    waits: Int32s = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int32))
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    device_memory_bytes: int = 0
    processors: int = 0
    peak_bytes: int = 0
    warnings: tuple[str, ...] = ()

    @cached_property
    def says_communication(self) -> NDArray[np.bool_]:
        """For each activity whether its metadata, its name or its operator says that it communicates."""
        return _communicating(self)

    @cached_property
    def communicates(self) -> NDArray[np.bool_]:
        """For each activity whether it is communication; also what of no class shares its stream."""
        said = self.says_communication
        return np.asarray(said | _on_its_stream(self, said))


T = TypeVar("T", Operators, HostCalls, Activities, Marks)


def select(table: T, rows: NDArray[np.int64] | NDArray[np.bool_]) -> T:
    """Some rows of a table, in their order; indices into other tables stay as they are."""
    return replace(table, **{f.name: getattr(table, f.name)[rows] for f in fields(table)})


#: A stream of which so much communicates is one of communication.
_MOSTLY = 0.9


def _communicating(profile: Profile) -> Mask:
    """For each activity whether it is communication, of any library."""
    a = profile.activities
    kernels = a.kind == 0
    named = _of_names(profile.strings, a.name, lambda s: comm_of_kernel(s) is not None)
    guessed = _of_names(profile.strings, a.name, _says_it_itself)
    named &= ~(guessed & ((a.category > 0) | (a.compiled >= 0)))  # a compiler knows better
    operators = _of_names(
        profile.strings, profile.operators.name, lambda s: comm_of_operator(s) is not None
    )
    launched = np.zeros(len(kernels), dtype=np.bool_)
    inside = a.operator >= 0
    launched[inside] = operators[a.operator[inside]]
    launched &= ~_of_names(profile.strings, a.name, calculates)
    return np.asarray((a.comm >= 0) | (kernels & (named | launched)))


def _says_it_itself(kernel: str) -> bool:
    found = comm_of_kernel(kernel)
    return found is not None and found.library == BY_NAME


def _on_its_stream(profile: Profile, communicates: Mask) -> Mask:
    """Kernels of no class on a stream that otherwise communicates: they are its communication, too."""
    a = profile.activities
    nameless = _nameless(profile) & ~communicates
    found = np.zeros(len(nameless), dtype=np.bool_)
    for stream in np.unique(a.stream[communicates]).tolist():
        there = (a.stream == stream) & (a.kind == 0)
        known = float(a.duration_ns[there & ~nameless].sum())
        if float(a.duration_ns[there & communicates].sum()) >= _MOSTLY * known:
            found |= there & nameless
    return found


def unexplained(profile: Profile, rows: NDArray[np.int64], main: int) -> list[str]:
    """Sentences about streams beside the computing one whose long kernels are of no class."""
    a = profile.activities
    kernels = rows[a.kind[rows] == 0]
    nameless = kernels[_nameless(profile)[kernels] & ~profile.communicates[kernels]]
    nameless = nameless[a.stream[nameless] != main]
    said = []
    for stream in np.unique(a.stream[nameless]).tolist():
        there = nameless[a.stream[nameless] == stream]
        took = float(a.duration_ns[there].sum())
        if took < 0.05 * float(a.duration_ns[kernels].sum()):
            continue
        longest = int(there[np.argmax(a.duration_ns[there])])
        said.append(
            f"{len(there)} kernels of no class ({took / 1e6:.3f} ms) run on stream {stream} "
            "beside the computing stream: they count as computation, but may communicate "
            f"('{profile.strings[a.name[longest]][:60]}')"
        )
    return said


def _nameless(profile: Profile) -> Mask:
    """Kernels whose name tells no class, launched by no operator of PyTorch's own."""
    a = profile.activities
    strings = profile.strings
    unknown = _of_names(
        strings, a.name, lambda s: class_of_kernel(s) is OpClass.UNKNOWN and not calculates(s)
    )
    own = _of_names(strings, profile.operators.name, lambda s: s.startswith(("aten::", "prims::")))
    inside = a.operator >= 0
    unknown[inside] &= ~own[a.operator[inside]]
    category = a.category > 0
    return np.asarray(unknown & (a.kind == 0) & ~category & (a.compiled < 0))


def _of_names(
    strings: Sequence[str], names: NDArray[np.int32], holds: Callable[[str], bool]
) -> Mask:
    used, place = np.unique(names, return_inverse=True)
    found = np.array([holds(strings[n]) for n in used.tolist()], dtype=np.bool_)
    return found[place] if len(used) else np.zeros(len(names), dtype=np.bool_)
