"""Files of profilers that Flint does not read, with what to give instead."""

from __future__ import annotations

from pathlib import Path

from flint.errors import FlintError

_ROCPROF = (b'"Kind","Agent_Id"', b'"Domain","Function"')
_SUFFIXES = {
    ".nsys-rep": ("a report of Nsight Systems", "nsys export --type sqlite REPORT.nsys-rep"),
    ".qdrep": ("a report of Nsight Systems", "nsys export --type sqlite REPORT.qdrep"),
    ".ncu-rep": ("a report of Nsight Compute", "it has counters of single kernels; use nsys"),
    ".pftrace": (
        "a Perfetto protobuf trace",
        "give the profiler's own file: Kineto JSON, xplane.pb, an nsys export",
    ),
    ".perfetto-trace": (
        "a Perfetto protobuf trace",
        "give the profiler's own file: Kineto JSON, xplane.pb, an nsys export",
    ),
}


def foreign(path: Path, head: bytes) -> FlintError | None:
    """The FlintError FL828 for a file of a known kind that is not read, else None."""
    if head.startswith(_ROCPROF) or b'"rocprofiler-sdk-tool"' in head[:4096]:
        return no_rocprof(path)
    known = _SUFFIXES.get(path.suffix)
    if known is None:
        return None
    return FlintError("FL828", f"{path} is {known[0]}, which Flint does not read", help=known[1])


def no_rocprof(path: Path) -> FlintError:
    """The FlintError FL828 for what rocprofv3 wrote."""
    return FlintError(
        "FL828",
        f"{path} was written by rocprofv3, which Flint does not read",
        help="profile through PyTorch (torch.profiler, which uses rocprofiler itself) or JAX",
    )
