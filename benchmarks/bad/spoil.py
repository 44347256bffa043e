"""Ways to spoil bytes, JSON documents and text: each says what it did."""

from __future__ import annotations

import copy
import gzip
import json
import random
import re
from collections.abc import Callable
from typing import Any

from benchmarks.bad.case import Special

#: Texts that are written where numbers or names were.
WORDS = (
    *("0", "-1", "1", "2", "7", "1.5", "-0.0", "nan", "NaN", "inf", "-inf", "1e308", "1e-308"),
    *(str(2**31), str(2**63 - 1), str(2**63), str(2**64), "1" + "0" * 12, "9" * 400, "9" * 5000),
    *("", " ", "x", "main", "true", "[]", "{}", "\x1b[31mred\x1b[0m", "\x9b2J", "é", "\u202e"),
    *("x" * 300, "a/b", "../..", "a\nb", "a\tb", '"', "'", "\\", "%s", "{0}", "[/red]", "<&>"),
)
#: Values that are put into JSON documents, some of which Python alone writes.
VALUES: tuple[Any, ...] = (
    *(0, -1, 1, 2, 7, 1.5, -1e308, 1e308, float("nan"), float("inf")),
    *(2**31, 2**63 - 1, 2**63, 2**64, 10**12, 10**400, -(2**63), True, False, None),
    *(
        "",
        "x",
        "9",
        "\x1b[31m",
        "\ud800",
        "\x00",
        "x" * 300,
        [],
        [[]],
        [-1],
        [0, 0],
        ["x"],
        {},
        {"a": 1},
    ),
)


def spoil_bytes(rng: random.Random, data: bytes) -> tuple[str, bytes | Special]:
    """One change of bytes, or something else in the file's place."""
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 2, 8, 64)))
    flipped = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 20))):
        if flipped:
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    changes: tuple[tuple[str, Callable[[], bytes | Special]], ...] = (
        ("bits", lambda: bytes(flipped)),
        ("bits", lambda: bytes(flipped)),
        ("truncate", lambda: data[:at]),
        ("remove", lambda: data[:at] + data[end:]),
        ("double", lambda: data[:end] + data[at:]),
        ("overwrite", lambda: data[:at] + b"\xff" * (end - at) + data[end:]),
        ("zeros", lambda: data[:at] + bytes(end - at) + data[end:]),
        ("insert", lambda: data[:at] + rng.randbytes(rng.choice((1, 5, 40))) + data[at:]),
        ("text", lambda: data[:at] + rng.choice(WORDS).encode() + data[end:]),
        ("empty", lambda: rng.choice((b"", b"\n", b"\0" * 100))),
        ("twice", lambda: data + data),
        ("gzip", lambda: gzip.compress(data, mtime=0)),
        ("special", lambda: rng.choice(list(Special))),
    )
    name, change = rng.choice(changes)
    return name, change()


def spoil_json(rng: random.Random, document: Any) -> tuple[str, bytes]:
    """One to three changes of a JSON document, as text."""
    changed = copy.deepcopy(document)
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        done.append(_spoil_one(rng, changed))
    if rng.random() < 0.02:
        changed = json.loads("[" * 300 + "]" * 300)
        done.append("deep")
    text = json.dumps(changed)
    if rng.random() < 0.02:
        text = "[" * 100_000
    return "json " + ", ".join(done), text.encode("utf-8", "surrogatepass")


def _spoil_one(rng: random.Random, document: Any) -> str:
    holder, key, path = document, None, []
    inside = document
    while isinstance(inside, dict | list) and inside and (not path or rng.random() < 0.85):
        holder = inside
        key = rng.choice(list(inside)) if isinstance(inside, dict) else rng.randrange(len(inside))
        path.append(str(key) if isinstance(inside, dict) else "[]")
        inside = inside[key]
    if key is None:
        return "nothing"
    action = rng.choice(("value", "value", "value", "near", "remove", "add", "swap", "double"))
    where = ".".join(path)
    if action == "near" and isinstance(inside, int):
        holder[key] = inside + rng.choice((-1, 1, -inside - 1, 10))
    elif action == "remove":
        del holder[key]
    elif action == "add" and isinstance(holder, dict):
        holder[rng.choice(("x", "", "\x1b[31m", "schema"))] = rng.choice(VALUES)
    elif action == "double" and isinstance(holder, list):
        holder.insert(key, copy.deepcopy(inside))
    elif action == "swap" and isinstance(holder, list):
        holder.reverse()
    else:
        action, holder[key] = "value", copy.deepcopy(rng.choice(VALUES))
    return f"{action} {where}"


def spoil_text(rng: random.Random, text: str, *, words: tuple[str, ...] = WORDS) -> tuple[str, str]:
    """One to three changes of lines and words of a text."""
    done = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        name, text = _spoil_words(rng, text, words)
        done.append(name)
    return "text " + ", ".join(done), text


def _spoil_words(rng: random.Random, text: str, words: tuple[str, ...]) -> tuple[str, str]:
    lines = text.splitlines() or [""]
    at = rng.randrange(len(lines))
    action = rng.choice(("number", "number", "word", "word", "quoted", "remove", "double", "move"))
    if action in ("number", "word", "quoted"):
        pattern = {"number": r"-?\d+(?:\.\d+)?(?:[eE]-?\d+)?", "word": r"[A-Za-z_][\w.-]*"}
        found = list(re.finditer(pattern.get(action, r'"[^"\n]*"|\'[^\'\n]*\''), text))
        if found:
            hit = rng.choice(found)
            new = rng.choice(words)
            new = f'"{new}"' if action == "quoted" else new
            if action == "word" and rng.random() < 0.5:
                new = rng.choice(found)[0]
            return action, text[: hit.start()] + new + text[hit.end() :]
    if action == "remove" and len(lines) > 1:
        del lines[at]
    elif action == "move":
        lines.insert(rng.randrange(len(lines)), lines.pop(at))
    else:
        action = "double"
        lines.insert(at, lines[at])
    return action, "\n".join(lines) + "\n"
