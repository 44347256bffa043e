"""Every place that takes options of an estimate takes those of its request, and files lie in the project."""

from __future__ import annotations

import inspect
from pathlib import Path

import jax
import pytest
import typer
from typer.testing import CliRunner

import flint
from flint.cli import app
from flint.cli.command_line import filled
from flint.cli.commands.capture import _refuse_clusters
from flint.cluster.stack import shipped_stacks
from flint.errors import FlintError
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.tools.change.commands.sides import Request, _as_in
from flint.tools.change.project.config import Capture, load_project
from flint.tracing import Trace

ESTIMATES = ("estimate", "capture", "report", "diff", "compare", "explore", "simulate")


@pytest.mark.parametrize("name", ESTIMATES)
def test_a_command_takes_every_option_of_an_estimate_with_its_help(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    flags = {flag: p for p in command.params for flag in p.opts}
    for option in EstimateRequest.options().values():
        assert set(option.flags) <= flags.keys()
        if option.key not in ("cluster", "profile", "overlap"):  # of a capture they may say more
            assert filled(flags[option.flag].help) == filled(option.help)


def test_flint_toml_takes_every_option() -> None:
    options = [*EstimateRequest.options().values(), *CaptureRequest.options().values()]
    keys = {o.key for o in options} - {"cluster"}
    assert keys <= set(Capture.model_fields)
    assert "clusters" in keys


def test_keywords_of_a_trace_are_the_fields() -> None:
    found = inspect.signature(Trace.estimate).parameters
    assert list(found) == ["self", *EstimateRequest.options()]
    assert [p.kind.name for p in list(found.values())[:3]] == [
        "POSITIONAL_OR_KEYWORD",
        "POSITIONAL_OR_KEYWORD",
        "KEYWORD_ONLY",
    ]
    for name, option in EstimateRequest.options().items():
        assert found[name].default == option.default
        assert f"`{name}` ({option.flag}): " in (Trace.estimate.__doc__ or "")


def test_files_of_an_estimate_are_found_from_the_project(tmp_path: Path) -> None:
    for name in ("stack.toml", "loads.csv", "other.toml", "m.flint"):
        (tmp_path / name).write_text("")
    (tmp_path / "flint.toml").write_text(
        '[capture.train]\nmodel = "m.py"\nstack = "stack.toml"\nrouting = "loads.csv"\n'
        'measured = ["m.flint"]\nreplace = ["gemm=other.toml", "attention=h200-dgx"]\n'
        'scale = ["gemm=2x"]\noverlap = "xla"\n'
    )
    project = load_project(tmp_path / "flint.toml")
    assert project.estimate_request(project.captures["train"], "h100-dgx") == EstimateRequest(
        "h100-dgx",
        stack=f"{tmp_path}/stack.toml",
        routing=f"{tmp_path}/loads.csv",
        measured=(f"{tmp_path}/m.flint",),
        replace=(f"gemm={tmp_path}/other.toml", "attention=h200-dgx"),
        scale=("gemm=2x",),
        policy="xla",
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("simulate", ".", "--scale", "gemm=2x"), "--scale does not apply to this run with rules"),
        (("simulate", ".", "--stack", "megatron"), "--stack does not apply to this run with rules"),
        (("capture", "m.py", "--routing", "balanced"), "--routing needs --cluster"),
        (("capture", "m.py", "--mesh", "8", "--ranks", "0"), "--ranks needs --output"),
        (
            ("capture", "m.py", "--mesh", "8", "--tensor-size", "output"),
            "--tensor-size needs --output",
        ),
        (
            ("explore", "m.py", "--simulate", "1", "-o", "out", "--scale", "gemm=2x"),
            "--scale does not apply to --simulate, which runs traces",
        ),
        (("explore", "--timing", "model"), "--timing needs a model to explore"),
        (
            ("estimate", "x", "-c", "h100-dgx", "--compare", "analytic", "--routing", "balanced"),
            "--routing does not apply to --compare, which is a table",
        ),
        (
            ("estimate", "x", "--overlap", "astra-sim", "--unpriced", "zero"),
            "--unpriced does not apply to --overlap astra-sim",
        ),
    ],
)
def test_an_option_without_a_place_is_refused(arguments: tuple[str, ...], said: str) -> None:
    result = CliRunner().invoke(app, arguments, prog_name="flint")
    assert result.exit_code == 2
    assert f"error[FL218]: {said}" in result.stderr


def test_a_capture_says_which_options_its_traces_do_not_have(
    capsys: pytest.CaptureFixture[str],
) -> None:
    request = EstimateRequest(mapping="model=nvlink", routing="balanced", unpriced_is_zero=True)
    _refuse_clusters(Path("out"), ["h100-dgx"], request)
    assert capsys.readouterr().err == (
        "warning: --routing affects only the estimate, not the traces\n"
    )
    _refuse_clusters(None, ["h100-dgx"], request)
    assert capsys.readouterr().err == ""
    _refuse_clusters(Path("out"), ["h100-dgx"], request, quiet=True)
    assert capsys.readouterr().err == ""


def test_names_of_flint_are_no_folders_of_the_project(tmp_path: Path) -> None:
    for name in ("megatron", "h200-dgx", "run"):
        (tmp_path / name).mkdir()
    (tmp_path / "flint.toml").write_text(
        '[capture.train]\nmodel = "m.py"\nstack = "megatron"\nmeasured = ["run"]\n'
        'replace = ["attention=h200-dgx"]\n'
    )
    project = load_project(tmp_path / "flint.toml")
    assert project.estimate_request(project.captures["train"], "h100-dgx") == EstimateRequest(
        "h100-dgx", stack="megatron", measured=(f"{tmp_path}/run",), replace=("attention=h200-dgx",)
    )


def test_a_difference_of_captures_takes_options_beside_the_clusters_of_the_project(
    tmp_path: Path,
) -> None:
    (tmp_path / "flint.toml").write_text(
        '[capture.train]\nmodel = "m.py"\nclusters = ["h100-dgx"]\noverlap = "xla"\n'
        'stack = "megatron"\n'
    )
    project = load_project(tmp_path / "flint.toml")
    asked = Request(None, (), EstimateRequest(policy="blocking", scale=("gemm=2x",)))
    assert _as_in(project, project.captures["train"], asked).estimate == EstimateRequest(
        "h100-dgx", stack="megatron", policy="blocking", scale=("gemm=2x",)
    )


def test_options_of_an_estimate_without_a_cluster_are_refused(tmp_path: Path) -> None:
    """Without one `flint diff` estimates nothing, and an option would change nothing."""
    flint.trace(lambda x: x + 1.0, {"data": 2}, jax.ShapeDtypeStruct((8,), "float32")).save(
        tmp_path / "t"
    )
    done = CliRunner().invoke(app, ["diff", *2 * [str(tmp_path / "t")], "--scale", "gemm=2x"])
    assert done.exit_code == 2
    assert "FL218" in done.output and "--scale" in done.output


def test_a_study_takes_no_objects(tmp_path: Path) -> None:
    """They are kept as texts, and a changed stack would be taken for the one of its name."""
    stack = next(s for s in shipped_stacks() if s.name == "megatron").model_copy(
        update={"policy": "blocking"}
    )
    with pytest.raises(FlintError, match="FL219"):
        flint.explore(
            Path(__file__).parents[3] / "examples" / "llama_jax.py",
            8,
            "h100-dgx",
            estimate=EstimateRequest(stack=stack),
        )
