"""ASTRA-sim's network.yml and system.json, read as a cluster."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from flint.cluster.astrasim.system import SystemFile, wrong_setting
from flint.cluster.models import (
    UNKNOWN_MEMORY_BYTES,
    Chip,
    Cluster,
    Network,
    NetworkKind,
    Quantity,
    SourceKind,
)
from flint.errors import FlintError, Malformed, nearest
from flint.io.bounded import FileKind, parse_json, read_bounded
from flint.ir.mesh import MOST_DEVICES

#: ASTRA-sim's GB in bandwidths.
GB = 2**30
_SYSTEM = "a chip needs peak-perf (TFLOP/s) and local-mem-bw (GB/s), greater than 0"
_FILES = "give ASTRA-sim's network file; its system.json is read beside it"
TOPOLOGIES = {
    "Ring": NetworkKind.RING,
    "Switch": NetworkKind.SWITCH,
    "FullyConnected": NetworkKind.MESH,
}
_KEYS = ("topology", "npus_count", "bandwidth", "latency")
_START = re.compile(r"(?P<key>[\w-]+)\s*:(?:\s+|$)(?P<rest>.*)")
_FLOW = re.compile(r"\[(?P<items>[^\[\]]*?),?\s*\]")
_BLOCK = re.compile(r"- +(?P<item>\S+)")
#: Its roofline has one peak for all element types.
_DTYPES = ("bf16", "f16", "f32", "f64", "tf32", "f8E4M3FN", "f8E5M2", "i8")


def read_astrasim(network: Path, system: Path | None = None, chip: Chip | None = None) -> Cluster:
    """The cluster that ASTRA-sim's files describe: a tier for each dimension, inner first.

    The chip is `chip`, or the roofline of `system`, for all element types and without a limit of
    memory. Raises FlintError FL706 for a file that cannot be read.
    """
    with _possible(network):
        networks = _networks(network)
    if chip is None:
        if system is None:
            raise FlintError(
                "FL706",
                f"{network} does not describe the chip",
                help="give ASTRA-sim's system.json too, or a chip",
            )
        with _possible(system):
            chip = _chip(system)
    with _possible(network):
        return Cluster(
            name=network.stem,
            title=f"read from {network.name}",
            chip=chip,
            network=networks,
            derate=_assumed(1.0, "not in ASTRA-sim's files"),
        )


@contextmanager
def _possible(path: Path) -> Iterator[None]:
    """Turn what the models of a cluster refuse into FlintError FL706."""
    try:
        yield
    except ValidationError as error:
        found = error.errors()[0]
        reason = found["msg"].removeprefix("Value error, ").removeprefix("Input ")
        raise FlintError(
            "FL706",
            f"{path.name} does not describe a system: {found['loc'][-1] if found['loc'] else ''} {reason}",
            place=str(path),
            help="see its units: GB/s, ns and TFLOP/s",
        ) from error


def _networks(path: Path) -> tuple[Network, ...]:
    rows = read_network(path)
    networks: list[Network] = []
    chips = 1
    for i, (topology, count, bandwidth, latency) in enumerate(
        zip(*(rows[key] for key in _KEYS), strict=True)
    ):
        kind = TOPOLOGIES[topology]
        chips *= count
        links = {NetworkKind.RING: 2, NetworkKind.MESH: count - 1}.get(kind, 1)
        hops = 2 if kind is NetworkKind.SWITCH else 1
        networks.append(
            Network(
                name=f"dim{i}",
                kind=kind,
                size=chips,
                links=links,
                bandwidth_bytes_per_s=_assumed(bandwidth * links * GB, path.name),
                latency_ns=_assumed(latency * hops, path.name),
            )
        )
    return tuple(networks)


def _assumed(value: float, source: str) -> Quantity:
    return Quantity(value=value, kind=SourceKind.ASSUMED, source=source)


def _chip(path: Path) -> Chip:
    system = read_system(path)
    peak = _assumed(system.peak_perf * 1e12, f"{path.name}: peak-perf")
    return Chip(
        name=f"roofline of {path.name}",
        peak_flops_per_s=dict.fromkeys(_DTYPES, peak),
        memory_bytes=_assumed(
            float(UNKNOWN_MEMORY_BYTES), "ASTRA-sim's files do not state the memory size: no limit"
        ),
        memory_bandwidth_bytes_per_s=_assumed(
            system.local_mem_bw * 1e9, f"{path.name}: local-mem-bw"
        ),
    )


def read_system(path: Path) -> SystemFile:
    """ASTRA-sim's settings. Raises FlintError FL706 for a file that cannot be read."""
    data = read_bounded(path, FileKind.SIMULATOR, "FL706", _FILES)
    try:
        document = parse_json(data)
    except Malformed as error:
        raise FlintError(
            "FL706", f"{path.name} is not JSON: {error}", place=str(path), help=_SYSTEM
        ) from error
    try:
        return SystemFile.model_validate(document)
    except ValidationError as error:
        raise FlintError(
            "FL706", f"{path.name}: {wrong_setting(error)}", place=str(path), help=_SYSTEM
        ) from error


