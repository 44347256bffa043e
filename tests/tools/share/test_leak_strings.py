"""Surviving strings: an identity planted in any place of a workload is found, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from flint.ir.mesh import AxisRef, Group, Mesh, Route
from flint.ir.program import Program
from flint.ir.workload import Workload
from flint.tools.share.leaks.strings import Place, surviving_strings, words_in, words_of
from tests.leak_workloads import neutral_workload, renamed

NAME = "Falcon_acme7b"


def _program(change: Callable[[Program], Program]) -> Callable[[Workload], Workload]:
    """A change of the last program alone."""
    return lambda w: replace(w, programs=(*w.programs[:-1], change(w.programs[-1])))


def _first(**columns: Callable[[Program], object]) -> Callable[[Workload], Workload]:
    """A change of tables of the first program."""
    return lambda w: replace(
        w,
        programs=(
            w.programs[0].with_rows(**{n: make(w.programs[0]) for n, make in columns.items()}),
            *w.programs[1:],
        ),
    )


def _with_mesh(w: Workload) -> Workload:
    return replace(w, mesh=Mesh((NAME, w.mesh.names[1]), w.mesh.sizes))


def _with_class(w: Workload) -> Workload:
    return replace(w, classes=(w.classes[0], replace(w.classes[1], name=f"class1 {NAME}")))


def _with_where(w: Workload) -> Workload:
    return replace(w, classes=(w.classes[0], replace(w.classes[1], where={NAME: (1,)})))


def _metadata(**found: object) -> Callable[[Workload], Workload]:
    return lambda w: replace(w, metadata={**w.metadata, **found})


#: For each place a workload with the name in it.
PLANTED: dict[Place, list[Callable[[Workload], Workload]]] = {
    Place.MESH_AXIS: [
        _with_mesh,
        _program(lambda p: p.with_rows(mesh=Mesh(("axis0", NAME), (2, 4)))),
    ],
    Place.OPCODE: [
        _first(opcodes=lambda p: (*p.opcodes[:-1], f"custom_call.{NAME}")),
        _first(opcodes=lambda p: (*p.opcodes, f"aten.{NAME}")),  # no row has it
        _first(opcodes=lambda p: (f"parameter[{NAME}]", *p.opcodes[1:])),
    ],
    Place.DTYPE: [_first(dtypes=lambda p: (*p.dtypes, NAME))],
    Place.PRODUCT: [_first(products=lambda p: (*p.products, f"f32:{NAME}"))],
    Place.STREAM: [_first(streams=lambda p: (*p.streams, f"stream 1 {NAME}"))],
    Place.STRING: [
        _first(strings=lambda p: (*p.strings, f"layers/{NAME}/attention")),
        _program(lambda p: p.with_rows(strings=(*p.strings, f"/home/{NAME}/train.py:12"))),
    ],
    Place.REGION_NAME: [
        _program(lambda p: p.with_rows(regions=(replace(p.regions[0], name=NAME),)))
    ],
    Place.REGION_LOCATION: [
        _program(lambda p: p.with_rows(regions=(replace(p.regions[0], location=f"{NAME}.py:1"),)))
    ],
    Place.GROUP_AXIS: [_first(groups=lambda p: (*p.groups, Group((AxisRef(NAME),))))],
    Place.ROUTE_AXIS: [_first(routes=lambda p: (*p.routes, Route((AxisRef(NAME),), 1)))],
    Place.CLASS_NAME: [_with_class],
    Place.CLASS_AXIS: [_with_where],
    Place.METADATA_KEY: [
        _metadata(**{NAME: 1}),
        _metadata(pipeline={"positions": [[{"stage": 0, NAME: 2}]]}),
    ],
    Place.METADATA_VALUE: [
        _metadata(name=NAME),
        _metadata(warnings=["none", f"no rule for {NAME}"]),
        _metadata(pipeline={"positions": [[{"stage": 0, "label": f"layers of {NAME}"}]]}),
        _metadata(measured={"device": NAME}),
        _metadata(torch=f"2.13.0+{NAME}"),
    ],
}
CASES = [(place, change) for place, changes in PLANTED.items() for change in changes]


def test_nothing_survives_in_a_neutral_workload():
    """Public operators, types and generated names are no survivors."""
    assert surviving_strings(neutral_workload(), renamed(neutral_workload(), ("data", "x"))) == ()


def test_every_place_of_a_workload_is_planted():
    """No place is left out of these tests; those of files have tests of their own."""
    of_files = {Place.FILE_NAME, Place.FILE_TEXT, Place.TRACE_TEXT}
    assert set(PLANTED) == set(Place) - of_files


@pytest.mark.parametrize(("place", "change"), CASES)
def test_a_planted_name_is_found(place: Place, change: Callable[[Workload], Workload]):
    """In each place, without the original at hand, and nothing else is reported."""
    (found,) = surviving_strings(change(neutral_workload()))
    assert found.place is place
    assert NAME in found.text
    assert found.words == ()


@pytest.mark.parametrize(("place", "change"), CASES)
def test_words_of_the_original_are_named(place: Place, change: Callable[[Workload], Workload]):
    """With an original that has the name in one of its scopes, as a part of a longer text."""
    neutral = neutral_workload()
    scopes = neutral.programs[0].with_rows(strings=("", f"model/{NAME}/mlp"))
    original = replace(neutral, programs=(scopes, neutral.programs[1]))
    (found,) = surviving_strings(change(neutral), original)
    assert {"falcon", "acme7b"} <= set(found.words)


def test_words_inside_longer_words_are_found():
    """Parts of four characters or more; shorter words only whole."""
    words = words_of(["acme/q17_7B", "falcon['wq']", "moe"])
    assert words == {"acme", "q17", "7b", "falcon", "moe"}  # wq: two letters say nothing
    assert words_in("xxacmexx/q177/7b", words) == ("7b", "acme")
    assert words_in("MoE smoent", words) == ("moe",)


def test_public_words_are_no_words_of_the_original():
    """Words of operators and of Flint's own tell nothing."""
    assert words_of(["stablehlo.dot_general", "relu", "axis", "pipeline"]) == frozenset()
