"""What a cluster file has from its base although its chip or fabric is another one, said as such.

A fitted constant is of the chip and of the fabric that it was fitted on. A file that changes either
and keeps the base's constants only assumes them: their kind becomes `assumed`, and their source
begins with whose they are, "as H100-SXM5-80GB: ...".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: Keys of a chip that do not make it another one.
SAME_CHIP = ("memory_bytes", "host_link_bytes_per_s", "variation", "measured_kernels")
#: Tables of a family of chips that hold constants.
_CONSTANTS = ("constants", "libraries", "uses", "like")
#: Keys of a tier that make it another fabric.
FABRIC = ("kind", "bandwidth_bytes_per_s")
#: How the source of a constant begins that is another chip's or fabric's.
LENT = re.compile("as (?:on |of |fitted for )?([^:,]+?)[,:] ")


def lent(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """The document `base` as the file `own`, which is on top of it, may have it.

    `base` has been checked, `own` may hold anything.
    """
    found, name = dict(base), str(base.get("name", ""))
    if _is_another_chip(base["chip"], own.get("chip")):
        found["chip"] = _lent_chip(base["chip"])
    tiers = own.get("network")
    if isinstance(tiers, list):
        changed = {
            t["name"]: t for t in tiers if isinstance(t, dict) and isinstance(t.get("name"), str)
        }
        found["network"] = [
            _lent_tier(tier, name) if _is_another_fabric(tier, changed.get(tier["name"])) else tier
            for tier in base["network"]
        ]
    return found


def lenders(constants: Mapping[str, Any]) -> dict[str, int]:
    """Whose constants some are that are not a chip's or fabric's own, and how many of them.

    `constants` are quantities by name.
    """
    found: dict[str, int] = {}
    for quantity in constants.values():
        if match := LENT.match(quantity.source):
            found[match[1]] = found.get(match[1], 0) + 1
    return found


def _is_another_chip(base: Mapping[str, Any], own: Any) -> bool:
    if not isinstance(own, dict):
        return False
    for key, value in own.items():
        before = base.get(key)
        if key in SAME_CHIP:
            continue
        if isinstance(value, dict) and "value" not in value and isinstance(before, dict):
            said = [k for k in value if k not in _CONSTANTS]
            if any(_plain(value[k]) != _plain(before.get(k)) for k in said):
                return True
        elif _plain(value) != _plain(before):
            return True
    return False


def _is_another_fabric(base: Mapping[str, Any], own: Any) -> bool:
    return own is not None and any(
        key in own and _plain(own[key]) != _plain(base.get(key)) for key in FABRIC
    )


def _plain(value: Any) -> Any:
    """A number without its kind and source."""
    return value.get("value") if isinstance(value, dict) and "value" in value else value


def _lent_chip(chip: Mapping[str, Any]) -> dict[str, Any]:
    found, name = dict(chip), str(chip["name"])
    found.pop("measured_kernels", None)  # times of exact shapes are no other chip's
    for key, table in chip.items():
        if not isinstance(table, dict):
            continue
        changed = dict(table)
        if "constants" in table:
            changed["constants"] = _assumed(table["constants"], name)
        if "libraries" in table:
            changed["libraries"] = {n: _assumed(t, name) for n, t in table["libraries"].items()}
        found[key] = changed
    return found


def _lent_tier(tier: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Nothing of it was measured on this fabric."""
    found = dict(tier)
    if "constants" in tier:
        found["constants"] = _assumed(tier["constants"], f"{tier['name']} of {name}")
    if "measured_members" in tier:
        found["measured_members"] = 1
    return found


def lent_source(source: str, name: str) -> str:
    """The source of a constant that is taken from `name`; whoever lent it first stays."""
    return source if LENT.match(source) else f"as {name}: {source}"


def _assumed(constants: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {
        key: {
            "value": number["value"],
            "kind": "assumed",
            "source": lent_source(number["source"], name),
        }
        for key, number in constants.items()
    }