def _text(path: Path) -> str:
    try:
        return read_bounded(path, FileKind.SIMULATOR, "FL706", _FILES).decode("utf-8")
    except ValueError as error:
        raise FlintError("FL706", f"{path} is not text: {error}") from error


def read_network(path: Path) -> dict[str, list[Any]]:
    """The four lists of a network file, checked."""
    rows: dict[str, list[Any]] = {}
    for line, key, value in _entries(path):
        if key not in _KEYS or key in rows:
            wrong = "is given twice" if key in rows else f"is unknown{nearest(key, _KEYS)}"
            _refuse(path, line, f"{key} {wrong}", f"the keys are {', '.join(_KEYS)}")
        items = _items(value)
        if items is None:
            _refuse(
                path, line, f"{key} is not a list", f"write {key}: [ , ], one entry per dimension"
            )
        rows[key] = [_item(path, line, key, i) for i in items]
    missing = [key for key in _KEYS if key not in rows]
    if missing:
        _refuse(path, 0, f"{missing[0]} is missing", f"the keys are {', '.join(_KEYS)}")
    if len({len(row) for row in rows.values()}) > 1:
        _refuse(path, 0, "the lists differ in length", "each has one entry for each dimension")
    return rows


def _entries(path: Path) -> list[tuple[int, str, list[str]]]:
    """Line, key and lines of value of each entry of a YAML mapping, without comments."""
    found: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        content = line.partition("#")[0].strip()
        if not content or content in ("---", "...") or content.startswith("%"):
            continue
        if match := _START.match(content):
            found.append((number, match["key"], [match["rest"]] if match["rest"] else []))
        elif found:
            found[-1][2].append(content)
        else:
            _refuse(path, number, f"'{content}' has no key", f"the keys are {', '.join(_KEYS)}")
    return found


def _items(value: list[str]) -> list[str] | None:
    """What a list holds, in brackets or one item a line; None if it is none."""
    blocks = [_BLOCK.fullmatch(line) for line in value]
    if flow := _FLOW.fullmatch(" ".join(value)):
        items = [i.strip() for i in flow["items"].split(",")]
    elif value and all(blocks):
        items = [b["item"] for b in blocks if b]
    else:
        return None
    return [i.strip("\"'") for i in items]


def _item(path: Path, line: int, key: str, text: str) -> Any:
    """An entry of list `key`. Its limits are those of ASTRA-sim's own reader."""
    if key == "topology":
        if text not in TOPOLOGIES:
            known = ", ".join(TOPOLOGIES)
            _refuse(path, line, f"topology '{text}' is unknown", f"it is one of {known}")
        return text
    try:
        value = int(text) if key == "npus_count" else float(text)
    except ValueError:
        _refuse(path, line, f"{key} '{text[:40]}' is not a number", None)
    if key == "npus_count" and value == 1:
        alone = "ASTRA-sim runs neither a network of one device nor a dimension of one"
        instead = (
            "a step of one device needs no network: flint estimate DIR -c CLUSTER gives its time"
        )
        _refuse(path, line, f"npus_count is 1: {alone}", instead)
    least = {
        "npus_count": 2 <= value <= MOST_DEVICES,
        "bandwidth": value > 0,
        "latency": value >= 0,
    }
    if not least[key] or not math.isfinite(value):
        help_ = (
            f"npus_count is 2 to {MOST_DEVICES:,}, bandwidth greater than 0, latency not negative"
        )
        _refuse(path, line, f"{key} is {text[:40]}", help_)
    return value


def _refuse(path: Path, line: int, wrong: str, help_: str | None) -> NoReturn:
    place = f"{path}:{line}" if line else str(path)
    raise FlintError("FL706", f"{path.name}: {wrong}", place=place, help=help_)
