"""Ways to distribute a program, from script to traces that are checked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.long import long_but

pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
BLOCK_BYTES = 4 * (12 * 256 * 256 + 11 * 256)  # parameters of a block: weights, biases, the norm
WHOLE = 2 * BLOCK_BYTES

CASES = {
    "context": (4, {"all_to_all": 8, "all_gather": 4}),
    "accumulate": (4, {"all_gather": 12, "reduce_scatter": 2}),
    "hybrid": (8, {"all_gather": 4, "reduce_scatter": 2, "all_reduce": 2}),
    "fsdp1": (4, {"all_gather": 4, "reduce_scatter": 2, "all_reduce": 1}),
    "objects": (4, {"all_reduce": 2}),
    "traced_pipeline": (2, {"send": 2, "recv": 2}),
}


def flint(*arguments: str | Path) -> str:
    command = [sys.executable, "-W", "ignore", "-m", "flint", *map(str, arguments)]
    done = subprocess.run(
        command, check=False, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("case", long_but(["hybrid"], CASES))
def test_collectives_of(case: str, tmp_path: Path) -> None:
    ranks, expected = CASES[case]
    program = ROOT / "tests" / "torch_programs" / "parallelisms.py"
    command = ["capture", program, "--mesh", str(ranks), "--world", "-o", tmp_path / "t", "--json"]
    captured = json.loads(flint(*command, "--", case))
    found: dict[str, int] = {}
    moved: dict[str, int] = {}
    for entry in captured["summary"]["classes"][0]["collectives"]:
        name = entry["collective"]
        found[name] = found.get(name, 0) + entry["count"]
        moved[name] = moved.get(name, 0) + entry["comm_bytes"]
    assert found == expected
    if case == "objects":
        assert moved == {"all_reduce": WHOLE}
    if case in ("accumulate", "fsdp1"):
        assert moved["reduce_scatter"] == WHOLE
    flint("check", tmp_path / "t")
