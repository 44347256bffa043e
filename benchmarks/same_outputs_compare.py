"""What differs between two recordings of `same_outputs.py`, a paragraph for each reason.

Outputs are compared by what they hold: JSON by its paths, traces and timelines by the fields of
their messages, all else by lines. Outputs of the same form whose first difference is in the same
place (numbers of rows, ranks and lines left out) are one paragraph.
"""

from __future__ import annotations

import difflib
import json
import re
import struct
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.same_outputs import INDEX, contents

#: Of one output, so that one whose rows all moved does not take minutes.
MOST_DIFFERENCES = 2000
SHOWN_OUTPUTS, SHOWN_PLACES, SHOWN_CHARACTERS = 3, 8, 160
#: Older recordings lack what newer versions add to a workload: no difference there.
GROWS = "workload.json"
ABSENT = object()


class Difference(NamedTuple):
    """A place in an output, without numbers that count, and what is there in both."""

    where: str
    exact: str
    before: object
    after: object


#: Lines of an output above which lines that are everywhere are not aligned: it takes minutes.
LONG = 2000


@dataclass(frozen=True)
class Allowed:
    """An entry of the allow file, and what it has allowed."""

    outputs: str
    reason: str
    where: str = "*"
    used: list[str] = field(default_factory=list)

    def covers(self, name: str, difference: Difference) -> bool:
        """Whether this entry says why `difference` of output `name` is there."""
        return _like(self.outputs, name) and _like(self.where, difference.where)


def compare(before: Path, after: Path, allow: Path) -> int:
    """Print how recordings differ; returns 1 if some difference is not allowed, else 0."""
    allowed = read_allowed(allow)
    names, differing = _differing(before, after)
    old, new = (_read(place, differing) for place in (before, after))
    groups: dict[tuple[str, str], list[tuple[str, list[Difference]]]] = defaultdict(list)
    grown: Counter[str] = Counter()
    for name in differing:
        if whole := [a for a in allowed if a.where == "*" and _like(a.outputs, name)]:
            whole[0].used.append(name)  # nothing is left to be found
            continue
        found = differences(name, old.get(name), new.get(name), grown)
        left = [d for d in found if not _excused(name, d, allowed)]
        for i in {i for d in found for i, a in enumerate(allowed) if a.covers(name, d)}:
            allowed[i].used.append(name)
        if left:
            groups[_form(name), left[0].where].append((name, left))
    _print_groups(groups)
    _print_notes(allowed, names, grown)
    count = sum(map(len, groups.values()))
    print(f"{len(names)} outputs compared, {count} differ and are not allowed to")
    return int(count > 0)


def read_allowed(path: Path) -> list[Allowed]:
    """Entries of the allow file; none if there is no file."""
    if not path.is_file():
        return []
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return [Allowed(**entry) for entry in document.get("allow", [])]


def _differing(before: Path, after: Path) -> tuple[list[str], list[str]]:
    """Names of outputs of the cases that both recordings hold, and of those that differ."""
    hashes = [json.loads((p / INDEX).read_text(encoding="utf-8")) for p in (before, after)]
    for place, document in zip((before, after), hashes, strict=True):
        print(f"{place}: Flint {document['commit']}, {len(document['outputs'])} outputs")
    old, new = (document["outputs"] for document in hashes)
    cases = [{_case(name) for name in each} for each in (old, new)]
    if alone := sorted(cases[0] ^ cases[1]):
        listed = ", ".join(alone[:SHOWN_PLACES]) + ", ..." * (len(alone) > SHOWN_PLACES)
        print(f"{len(alone)} cases are in one recording only and not compared: {listed}")
    names = sorted(n for n in {*old, *new} if _case(n) in cases[0] & cases[1])
    return names, [n for n in names if old.get(n) != new.get(n)]


def _case(name: str) -> str:
    return name.partition("/")[0]


def _form(name: str) -> str:
    """The kind of output, `estimate/*.json`: its name without case, rank and configuration."""
    _, *middle, last = name.split("/")
    if last.startswith("trace."):
        last = "trace.*.et"
    elif middle in (["traces"], ["clusters"]) or middle[:1] in (["estimate"], ["export"]):
        last = f"*.{last.rpartition('.')[2]}"
    return "/".join([*middle[:1], *("*" for _ in middle[1:]), last])


def _read(place: Path, names: Sequence[str]) -> dict[str, bytes]:
    wanted = set(names)
    return {name: data for name, data in contents(place) if name in wanted}


def _excused(name: str, difference: Difference, allowed: Sequence[Allowed]) -> bool:
    return any(entry.covers(name, difference) for entry in allowed)


