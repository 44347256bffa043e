"""How values between stages are sharded; nothing is sharded over the pipeline's own axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from flint.errors import FlintError
from flint.frontends.jax_step.specs import check_spec, show_spec
from flint.frontends.stages.pipeline import boundary_specs
from flint.frontends.torch_graph.constraints import FREE, spec_of
from flint.frontends.torch_graph.export import Exported, Input
from flint.frontends.torch_graph.names import who_uses
from flint.frontends.torch_graph.shardings.placements import entry_axes, fsdp_axes, spec_axes
from flint.frontends.torch_graph.shardings.tensors import Shardings
from flint.frontends.torch_ops.types import jax_dtype
from flint.ir.mesh import AxisRef, Mesh
from flint.steps.pipeline import Pipeline

if TYPE_CHECKING:
    from jax.sharding import PartitionSpec


class Boundary:
    """Shardings of arguments and of values that cross, for `stage_graphs.split_graph`.

    A crossing value is sharded as `Pipeline.boundary` says; without it as the module that made it
    is told to return it (`TorchStep.activations`); else over its batch, as the first input is.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        mesh: Mesh,
        exported: Exported,
        shardings: Shardings,
        batch: int | None,
    ) -> None:
        self.mesh, self.axis, self.shardings, self.batch = mesh, pipeline.axis, shardings, batch
        self.given = boundary_specs(pipeline)
        first = next((i.name for i in exported.inputs if i.kind == "input"), None)
        spec = tuple(shardings.rest[first]) if first is not None else ()
        self.of_batch = spec[0] if spec else None

    def argument(self, described: Input, shape: tuple[int, ...]) -> PartitionSpec:
        """The PartitionSpec of a parameter, buffer, constant or argument of the module."""
        from jax.sharding import PartitionSpec

        if described.kind == "constant":
            return PartitionSpec()
        return self.shardings.argument(described.name, shape)

    def spec(self, node: torch.fx.Node, number: int) -> PartitionSpec:
        """The PartitionSpec of a crossing value.

        Raises FlintError: FL240 (sharded over the pipeline's axis), FL102, FL103 and FL106 (a
        boundary that cannot be).
        """
        value = node.meta["val"]
        if self.given:
            spec = self.given[number]
            what = f"value {number} from {who_uses(node)}"
            dtype = jax_dtype(value.dtype).name
            check_spec(spec, tuple(value.shape), dtype, what, self.mesh, "boundary")
            if self.axis in spec_axes(spec):
                raise _over_pipeline(what, spec, self.axis)
            return spec
        return _as_constrained(node) or self._over_batch(tuple(value.shape))

    def whole_batch(self, fsdp: str | Sequence[str]) -> Iterator[str]:
        """A warning if fully sharded data parallelism finds a microbatch too small to divide."""
        axes = fsdp_axes(fsdp, self.mesh)
        size = self.mesh.group_size(AxisRef(a) for a in axes)
        if self.batch is not None and self.of_batch is None and self.batch % size:
            yield (
                f"a microbatch of {self.batch} is not sharded over {' and '.join(axes)} ({size}): "
                "every device computes all of it"
            )

    def _over_batch(self, shape: tuple[int, ...]) -> PartitionSpec:
        from jax.sharding import PartitionSpec

        size = self.mesh.group_size(AxisRef(a) for a in entry_axes(self.of_batch))
        if shape[:1] != (self.batch,) or shape[0] % size or self.of_batch is None:
            return PartitionSpec()
        return PartitionSpec(self.of_batch)


def _as_constrained(node: torch.fx.Node) -> PartitionSpec | None:
    """The spec of a value that the user placed, its open dimensions whole; None without one."""
    from jax.sharding import PartitionSpec

    if node.target is not torch.ops.flint.constrain.default or node.args[1] == FREE:
        return None
    entries = spec_of(node.args[1])
    assert entries is not None, "only an unconstrained value has no spec"
    return PartitionSpec(*(None if e is PartitionSpec.UNCONSTRAINED else e for e in entries))


def refuse_axis(exported: Exported, shardings: Shardings, axis: str) -> None:
    """Raise FlintError FL240 if a tensor is sharded over `axis`, which stages lie along."""
    for name, spec in (*shardings.rest.items(), *shardings.use.items()):
        if axis in spec_axes(spec):
            raise _over_pipeline(name, spec, axis)
    for node in exported.graph_module.graph.nodes:
        if node.target is torch.ops.flint.constrain.default:
            spec = spec_of(node.args[1])
            if spec is not None and axis in spec_axes(spec):
                raise _over_pipeline(f"what {who_uses(node)} returns", spec, axis)


def _over_pipeline(what: str, spec: PartitionSpec, axis: str) -> FlintError:
    return FlintError(
        "FL240",
        f"{what} is sharded over '{axis}', the axis of the stages",
        place=f"sharding {show_spec(spec)}",
        help="shard over other axes: every stage is on one position of this one",
    )
