"""A TorchStep cut into stages: where, what crosses, ports, equal stages, and wrong input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

from jax.sharding import PartitionSpec as P
from torch import nn

from flint.errors import FlintError
from flint.frontends.torch_graph.stages import programs
from flint.frontends.torch_graph.stages.programs import Renumbered, StagedModel, staged_model
from flint.frontends.torch_pipeline import capture_torch_pipeline
from flint.ir.mesh import Mesh
from flint.steps.captured import CapturedPipeline, Role
from flint.steps.pipeline import Pipeline, Stage
from flint.steps.step import TorchStep

MESH = Mesh.parse("pipe=2,data=2,model=2")
FOUR = Mesh.parse("pipe=4,data=2")
DIM, SEQ, BATCH = 8, 4, 16


class Block(nn.Module):
    def __init__(self, hidden: int = 2 * DIM) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, hidden, bias=False)
        self.down = nn.Linear(hidden, DIM, bias=False)

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    """Tokens, layers, head; with `table`, layers get a table that is made outside of them."""

    def __init__(self, layers: int = 2, *, tied: bool = False, hidden: Any = None) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, DIM)
        self.layers = nn.ModuleList(Block(hidden[i] if hidden else 2 * DIM) for i in range(layers))
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, 32, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Masked(nn.Module):
    """A mask that is written in place outside of the layers that read it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
        self.register_buffer("scale", torch.ones(DIM))

    def forward(self, x: Any) -> Any:
        mask = torch.zeros(SEQ, DIM, device=x.device)
        mask.add_(self.scale)
        mask[0].fill_(2.0)
        for layer in self.layers:
            x = layer(x) * mask
        return x


class Reader(Block):
    def forward(self, x: Any, memory: Any = 0.0) -> Any:
        return super().forward(self.up(x) @ self.up.weight + memory)


class Coder(nn.Module):
    """Every layer of the decoder reads what the encoder returns."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(Block(), Block())
        self.decoder = nn.ModuleList(Reader() for _ in range(2))

    def forward(self, x: Any) -> Any:
        memory, y = self.encoder(x), x * 2
        for layer in self.decoder:
            y = layer(y, memory)
        return y


def meta(make: Any) -> nn.Module:
    with torch.device("meta"):
        return make()


def ids(batch: int = BATCH) -> Any:
    return torch.zeros(batch, SEQ, dtype=torch.int64, device="meta")


def points(batch: int = BATCH) -> Any:
    return torch.zeros(batch, SEQ, DIM, device="meta")


def mean(output: Any, scale: Any = None) -> Any:
    return output.mean() if scale is None else (output * scale).mean()


def trained(module: Any, *args: Any, **options: Any) -> TorchStep:
    return TorchStep(module, args or (ids(),), **{"loss": mean} | options)


def staged(step: TorchStep, mesh: Mesh = MESH, **options: Any) -> StagedModel:
    return staged_model(
        Pipeline(model=step, **{"microbatches": 2, "cut": "layers"} | options), mesh
    )


def captured(step: TorchStep, mesh: Mesh = MESH, **options: Any) -> CapturedPipeline:
    given: dict[str, Any] = {"microbatches": 2, "cut": "layers"} | options
    return capture_torch_pipeline(Pipeline(model=step, **given), mesh, "model.py")


def labels_of(step: TorchStep, mesh: Mesh = MESH, **options: Any) -> tuple[str, ...]:
    """What stages are called, of which none is differentiated for that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(programs._Builder, "build", lambda *_: ((), ()))
        return staged(step, mesh, **options).labels


def refused(step: Any, mesh: Mesh = MESH, **options: Any) -> FlintError:
    with pytest.raises(FlintError) as caught:
        captured(step, mesh, **options)
    return caught.value


def ports(program: Any, role: Role) -> list[Any]:
    return [p.name or p.number for p in program.argument_ports if p.role is role]


def results(program: Any, role: Role) -> list[Any]:
    return [p.name or p.number for p in program.result_ports if p.role is role]


# captured ---------------------------------------------------------------------------------------


