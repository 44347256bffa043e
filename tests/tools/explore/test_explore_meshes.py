"""Meshes of a number of devices, and `--mesh` that limits them."""

import math
from itertools import product

import pytest

from flint.errors import FlintError
from flint.tools.explore.space.meshes import factorisations, meshes_of, parse_axes, parse_devices

AXES = ("pipe", "data", "model")


def every(devices: int, axes: int) -> set[tuple[int, ...]]:
    """Factorisations by trying everything."""
    sizes = [d for d in range(1, devices + 1) if devices % d == 0]
    return {c for c in product(sizes, repeat=axes) if math.prod(c) == devices}


@pytest.mark.parametrize("devices", [1, 7, 12, 64, 360])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_factorisation_once(devices, number):
    found = list(factorisations(devices, parse_axes(None, AXES[:number])))
    assert len(found) == len(set(found))
    assert set(found) == every(devices, number)


def test_512_devices_have_55_meshes_of_three_axes_and_small_inner_axes_come_first():
    found = meshes_of([512], parse_axes(None, AXES))
    assert len(found) == 55
    assert found[:2] == ("pipe=1,data=512,model=1", "pipe=2,data=256,model=1")


def test_a_million_devices_on_four_axes():
    found = factorisations(1_000_000, parse_axes(None, ("pipe", "data", "expert", "model")))
    assert next(found) == (1, 1, 1_000_000, 1)
    assert 1 + sum(1 for _ in found) == math.comb(9, 3) ** 2  # 2**6 * 5**6 over four axes


def test_too_many_meshes_are_refused_before_they_are_made():
    axes = parse_axes(None, [f"a{i}" for i in range(12)])
    with pytest.raises(FlintError, match="more than 200,000 meshes") as caught:
        meshes_of([2**24], axes)
    assert caught.value.code == "FL863"


@pytest.mark.parametrize(
    ("mesh", "declared", "axes"),
    [
        (None, AXES, "pipe=*,data=*,model=*"),
        (None, (), "data=*,model=*"),
        ("pipe=4,model=1..8", AXES, "pipe=4,data=*,model=1..8"),
        ("model=8,data=*,pipe=2", AXES, "model=8,data=*,pipe=2"),
        ("4x*x1..8", AXES, "pipe=4,data=*,model=1..8"),
        ("pool=2,major=2,minor=*", ("pool",), "pool=2,major=2,minor=*"),
        ("8x4", (), "data=8,model=4"),
    ],
)
def test_limits_of_axes(mesh, declared, axes):
    assert ",".join(map(str, parse_axes(mesh, declared))) == axes


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("modle=8", "the entry has no mesh axis 'modle'; did you mean 'model'?"),
        ("data=8,data=4", "names the axis 'data' twice"),
        ("data=0", "'0' is not a size of the axis 'data'"),
        ("data=8..2", "'8..2' is not a size"),
        ("data=", "'' is not a size"),
        ("data=4,8", "'8' is not AXIS=SIZE"),
        ("8x4", "has 2 sizes, but the entry has the axes pipe, data, model"),
    ],
)
def test_meshes_that_cannot_be_read(mesh, said):
    with pytest.raises(FlintError) as caught:
        parse_axes(mesh, AXES)
    assert caught.value.code == "FL863"
    assert said in caught.value.message


def test_limits_choose_among_meshes():
    found = meshes_of([64, 8], parse_axes("pipe=2..4,model=2", AXES))
    assert found == (
        "pipe=2,data=16,model=2",
        "pipe=4,data=8,model=2",
        "pipe=2,data=2,model=2",
        "pipe=4,data=1,model=2",
    )


@pytest.mark.parametrize(
    ("devices", "mesh", "said"),
    [
        ([512, 96], "pipe=*,data=*,model=64", "no mesh of 96 devices matches"),
        ([0], None, "a mesh of 0 devices"),
        ([2**25], None, "a mesh of 33,554,432 devices"),
        ([], "pipe=4,data=*,model=2", "the number of devices is not known"),
    ],
)
def test_numbers_of_devices_without_a_mesh(devices, mesh, said):
    with pytest.raises(FlintError) as caught:
        meshes_of(devices, parse_axes(mesh, AXES))
    assert caught.value.code == "FL863"
    assert said in caught.value.message


def test_a_mesh_that_is_given_whole_needs_no_number_of_devices():
    assert meshes_of([], parse_axes("2x4x8", AXES)) == ("pipe=2,data=4,model=8",)


def test_numbers_of_devices_as_text():
    assert parse_devices("128,256,512") == (128, 256, 512)
    assert parse_devices("128..1024") == (128, 256, 512, 1024)
    for bad in ("x", "1.5", "-8", "0"):
        with pytest.raises(FlintError) as caught:
            parse_devices(bad)
        assert caught.value.code == "FL863"
