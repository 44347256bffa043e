"""Replica groups and permutation pairs in every form that XLA prints become the same Group."""

from __future__ import annotations

import numpy as np
import pytest

from flint.errors import FlintError, Malformed
from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.passes.hlo.collectives import group_of, iota_groups, route_of
from flint.passes.hlo.module import HloModule, message_class

MESH = Mesh.parse("data=4,model=2")
DATA, MODEL = AxisRef("data"), AxisRef("model")


def module(replicas: int = 1, partitions: int = 8) -> HloModule:
    return HloModule(message_class("HloModule")(), "test", replicas, partitions)


def instruction(opcode: str = "all-reduce", channel: int = 1, global_ids: bool = True):  # type: ignore[no-untyped-def]
    return message_class("Instruction")(
        name="c", opcode=opcode, channel_id=channel, use_global_device_ids=global_ids
    )


def listed(i, groups: list[list[int]]):  # type: ignore[no-untyped-def]
    for ranks in groups:
        i.collective_device_list.replica_groups.add(replica_ids=ranks)
    return i


def test_lists() -> None:
    i = listed(instruction(), [[0, 1], [2, 3], [4, 5], [6, 7]])
    assert group_of(i, module(), MESH) == Group(axes=(MODEL,))


def test_lists_of_older_versions() -> None:
    i = instruction()
    for ranks in ([0, 2, 4, 6], [1, 3, 5, 7]):
        i.replica_groups.add(replica_ids=ranks)
    assert group_of(i, module(), MESH) == Group(axes=(DATA,))


def test_iota_in_both_places() -> None:
    for holder in ("iota_groups", "collective_device_list"):
        i = instruction()
        iota = getattr(i, holder)
        if holder == "collective_device_list":
            iota = iota.iota_replica_group_list
        iota.num_replica_groups, iota.num_devices_per_group = 2, 4
        iota.iota_reshape_dims[:] = [4, 2]
        iota.iota_transpose_perm[:] = [1, 0]
        assert group_of(i, module(), MESH) == Group(axes=(DATA,))


def test_iota_expands_as_xla_prints_it() -> None:
    np.testing.assert_array_equal(iota_groups(2, 4, [8], []), np.arange(8).reshape(2, 4))
    expected = [[0, 2, 4, 6], [1, 3, 5, 7]]
    np.testing.assert_array_equal(iota_groups(2, 4, [4, 2], [1, 0]), expected)
    with pytest.raises(Malformed, match="3 groups of 4"):
        iota_groups(3, 4, [8], [])


def test_sizes_that_no_machine_has_are_refused_before_they_are_expanded() -> None:
    i = instruction()
    i.iota_groups.num_replica_groups = i.iota_groups.num_devices_per_group = 1 << 40
    with pytest.raises(FlintError, match="compiled for"):
        group_of(i, module(), MESH)


@pytest.mark.parametrize("device_ids", [(), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_axes_of_xlas_own_mesh(device_ids: tuple[int, ...]) -> None:
    i = instruction()
    groups = i.mesh_axes_groups
    groups.mesh.axes.add(name="axis_0", size=4)
    groups.mesh.axes.add(name="axis_1", size=2)
    groups.mesh.device_ids[:] = device_ids
    half = groups.axes.add(mesh_axis_index=0)
    half.sub_axis_info.pre_size, half.sub_axis_info.size = 2, 2
    groups.axes.add(mesh_axis_index=1)
    assert group_of(i, module(), MESH) == Group(axes=(AxisRef("data", 2, 2), MODEL))


def test_axes_of_a_mesh_in_another_order() -> None:
    i = instruction()
    groups = i.mesh_axes_groups
    groups.mesh.axes.add(name="a", size=2)
    groups.mesh.axes.add(name="b", size=4)
    groups.mesh.device_ids[:] = [0, 2, 4, 6, 1, 3, 5, 7]
    groups.axes.add(mesh_axis_index=1)
    assert group_of(i, module(), MESH) == Group(axes=(DATA,))


def test_another_number_of_devices_is_an_error() -> None:
    i = instruction()
    i.mesh_axes_groups.mesh.axes.add(name="a", size=16)
    i.mesh_axes_groups.axes.add(mesh_axis_index=0)
    with pytest.raises(FlintError, match="compiled for 16 devices"):
        group_of(i, module(partitions=16), MESH)


@pytest.mark.parametrize(
    ("opcode", "channel", "global_ids", "replicas", "groups", "expected"),
    [
        # all devices where nothing is listed
        ("all-reduce", 1, True, 1, [], (DATA, MODEL)),
        ("all-to-all", 1, False, 1, [], (DATA, MODEL)),
        # replicas, each partition by itself
        ("all-reduce", 0, False, 4, [[0, 1, 2, 3]], (DATA,)),
        ("all-reduce", 0, False, 4, [], (DATA,)),
        ("all-to-all", 0, False, 4, [[0, 1], [2, 3]], (AxisRef("data", 2, 2),)),
        # partitions, each replica by itself
        ("all-to-all", 1, False, 4, [[0, 1]], (MODEL,)),
        ("all-to-all", 1, False, 4, [], (MODEL,)),
        # replicas with all of their partitions
        ("all-reduce", 1, False, 4, [[0, 1, 2, 3]], (DATA, MODEL)),
        # one replica: a group of replicas is a device alone
        ("all-reduce", 0, False, 1, [[0]], ()),
        ("all-reduce", 0, False, 1, [], ()),
    ],
)
def test_replicas_and_partitions(
    opcode: str,
    channel: int,
    global_ids: bool,
    replicas: int,
    groups: list[list[int]],
    expected: tuple[AxisRef, ...],
) -> None:
    i = listed(instruction(opcode, channel, global_ids), groups)
    found = group_of(i, module(replicas, 8 // replicas), MESH)
    assert found == Group(axes=expected)


def test_a_file_that_does_not_say_its_partitions() -> None:
    unknown = module(0, 0)
    groups = [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert group_of(listed(instruction(), groups), unknown, MESH).axes == (MODEL,)
    replicas = listed(instruction(channel=0, global_ids=False), [[0, 1, 2, 3, 4, 5, 6, 7]])
    assert group_of(replicas, unknown, MESH).axes == (DATA, MODEL)


def test_groups_of_unequal_size() -> None:
    i = listed(instruction(), [[0, 1, 2], [3, 4, 5, 6, 7]])
    assert group_of(i, module(), MESH) == Group(ranks=((0, 1, 2), (3, 4, 5, 6, 7)))


def test_pairs() -> None:
    i = instruction("collective-permute", global_ids=False)
    for source in range(8):
        i.source_target_pairs.add(source=source, target=(source + 2) % 8)
    assert route_of(i, module(), MESH) == Route((DATA,), 1)
    partitions = instruction("collective-permute", global_ids=False)
    partitions.source_target_pairs.add(source=0, target=1)
    partitions.source_target_pairs.add(source=1, target=0)
    assert route_of(partitions, module(4, 2), MESH) == Route((MODEL,), 1)
    assert route_of(instruction("send"), module(), MESH) is None


def test_pairs_of_send_are_a_frontend_attribute() -> None:
    i = instruction("send", global_ids=False)
    i.frontend_attributes.map.add(
        key="_xla_send_recv_source_target_pairs", value="{{0,2}, {2,4},{4,6},{1,3},{3,5},{5,7}}"
    )
    assert route_of(i, module(), MESH) == Route((DATA,), 1, wrap=False)
