"""InfraGraph among the files that are read as clusters; nothing else is imported before one is there."""

from __future__ import annotations

import re
from pathlib import Path

from flint.cluster.formats import ClusterFormat
from flint.cluster.models import Cluster

_FIRST_KEYS = re.compile(
    rb'^[\s{]*"?(?:infragraph|infrastructure|devices|instances|components)"?\s*:', re.MULTILINE
)


def _claims(data: bytes) -> bool:
    """Whether a file has a key that only InfraGraph's documents have."""
    return _FIRST_KEYS.search(data) is not None


def _read(path: Path, data: bytes) -> Cluster:
    from flint.tools.interop.infragraph.read import read_cluster

    return read_cluster(path, data)


def _write(name: str, folder: Path | None) -> str:
    from flint.tools.interop.infragraph.write import write_cluster

    return write_cluster(name, folder)


FORMAT = ClusterFormat(_claims, _read, _write)
