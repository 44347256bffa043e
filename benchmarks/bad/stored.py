"""Spoilt files that Flint keeps: studies, locks, project files, models; what simulators print."""

from __future__ import annotations

import json
import random
from pathlib import Path

from benchmarks.bad.case import Case, Special
from benchmarks.bad.databases import spoil_database
from benchmarks.bad.spoil import WORDS, spoil_bytes, spoil_json, spoil_text

_PROJECT = (Path(__file__).resolve().parents[2] / "examples/flint.toml").read_text("utf-8")
_SAID = "[info] sys[{r}] finished, {e} cycles, exposed communication {x} cycles.\n"


def study(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt study file."""
    change, data = spoil_database(rng, (bases / "study.db").read_bytes())
    commands = (("@study", "s.db"), ("@resumed", "s.db"))
    return Case("studies", number, change, {"s.db": data}, commands)


def lock(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt lock file."""
    data = (bases / "flint.lock").read_bytes()
    spoilt: bytes | Special
    if rng.random() < 0.2:
        change, spoilt = spoil_bytes(rng, data)
    else:
        change, spoilt = spoil_json(rng, json.loads(data))
    commands = (("@lock", "flint.lock"),)
    return Case("locks", number, change, {"flint.lock": spoilt}, commands)


def project(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt project file."""
    spoilt: bytes | Special
    if rng.random() < 0.2:
        change, spoilt = spoil_bytes(rng, _PROJECT.encode())
    else:
        change, text = spoil_text(rng, _PROJECT)
        spoilt = text.encode("utf-8", "surrogatepass")
    return Case("projects", number, change, {"flint.toml": spoilt}, (("@project", "flint.toml"),))


def simulator(rng: random.Random, number: int, bases: Path) -> Case:
    """Lines of a simulator, of which some are spoilt, missing or there twice."""
    lines = [_SAID.format(r=r, e=1000 + r, x=300) for r in range(4)]
    lines += [
        f"[info] sys[{r}], GPU time: {700}\n[info] sys[{r}], Comm time: {500}\n" for r in range(4)
    ]
    numbers = (*WORDS[:14], "9999999", "-7", str(2**62))
    change, text = spoil_text(rng, "".join(lines), words=numbers if rng.random() < 0.8 else WORDS)
    data = text.encode("utf-8", "surrogatepass")
    return Case("simulators", number, change, {"out.txt": data}, (("@simulator", "out.txt"),))
