"""The level `shapes`: what it is asked for, what it refuses, what it prints, and what its search knows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import flint
from flint.cli import app
from flint.errors import FlintError
from flint.ir.made_by import MeasuredBy, MeasuredClass
from flint.ir.workload import Workload
from flint.tools.share.level import keep_of
from flint.tools.share.shapes.perturb import Choices, totals_of
from flint.tools.share.shapes.totals import Totals
from flint.tools.share.sizes import Sizes, Variable

RECORDED = Path(__file__).resolve().parents[3] / "benchmarks" / "compare_models"
BERT = RECORDED / "bert-small.flint"


@pytest.mark.parametrize(
    ("given", "share"), [("2%", 0.02), (" 2.5 % ", 0.025), ("0.01", 0.01), (0.25, 0.25)]
)
def test_bounds(given: float | str, share: float) -> None:
    assert keep_of(given) == pytest.approx(share)


@pytest.mark.parametrize(
    "given", ["0", "-1%", "2 percent", "", "26%", "nan", "inf", 0, -0.1, 1, True, "%", "1e-400"]
)
def test_bounds_that_cannot_be(given: float | str) -> None:
    with pytest.raises(FlintError, match="FL907"):
        keep_of(given)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--keep", "2%"], "FL907"),
        (["--seed", "1"], "FL907"),
        (["--level", "shapes", "--keep", "fifty"], "FL907"),
        (["--level", "shapes", "--seed", "-1"], "FL907"),
        (["--level", "structure"], "FL901"),
        (["--level", "shape"], "FL901"),
    ],
)
def test_options_that_do_not_fit_are_refused(tmp_path: Path, options: list[str], code: str) -> None:
    out = tmp_path / "out.flint"
    done = CliRunner().invoke(app, ["anonymize", str(BERT), "-o", str(out), *options])
    assert done.exit_code == 2 and f"error[{code}]" in done.stderr
    assert not out.exists()


def test_several_programs_are_refused() -> None:
    one = Workload.load(BERT)
    several = replace(one, programs=one.programs * 2, classes=one.classes * 2)
    with pytest.raises(FlintError, match="FL908.*2 programs"):
        flint.anonymize(several, level="shapes")


def test_what_was_measured_is_refused() -> None:
    about = MeasuredBy("kineto", "NVIDIA H100 80GB HBM3", (MeasuredClass(0, 1e6, 1),)).to_json()
    found = replace(Workload.load(BERT), metadata={"measured": about})
    with pytest.raises(FlintError, match="FL908"):
        flint.anonymize(found, level="shapes")


def test_traces_without_their_workload_are_refused(tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    flint.anonymize(BERT).save(traces)
    (traces / "workload.flint").unlink()
    done = CliRunner().invoke(
        app, ["anonymize", str(traces), "-o", str(tmp_path / "out"), "--level", "shapes"]
    )
    assert done.exit_code == 2 and "error[FL904]" in done.stderr


def test_a_bound_that_nothing_keeps_is_refused_with_one_that_something_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("flint.tools.share.shapes.perturb.MOST_TRIES", 2)
    with pytest.raises(FlintError, match="FL906") as refused:
        flint.anonymize(BERT, level="shapes", keep=1e-9, seed=1)
    assert "--keep" in refused.value.help or "nothing within" in refused.value.help


def test_without_variables_it_is_refused() -> None:
    one = Workload.load(RECORDED / "resnet-18.flint")
    frozen = replace(
        one, programs=tuple(p.with_rows(cycles=p.channel * 0 + 1) for p in one.programs)
    )
    assert Sizes.of(frozen).variables == ()
    with pytest.raises(FlintError, match="FL906"):
        flint.anonymize(frozen, level="shapes")


@pytest.mark.long
def test_the_command_says_what_moved(tmp_path: Path) -> None:
    out = tmp_path / "out"
    told = ["anonymize", str(BERT), "-o", str(out), "--level", "shapes", "--seed", "3"]
    done = CliRunner().invoke(app, [*told, "--json"])
    assert done.exit_code == 0, done.output
    document = json.loads(done.stdout)
    assert document["level"] == "shapes"
    names = [c["name"] for c in document["changes"]]
    assert names[:3] == ["FLOPs", "bytes moved", "bytes of parameters"]
    assert "step time on v5p" in names and "peak memory on h100-dgx" in names
    assert all(abs(c["share"]) <= 0.02 for c in document["changes"])
    assert document["moves"]["changed"] >= document["moves"]["variables"] / 2
    assert "seed" not in document
    written = Workload.load(out / "workload.flint")
    assert totals_of(written) == {c["name"]: c["after"] for c in document["changes"][:3]}
    assert CliRunner().invoke(app, ["check", str(out)]).exit_code == 0


def test_the_search_counts_as_workloads_do() -> None:
    """Totals of many candidates at once are those of the workloads that they become."""
    sizes = Sizes.of(Workload.load(BERT))
    totals = Totals.of(sizes)
    random = np.random.default_rng(5)
    values = totals.own * random.uniform(0.6, 1.6, (3, len(totals.own)))
    values = np.maximum(np.rint(values), 1)
    before = totals_of(sizes.workload)
    for logs, row in zip(totals.logs(values), values, strict=True):
        after = totals_of(sizes.resized(dict(enumerate(row.astype(int).tolist()))))
        exact = [np.log(after[name] / before[name]) for name in before]
        np.testing.assert_allclose(logs[: len(exact)], exact, rtol=1e-9, atol=1e-9)


def test_choices_keep_alignment() -> None:
    choices = Choices.of([Variable(0, 4096, False, 9), Variable(1, 7, True, 1)])
    assert choices.values[0][0] == 4096 and not (choices.values[0] % 32).any()
    assert choices.values[1].tolist() == [7, 4, 5, 6, 8, 9, 10, 11]
    assert choices.weight[0] > choices.weight[1]


def test_many_variables_of_one_value_move_together() -> None:
    alike = [Variable(n, 512 if n % 2 else 64, False, 1) for n in range(20)]
    assert len(Choices.of(alike)) == 2