def _like(pattern: str, text: str) -> bool:
    """Whether text matches a pattern whose only special character is *."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), text, re.DOTALL) is not None


# Differences of an output ------------------------------------------------------------------------


def differences(
    name: str, before: bytes | None, after: bytes | None, grown: Counter[str]
) -> list[Difference]:
    """In the order of the output, at most MOST_DIFFERENCES. Counts what is new in `grown`."""
    if before is None or after is None:
        where = "(only after)" if before is None else "(only before)"
        return [Difference(where, where, _start(before), _start(after))]
    old, new = readable(name, before), readable(name, after)
    if isinstance(old, str) or isinstance(new, str):
        found = _of_lines(before.decode(errors="replace"), after.decode(errors="replace"))
    else:
        news = grown if name.endswith(f"/{GROWS}") else None
        found = _of_values(old, new, (), news)
    listed = list(islice(found, MOST_DIFFERENCES))
    if not listed and not name.endswith(f"/{GROWS}"):
        where = "(order of keys, blanks or spelling of numbers)"
        return [Difference(where, where, f"{len(before)} bytes", f"{len(after)} bytes")]
    return listed


def _start(data: bytes | None) -> str:
    return "nothing" if data is None else data[:SHOWN_CHARACTERS].decode(errors="replace")


def readable(name: str, data: bytes) -> Any:
    """JSON and messages as plain values; all else as text."""
    if name.endswith(".et"):
        return [message(m, NODE) for m in _delimited(data)]
    if name.endswith(".pftrace"):
        return message(data, {})
    text = data.decode(errors="replace")
    if name.endswith(".json"):
        try:
            return json.loads(text)
        except ValueError:
            return text  # it says why there is no JSON
    return text


def _of_values(
    old: Any, new: Any, path: tuple[str | int, ...], grown: Counter[str] | None
) -> Iterator[Difference]:
    """Places in which two JSON values differ, depth first; lengths of lists before their items."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted({**old, **new}, key=lambda k: k == "text"):  # made of the numbers: last
            if key not in old and grown is not None:
                grown[_where((*path, key))] += 1
                continue
            there = old.get(key, ABSENT), new.get(key, ABSENT)
            yield from _of_values(*there, (*path, key), grown)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield Difference(f"{_where(path)}.length", f"{_exact(path)}.length", len(old), len(new))
        for i, pair in enumerate(zip(old, new, strict=False)):
            yield from _of_values(*pair, (*path, i), grown)
    elif old is not new and (type(old) is not type(new) or old != new):
        where, exact = _where(path), _exact(path)
        if isinstance(old, str) and isinstance(new, str):
            where = f"{where}: {_without_numbers(old)}" if path[:1] == ("text",) else where
        yield Difference(where, exact, old, new)


def _where(path: Sequence[str | int]) -> str:
    return ".".join("*" if isinstance(p, int) else p for p in path) or "(all)"


def _exact(path: Sequence[str | int]) -> str:
    return ".".join(map(str, path)) or "(all)"


def _of_lines(old: str, new: str) -> Iterator[Difference]:
    """Lines that differ, with the line that stands in their place."""
    lines = old.split("\n"), new.split("\n")
    long = max(map(len, lines)) > LONG
    matcher = difflib.SequenceMatcher(None, *lines, autojunk=long)
    quick = len(lines[0]) == len(lines[1])
    spans = [(0, len(lines[0]), 0, len(lines[1]))] if quick else _changed(matcher)
    for a, b, c, d in spans:
        for i in range(max(b - a, d - c)):
            before = lines[0][a + i] if a + i < b else "(no line)"
            after = lines[1][c + i] if c + i < d else "(no line)"
            if before != after:
                shape = _without_numbers(before if a + i < b else after)
                yield Difference(f"line: {shape}", f"line {a + i + 1}", before, after)


