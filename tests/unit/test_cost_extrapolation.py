"""Notes on collectives over more members than the constants of a network were measured with."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import flint
from flint.cluster.models import Cluster
from tests.auto_mesh import auto_mesh


def _notes(mesh: dict[str, int], over: tuple[str, ...], cluster: str | Cluster) -> list[str]:
    """Notes of a step that adds up something over some axes."""
    abstract = auto_mesh(tuple(mesh.values()), tuple(mesh))
    spec = PartitionSpec(tuple(mesh))
    step = jax.shard_map(
        lambda x: jax.lax.psum(x, over),
        mesh=abstract,
        in_specs=spec,
        out_specs=spec,
        check_vma=False,
    )
    argument = jax.ShapeDtypeStruct((1024 * abstract.size,), jnp.bfloat16)
    estimate = flint.trace(step, abstract, argument).estimate(cluster)
    return [n for n in estimate.notes if "extrapolated" in n]


@pytest.mark.parametrize(
    ("mesh", "over", "cluster", "said"),
    [
        ({"a": 8}, ("a",), "h100-dgx", []),
        ({"a": 2, "b": 8}, ("a", "b"), "h100-dgx", []),
        (
            {"a": 512, "b": 8},
            ("a", "b"),
            "h100-dgx",
            ["collectives over 4,096 ranks are extrapolated: 512 members of ib, measured up to 2"],
        ),
        ({"a": 512, "b": 8}, ("b",), "h100-dgx", []),
        ({"a": 8}, ("a",), "l40s", []),
        (
            {"a": 2, "b": 36},
            ("a", "b"),
            "gb200-nvl72",
            ["collectives over 72 ranks are extrapolated: 72 members of nvlink, measured up to 8"],
        ),
        (
            {"a": 16},
            ("a",),
            "v5p",
            ["collectives over 16 ranks are extrapolated: 16 members of ici, not measured"],
        ),
    ],
)
def test_groups_beyond_what_was_measured(
    mesh: dict[str, int], over: tuple[str, ...], cluster: str, said: list[str]
) -> None:
    assert _notes(mesh, over, cluster) == said


def test_nothing_is_said_of_networks_that_say_nothing() -> None:
    base = Cluster.load("h100-dgx")
    tiers = tuple(n.model_copy(update={"measured_members": 0}) for n in base.network)
    assert _notes({"a": 512, "b": 8}, ("a",), base.model_copy(update={"network": tiers})) == []
