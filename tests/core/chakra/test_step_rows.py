"""Measured steps: what a user types for a row is what the accuracy report judges."""

from __future__ import annotations

import inspect
import json
import shlex
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("jax")

from benchmarks.accuracy_steps import captured, estimated, sampled
from benchmarks.step_rows import all_cases
from flint.cli import app
from flint.cluster.models import Cluster
from flint.cluster.stack import Stack

CASES = all_cases()


def test_every_row_is_of_a_shipped_preset_and_stack_and_of_options_that_its_model_has() -> None:
    for case in CASES:
        entry = import_module(f"benchmarks.models.{case.model}").train
        assert set(case.options) <= set(inspect.signature(entry).parameters), case.label
    assert {c.preset for c in CASES} <= set(Cluster.names())
    assert {c.stack for c in CASES} <= set(Stack.names())


def test_the_command_of_a_row_prints_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = next(c for c in CASES if c.data == "Megatron" and "pp1" in c.label)
    root = Path(__file__).resolve().parents[3]
    (tmp_path / "benchmarks").symlink_to(root / "benchmarks")
    monkeypatch.chdir(tmp_path)
    first, second = (shlex.split(part)[1:] for part in case.command.split(" && "))
    run = CliRunner()
    assert run.invoke(app, first).exit_code == 0
    said = json.loads(run.invoke(app, [*second, "--json"]).stdout)["step_time_ns"]
    assert said == pytest.approx(estimated(case, captured(case)).step_time_ns, abs=0.001)


def test_a_sample_is_of_all_sets_and_always_the_same() -> None:
    few, again = sampled(CASES, False, 2), sampled(CASES[::-1], False, 2)
    assert {c.data for c in few} == {c.data for c in CASES} and len(few) <= 18
    assert {c.command for c in few} == {c.command for c in again}