def test_a_captured_pipeline_has_ports_for_every_argument_and_result() -> None:
    step = trained(meta(Model), optimizer="adamw", clip_norm=1.0, name="small")
    found = captured(step)
    assert (found.name, found.source, found.axis) == ("small", "model.py", "pipe")
    assert (found.schedule, found.microbatches, found.stages) == ("1f1b", 2, (0, 1))
    assert found.labels == ("tokens, layers 0", "layers 1, norm, head, loss")
    from jaxlib.mlir import ir

    from flint.passes.mlir import make_context

    for stage in found.bodies:
        for body in (stage.step, stage.norm, stage.update):
            assert body is not None
            with make_context():
                module = ir.Module.parse(body.captured.module)
                [main] = [
                    f for f in module.body if f.operation.attributes["sym_name"].value == "main"
                ]
                kind = ir.FunctionType(
                    ir.TypeAttr(main.operation.attributes["function_type"]).value
                )
                assert len(kind.inputs) == len(body.arguments)
                assert len(kind.results) == len(body.results)


def test_ports_of_first_and_last_stage() -> None:
    first, last = (body.step for body in staged(trained(meta(Model))).bodies)
    weights = ["tokens.weight", "layers.0.up.weight", "layers.0.down.weight"]
    assert ports(first, Role.PARAMETER) == weights
    assert (ports(first, Role.BATCH), ports(first, Role.INPUT)) == (["ids"], [])
    assert (ports(first, Role.COTANGENT), results(first, Role.OUTPUT)) == ([0], [0])
    assert results(first, Role.GRADIENT) == ports(first, Role.PARAMETER)
    assert (ports(last, Role.BATCH), ports(last, Role.INPUT)) == ([], [0])
    assert (results(last, Role.LOSS), results(last, Role.INPUT_GRADIENT)) == ([0], [0])
    cotangent = last.arguments[last.argument_ports.index(_port(last, Role.COTANGENT))]
    assert cotangent.shape == ()


def _port(program: Any, role: Role) -> Any:
    return next(p for p in program.argument_ports if p.role is role)


def test_arguments_are_those_of_one_microbatch() -> None:
    scale = torch.zeros(32, device="meta")
    step = trained(meta(Model), loss_args=(scale,))
    first, last = (body.step for body in staged(step, microbatches=8).bodies)
    batch = {a.name: a.shape for p in (first, last) for a in p.arguments}
    assert batch["ids"] == (2, SEQ)
    assert batch["input.0"] == batch["cotangent.0"][:0] + (2, SEQ, DIM)
    assert batch["scale"] == (32,)


def test_equal_stages_are_captured_once() -> None:
    model = staged(trained(meta(lambda: Model(8)), optimizer="adamw"), FOUR)
    assert model.stages == (0, 1, 1, 2)
    assert model.labels[1:3] == ("layers 2-3", "layers 4-5")


def test_stages_that_the_optimizer_treats_differently_are_not_equal() -> None:
    module = meta(lambda: Model(4))
    slow = list(module.layers[2].parameters())
    chosen = {id(p) for p in slow}
    rest = [p for p in module.parameters() if id(p) not in chosen]
    optimizer = torch.optim.AdamW([{"params": rest}, {"params": slow, "lr": 1e-5}])
    assert staged(trained(module, optimizer=optimizer), FOUR).stages == (0, 1, 2, 3)


def test_stages_that_are_sharded_differently_are_not_equal() -> None:
    shardings = {"layers.1.up.weight": ("data", None)}
    model = staged(trained(meta(lambda: Model(4)), shardings=shardings), FOUR)
    assert model.stages == (0, 1, 2, 3)


def test_numbers_of_layers_begin_at_zero() -> None:
    name = Renumbered()
    found = [name(n) for n in ("h.8.experts.3.w", "h.9.experts.3.w", "h.8.experts.1.w", "1.w")]
    assert found == ["h.0.experts.0.w", "h.1.experts.0.w", "h.0.experts.1.w", "0.w"]


