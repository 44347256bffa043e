"""Profiles of made-up jobs of several ranks, whose true times are known."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.profile import (
    ActivityKind,
    CallKind,
    Profile,
    ProfiledComm,
    Signature,
)

#: From a call to its kernel, and a call of the host.
LATENCY_NS, CALL_NS = 5_000.0, 3_000.0
COMPUTE, COMMUNICATION = 7, 20
_MM = Signature(((64, 32), (32, 16)), ("c10::BFloat16", "c10::BFloat16"), (), ("", ""))


@dataclass(frozen=True)
class Collective:
    """One call of every group of a partition of the ranks; the next kernel waits for it or not."""

    groups: tuple[tuple[int, ...], ...]
    name: str = "allreduce"
    elements: int = 1024
    transfer_ns: float = 20_000.0
    waited: bool = True


@dataclass(frozen=True)
class Kernel:
    """A kernel of each rank: its time, and what the host does before it, by rank."""

    ns: tuple[float, ...]
    host_ns: tuple[float, ...]


Item = Kernel | Collective


@dataclass
class _Rank:
    host: float = 0.0
    compute: float = 0.0
    communication: float = 0.0
    waits: float = 0.0
    kernels: list[tuple[float, float, float, Collective | None]] = field(default_factory=list)
    wait_calls: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Job:
    """What ran: profiles with the clocks of their ranks, and true times (call, start, end)."""

    profiles: tuple[Profile, ...]
    ranks: tuple[_Rank, ...]
    groups: tuple[tuple[int, ...], ...]


def run(world: int, items: list[Item], clocks_ns: list[float], *, profiled: list[int]) -> Job:
    """Run items on all ranks, and record some of them."""
    ranks = tuple(_Rank() for _ in range(world))
    for item in items:
        if isinstance(item, Kernel):
            for rank, state in enumerate(ranks):
                _kernel(state, item.ns[rank], item.host_ns[rank])
        else:
            _collective(ranks, item)
    lists = {g for i in items if isinstance(i, Collective) for g in i.groups}
    groups = tuple(sorted(lists))
    profiles = tuple(_profile(r, world, ranks[r], clocks_ns[r], groups) for r in profiled)
    return Job(profiles, ranks, groups)


def _kernel(state: _Rank, ns: float, host_ns: float) -> None:
    state.host += host_ns
    call, state.host = state.host, state.host + CALL_NS
    start = max(call + LATENCY_NS, state.compute, state.waits)
    state.compute = start + ns
    state.kernels.append((call, start, state.compute, None))


def _collective(ranks: tuple[_Rank, ...], item: Collective) -> None:
    for group in item.groups:
        calls, starts = {}, {}
        for rank in group:
            state = ranks[rank]
            calls[rank], state.host = state.host, state.host + CALL_NS
            starts[rank] = max(calls[rank] + LATENCY_NS, state.compute, state.communication)
        end = max(starts.values()) + item.transfer_ns
        for rank in group:
            state = ranks[rank]
            state.communication = end
            state.kernels.append((calls[rank], starts[rank], end, item))
            if item.waited:
                state.wait_calls.append(state.host)
                state.host += 1_000.0
                state.waits = end


def _profile(
    rank: int, world: int, state: _Rank, clock: float, groups: tuple[tuple[int, ...], ...]
) -> Profile:
    b = ProfileBuilder("kineto", rank=rank, world_size=world, device="NVIDIA H100 80GB HBM3")
    names = {g: str(i) for i, g in enumerate(groups)}
    b.groups.update({names[g]: g for g in groups if rank in g})
    last = max(state.host, *(end for _, _, end, _ in state.kernels))
    b.add_mark("ProfilerStep#3", clock, last, 1, on_device=False)
    for number, (call, start, end, item) in enumerate(state.kernels, start=1):
        name = "aten::mm" if item is None else "record_param_comms"
        comm = -1
        if item is not None:
            group = next(g for g in item.groups if rank in g)
            comm = b.comm(ProfiledComm(item.name, item.elements, item.elements, "Float", names[group], len(group), group))  # fmt: skip
        b.add_operator(
            name, clock + call - 500, CALL_NS - 100, 1, external=number, comm=comm,
            signature=b.signature(_MM) if item is None else -1,
        )  # fmt: skip
        b.add_call(
            CallKind.LAUNCH, "cudaLaunchKernel", clock + call, CALL_NS - 1000, 1,
            correlation=number, external=number,
        )  # fmt: skip
        kernel = "gemm" if item is None else "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
        stream = COMPUTE if item is None else COMMUNICATION
        b.add_activity(
            ActivityKind.KERNEL, kernel, clock + start, end - start, stream, correlation=number,
            external=number, comm=comm,
        )  # fmt: skip
    for moment in state.wait_calls:
        b.add_call(CallKind.STREAM_WAIT, "cudaStreamWaitEvent", clock + moment, 500, 1)
    return b.build()


def partition(world: int, size: int, stride: int) -> tuple[tuple[int, ...], ...]:
    """Groups of `size` ranks, `stride` apart, over all ranks."""
    ranks = np.arange(world).reshape(-1, size, stride).transpose(0, 2, 1).reshape(-1, size)
    return tuple(tuple(int(r) for r in row) for row in ranks)