def _changed(matcher: difflib.SequenceMatcher[str]) -> Iterator[tuple[int, int, int, int]]:
    return ((a, b, c, d) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal")


def _without_numbers(line: str) -> str:
    """A line of a table or a report without what it counts: units scale, so they go too."""
    words = [w for w in line.split() if not re.search(r"\d|^[kKMGTP]?i?B$|^[num]?s$", w)]
    return " ".join(words)[:SHOWN_CHARACTERS]


# Messages ----------------------------------------------------------------------------------------

#: Fields of a node of a Chakra trace: mlcommons/chakra, schema/protobuf/et_def.proto.
NODE = {1: "id", 2: "name", 3: "type", 4: "ctrl_deps", 5: "data_deps", 6: "start_time_micros"} | {
    7: "duration_micros",
    8: "inputs",
    9: "outputs",
    10: "attr",
}
PACKED = ("ctrl_deps", "data_deps")


def _delimited(data: bytes) -> Iterator[bytes]:
    """Messages of a file, each after its length."""
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        yield data[at : at + size]
        at += size


def message(data: bytes, names: Mapping[int, str]) -> dict[str, Any]:
    """A message of protocol buffers by field; raises ValueError for what is none."""
    found: dict[str, Any] = {}
    for number, value in _fields(data):
        name = names.get(number, str(number))
        shown = _value(value, packed=name in PACKED)
        key = shown.get("1") if name == "attr" and isinstance(shown, dict) else None
        if key is not None:
            found.setdefault("attr", {})[key] = {k: v for k, v in shown.items() if k != "1"}
        else:
            found.setdefault(name, []).append(shown)
    return {k: v[0] if isinstance(v, list) and len(v) == 1 else v for k, v in found.items()}


def _fields(data: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if number == 0 or kind not in (0, 1, 2, 5):
            raise ValueError("no message")
        if kind == 0:
            value, at = _varint(data, at)
            yield number, value
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
        content = data[at : at + size]
        at += size
        if len(content) < size:
            raise ValueError("no message")
        yield (
            number,
            content if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", content)[0],
        )


def _value(value: float | bytes, *, packed: bool) -> Any:
    """Bytes as numbers, as text if it is printable, as a message if they are one, else in hex."""
    if not isinstance(value, bytes):
        return value
    if packed:
        return list(_varints(value))
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable():
        return text
    try:
        return message(value, {})
    except ValueError:
        return value.hex()


def _varints(data: bytes) -> Iterator[int]:
    at = 0
    while at < len(data):
        value, at = _varint(data, at)
        yield value


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
    raise ValueError("no message")


# Paragraphs --------------------------------------------------------------------------------------


def _print_groups(groups: Mapping[tuple[str, str], list[tuple[str, list[Difference]]]]) -> None:
    for (form, where), members in sorted(groups.items(), key=lambda g: -len(g[1])):
        print(f"\n{form}: {len(members)} outputs of {_cases(members)} differ first at {where}")
        for name, found in members[:SHOWN_OUTPUTS]:
            first = found[0]
            print(f"  {name}  {first.exact}")
            print(f"    - {_shown(first.before)}\n    + {_shown(first.after)}")
        if len(members) > SHOWN_OUTPUTS:
            print(f"  and {len(members) - SHOWN_OUTPUTS} more")
        if ratios := _ratios(members):
            print(f"  after / before there: {min(ratios):.9g} to {max(ratios):.9g}")
        _print_others(where, members)
    if groups:
        print()


def _cases(members: Sequence[tuple[str, list[Difference]]]) -> str:
    cases = sorted({_case(name) for name, _ in members})
    return f"{len(cases)} cases" if len(cases) > SHOWN_OUTPUTS else ", ".join(cases)


def _shown(value: object) -> str:
    text = "(absent)" if value is ABSENT else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def _ratios(members: Sequence[tuple[str, list[Difference]]]) -> list[float]:
    pairs = [(found[0].before, found[0].after) for _, found in members]
    return [
        b / a for a, b in pairs if isinstance(a, int | float) and isinstance(b, int | float) and a
    ]


def _print_others(where: str, members: Sequence[tuple[str, list[Difference]]]) -> None:
    """Other places in which outputs of a paragraph differ."""
    places = Counter(
        w for _, found in members for w in dict.fromkeys(d.where for d in found) if w != where
    )
    for place, count in places.most_common(SHOWN_PLACES):
        print(f"  also in {count}: {place}")
    if len(places) > SHOWN_PLACES:
        print(f"  and in {len(places) - SHOWN_PLACES} more places")


def _print_notes(
    allowed: Sequence[Allowed], names: Sequence[str], grown: Mapping[str, int]
) -> None:
    for entry in allowed:
        at = f"{entry.outputs}, {entry.where}"
        if entry.used:
            print(f"allowed  {len(set(entry.used))} outputs, {at}: {entry.reason}")
        elif any(_like(entry.outputs, name) for name in names):
            print(f"stale    nothing differs at {at} ({entry.reason}): take the entry out")
        else:
            print(f"stale    no output compared is named {entry.outputs} ({entry.reason})")
    for place, count in grown.items():
        print(f"new in {count} workloads, no difference: {place}")