# cuts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cut", "labels"),
    [
        (
            "layers:1,2,4",
            ("tokens, layers 0", "layers 1", "layers 2-3", "layers 4, norm, head, loss"),
        ),
        ("layers/0,layers.2,norm", ("tokens", "layers 0-1", "layers 2-4", "norm, head, loss")),
        ("", ("tokens, layers 0-1", "layers 2", "layers 3", "layers 4, norm, head, loss")),
    ],
)
def test_cuts(cut: str, labels: tuple[str, ...]) -> None:
    assert labels_of(trained(meta(lambda: Model(5))), FOUR, cut=cut) == labels


def test_balanced_stages_count_what_lies_around_the_layers() -> None:
    """The head does as much as two of the small layers, the first layer as four."""
    hidden = (64, 16, 16, 16, 16, 16)
    step = trained(meta(lambda: Model(6, hidden=hidden)))
    assert labels_of(step, cut="layers:balanced") == (
        "tokens, layers 0-1",
        "layers 2-5, norm, head, loss",
    )


def test_a_list_of_stages_is_a_sequential() -> None:
    stages = meta(lambda: nn.Sequential(nn.Linear(DIM, DIM), Block(), Block(), nn.Tanh()))
    model = staged(trained(stages, points()), FOUR, cut="1,2,3")
    assert model.labels == ("modules 0", "modules 1", "modules 2", "modules 3, loss")
    assert model.stages == (0, 1, 1, 2)
    assert model.bodies[2].update is None


def test_labels_name_modules_where_they_part_from_the_layers() -> None:
    """A list may be called by the end of its path."""

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base = nn.Module()
            self.base.embed = nn.Sequential(nn.Linear(DIM, DIM), nn.LayerNorm(DIM))
            self.base.stack = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))
            self.head = nn.Sequential(nn.Linear(DIM, DIM))

        def forward(self, x: Any) -> Any:
            x = self.base.embed(x)
            for layer in self.base.stack:
                x = layer(x)
            return self.head(x)

    found = labels_of(trained(meta(Outer), points()), cut="stack:1")
    assert found == ("base.embed, base.stack 0", "base.stack 1, head, loss")


def test_one_stage_is_the_whole_model() -> None:
    model = staged(trained(meta(Model)), Mesh.parse("pipe=1,data=2"))
    [body] = model.bodies
    assert results(body.step, Role.OUTPUT) == [] and results(body.step, Role.LOSS) == [0]


# values that cross ------------------------------------------------------------------------------


def test_what_follows_from_buffers_is_computed_in_every_stage() -> None:
    model = staged(trained(meta(Masked), points()))
    for body in model.bodies:
        assert "scale" in ports(body.step, Role.PARAMETER)
    assert results(model.bodies[0].step, Role.OUTPUT) == [0]


def test_a_value_passes_stages_that_do_not_read_it() -> None:
    step = trained(meta(Coder), points())
    model = staged(step, Mesh.parse("pipe=3,data=2"), cut="decoder.0,decoder.1", crossing=2)
    first, second, third = (model.bodies[b].step for b in model.stages)
    assert results(first, Role.OUTPUT) == [0]
    assert results(second, Role.OUTPUT) == [0, 1]
    assert (ports(third, Role.INPUT), results(third, Role.INPUT_GRADIENT)) == ([0, 1], [0, 1])


def test_more_values_than_expected_are_an_error_that_names_them() -> None:
    step = trained(meta(Coder), points())
    error = refused(step, Mesh.parse("pipe=3,data=2"), cut="decoder.0,decoder.1")
    assert error.code == "FL244"
    assert error.message == (
        "2 values cross the cut at 'decoder.1' (float32[8,4,8] from encoder.1, read by "
        "decoder.1; float32[8,4,8] from decoder.0, read by decoder.1.up), but crossing is 1"
    )


def test_a_cut_inside_of_a_residual_is_an_error() -> None:
    error = refused(trained(meta(Model)), cut="layers.1.down")
    assert error.code == "FL244" and "crossing is 1" in error.message
    assert "float32[8,4,8] from layers.0, read by layers.1" in error.message


