"""Spaces: from a model file and what a user asks for to points."""

from collections import Counter
from itertools import pairwise, product

import pytest

from flint.errors import FlintError
from flint.tools.explore.point import PointField
from flint.tools.explore.space.space import space_of
from flint.tools.explore.subject import Subject

MODEL = """
from __future__ import annotations
from enum import Enum
from typing import Annotated, Literal
import flint

class Kind(Enum):
    FLASH = "flash"
    PLAIN = "plain"

@flint.entry(axes=("pipe", "data", "model"), default=True)
def train(
    mesh,
    *,
    remat: Literal["none", "full"] = "none",
    kind: Kind = Kind.FLASH,
    micro_batch: Annotated[int, range(1, 5)] = 1,
    microbatches: int = 8,
    seq: int = 128,
    flag: bool = False,
) -> flint.Pipeline:
    raise AssertionError("a space needs no step")

@flint.entry()
def no_axes(mesh): ...

@flint.entry(axes=("data",))
def needs(mesh, *, layers): ...

@flint.entry(axes=("data",))
def anything(mesh, **options): ...

@flint.entry(axes=("data",))
def two_names(mesh, *, stack: int = 1): ...

@flint.entry(axes=("a", "b", "c", "d"))
def four(mesh): ...

def loss(x): ...

def arguments(mesh, *, kept: Literal["a", "b"] = "a"):
    return (1,)

FIXED_ARGUMENTS = (1,)
"""


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


def space(model, devices=(8,), clusters=("h100-dgx",), mesh=None, sweeps=(), where=(), **subject):
    return space_of(
        Subject(model, **subject),
        devices=devices,
        clusters=clusters,
        mesh=mesh,
        sweeps=sweeps,
        where=where,
    )


def test_declared_axes_and_choices_are_explored_without_a_word(model):
    found = space(model, devices=[8, 64])
    assert [(d.name, d.field, len(d.values), d.origin) for d in found.dimensions] == [
        ("mesh", PointField.MESH, 10 + 28, "declared"),
        ("remat", PointField.SETTING, 2, "declared"),
        ("kind", PointField.SETTING, 2, "declared"),
        ("micro_batch", PointField.SETTING, 3, "declared"),
        ("cluster", PointField.CLUSTER, 1, "-c"),
    ]
    points = list(found.points())
    assert len(set(points)) == len(points) == found.size() == found.count() == 38 * 12
    assert {p.settings for p in points} == {
        (("kind", k), ("micro_batch", m), ("remat", r))
        for k, m, r in product(("flash", "plain"), "124", ("none", "full"))
    }
    assert found.fixed == (("flag", "false"), ("microbatches", "8"), ("seq", "128"))


def test_what_is_given_is_not_explored(model):
    found = space(
        model,
        settings=(("remat", "full"),),
        pipeline=(("microbatches", "16"),),
        sweeps=["kind=plain flag=true,false"],
    )
    assert [(d.name, d.values, d.origin) for d in found.dimensions[1:-1]] == [
        ("kind", ("plain",), "--sweep"),
        ("flag", ("true", "false"), "--sweep"),
        ("micro_batch", ("1", "2", "4"), "declared"),
    ]
    assert found.fixed == (("microbatches", "16"), ("remat", "full"), ("seq", "128"))


def test_points_of_one_program_come_one_after_the_other(model):
    sweeps = ["stack=megatron,pytorch-eager overlap=xla,overlap cluster.ib.latency=1us,2us"]
    sweeps += ['map="model=nvlink",""', "routing=balanced", "chunks=1,2"]
    found = space(model, devices=[4], clusters=("h100-dgx", "b200-dgx"), sweeps=sweeps)
    points = list(found.points())
    programs = [p.program for p in points]
    runs = 1 + sum(a != b for a, b in pairwise(programs))
    assert runs == len(set(programs)) == 6 * 2 * 2 * 3 * 2
    assert len(points) == runs * 2 * 2 * 2 * 2 * 2
    last = points[-1]
    assert last.changes == (("ib.latency", "2us"),)
    assert last.cluster == "b200-dgx"
    assert last.pipeline == (("chunks", "2"),)
    chosen = {"stack": "pytorch-eager", "policy": "overlap", "routing": "balanced"}
    assert dict(last.estimate) == chosen
    assert points == list(found.points())


