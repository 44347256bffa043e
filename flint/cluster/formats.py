"""Files of other programs that are read as clusters: by what they hold, not by their names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flint.io.bounded import FileKind, read_bounded
from flint.plugins import CLUSTER_FORMATS, load, registered

if TYPE_CHECKING:
    from flint.cluster.models import Cluster


class ClusterFormat(NamedTuple):
    """A format, as packages register it (`flint.cluster_formats`)."""

    claims: Callable[[bytes], bool]
    """Whether the content of a file is meant to be of this format; of a wrong one, too."""
    read: Callable[[Path, bytes], Cluster]
    """The cluster that a file with this content describes. Raises FlintError."""
    write: Callable[[str, Path | None], str]
    """The text of the cluster that a user names, for a file in a folder, if it is for a file."""


def read_other(path: Path) -> Cluster:
    """The cluster of a YAML file: of the format that claims it, otherwise ASTRA-sim's network file.

    Raises FlintError FL706 for a file of no format, and what the reader of a format raises.
    """
    help_ = "give a graph, or ASTRA-sim's network file; its system.json is read beside it"
    data = read_bounded(path, FileKind.MODEL, "FL706", help_)
    for name in registered(CLUSTER_FORMATS):
        found: ClusterFormat = load(CLUSTER_FORMATS, name, ClusterFormat)
        if found.claims(data):
            return found.read(path, data)
    from flint.cluster.astrasim.files import read_astrasim

    return read_astrasim(path, path.with_name("system.json"))


def write_other(name: str, cluster: str, folder: Path | None) -> str:
    """The cluster that a user names in a format. Raises FlintError FL881 for a format that nobody adds."""
    found: ClusterFormat = load(CLUSTER_FORMATS, name, ClusterFormat)
    return found.write(cluster, folder)
