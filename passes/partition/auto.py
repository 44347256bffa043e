"""The partitioner that nobody has to name: XLA's own, and Shardy's passes where XLA has no answer."""

from __future__ import annotations

from dataclasses import replace

from flint.errors import FlintError
from flint.passes.partition import Partitioned
from flint.passes.partition.shardy import partitioned as partitioned_by_shardy
from flint.passes.partition.xla import partitioned as partitioned_by_xla
from flint.steps.captured import Captured


def partitioned(captured: Captured) -> Partitioned:
    """Partition with XLA. Where it dies or refuses, with Shardy, and a warning says so.

    Raises FlintError FL401 or FL402 if neither can, and FL403.
    """
    try:
        return partitioned_by_xla(captured)
    except FlintError as error:
        if error.code not in ("FL401", "FL402") or captured.is_gspmd:
            raise
        refused = error.message
    found = partitioned_by_shardy(captured)
    told = f"{refused}: Shardy's passes partitioned it instead, and collectives may differ from those of XLA"
    return replace(found, warning=told)
