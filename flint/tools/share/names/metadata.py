"""What of a workload's metadata stays: facts that estimates read, without what identifies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flint.cluster.devices import neutral_device
from flint.ir.stood_in import StoodIn
from flint.tools.share.leaks.vocabulary import is_public_value

#: Texts that stay where they are of the public vocabulary: how Flint made the workload.
_TEXTS = ("partitioner", "granularity", "profile")
#: Of a pipeline: its numbers. What stages are called is not among them.
_OF_PIPELINE = ("schedule", "microbatches", "chunks")
_OF_STAGE = ("stage", "in_flight", "saved_bytes_per_microbatch")


def neutral_metadata(metadata: Mapping[str, Any], axes: Mapping[str, str]) -> dict[str, Any]:
    """Metadata by a list of what may stay; anything else is dropped.

    `axes` are new names of mesh axes.
    """
    found: dict[str, Any] = {"producer": "flint", "name": "workload 0"}
    found |= {k: metadata[k] for k in _TEXTS if is_public_value(str(metadata.get(k) or "?"))}
    if metadata.get("pipeline"):
        found["pipeline"] = _pipeline(metadata["pipeline"], axes)
    if metadata.get("pools"):
        pools = metadata["pools"]
        found["pools"] = {"axis": axes[pools["axis"]]} | {
            k: [int(n) for n in pools[k]] for k in ("prefill", "decode")
        }
    if metadata.get("compiler"):
        found["compiler"] = _compiler(metadata["compiler"])
    stack = StoodIn.from_json(metadata.get("stood_in") or {}).stack
    if stack and is_public_value(stack):
        found["stood_in"] = StoodIn(stack=stack).to_json()
    if metadata.get("measured"):
        measured = metadata["measured"]
        found["measured"] = {**measured, "device": neutral_device(str(measured["device"]))}
    return found


def _pipeline(about: Mapping[str, Any], axes: Mapping[str, str]) -> dict[str, Any]:
    found = {k: about[k] for k in _OF_PIPELINE if k in about and is_public_value(str(about[k]))}
    found["axis"] = axes.get(str(about.get("axis")), "")
    positions = about.get("positions") or []
    return {**found, "positions": [[_stage(stage) for stage in p] for p in positions]}


def _stage(about: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of a stage, and a label that is its number."""
    numbers = {k: int(about[k]) for k in _OF_STAGE if k in about}
    return {**numbers, "label": f"stage{numbers.get('stage', 0)}"}


def _compiler(about: Mapping[str, Any]) -> dict[str, Any]:
    """Compiler, chip and memory; the version and the topology name an installation."""
    public = {k: about[k] for k in ("name", "chip") if is_public_value(str(about[k]))}
    return {
        "name": "",
        "chip": "",
        **public,
        "version": "",
        "topology": "",
        "memory": about.get("memory"),
    }