def test_tied_parameters_are_in_both_stages_and_count_once_in_the_norm() -> None:
    step = trained(meta(lambda: Model(tied=True)), optimizer="sgd", clip_norm=1.0)
    model = staged(step)
    assert model.tied == (((0, "tokens.weight"), (1, "tokens.weight")),)
    first, last = model.bodies
    assert first.norm is not None and last.norm is not None and last.update is not None
    assert "tokens.weight" in ports(first.norm, Role.GRADIENT)
    assert "tokens.weight" not in ports(last.norm, Role.GRADIENT)
    assert "tokens.weight" in ports(last.update, Role.PARAMETER)


def test_layers_that_share_their_weights_are_tied_by_the_names_of_their_body() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(DIM, DIM)
            self.blocks = nn.ModuleList(Block() for _ in range(4))
            self.blocks[3].up.weight = self.blocks[1].up.weight

        def forward(self, x: Any) -> Any:
            x = self.first(x)
            for block in self.blocks:
                x = block(x)
            return x

    step = trained(meta(Shared), points(), optimizer="sgd")
    model = staged(step, FOUR, cut="blocks:1,2,3")
    assert model.tied == (((1, "blocks.1.up.weight"), (3, "blocks.1.up.weight")),)


# shardings --------------------------------------------------------------------------------------


def boundary(model: StagedModel) -> Any:
    step = model.bodies[model.stages[-1]].step
    return step.arguments[step.argument_ports.index(_port(step, Role.INPUT))].spec


ACTIVATIONS = {"activations": {"layers.*": ("data", "model", None)}}


@pytest.mark.parametrize(
    ("said", "options", "expected"),
    [
        ({"shardings": {"ids": ("data", None)}}, {}, P("data")),  # as the batch
        (ACTIVATIONS, {}, P("data", "model", None)),
        (ACTIVATIONS, {"boundary": P(None, "data")}, P(None, "data")),
    ],
)
def test_values_between_stages_are_sharded_as_the_pipeline_the_user_or_the_batch_says(
    said: dict[str, Any], options: dict[str, Any], expected: P
) -> None:
    assert boundary(staged(trained(meta(Model), **said), **options)) == expected


def test_parameters_are_gathered_in_each_stage() -> None:
    step = trained(meta(Model), fsdp="data", optimizer="adamw")
    model = staged(step)
    update = model.bodies[1].update
    assert update is not None
    assert {a.spec for a in update.arguments} == {P("data")}


def test_gradients_are_accumulated_in_their_own_type_or_the_one_asked_for() -> None:
    module = meta(Model).to(torch.bfloat16)
    step = trained(module, optimizer="sgd", clip_norm=1.0)
    for asked, expected in (("", "bfloat16"), ("float32", "float32")):
        first = staged(step, gradient_dtype=asked).bodies[0]
        assert first.update is not None and first.norm is not None
        found = {
            a.dtype
            for program in (first.update, first.norm)
            for p, a in zip(program.argument_ports, program.arguments, strict=True)
            if p.role is Role.GRADIENT
        }
        assert found == {expected}


def test_programs_send_each_microbatch_and_reduce_each_gradient_once() -> None:
    """Sends hold half a sequence: 4 of 16 sequences over data, 2 of 4 tokens over model."""
    from flint.passes.pipeline.compose.compose import compose
    from flint.passes.work.totals import totals

    activations = {"layers.*": ("data", "model", None)}
    shardings = {"ids": ("data", None)}
    step = trained(
        meta(lambda: Model(tied=True)),
        optimizer="adamw",
        clip_norm=1.0,
        activations=activations,
        shardings=shardings,
    )
    workload = compose(captured(step, microbatches=4))
    for program in workload.programs:
        program.verify()
        moved = totals(program).communication
        sends = [(c.count, c.comm_bytes) for c in moved if c.kind == "send"]
        assert sends == [(4, 4 * (2 * 2 * DIM * 4))]
        over_pipe = sum(
            c.count for c in moved if c.kind == "all_reduce" and c.axes.startswith("pipe")
        )
        assert over_pipe == 3  # the tied weight, the norm and the loss


# optimizer --------------------------------------------------------------------------------------


