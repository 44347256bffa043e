"""Spoilt cluster files, chains of bases, and ASTRA-sim's network and system files."""

from __future__ import annotations

import json
import random
from pathlib import Path

from benchmarks.bad.case import Case, Special
from benchmarks.bad.spoil import WORDS, spoil_bytes, spoil_json, spoil_text

_OURS = (
    'name = "ours"\ntitle = "t"\nbase = "h100-dgx"\n[chip]\nname = "c"\n[[network]]\nname = "ib"\n'
    'size = 64\n[[network]]\nname = "wan"\nkind = "switch"\nsize = 0\nlatency_ns = { value = 1, '
    'kind = "assumed", source = "s" }\n'
)
_TOML_WORDS = (
    *WORDS,
    *('"switch"', '"torus"', "[1]", "[[]]", "{ value = 1 }", "2020-01-01", "'''", "0x10", "1_000"),
    *('{ value = -1, kind = "assumed", source = "s" }', "[" * 3000, "a." * 3000 + "a = 1"),
)
_PRESETS = Path(__file__).resolve().parents[2] / "flint" / "cluster" / "presets"


def case(rng: random.Random, number: int, bases: Path) -> Case:
    """A spoilt file of a cluster, asked for and estimated with."""
    workload = (bases / "small.flint").read_bytes()
    files: dict[str, bytes | Special] = {"w.flint": workload}
    if rng.random() < 0.45:
        change, name = _astrasim(rng, bases, files)
    else:
        change, name = _toml(rng, files)
    commands = (
        ("clusters", "show", name),
        ("estimate", "w.flint", "-c", name, "--unpriced", "zero", "--json"),
    )
    return Case("clusters", number, change, files, commands)


def _astrasim(
    rng: random.Random, bases: Path, files: dict[str, bytes | Special]
) -> tuple[str, str]:
    network = (bases / "plain" / "network.yml").read_bytes()
    system = (bases / "plain" / "system.json").read_bytes()
    files.update({"network.yml": network, "system.json": system})
    name = rng.choice(("network.yml", "system.json"))
    data = network if name == "network.yml" else system
    action = rng.random()
    if action < 0.25:
        change, files[name] = spoil_bytes(rng, data)
    elif name == "system.json":
        change, files[name] = spoil_json(rng, json.loads(data))
    else:
        change, text = spoil_text(rng, data.decode())
        files[name] = text.encode("utf-8", "surrogatepass")
    return f"{name}: {change}", "network.yml"


def _toml(rng: random.Random, files: dict[str, bytes | Special]) -> tuple[str, str]:
    presets = [p.read_text("utf-8") for p in sorted(_PRESETS.glob("*.toml"))]
    text = rng.choice((_OURS, rng.choice(presets)))
    action = rng.random()
    if action < 0.15:
        change, files["ours.toml"] = spoil_bytes(rng, text.encode())
    elif action < 0.25:
        change = _chain(rng, files)
    else:
        change, spoilt = spoil_text(rng, text, words=_TOML_WORDS)
        files["ours.toml"] = spoilt.encode("utf-8", "surrogatepass")
    return f"toml: {change}", "ours.toml"


def _chain(rng: random.Random, files: dict[str, bytes | Special]) -> str:
    """Files that are each the base of another: many, in a circle, or of no name that there is."""
    count = rng.choice((2, 15, 16, 17, 300))
    end = rng.choice(("h100-dgx", "ours.toml", "none.toml", "x" * 300 + ".toml", "\x00.toml", ""))
    for i in range(count):
        base = f"c{i + 1}.toml" if i < count - 1 else end
        name = "ours.toml" if i == 0 else f"c{i}.toml"
        text = f"name = 'c{i}'\ntitle = 't'\nbase = {json.dumps(base)}\n"
        files[name] = text.encode()
    return f"chain of {count} to {end[:12]!r}"
