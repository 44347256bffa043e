"""Notes on collectives over more members than the constants of a network were measured with."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import flint
from flint.cluster.models import Cluster
from tests.auto_mesh import auto_mesh


def _notes(
    mesh: dict[str, int], over: tuple[str, ...], cluster: str | Cluster, about: str = "extrapolated"
) -> list[str]:
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
    return [n for n in estimate.notes if about in n]


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
            ["collectives over 72 ranks are extrapolated: 72 members of nvlink, measured up to 4"],
        ),
        (
            {"a": 64, "b": 8},
            ("a", "b"),
            "h100-efa",
            ["collectives over 512 ranks are extrapolated: 64 members of efa, measured up to 16"],
        ),
        ({"a": 16, "b": 8}, ("a", "b"), "h100-efa", []),
        (
            {"a": 2, "b": 8},
            ("a", "b"),
            "h100-roce",
            ["collectives over 16 ranks are extrapolated: 2 members of roce, not measured"],
        ),
        (
            {"a": 8},
            ("a",),
            "gb300-nvl72",
            ["collectives over 8 ranks are extrapolated: 8 members of nvlink, measured up to 4"],
        ),
        (
            {"a": 4},
            ("a",),
            "trn2",
            ["collectives over 4 ranks are extrapolated: 4 members of neuronlink, not measured"],
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


def test_constants_of_another_chip_or_network_are_said() -> None:
    """Of the chip, and of a network that something crosses."""
    whose = "taken from"
    assert _notes({"a": 8}, ("a",), "h100-dgx", whose) == [
        n for n in _notes({"a": 8}, ("a",), "h100-dgx", whose) if not n.startswith("ib")
    ]
    inside, across = (_notes({"a": n, "b": 8}, ("a", "b"), "h100-roce", whose) for n in (1, 2))
    assert not any(note.startswith("roce") for note in inside)
    assert any(note.startswith("roce") and "taken from ib of h100-dgx" in note for note in across)
    (chip,) = (n for n in _notes({"a": 8}, ("a",), "mi325x", whose) if n.startswith("MI325X"))
    assert "constants are assumed, taken from a100-80-dgx and MI300X-192GB" in chip