def test_updates_of_stages_clip_by_the_norm_of_all() -> None:
    torch.manual_seed(0)
    module = Model(2)

    def sgd(parameters: Any) -> Any:
        return torch.optim.SGD(parameters, lr=0.1, weight_decay=0.1)

    step = trained(module, optimizer=sgd)
    model = staged(step, Mesh.parse("pipe=1,data=1"), chunks=2, clip_norm=0.5)
    gradients = {n: torch.randn_like(p) for n, p in module.named_parameters()}
    arrays = {("gradient", n): g.numpy().copy() for n, g in gradients.items()}
    arrays |= {("parameter", n): p.detach().numpy().copy() for n, p in module.named_parameters()}
    with jax.set_mesh(jax.make_mesh((1, 1), ("pipe", "data"))), jax.enable_x64(True):
        norms = [run(b.norm, arrays)[0] for b in model.bodies]
        arrays["squared norm", ""] = sum(norms)
        found = {}
        for body in model.bodies:
            assert body.update is not None
            for port, value in zip(body.update.result_ports, run(body.update, arrays), strict=True):
                found[port.role.value, port.name] = value
    for name, parameter in module.named_parameters():
        parameter.grad = gradients[name]
    torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    sgd(module.parameters()).step()
    for name, parameter in module.named_parameters():
        new = parameter.detach().numpy()
        np.testing.assert_allclose(found["parameter", name], new, rtol=1e-5, atol=1e-6)


def test_state_of_the_optimizer_goes_in_and_out() -> None:
    last = staged(trained(meta(Model), optimizer="adamw", clip_norm=1.0)).bodies[1].update
    assert last is not None
    keys = [f"{n}.{k}" for n in ("head.weight",) for k in ("exp_avg", "exp_avg_sq")]
    for found in (ports(last, Role.STATE), results(last, Role.STATE)):
        assert len(found) == 2 * len(ports(last, Role.PARAMETER)) and set(keys) < set(found)
    assert last.argument_ports[-1].role is Role.SQUARED_NORM
    donated = {
        p.role for p, a in zip(last.argument_ports, last.arguments, strict=True) if a.donated
    }
    assert donated == {Role.PARAMETER, Role.STATE}


def run(program: Any, arrays: dict[tuple[str, str], Any]) -> Any:
    given = [
        arrays.get((p.role.value, p.name), np.zeros(a.shape, a.dtype))
        for p, a in zip(program.argument_ports, program.arguments, strict=True)
    ]
    quick = {"xla_backend_optimization_level": 0}  # to compile
    return jax.jit(program.function, compiler_options=quick)(*given)


def test_frozen_stages_hand_on_no_gradient() -> None:
    module = meta(Model)
    for parameter in [*module.tokens.parameters(), *module.layers[0].parameters()]:
        parameter.requires_grad_(False)
    model = staged(trained(module, optimizer="sgd", clip_norm=1.0))
    first, last = model.bodies
    assert ports(first.step, Role.COTANGENT) == [] and first.update is None
    assert first.norm is not None and first.norm.arguments == ()  # all stages add up their norms
    assert results(last.step, Role.INPUT_GRADIENT) == []


# inference --------------------------------------------------------------------------------------


def test_inference_has_outputs_alone() -> None:
    found = captured(TorchStep(meta(Model), (ids(),)))
    assert found.schedule == "forward"
    roles = {p.role for b in found.bodies for p in (*b.step.arguments, *b.step.results)}
    assert roles == {Role.PARAMETER, Role.BATCH, Role.INPUT, Role.OUTPUT}
    assert found.bodies[-1].step.results[0].name == "output"


def test_an_argument_that_is_written_is_kept_like_a_buffer() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(DIM, DIM) for _ in range(2))

        def forward(self, x: Any, cache: Any) -> Any:
            x = self.layers[0](x)
            cache.add_(x)
            return self.layers[1](x)

    found = captured(TorchStep(meta(Cached), (points(), points())), cut="layers:1")
    first = found.bodies[0].step
    assert [p.name for p in first.results if p.role is Role.PARAMETER] == ["cache"]
    assert found.warnings == (
        "cache is written in place: its memory counts once, not for every microbatch",
    )


