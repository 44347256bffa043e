"""`flint explore --serve`: points are replays, ranked by what users of the model feel."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

import flint
from flint.errors import FlintError
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.explore.api import Answer
from flint.tools.explore.point import Point
from flint.tools.explore.result import Result, Status
from flint.tools.explore.study.fingerprint import Fingerprints, files_of, shared_by_points
from flint.tools.explore.subject import Subject
from flint.tools.serve.asked import served_as
from flint.tools.serve.serve import serve
from tests.tools.serve.test_surface import MODEL


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Answer]:
    folder = tmp_path_factory.mktemp("served")
    model, kept = folder / "engine.py", folder / "s.study"
    text = MODEL.replace("LAYERS = 8, 64, 512, 3", "LAYERS = 8, 64, 512, 1")
    model.write_text(text.replace("num_layers", "blocks"))  # else each is captured with four
    found = _explored(model, kept)
    return model, kept, found


def _explored(model: Path, kept: Path) -> Answer:
    return flint.explore(
        f"{model}:engine",
        devices=[1],
        clusters="h100-dgx",
        mesh="model=1",
        serve=["rate=50/s,200/s,20000/s", "n=400 engine.max_num_seqs=16,256"],
        where="ttft_p99 <= 20ms and tpot_p99 <= 50ms",
        objective="goodput",
        study=kept,
        jobs=1,
    )


def test_the_best_rate_that_meets_the_limits_is_first(study: tuple[Path, Path, Answer]) -> None:
    model, _, found = study
    assert len(found.results) == 6
    best = found.best
    assert best is not None
    assert dict(best.point.serve)["rate"] == "200/s"
    assert best.served["ttft_p99"] <= 20e6
    asked = served_as(dict(best.point.serve))
    alone = serve(
        CaptureRequest(f"{model}:engine", mesh="model=1"),
        EstimateRequest(cluster="h100-dgx"),
        asked,
        sure=False,
    ).summary
    assert best.served["goodput"] == alone.requests_per_s
    assert best.served["ttft_p99"] == alone.ttft_ns.p99
    text = found.to_text()
    assert "goodput" in text
    (command,) = [line for line in text.splitlines() if "flint serve" in line]
    words = shlex.split(command)
    assert words[words.index("--requests") + 1] == asked.requests
    assert "<html" in found.to_html()


def test_a_study_is_resumed_and_read(study: tuple[Path, Path, Answer]) -> None:
    model, kept, found = study
    again = _explored(model, kept)
    assert again.study.reused == 6
    assert again.ranking.results == found.ranking.results
    loaded = Answer.load(kept, objective="ttft_p99", where="rate != '20000/s'")
    assert loaded.best is not None
    assert all(dict(r.point.serve)["rate"] != "20000/s" for r in loaded.ranking.results)


def _number(value: float) -> str:
    return f'{{ value = {value}, kind = "assumed", source = "a test" }}'


def test_pools_cost_what_their_machines_cost(study: tuple[Path, Path, Answer]) -> None:
    model, _, _ = study
    for name, price in (("cheap", 1), ("dear", 100)):
        (model.parent / f"{name}.toml").write_text(
            f'base = "h100-dgx"\nname = "{name}"\ntitle = "{name}"\nprice_per_hour = {_number(price)}\n'
        )
    dear = model.parent / "dear.toml"
    found = flint.explore(
        f"{model}:engine",
        devices=[1],
        clusters=str(model.parent / "cheap.toml"),
        mesh="model=1",
        serve=[f"rate=2/s n=50 input=64 output=8 decode_replicas=3 decode_cluster={dear}"],
        objective="cost_per_mtoken",
        jobs=1,
    )
    best = found.best
    assert best is not None and best.devices == 4
    assert best.price_per_hour * best.devices == pytest.approx(1 + 3 * 100)


def test_a_point_is_of_the_files_in_its_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    base, own, log = (tmp_path / name for name in ("base.toml", "own.toml", "log.csv"))
    log.write_text("input_tokens,output_tokens\n1,2\n")
    base.write_text(f'base = "h100-dgx"\nname = "base"\ntitle = "base"\nderate = {_number(0.5)}\n')
    own.write_text('base = "base.toml"\nname = "own"\ntitle = "own"\n')
    options = ("requests", "trace:log.csv,n=1"), ("decode_cluster", "own.toml")
    point = Point("model=1", "h100-dgx", serve=options)
    before = Fingerprints().of(point)
    assert set(files_of(point)) == {str(log), str(own)}
    log.write_text("input_tokens,output_tokens\n1,3\n")
    between = Fingerprints().of(point)
    base.write_text(f'base = "h100-dgx"\nname = "base"\ntitle = "base"\nderate = {_number(0.4)}\n')
    assert len({before, between, Fingerprints().of(point)}) == 3


@pytest.mark.parametrize(
    "given",
    [
        {"replace": ["gemm=log.csv"]},
        {"collective_algorithm": ["all-gather=none.xml", "all-reduce=log.csv"]},
        {"measured": "log.csv"},
    ],
)
def test_all_points_are_of_the_files_of_options(
    given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log, model = tmp_path / "log.csv", tmp_path / "m.py"
    log.write_text("1")
    model.write_text(MODEL)
    request = EstimateRequest.of({"cluster": "h100-dgx", **given})
    subject = Subject.of(CaptureRequest(model=str(model)), request)
    told = shared_by_points(subject)
    assert shared_by_points(subject) == told
    log.write_text("2")
    assert shared_by_points(subject) != told


def test_keys_of_points_that_serve_nothing_stay() -> None:
    plain = Point("data=8", "h100-dgx")
    assert plain.key != Point("data=8", "h100-dgx", serve=(("rate", "1/s"),)).key
    result = Result(
        Point("model=1", "h100-dgx", serve=(("rate", "1/s"),)),
        Status.FITS,
        1,
        served={"goodput": 1.0, "output_tokens_per_s": 9.0},
    )
    assert Result.from_json(result.to_json()) == result


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"rat": "1/s"}, "FL899.*'rate'"),
        ({"n": "5"}, "FL899.*which requests"),
        ({"rate": "1/s", "requests": "log.csv"}, "FL899.*as well"),
        ({"rate": "1/s", "replicas": "0"}, "FL899.*whole number"),
        ({"rate": "1/s", "router": "fast"}, "FL899.*one of"),
        ({"rate": "1/s", "engine": "vlm"}, "FL890"),
        ({"rate": "1/s", "engine.max_seqs": "4"}, "FL890.*max_num_seqs"),
        ({"rate": "1/s", "goodput": "ttft<=0s"}, "FL891"),
    ],
)
def test_replays_that_cannot_be(options: dict[str, str], says: str) -> None:
    with pytest.raises(FlintError, match=f"(?s){says}"):
        served_as(options)


def test_options_of_engines_and_generators() -> None:
    asked = served_as({"concurrency": "16", "input": "90", "output": "9", "engine": "sglang:page_size=4",
                       "engine.chunked_prefill_size": "512", "decode_replicas": "2"})  # fmt: skip
    assert asked.requests == "concurrency:16,input=90,output=9"
    assert asked.engine == "sglang:page_size=4,chunked_prefill_size=512"
    assert asked.decode_replicas == 2
