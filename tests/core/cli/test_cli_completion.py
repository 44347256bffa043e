"""What shells are offered when somebody presses the tab key."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from flint.cluster.load import preset_names


def asked(**variables: str) -> str:
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, **variables}
    command = [sys.executable, "-m", "flint"]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=environment
    ).stdout


@pytest.mark.parametrize(
    ("line", "candidates"),
    [
        ("flint est", ["estimate"]),
        ("flint clusters s", ["show", "stacks"]),
        ("flint estimate trace --ov", ["--overlap"]),
        ("flint capture m.py -c h", [n for n in preset_names() if n.startswith("h")]),
        ("flint capture m.py --profile xla-g", ["xla-gpu", "xla-gpu+flash"]),
        ("flint capture m.py --schedule zb", ["zb-h1", "zb-v"]),
    ],
)
def test_bash_is_offered(line: str, candidates: list[str]) -> None:
    words = str(len(line.split()) - 1)
    shown = asked(_FLINT_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=words)
    assert shown.split() == candidates


def test_the_script_for_a_shell_asks_flint() -> None:
    assert "complete -o default -F _flint_completion flint" in asked(_FLINT_COMPLETE="source_bash")