def test_conditions_leave_what_a_filter_would(model):
    where = ["microbatches * micro_batch * data == 64", "model <= 4 or remat == full"]
    found = space(model, devices=[64], where=where)
    everything = space(model, devices=[64])

    def wanted(point):
        n = everything.names(point)
        batch = int(n["microbatches"]) * int(n["micro_batch"]) * n["data"]
        return batch == 64 and (n["model"] <= 4 or n["remat"] == "full")

    kept = list(filter(wanted, everything.points()))
    assert list(found.points()) == kept
    assert 0 < len(kept) == found.count() < everything.size()
    assert found.exceeds(len(kept) - 1)
    assert not found.exceeds(len(kept))
    left_out = found.left_out()
    assert set(left_out) == set(where)
    assert sum(left_out.values()) == everything.size() - len(kept)
    apart = space(model, devices=[64], where=["data > 2", "kind == flash", "micro_batch > 1"])
    assert apart.count() == sum(1 for _ in apart.points())
    assert apart.count() == apart.size() - sum(apart.left_out().values())


def test_a_choice_for_each_dimension_is_a_point(model):
    where = ["remat == full", "kind == flash or flag == true"]
    found = space(model, devices=[8], where=where, settings=(("kind", "flash"),))
    points = Counter()
    for values in product(*(d.values for d in found.dimensions)):
        names = [d.name for d in found.dimensions]
        points[found.point(dict(zip(names, values, strict=True)))] += 1
    assert points.pop(None) == found.size() // 2
    assert list(points) == list(found.points())
    with pytest.raises(KeyError):
        found.point({})


def test_conditions_on_results_are_kept_for_later(model):
    found = space(model, where=["memory <= 70GiB", "remat == full"])
    assert [c.text for c in found.limits] == ["memory <= 70GiB"]
    assert [c.text for c in found.conditions] == ["remat == full"]


@pytest.mark.parametrize(
    ("where", "said", "help_"),
    [
        (["data == 3"], "'data == 3' is true for none", "'data == 3' leaves 0"),
        (
            ["data == 8", "model >= 2"],
            "the conditions contradict each other",
            "alone, 'data == 8' leaves 12, 'model >= 2' leaves 72",
        ),
        (["microbatches == 9"], "'microbatches == 9' is true for none", "leaves 0"),
    ],
)
def test_an_empty_space_says_which_condition_left_nothing(model, where, said, help_):
    with pytest.raises(FlintError) as caught:
        space(model, where=where)
    assert caught.value.code == "FL862"
    assert said in caught.value.message
    assert help_ in caught.value.help


def test_a_space_of_billions_is_not_walked_to_be_made(model):
    sweeps = [f"{name}=1..1000:1" for name in ("seq", "microbatches", "chunks")]
    found = space(model, devices=[720_720], sweeps=sweeps, where=["data <= 16", "set.seq > 5"])
    assert found.size() > 10**13
    assert found.count() * 1000 == (found.size() - found.left_out()["data <= 16"]) * 995
    joined = space(model, devices=[720_720], sweeps=sweeps, where=["data * set.seq % 7 == 0"])
    assert (joined.count(), joined.left_out()) == (joined.size(), {})  # too many to be tried
    assert found.exceeds(10_000)
    first = next(found.points())
    assert dict(first.settings)["seq"] == "6"


def test_a_space_that_is_too_large_is_told_so_and_not_walked_for_ever(model, monkeypatch):
    sweeps = ["seq=1..300:1", "microbatches=1..300:1"]
    found = space(model, devices=[8], sweeps=sweeps)
    with pytest.raises(FlintError, match="more than 200,000 points") as caught:
        found.require_few()
    assert caught.value.code == "FL862" and "--budget" in caught.value.help
    few = space(model, devices=[8], sweeps=sweeps, where=["set.seq < 2", "data == 8"])
    few.require_few()
    monkeypatch.setattr("flint.tools.explore.space.space.MOST_FORBIDDEN", 1000)
    rare = space(model, devices=[8], sweeps=sweeps, where=["set.seq * microbatches == 7"])
    with pytest.raises(FlintError, match="forbid more than 1,000 combinations") as caught:
        list(rare.points())
    assert caught.value.code == "FL862"


@pytest.mark.parametrize(
    ("name", "axes"),
    [("no_axes", ("data", "model")), ("four", ("a", "b", "c", "d")), ("anything", ("data",))],
)
def test_axes_of_entries(model, name, axes):
    found = space(f"{model}:{name}", devices=[7])
    assert found.axes == axes
    assert found.size() == len(axes)  # of a prime, one axis has all devices


def test_options_of_the_function_of_args(model):
    found = space(f"{model}:loss", args=f"{model}:arguments", devices=[4])
    assert [(d.name, d.values) for d in found.dimensions[1:2]] == [("kept", ("a", "b"))]
    assert found.axes == ("data", "model")
    found = space(f"{model}:loss", args=f"{model}:FIXED_ARGUMENTS", devices=[4])
    assert [d.name for d in found.dimensions] == ["mesh", "cluster"]


def test_an_entry_that_takes_anything(model):
    found = space(f"{model}:anything", sweeps=["whatever=1,2"])
    assert found.dimensions[1].values == ("1", "2")


