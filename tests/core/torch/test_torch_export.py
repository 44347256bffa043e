"""A PyTorch module becomes a program: arguments, results, names, and what cannot be."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

import torch.nn.functional as F
from torch import nn

import flint
from flint.errors import FlintError
from flint.frontends.torch_export import capture_torch
from flint.frontends.torch_graph.export import export_step
from flint.frontends.torch_graph.joint import composites_decompose, trace_joint
from flint.frontends.torch_graph.program import torch_program
from flint.ir.mesh import Mesh
from flint.ir.program import Flag, Kind, Phase
from flint.passes.locations import decode_location
from flint.passes.mlir import make_context
from flint.passes.partition.xla import partition_xla
from flint.steps.step import TorchStep

MESH = Mesh.parse("data=2,model=2")


class Net(nn.Module):
    """A tied embedding and head around one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(16, 8)
        self.hidden = nn.Linear(8, 8)
        self.unused = nn.Linear(8, 8)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Any, scale: float = 1.0) -> Any:
        return self.head(torch.tanh(self.hidden(self.tokens(ids)))) * scale


def meta(make: Any) -> nn.Module:
    with torch.device("meta"):
        return make()


def ids(*shape: int) -> Any:
    return torch.zeros(*shape, dtype=torch.int64, device="meta")


def mean(output: Any) -> Any:
    return output.mean()


def names(step: TorchStep) -> list[str]:
    return [a.name for a in torch_program(step, MESH).arguments]


def rows_of(step: TorchStep) -> list[Any]:
    program = partition_xla(capture_torch(step, MESH))
    program.verify()
    return [program.row(i) for i in range(len(program))]


def refused(step: TorchStep) -> FlintError:
    with pytest.raises(FlintError) as caught:
        capture_torch(step, MESH)
    return caught.value


# arguments and results -------------------------------------------------------------------------


def test_arguments_are_named_and_tied_weights_are_one() -> None:
    step = TorchStep(meta(Net), (ids(4),), kwargs={"scale": 2.0}, loss=mean)
    assert names(step) == [
        "tokens.weight",
        "hidden.weight",
        "hidden.bias",
        "unused.weight",
        "unused.bias",
        "ids",
    ]


def test_parameters_without_gradient_are_not_stepped() -> None:
    step = TorchStep(meta(Net), (ids(4),), loss=mean, optimizer="adamw")
    state = [n for n in names(step) if n.startswith("optimizer.")]
    assert state[:2] == ["optimizer.tokens.weight.exp_avg", "optimizer.tokens.weight.exp_avg_sq"]
    assert not [n for n in state if "unused" in n]


def test_parameters_and_state_are_donated_inputs_are_not() -> None:
    step = TorchStep(meta(Net), (ids(4),), loss=mean, optimizer="adamw")
    donated = {a.name for a in torch_program(step, MESH).arguments if a.donated}
    assert {"tokens.weight", "optimizer.hidden.bias.exp_avg"} <= donated
    assert not {"ids", "unused.weight"} & donated


def test_statistics_of_batch_norm_come_back() -> None:
    module = meta(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
    step = TorchStep(module, (torch.empty(8, 4, device="meta"),), loss=mean)
    donated = {a.name for a in torch_program(step, MESH).arguments if a.donated}
    assert donated == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_arguments_carry_their_names_and_shardings_through_bytecode() -> None:
    from jaxlib.mlir import ir

    shardings = {"hidden.weight": ("model", None), "ids": ("data",)}
    step = TorchStep(meta(Net), (ids(4),), loss=mean, shardings=shardings)
    captured = capture_torch(step, MESH)
    with make_context():
        module = ir.Module.parse(captured.module)
        main = next(f for f in module.body if f.operation.name == "func.func")
        arguments = main.regions[0].blocks[0].arguments
        found = {
            decode_location(a.location)[0]: str(at["sdy.sharding"])
            for a, at in zip(arguments, main.attributes["arg_attrs"], strict=True)
        }
    assert '[{"model"}, {}]' in found["hidden.weight"]
    assert '[{"data"}]' in found["ids"]


def test_real_weights_are_left_where_they_are() -> None:
    module = Net()
    exported = export_step(TorchStep(module, (torch.zeros(4, dtype=torch.int64),), loss=mean))
    assert {p.device.type for p in exported.module.parameters()} == {"meta"}
    assert {p.device.type for p in module.parameters()} == {"cpu"}
    assert exported.module.head.weight is exported.module.tokens.weight


@dataclass
class Output:
    logits: Any
    hidden: tuple[Any, ...]
    note: str = "text"


class Structured(Net):
    def forward(self, batch: dict[str, Any]) -> Output:
        hidden = self.tokens(batch["ids"])
        return Output(self.head(hidden), (hidden, {"last": hidden[-1]}))


def test_structured_arguments_and_results() -> None:
    exported = export_step(TorchStep(meta(Structured), ({"ids": ids(4)},)))
    assert exported.inputs[-1].name == "batch['ids']"
    assert exported.outputs == ("output.logits", "output.hidden.0", "output.hidden.1.last")


def test_the_model_may_return_its_own_loss() -> None:
    class Own(Net):
        def forward(self, ids: Any, labels: Any) -> dict[str, Any]:
            logits = super().forward(ids)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    exported = export_step(TorchStep(meta(Own), (ids(4), ids(4)), backward=True))
    assert exported.outputs == ("loss",)


# what a gradient flows through -----------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.nll_loss(x, ids(4)),
        lambda x: F.cross_entropy(x, ids(4)),
        lambda x: torch.where(x > 0, x, 0.0).sum(),
        lambda x: F.prelu(x, torch.ones(1, device="meta")).sum(),
        lambda x: x.std(),
        lambda x: F.relu6(x).sum(),
    ],
)
def test_composite_operators_keep_their_gradient_on_meta_tensors(function: Any) -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3, device="meta"))

        def forward(self, x: Any) -> Any:
            return function(x * self.scale)

    exported = export_step(TorchStep(Scaled(), (torch.empty(4, 3, device="meta"),), backward=True))
    joint = trace_joint(exported.graph_module, [i.trainable for i in exported.inputs])
    assert list(joint.gradients) == [0]


