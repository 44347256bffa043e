"""The cluster that a user names: a preset, a TOML file, or another program's file."""

from __future__ import annotations

import os
from pathlib import Path

from flint.cluster.models import Cluster
from flint.errors import FlintError

#: Endings of ASTRA-sim's network files.
_YAML = (".yml", ".yaml")


def is_yaml(cluster: str | os.PathLike[str]) -> bool:
    """Whether a name is that of another program's file: ASTRA-sim's network, or a graph."""
    return str(cluster).lower().endswith(_YAML)


def load_cluster(cluster: str | os.PathLike[str] | Cluster) -> Cluster:
    """The cluster that a user names: "h100-dgx", "ours.toml", "network.yml" or a Cluster.

    What a YAML file holds decides what reads it. Raises FlintError FL701 for a file or a changed Cluster that
    cannot be used, FL702 for a name that no preset has, or something that is not a name, and FL706 for ASTRA-sim's files.
    """
    if isinstance(cluster, Cluster):
        return cluster.checked()
    if not isinstance(cluster, str | os.PathLike):
        raise FlintError(
            "FL702",
            f"a cluster cannot have type {type(cluster).__name__}",
            help='give the name of a preset ("h100-dgx"), the path of a TOML file, or a '
            "flint.Cluster",
        )
    if not is_yaml(cluster):
        return Cluster.load(cluster if isinstance(cluster, str) else Path(cluster))
    from flint.cluster.formats import read_other

    return read_other(Path(cluster))