# wrong input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ({"cut": "layer"}, "FL241", "the cut names 'layer', which is not a module; did you mean"),
        ({"cut": "layers:7"}, "FL241", "no stage can begin at layer 7"),
        ({"cut": "tokens:1"}, "FL241", "there is no list of layers 'tokens'"),
        ({"cut": "layers:1,2"}, "FL241", "2 cut points"),
        ({"cut": "tokens"}, "FL241", "nothing is computed before 'tokens'"),
        ({"chunks": 3}, "FL242", "6 stages need at least as many layers, but 'layers' has 4"),
        ({"microbatches": 3}, "FL243", "3 microbatches do not divide the batch of 16"),
        ({"microbatches": 0}, "FL240", "microbatches of flint.Pipeline is 0, not"),
        ({"microbatches": "2"}, "FL240", "microbatches of flint.Pipeline is '2'"),
        ({"gradient_dtype": torch.float32}, "FL240", "gradient_dtype of flint.Pipeline is dtype"),
        ({"cut": 2}, "FL240", "cut of flint.Pipeline is 2, not text"),
        ({"boundary": 7}, "FL240", "boundary of flint.Pipeline is 7, not a sharding"),
        ({"optimizer": "sgd"}, "FL240", "optimizer of a pipeline is given with a TorchStep"),
        ({"gradient_dtype": "float3"}, "FL240", "did you mean 'float32'?"),
        ({"clip_norm": 1.0}, "FL240", "clip_norm is given without an optimizer"),
        ({"boundary": P("pipe")}, "FL240", "is sharded over 'pipe'"),
        ({"boundary": (P(), P())}, "FL240", "boundary gives 2 shardings, but crossing is 1"),
        ({"boundary": P("model", "data", "model")}, "FL106", "twice"),
        ({"axis": "stage"}, "FL102", "mesh has no axis 'stage'"),
        ({"stages": [Stage(abs)]}, "FL240", "stages of a PyTorch model are modules of one module"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], code: str, message: str) -> None:
    error = refused(trained(meta(lambda: Model(4))), **options)
    assert error.code == code and message in error.message


@pytest.mark.parametrize(
    "options",
    [
        {"shardings": {"ids": ("pipe", None)}},
        {"activations": {"layers.*": ("pipe", None, None)}},
        {"fsdp": "pipe"},
    ],
)
def test_nothing_is_sharded_over_the_axis_of_the_pipeline(options: dict[str, Any]) -> None:
    error = refused(trained(meta(Model), **options))
    assert error.code == "FL240" and "the axis of the stages" in error.message


def test_microbatches_that_a_sharding_does_not_divide() -> None:
    step = trained(meta(Model), shardings={"ids": ("data", None)})
    error = refused(step, microbatches=16)
    assert error.code == "FL103" and "dimension 0 (1) of ids" in error.message
    assert error.help is not None and "those of one of 16 microbatches" in error.help


def test_microbatches_that_full_sharding_does_not_divide_are_computed_whole() -> None:
    step = trained(meta(Model), fsdp=("data", "model"))
    assert staged(step, microbatches=4).warnings == ()
    [warning] = staged(step, microbatches=8).warnings
    assert warning.startswith("a microbatch of 2 is not sharded over data and model (4)")


def test_modules_of_a_cut_are_in_the_order_in_which_they_run() -> None:
    step = trained(meta(lambda: Model(3)))
    error = refused(step, Mesh.parse("pipe=3,data=2"), cut="layers.2,layers.1")
    assert error.code == "FL241"
    assert error.message == (
        "the cut names 'layers.1' after 'layers.2', which does not run before it"
    )


def test_a_batch_is_needed() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(Block(), Block())
            self.start = nn.Parameter(torch.zeros(SEQ, DIM))

        def forward(self) -> Any:
            return self.layers(self.start)

    error = refused(TorchStep(meta(Constant), (), loss=mean))
    assert error.code == "FL243" and "no argument has a batch dimension" in error.message