def test_meta_kernels_are_back_afterwards() -> None:
    meta_key = torch._C.DispatchKey.Meta
    operator = torch.ops.aten.nll_loss.default
    with composites_decompose():
        assert meta_key not in operator.py_kernels
    assert meta_key in operator.py_kernels


# rows ------------------------------------------------------------------------------------------


def scaled_loss(output: Any, by: Any) -> Any:
    return (output * by).sum()


def test_a_project_in_a_folder_named_torch_keeps_its_lines(tmp_path: Path) -> None:
    file = tmp_path / "torch" / "tripled.py"
    file.parent.mkdir()
    file.write_text("def tripled(output):\n    return (output * 3).sum()\n")
    spec = spec_from_file_location("tripled", file)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    step = TorchStep(meta(Net), (ids(8),), loss=module.tripled, shardings={"ids": ("data",)})
    assert "tripled.py:2" in {r.location for r in rows_of(step)}


def test_rows_have_scope_line_and_phase() -> None:
    step = TorchStep(
        meta(Net),
        (ids(8),),
        loss=scaled_loss,
        loss_args=(torch.empty(8, 16, device="meta"),),
        optimizer="sgd",
        shardings={"ids": ("data",)},
    )
    rows = rows_of(step)
    dots = [(r.scope, r.phase) for r in rows if r.opcode == "hlo.dot"]
    assert dots == [
        ("hidden", Phase.FORWARD),
        ("head", Phase.FORWARD),
        ("head", Phase.BACKWARD),
        ("head", Phase.BACKWARD),
        ("hidden", Phase.BACKWARD),
        ("hidden", Phase.BACKWARD),
    ]
    assert {r.scope for r in rows if r.phase is Phase.OPTIMIZER and r.flops} >= {"hidden/sgd"}
    here = scaled_loss.__code__.co_firstlineno + 1
    reduce = next(r for r in rows if r.opcode == "hlo.reduce")
    assert reduce.location == f"test_torch_export.py:{here}"
    parameters = [r for r in rows if r.kind == Kind.PARAMETER]
    assert {r.name for r in parameters if r.flags & Flag.DONATED} >= {"hidden.weight"}


def test_inference_is_the_forward_pass_alone() -> None:
    rows = rows_of(TorchStep(meta(Net).eval(), (ids(4),)))
    assert {r.phase for r in rows} == {Phase.FORWARD}
    assert sum(r.opcode == "hlo.dot" for r in rows) == 2


def test_fully_sharded_parameters_are_gathered_in_both_passes() -> None:
    module = meta(lambda: nn.Sequential(*(nn.Linear(8, 8, bias=False) for _ in range(2))))
    x = torch.empty(4, 8, device="meta", requires_grad=False)
    step = TorchStep(module, (x,), loss=mean, fsdp="data")
    rows = rows_of(step)
    gathered = [(r.scope, r.phase.name) for r in rows if r.opcode == "hlo.all-gather"]
    # The first layer has no gradient of its input: its weight is not needed again.
    assert gathered == [("0", "FORWARD"), ("1", "FORWARD"), ("1", "BACKWARD")]


