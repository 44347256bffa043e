"""The gallery: forty workloads, each in the lock and in the table, and three of them made anew."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gallery.__main__ import LOCK, TABLE, table_text, workloads

ROOT = Path(__file__).resolve().parents[2]
KINDS = {"dense", "experts", "vision", "diffusion", "recommendation", "state space"}


def test_the_table_is_made_of_the_lock_and_both_have_all_workloads() -> None:
    tables, locked = workloads(), json.loads(LOCK.read_text())
    assert list(locked) == list(tables) and len(tables) >= 40
    assert TABLE.read_text() == table_text(locked)
    assert {e["kind"] for e in locked.values()} == KINDS
    assert {e["framework"] for e in locked.values()} == {"JAX", "PyTorch"}
    sizes = [e["devices"] for e in locked.values()]
    assert (min(sizes), max(sizes)) == (8, 32_768)
    assert all(e["licence"] and e["source"] for e in locked.values())


@pytest.mark.long
def test_three_are_made_again(tmp_path: Path) -> None:
    names = ("mistral-7b-decode-8", "dit-xl2-512px-sample-8", "mamba2-2.7b-decode-8")
    run = [sys.executable, "-m", "gallery", "-o", str(tmp_path), *names]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(f"{n}.flint" for n in names)