def test_a_program_in_a_file_has_one_mesh(tmp_path):
    path = tmp_path / "step.mlir"
    path.write_text("module @step {\n}\n")
    found = space(str(path), devices=(), clusters=("h100-dgx", "b200-dgx"))
    assert [p.mesh for p in found.points()] == ["", ""]
    found = space(str(path), devices=(), mesh="data=4,model=2")
    assert [p.mesh for p in found.points()] == ["data=4,model=2"]
    assert found.names(next(found.points()))["devices"] == 8
    for bad in ({"devices": [8]}, {"devices": (), "mesh": "data=*"}):
        with pytest.raises(FlintError, match="was captured for one mesh") as caught:
            space(str(path), **bad)
        assert caught.value.code == "FL863"
    with pytest.raises(FlintError, match="there is no such option") as caught:
        space(str(path), devices=(), sweeps=["remat=none,full"])
    assert caught.value.code == "FL860"


def test_options_of_a_script_are_its_own(tmp_path):
    path = tmp_path / "train.py"
    path.write_text("raise AssertionError('a space does not run scripts')")
    sweeps = ["batch-size=8,16 stack=pytorch-eager"]
    found = space(str(path), world=True, devices=[64], sweeps=sweeps, where=["batch_size > 8"])
    (point,) = found.points()
    assert point.mesh == "data=64"
    assert point.settings == (("batch-size", "16"),)
    assert point.estimate == (("stack", "pytorch-eager"),)
    found = space(str(path), world=True, devices=[64], mesh="data=*,model=1..8")
    assert found.size() == 4


@pytest.mark.parametrize(
    ("entry", "given", "code", "said"),
    [
        ("train", {"sweeps": ["rematt=a"]}, "FL860", "did you mean 'remat'?"),
        ("train", {"sweeps": ["mesh=8x1"]}, "FL860", "there is no such option"),
        ("train", {"sweeps": ["remat=none,ful"]}, "FL216", "'ful' is not a choice of remat"),
        ("train", {"sweeps": ["seq=128,x"]}, "FL216", "'x' is not a whole number"),
        ("train", {"sweeps": ["chunks=0,1"]}, "FL860", "'0' is not a whole number above 0"),
        ("train", {"sweeps": ["schedule=1f1b,zb"]}, "FL246", "unknown schedule 'zb'"),
        ("train", {"sweeps": ["overlap=xl"]}, "FL703", "unknown overlap policy"),
        ("train", {"sweeps": ["stack=megatrn"]}, "FL725", "megatrn"),
        ("train", {"sweeps": ["routing=even"]}, "FL726", "no routing 'even'"),
        ("train", {"sweeps": ["cluster.ibb.bandwidth=1GB/s"]}, "FL868", "ibb"),
        ("train", {"sweeps": ["cluster.ib.bandwidth=1,2"]}, "FL868", "ib.bandwidth"),
        ("train", {"sweeps": ["cluster=h100-dgx"]}, "FL860", "clusters are swept, but also given"),
        ("train", {"clusters": ()}, "FL860", "no cluster is given"),
        ("train", {"clusters": ("h100-dgx", "h100-dgx")}, "FL860", "is given twice"),
        ("train", {"clusters": ("h10",)}, "FL702", "h10"),
        (
            "train",
            {"sweeps": ["seq=1,2"], "settings": (("seq", "8"),)},
            "FL860",
            "'seq' is swept, but also given as 8",
        ),
        ("train", {"settings": (("sequence", "8"),)}, "FL216", "has no option 'sequence'"),
        ("train", {"mesh": "rows=2"}, "FL863", "the entry has no mesh axis 'rows'"),
        ("train", {"devices": (8, 8)}, "FL863", "8 devices are given twice"),
        ("train", {"tokens": "microbatches * rows"}, "FL861", "unknown name 'rows'"),
        ("train", {"tokens": "data *"}, "FL861", "--tokens 'data *' cannot be read"),
        ("train", {"tokens": "data * time"}, "FL861", "unknown name 'time'"),
        ("train", {"where": ["rows == 2"]}, "FL861", "unknown name 'rows'"),
        ("needs", {}, "FL216", "needs a value for 'layers'"),
        ("two_names", {"sweeps": ["stack=1,2"]}, "FL860", "and the estimate have an option"),
        ("nothing", {}, "FL211", "has no 'nothing'"),
        ("loss", {}, "FL212", "is not an entry"),
    ],
)
def test_one_clear_error(model, entry, given, code, said):
    with pytest.raises(FlintError) as caught:
        space(f"{model}:{entry}", **given)
    assert caught.value.code == code
    assert said in caught.value.message


def test_a_space_says_itself_the_same_twice(model):
    found = [space(model, where=["remat == full"]).to_json() for _ in range(2)]
    assert found[0] == found[1]
    assert found[0]["conditions"] == ["remat == full"]
