"""What the evaluation reads of a workload, real or made: all but its step time is measured together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.sharing.evaluation.corpus import largest_program
from benchmarks.sharing.evaluation.measuring.attributes import ATTRIBUTES, attributes_of
from benchmarks.sharing.evaluation.measuring.cache import Arrays, Cache, digest_of
from benchmarks.sharing.evaluation.measuring.neighbours import body_hashes, neighbour_hashes
from benchmarks.sharing.evaluation.measuring.step_time import has_label, log_step_time
from benchmarks.sharing.evaluation.measuring.structure import structure_bytes
from benchmarks.sharing.evaluation.measuring.totals import totals_of
from flint.ir.arrays import Float64s
from flint.ir.mesh import Mesh
from flint.ir.program import Phase
from flint.ir.workload import Workload
from flint.tools.share.conditions import Conditions, conditions_of
from flint.tools.share.leaks.fingerprints import COUNTED, View, fingerprint_of
from flint.tools.share.rules import broken_rules

UInt64s = np.ndarray
#: Views of which hashes are compared.
HASHED = (View.TOPOLOGY, View.OPS, View.ALL)


@dataclass(frozen=True, eq=False)
class Measured:
    """Of the program with most FLOPs: `hashes` and `counts` by view, `bodies` and `neighbours` by
    hash, `structure` as bytes, `totals` as a vector. `broken` are names of rules, and `verify`.
    """

    digest: str
    attributes: Mapping[str, Float64s]
    hashes: Mapping[View, int]
    counts: Mapping[View, np.ndarray]
    bodies: UInt64s
    neighbours: UInt64s
    structure: bytes
    totals: Float64s
    broken: tuple[str, ...]

    @property
    def is_valid(self) -> bool:
        """Whether it verifies and keeps all strict rules."""
        return not self.broken


def measure(workload: Workload, cache: Cache) -> Measured:
    """Measure a workload, or find what was measured of an equal one."""
    digest = digest_of(workload)
    return _from_arrays(digest, cache.get("measured", digest, lambda: _arrays(workload)))


def step_time(workload: Workload, digest: str, cache: Cache) -> float:
    """The natural logarithm of the seconds of a step; nan where there is no estimate."""
    if not has_label(workload):
        return float("nan")
    found = cache.get("time", digest, lambda: {"log": log_step_time(_bare(workload))})
    return float(found["log"])


def conditions(workload: Workload, cache: Cache) -> Conditions:
    """The totals of a workload."""
    digest = digest_of(workload)
    found = cache.get(
        "conditions", digest, lambda: {"json": json.dumps(conditions_of(_bare(workload)).to_json())}
    )
    return _conditions(json.loads(str(found["json"])))


def _bare(workload: Workload) -> Workload:
    """The same without what it keeps of estimates: those of all captures do not fit into memory."""
    return Workload(workload.mesh, workload.programs, workload.classes, workload.metadata)


def _conditions(told: dict[str, Any]) -> Conditions:
    return Conditions(
        mesh=Mesh.parse(told["mesh"]),
        flops=told["flops"],
        axis_bytes=told["axis_bytes"],
        depth=told["layers"],
        phases={Phase[name.upper()]: share for name, share in told["phases"].items()},
        memory_bytes=told["memory_bytes"],
        rows=told["rows"],
    )


def broken_names(workload: Workload) -> Counter[str]:
    """How many rows break each rule; `verify` where invariants of programs do not hold."""
    try:
        workload.verify()
    except AssertionError:
        return Counter({"verify": 1})
    return Counter(b.rule for b in broken_rules(workload))


def _arrays(workload: Workload) -> Mapping[str, Any]:
    program = largest_program(workload)
    print_ = fingerprint_of(program)
    return {
        **attributes_of(program),
        "hashes": np.array([print_.hashes[v] for v in HASHED], dtype=np.uint64),
        "counts": np.stack([print_.histograms[v] for v in COUNTED]),
        "bodies": body_hashes(program),
        "neighbours": neighbour_hashes(program),
        "structure": np.frombuffer(structure_bytes(program), dtype=np.uint8),
        "totals": totals_of(program),
        "broken": np.array(sorted(broken_names(workload)), dtype=np.str_),
    }


def _from_arrays(digest: str, found: Arrays) -> Measured:
    return Measured(
        digest,
        {a.name: found[a.name] for a in ATTRIBUTES},
        dict(zip(HASHED, found["hashes"].tolist(), strict=True)),
        dict(zip(COUNTED, found["counts"], strict=True)),
        found["bodies"],
        found["neighbours"],
        found["structure"].tobytes(),
        found["totals"],
        tuple(found["broken"].tolist()),
    )