def test_sequence_parallel_gradients_are_gathered_for_both_products() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = nn.Linear(8, 32, bias=False)
            self.down = nn.Linear(32, 8, bias=False)
            self.dropout = nn.Dropout(0.1)

        def forward(self, x: Any) -> Any:
            return self.dropout(self.down(torch.tanh(self.up(x))))

    step = TorchStep(
        meta(lambda: nn.Sequential(Parallel(), Parallel())),
        (torch.empty(4, 8, 8, device="meta"),),
        loss=mean,
        shardings={
            "*.up.weight": ("model", None),
            "*.down.weight": (None, "model"),
            "input": ("data", "model", None),
        },
        activations={"*": ("data", "model", None), "*.up": ("data", None, "model")},
    )
    program = flint.trace(step, MESH).program
    every = map(program.row, range(len(program)))
    rows = [r for r in every if r.kind == Kind.COLLECTIVE and str(r.group) == "model"]
    found = [(r.collective.name, r.scope, r.phase.name, r.dtype) for r in rows]
    assert ("REDUCE_SCATTER", "0/down", "FORWARD", "float32") in found
    # What the gradient is selected by and from, as XLA partitions it: the mask is smaller.
    gathered = [f[3] for f in found if f[:3] == ("ALL_GATHER", "0/dropout", "BACKWARD")]
    assert gathered == ["bool", "float32"]
    assert "ALL_TO_ALL" not in {r.collective.name for r in rows}


# errors ----------------------------------------------------------------------------------------


def test_unknown_operators_are_all_listed_with_who_uses_them() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.linalg.eigvals(x), torch.linalg.det(x)

    error = refused(TorchStep(nn.Sequential(Odd()), (torch.empty(3, 3, device="meta"),)))
    assert error.code == "FL220"
    assert "aten::linalg_eig in 0" in error.message and "aten::_linalg_det in 0" in error.message
    assert (error.help or "").endswith('@flint.torch_op("aten::_linalg_det")')
    assert (error.place or "").startswith("test_torch_export.py:")


def test_tensors_that_a_module_makes_are_where_its_weights_are() -> None:
    class Made(nn.Module):
        def forward(self, x: Any) -> Any:
            return x @ torch.ones(8, 3) + torch.arange(3)

    program = torch_program(TorchStep(Made(), (torch.empty(4, 8),)), MESH)
    assert program is not None


def test_a_module_that_cannot_be_exported_is_told_with_its_line() -> None:
    class Reads(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if x.sum().item() > 0 else -x

    error = refused(TorchStep(Reads(), (torch.empty(3, device="meta"),)))
    line = Reads.forward.__code__.co_firstlineno + 1
    assert error.code == "FL223"
    assert (error.place or "").startswith(f"test_torch_export.py:{line}")


def test_a_module_that_computes_with_a_value_is_told_with_its_line() -> None:
    class Computes(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * x.sum().item()

    for options in ({}, {"loss": mean}):
        error = refused(TorchStep(Computes(), (torch.empty(3, device="meta"),), **options))
        line = Computes.forward.__code__.co_firstlineno + 1
        assert (error.code, error.place) == ("FL228", f"test_torch_export.py:{line}")

    class Logs(Computes):
        def forward(self, x: Any) -> Any:
            x.sum().item()
            return x * 2

    export_step(TorchStep(Logs(), (torch.empty(3, device="meta"),)))


def test_a_module_that_raises_is_told_with_its_line() -> None:
    error = refused(TorchStep(meta(Net), (torch.empty(3, 3, device="meta"),), loss=mean))
    assert error.code == "FL223"
    assert (error.place or "").startswith("test_torch_export.py:")


def test_a_step_without_a_scalar_loss_is_refused() -> None:
    error = refused(TorchStep(meta(Net), (ids(4),), backward=True))
    assert error.code == "FL227"
    assert "float32 tensor of shape (4, 16)" in error.message


def test_something_that_is_no_module_is_refused() -> None:
    with pytest.raises(FlintError, match="module of flint.TorchStep is function, not a torch.nn.M"):
        TorchStep(mean, (ids(4),))


def test_what_a_model_does_between_its_modules_is_its_own():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(2))

        def forward(self, x):
            for layer in self.layers:
                x = torch.tanh(layer(x))
            return torch.sin(x)

    rows = rows_of(TorchStep(Model(), (torch.empty(8, 8),), loss=torch.mean))
    scopes = {r.opcode: {s.scope for s in rows if s.opcode == r.opcode} for r in rows}
    assert scopes["hlo.dot"] == {"layers/0", "layers/1"}
    assert scopes["hlo.tanh"] == scopes["hlo.sine"] == {""}
