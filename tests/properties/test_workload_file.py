"""The .flint file: exact, byte-identical, and a clear error for anything that is not one."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flint.errors import FlintError
from flint.io.bounded import FileKind
from flint.ir.mesh import AxisRef, Group, Mesh
from flint.ir.program import COLUMNS, TABLES, Kind
from flint.ir.rank_class import RankClass
from flint.ir.workload import Workload
from flint.tracing import Trace
from tests.properties.test_invariants import entry, sample
from tests.random_programs import QUICK, meshes, programs

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
SAMPLE = Workload.single(sample(), {"source": "model.py"}).to_bytes()


@st.composite
def workloads(draw: Callable[[st.SearchStrategy], Any]) -> Workload:
    """One or two programs; with two, the first axis is cut between them."""
    mesh = draw(meshes())
    first = draw(programs(mesh, max_rows=12))
    metadata = draw(st.dictionaries(st.text(max_size=4), JSON, max_size=2))
    if mesh.sizes[0] == 1:
        return Workload.single(first, metadata)
    head, tail = (0,), tuple(range(1, mesh.sizes[0]))
    classes = (
        RankClass("first", 0, {mesh.names[0]: head}),
        RankClass("rest", 1, ranks=tuple(range(mesh.size // mesh.sizes[0], mesh.size)))
        if draw(st.booleans())
        else RankClass("rest", 1, {mesh.names[0]: tail}),
    )
    return Workload(mesh, (first, draw(programs(mesh, max_rows=12))), classes, metadata)


def assert_refused(data: bytes) -> str:
    """`data` is refused with FL304; returns the message."""
    with pytest.raises(FlintError) as caught:
        Workload.from_bytes(data)
    assert caught.value.code == "FL304"
    return caught.value.message


@QUICK
@given(workloads())
def test_a_workload_survives_its_file_exactly(workload: Workload) -> None:
    workload.verify()
    data = workload.to_bytes()
    assert workload.to_bytes() == data
    back = Workload.from_bytes(data)
    assert back.to_bytes() == data
    assert (back.mesh, back.classes) == (workload.mesh, workload.classes)
    assert dict(back.metadata) == dict(workload.metadata)
    for old, new in zip(workload.programs, back.programs, strict=True):
        assert all(getattr(old, t) == getattr(new, t) for t in TABLES)
        for name in COLUMNS:
            a, b = getattr(old, name), getattr(new, name)
            assert a.dtype == b.dtype
            assert np.array_equal(a, b)
            assert not b.flags.writeable


@QUICK
@given(workloads())
def test_each_rank_is_in_the_class_that_says_so(workload: Workload) -> None:
    found = workload.class_of_ranks()
    for i, c in enumerate(workload.classes):
        assert np.array_equal(c.mask(workload.mesh), found == i)
    assert workload.program_of(0) is workload.programs[0]


def test_a_truncated_file_is_refused_at_every_offset() -> None:
    for size in [*range(0, len(SAMPLE), 37), *range(len(SAMPLE) - 30, len(SAMPLE))]:
        assert_refused(SAMPLE[:size])


@QUICK
@given(st.binary(max_size=400))
def test_random_bytes_are_refused(data: bytes) -> None:
    assert_refused(data)
    assert_refused(b"PK\x03\x04" + data)


@QUICK
@given(at=st.integers(0, len(SAMPLE) - 1), value=st.integers(1, 255))
def test_a_changed_byte_is_refused_or_changes_nothing(at: int, value: int) -> None:
    data = bytearray(SAMPLE)
    data[at] ^= value
    try:
        back = Workload.from_bytes(bytes(data))
    except FlintError as error:
        assert error.code == "FL304"
    else:
        assert back.to_bytes() == SAMPLE


def with_manifest(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The sample file with a changed manifest."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(SAMPLE)) as old, zipfile.ZipFile(out, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            if name == "manifest.json":
                manifest = json.loads(data)
                change(manifest)
                data = json.dumps(manifest).encode()
            new.writestr(name, data)
    return out.getvalue()


def _first_program(manifest: dict[str, Any]) -> dict[str, Any]:
    program: dict[str, Any] = manifest["programs"][0]
    return program


FOREIGN: dict[str, Callable[[dict[str, Any]], object]] = {
    "schema": lambda m: m.update(schema="flint.workload/99"),
    "no mesh": lambda m: m.pop("mesh"),
    "mesh of nothing": lambda m: m.update(mesh={}),
    "mesh size 0": lambda m: m.update(mesh={"x": 0}),
    "mesh of words": lambda m: m.update(mesh={"x": "many"}),
    "another mesh": lambda m: m.update(mesh={"a": 8}),
    "mesh is a list": lambda m: m.update(mesh=[4, 2]),
    "no classes": lambda m: m.update(classes=[]),
    "class without program": lambda m: m["classes"][0].update(program=7),
    "class of an unknown axis": lambda m: m["classes"][0].update(where={"w": [0]}),
    "class beyond the axis": lambda m: m["classes"][0].update(where={"x": [99]}),
    "class beyond the mesh": lambda m: m["classes"][0].update(ranks=[99]),
    "programs is a number": lambda m: m.update(programs=3),
    "a program too many": lambda m: m["programs"].append(m["programs"][0]),
    "no opcodes": lambda m: _first_program(m).update(opcodes=[]),
    "unknown axis": lambda m: _first_program(m)["groups"][0]["axes"][0].update(name="w"),
    "axis is a number": lambda m: _first_program(m)["groups"][0].update(axes=[3]),
    "region kind": lambda m: _first_program(m)["regions"][0].update(kind=9),
    "region field": lambda m: _first_program(m)["regions"][0].update(color="red"),
    "region of words": lambda m: _first_program(m)["regions"][0].update(start="early"),
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_foreign_manifest_is_refused(change: Callable[[dict[str, Any]], object]) -> None:
    assert Workload.from_bytes(with_manifest(lambda m: None)).to_bytes() == SAMPLE
    assert_refused(with_manifest(change))


@pytest.mark.parametrize(
    ("column", "row", "value"),
    [("kind", 2, 99), ("collective", 3, 99), ("phase", 2, 99), ("opcode", 2, 99)],
)
def test_a_value_that_no_row_can_have_is_refused(column: str, row: int, value: int) -> None:
    program = entry(column, row, value)(sample())
    if column == "kind":
        program = entry("comm_bytes", row, 8)(program)
    assert_refused(Workload.single(program).to_bytes())


def test_an_empty_program_and_a_pickle_are_told_apart() -> None:
    mesh = Mesh(("x",), (2,))
    from tests.program_rows import ProgramBuilder

    empty = Workload.single(ProgramBuilder(mesh).build())
    assert Workload.from_bytes(empty.to_bytes()).to_bytes() == empty.to_bytes()
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(SAMPLE)) as old, zipfile.ZipFile(out, "w") as new:
        new.writestr("manifest.json", old.read("manifest.json"))
        pickled = io.BytesIO()
        np.savez(pickled, **{name: np.array([print], dtype=object) for name in COLUMNS})
        new.writestr("program_0.npz", pickled.getvalue())
    assert "of type |O" in assert_refused(out.getvalue())


def test_sample_has_groups_that_the_mesh_knows() -> None:
    back = Workload.from_bytes(SAMPLE)
    assert back.programs[0].groups[0] == Group((AxisRef("x"),))
    assert (back.programs[0].kind == Kind.COLLECTIVE).sum() == 2


# Files that a spoilt one showed to be read and then to fail a command ------------------------------


def test_a_parameter_without_a_type_has_an_estimate() -> None:
    """Found by `benchmarks.bad_inputs --kind flint --seed 3 --only 87`."""
    data = with_manifest(lambda m: _first_program(m).update(dtypes=["", "f32"]))
    found = Trace(Workload.from_bytes(data)).estimate("h100-dgx", unpriced_is_zero=True)
    assert found.to_json()["schema"]


def test_a_wrong_file_says_where_it_is_wrong() -> None:
    assert "programs[0].shapes[0][0]: should be greater than or equal to 0, it is -4" in (
        assert_refused(with_manifest(lambda m: _first_program(m)["shapes"][0].__setitem__(0, -4)))
    )
    assert "metadata: should be a valid dictionary" in assert_refused(
        with_manifest(lambda m: m.update(metadata="x"))
    )
    assert "strings[0]: should be a valid string, it is 2" in assert_refused(
        with_manifest(lambda m: _first_program(m).update(strings=[2]))
    )
    program = entry("flops", 2, -8)(sample())
    message = assert_refused(Workload.single(program).to_bytes())
    assert message.endswith("row 2 (stablehlo.dot_general): flops is negative")


def test_a_bomb_is_refused_before_it_is_unpacked() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", bytes(FileKind.MANIFEST.most_bytes + 1))
    assert "bytes unpacked, but at most 134,217,728 are read" in assert_refused(out.getvalue())
    lists = with_manifest(lambda m: m.update(metadata={"x": [[]] * 10_000_000}))
    assert "bytes of memory, more than any such file needs" in assert_refused(lists)
