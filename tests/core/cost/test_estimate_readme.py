"""The estimate that the README shows is what its commands print."""

from __future__ import annotations

import re
from pathlib import Path

from flint.frontends.model_file import Target, importable, load_step
from flint.tracing import trace_step

ROOT = Path(__file__).resolve().parents[3]


def shown() -> str:
    """The block of the README that has a step time."""
    text = (ROOT / "README.md").read_text("utf-8")
    (block,) = re.findall(r"```text\n([^`]*\nstep time [^`]*)```", text)
    return str(block).rstrip()


def test_the_readme_shows_what_is_estimated() -> None:
    target = Target.parse(str(ROOT / "examples" / "llama_jax.py"))
    with importable(target.path.parent):
        loaded = load_step(target, "64x8")
        trace = trace_step(loaded.step, loaded.mesh, name=loaded.name)
    assert str(trace.estimate("h100-dgx")).rstrip() == shown()
