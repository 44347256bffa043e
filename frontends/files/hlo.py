"""XLA HLO dumps in: text (`.txt`, `.hlo`) and protobuf (`.hlo.pb`), as `--xla_dump_to` writes."""

from __future__ import annotations

import re
from collections.abc import Mapping

from flint.errors import FlintError
from flint.ir.mesh import Mesh
from flint.ir.program import Program
from flint.passes.hlo.module import HloModule, decode_module, malformed
from flint.passes.hlo.walk import module_to_program
from flint.passes.partition.xla import run_xla
from flint.steps.captured import Captured
from flint.steps.trip_counts import TripCounts

#: Custom calls that only a module holds that is not partitioned yet.
_ANNOTATIONS = ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape")
_HEADER_CHARACTERS = 1 << 20


def read_hlo(
    data: bytes,
    mesh: Mesh | None,
    *,
    name: str = "HLO module",
    trip_counts: Mapping[str, int] | None = None,
) -> Program | Captured:
    """A Program from a partitioned HLO module, a Captured from one that is not partitioned yet.

    `data` is HLO text or an HloModuleProto, HloProto or HloSnapshot; `name` names the file in
    errors. Without `mesh` it is the one that the module names, or one axis of as many devices as it
    was compiled for. `trip_counts` gives loops whose bound is not static by name. In a Program
    fusions become one row each, start/done pairs one row that is `Flag.ASYNC`, loops regions.
    Raises FlintError FL303 (no HLO), FL305 (shardings of Shardy beside others), FL101 (no mesh is
    known), FL102 (compiled for other devices), FL403 (unknown trip count) and FL401 (XLA died).
    """
    module = load_hlo(data, name)
    chosen = mesh or _own_mesh(module)
    if is_partitioned(module):
        return module_to_program(module, chosen, trip_counts)
    options = {"donated": sorted(module.donated)}
    counts = TripCounts.of(trip_counts)
    proto, is_gspmd = module.proto.SerializeToString(), False
    try:
        stablehlo = run_xla("import-hlo", options, proto)
    except FlintError as error:
        if error.code != "FL305":
            raise
        stablehlo, is_gspmd = run_xla("import-hlo", {**options, "keep_gspmd": True}, proto), True
    return Captured(stablehlo, chosen, module.proto.name, module.source, counts, is_gspmd=is_gspmd)


def load_hlo(data: bytes, source: str = "HLO module") -> HloModule:
    """Decode HLO text or protobuf. Raises FlintError FL303, and FL401 if XLA dies parsing text."""
    if not data.strip():
        raise malformed(source, "it is empty")
    text = _as_text(data)
    if text is None:
        return decode_module(data, source)
    try:
        module = decode_module(run_xla("parse-hlo", {}, text.encode()), source)
    except FlintError as error:
        if error.code != "FL303":
            raise
        raise malformed(source, error.message) from error
    header = text[text.index("HloModule") :][:_HEADER_CHARACTERS].split("\n", 1)[0]
    return HloModule(
        module.proto,
        source,
        num_replicas=_header_number("replica_count", header),
        num_partitions=_header_number("num_partitions", header),
    )


def is_partitioned(module: HloModule) -> bool:
    """Whether a module is what one device runs, and not a whole program with annotations."""
    for attribute in module.proto.frontend_attributes.map:
        if attribute.key == "xla.sdy.meshes":
            return False
    targets = {i.custom_call_target for c in module.proto.computations for i in c.instructions}
    return not any(t in _ANNOTATIONS or t.startswith("xla.sdy.") for t in targets)


def _own_mesh(module: HloModule) -> Mesh:
    for attribute in module.proto.frontend_attributes.map:
        if attribute.key == "xla.sdy.meshes":
            axes = re.findall(r'"([^"]+)"=(\d+)', attribute.value)
            if axes:
                return Mesh(tuple(n for n, _ in axes), tuple(int(s) for _, s in axes))
    count = max(module.num_replicas, 1) * module.num_partitions
    if count > 1:
        return Mesh(("devices",), (count,))
    raise FlintError(
        "FL101",
        f"{module.source} does not say how many devices it was compiled for",
        help="give --mesh, for example --mesh 64x8",
    )


def _as_text(data: bytes) -> str | None:
    """The data as text if it is HLO text, None if it is something else."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return None
    code = re.sub(r"\A(?:\s+|//[^\n]*\n|/\*.*?\*/)+", "", text, flags=re.DOTALL)
    return code if code.startswith("HloModule") else None


def _header_number(name: str, header: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", header)
    return int(found.group(1)) if found else 1
