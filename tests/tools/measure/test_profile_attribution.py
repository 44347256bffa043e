"""Scopes and phases of kernels: annotations, the backward pass, recomputation, the optimizer."""

from __future__ import annotations

from flint.ir.op_class import OpClass
from flint.ir.program import Kind, Row
from flint.tools.measure.profiles.build import workload_of
from flint.tools.measure.profiles.builder import ProfileBuilder
from flint.tools.measure.profiles.profile import ActivityKind, CallKind, Signature

_MM = Signature(((8, 4), (4, 6)), ("c10::BFloat16", "c10::BFloat16"))


class _Step:
    """Operators, each with one kernel, by threads."""

    def __init__(self) -> None:
        self.builder = ProfileBuilder("kineto", device="NVIDIA H100 80GB HBM3")
        self.number = 0

    def mark(self, name: str, start_us: float, end_us: float, thread: int = 1) -> None:
        self.builder.add_mark(name, start_us * 1e3, (end_us - start_us) * 1e3, thread, on_device=False)  # fmt: skip

    def nest(
        self,
        names: list[str],
        at_us: float,
        thread: int = 1,
        sequence: int = -1,
        backward: bool = False,
    ) -> None:
        """A kernel launched by the last of nested operators."""
        self.number += 1
        for depth, name in enumerate(names):
            self.builder.add_operator(
                name, at_us * 1e3 + depth * 10, 5_000 - depth * 20, thread,
                signature=self.builder.signature(_MM), sequence=sequence, is_backward=backward,
            )  # fmt: skip
        self.builder.add_call(
            CallKind.LAUNCH, "cudaLaunchKernel", at_us * 1e3 + 1_000, 1_000, thread,
            correlation=self.number,
        )  # fmt: skip
        self.builder.add_activity(
            ActivityKind.KERNEL, f"kernel{self.number}", at_us * 1e3 + 9_000, 500, 7,
            correlation=self.number,
        )  # fmt: skip

    def rows(self) -> list[Row]:
        program = workload_of([self.builder.build()]).programs[0]
        rows = [program.row(i) for i in range(len(program))]
        return [r for r in rows if r.kind is Kind.COMPUTE and r.op is not OpClass.HOST]


def test_scopes_are_annotations_without_steps_paths_and_libraries() -> None:
    step = _Step()
    step.mark("ProfilerStep#1", 0, 100)
    step.mark("nn.Module: Block_0", 0, 50)
    step.mark("attention", 5, 40)
    step.mark("/home/somebody/model.py(12): forward", 5, 40)
    step.mark("nccl:all_reduce", 5, 40)
    step.nest(["aten::mm"], 10)
    step.nest(["aten::mm"], 45)
    assert [r.scope for r in step.rows()] == ["Block_0/attention", "Block_0"]


def test_backward_operators_have_the_scope_of_their_forward_ones() -> None:
    step = _Step()
    step.mark("mlp", 0, 20)
    step.nest(["aten::mm"], 10, sequence=5)
    node = "autograd::engine::evaluate_function: MmBackward0"
    step.nest([node, "MmBackward0", "aten::mm"], 60, thread=2, sequence=5, backward=True)
    forward, backward = step.rows()
    assert (forward.scope, forward.phase.name) == ("mlp", "FORWARD")
    assert (backward.scope, backward.phase.name) == ("mlp", "BACKWARD")


def test_forward_code_in_the_backward_pass_runs_again() -> None:
    step = _Step()
    node = "autograd::engine::evaluate_function: MmBackward0"
    step.nest([node, "MmBackward0", "aten::linear", "aten::mm"], 10)
    step.nest([node, "MmBackward0", "aten::mm"], 40)
    assert [r.phase.name for r in step.rows()] == ["REMAT", "BACKWARD"]


def test_optimizers_are_a_phase() -> None:
    step = _Step()
    step.mark("Optimizer.step#AdamW.step", 30, 60)
    step.nest(["aten::mm"], 10)
    step.nest(["aten::mm"], 40)
    assert [r.phase.name for r in step.rows()] == ["FORWARD", "OPTIMIZER"]


def test_kernels_of_one_call_share_a_number_and_the_longest_has_the_work() -> None:
    builder = ProfileBuilder("kineto")
    builder.add_operator("aten::mm", 0, 50_000, 1, signature=builder.signature(_MM))
    for number, ns in enumerate((100.0, 900.0, 300.0)):
        builder.add_call(
            CallKind.LAUNCH, "cudaLaunchKernel", 1_000.0 * number, 500, 1, correlation=number
        )
        builder.add_activity(
            ActivityKind.KERNEL, "k", 10_000.0 + 1_000 * number, ns, 7, correlation=number
        )
    program = workload_of([builder.build()]).programs[0]
    rows = [program.row(i) for i in range(len(program)) if program.launcher[i]]
    assert [r.flops for r in rows] == [0, 2 * 8 * 4 * 6, 0]
    assert [r.op for r in rows] == [OpClass.OTHER, OpClass.MATMUL, OpClass.OTHER]
    assert {r.opcode for r in rows} == {"aten.mm"}
    assert {r.launcher for r in rows} == {1}
