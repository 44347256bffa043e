"""Small workloads as profiles make them: rows with measured times, and rows of the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flint.ir.builder import ProgramBuilder
from flint.ir.made_by import MeasuredBy, MeasuredClass
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Collective, Flag, Kind, Phase, Program
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload

H100 = "NVIDIA H100 80GB HBM3"


class Recorded:
    """Rows one at a time, as a profiled process launched them."""

    def __init__(self, mesh: Mesh | None = None) -> None:
        self.builder = ProgramBuilder(mesh or Mesh(("data",), (2,)))
        self.host = -1
        self.last: dict[str, int] = {}
        self.calls = 0

    def launch(
        self, host_ns: int, *, waits: Sequence[int] = (), opcode: str = "host.launch"
    ) -> int:
        """The host's time before a launch."""
        self.host = self.builder.add(
            opcode, op=OpClass.HOST, deps=(self.host, *waits), stream="host", measured_ns=host_ns,
            flags=Flag.WAITS if waits else 0,
        )  # fmt: skip
        return self.host

    def _row(self, opcode: str, kind: Kind, ns: int, stream: str, **columns: Any) -> int:
        deps = (self.host, self.last.get(stream, -1), *columns.pop("deps", ()))
        row = self.builder.add(
            opcode, kind, deps=deps, stream=stream, measured_ns=ns,
            **{"phase": Phase.FORWARD, **columns},
        )  # fmt: skip
        self.last[stream] = row
        return row

    def mm(self, ns: int, n: int = 1024, *, stream: str = "compute", **columns: Any) -> int:
        """A product of two square matrices in bf16."""
        self.calls += 1
        return self._row(
            "aten.mm", Kind.COMPUTE, ns, stream, op=OpClass.MATMUL, dtype="bfloat16", shape=(n, n),
            dims=(1, n, n, n), product="bfloat16", flops=2 * n**3, result_bytes=2 * n * n,
            operand_bytes=4 * n * n, launcher=self.calls, name="gemm_kernel", **columns,
        )  # fmt: skip

    def helper(self, ns: int, *, stream: str = "compute") -> int:
        """Another kernel of the last operator."""
        return self._row(
            "aten.mm",
            Kind.COMPUTE,
            ns,
            stream,
            op=OpClass.OTHER,
            launcher=self.calls,
            name="splitk",
        )

    def unknown(self, ns: int, *, stream: str = "compute") -> int:
        """A kernel of no operator."""
        return self._row("kernel", Kind.COMPUTE, ns, stream, op=OpClass.OTHER, name="mystery")

    def all_reduce(
        self, ns: int, num_bytes: int = 1 << 24, *, stream: str = "stream 20", **columns: Any
    ) -> int:
        """Of a bf16 tensor over `data`."""
        return self._row(
            "nccl.all_reduce", Kind.COLLECTIVE, ns, stream, op=OpClass.ADD,
            collective=Collective.ALL_REDUCE, group=Group((AxisRef("data"),)),
            comm_bytes=num_bytes, dtype="bfloat16", result_bytes=num_bytes,
            operand_bytes=num_bytes, **columns,
        )  # fmt: skip

    def build(self) -> Program:
        """The program."""
        return self.builder.build()


def workload(
    *programs: Program, spans: Sequence[float] = (), device: str = H100, peak_bytes: int = 0
) -> Workload:
    """Programs of the first ranks; one stands for all ranks of its mesh."""
    mesh = programs[0].mesh
    names = [f"rank {n}" for n in range(len(programs))]
    ranks = [(n,) for n in range(len(programs))] if len(programs) > 1 else [()]
    classes = tuple(RankClass(name, n, {}, ranks[n]) for n, name in enumerate(names))
    spans = spans or [0.0] * len(programs)
    measured = tuple(MeasuredClass(n, span, 1, peak_bytes) for n, span in enumerate(spans))
    by = MeasuredBy("kineto", device, measured)
    found = Workload(
        mesh, programs, classes, {"name": "step", "source": "kineto", "measured": by.to_json()}
    )
    found.verify()
    return found


def one_rank() -> Workload:
    """Launch-bound first, then a queue; a collective beside kernels that waits for its bytes.

    Times in ns: kernels 0 at 1,000-3,000, helper to 3,500, a gap to 6,000 (the host), 6,000-46,000,
    the all-reduce 6,500-106,500 on its stream, a kernel that waits for it 106,500-116,500.
    """
    r = Recorded()
    r.launch(1_000)
    r.mm(2_000, 256)
    r.launch(500)
    r.helper(500)
    r.launch(4_500)
    first = r.mm(40_000, 2048)
    r.launch(500)
    r.unknown(3_000, stream="stream 9")
    reduced = r.all_reduce(100_000)
    r.launch(700, opcode="host.wait", waits=(first,))
    r.mm(10_000, deps=(reduced,))
    return workload(r.build(), spans=(116_500.0,), peak_bytes=3 << 30)


def two_ranks() -> Workload:
    """The second comes 30 us later to the all-reduce, whose transfer takes 50 us."""
    programs = []
    for late in (0, 30_000):
        r = Recorded()
        r.launch(1_000)
        r.mm(10_000 + late)
        r.launch(1_000)
        reduced = r.all_reduce(50_000, deps=(1,))
        r.launch(1_000)
        r.mm(20_000, deps=(reduced,))
        programs.append(r.build())
    return workload(*programs, spans=(111_000.0, 111_000.0))
