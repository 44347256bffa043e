"""What calls of CUDA's and HIP's runtime and driver mean, by their names."""

from __future__ import annotations

import re

from flint.tools.measure.profiles.profile import CallKind

_PREFIX = re.compile(r"^(?:cuda|cu|hip)(?=[A-Z])")
_SUFFIX = re.compile(r"(?:_(?:v\d+|ptsz|ptds|spt))+$")
_LAUNCHES = re.compile(
    r"^(?:Ext|Module|ExtModule|HccModule|Drv)?LaunchKernel|^LaunchCooperative|^Launch$|^ExtLaunch"
)
_BY_NAME = {
    "DeviceSynchronize": CallKind.WAIT_DEVICE,
    "CtxSynchronize": CallKind.WAIT_DEVICE,
    "ThreadSynchronize": CallKind.WAIT_DEVICE,
    "StreamSynchronize": CallKind.WAIT_STREAM,
    "EventSynchronize": CallKind.WAIT_EVENT,
    "EventRecord": CallKind.RECORD_EVENT,
    "EventRecordWithFlags": CallKind.RECORD_EVENT,
    "StreamWaitEvent": CallKind.STREAM_WAIT,
    "GraphLaunch": CallKind.GRAPH,
}


def kind_of_call(name: str) -> CallKind:
    """Of `cudaLaunchKernelExC`, `cuLaunchKernel_ptsz`, `hipExtModuleLaunchKernel`, ..."""
    plain = _plain(name)
    if plain is None:
        return CallKind.OTHER
    if _LAUNCHES.match(plain) or plain.startswith(("Memcpy", "Memset")):
        return CallKind.LAUNCH
    return _BY_NAME.get(plain, CallKind.OTHER)


def is_synchronous_copy(name: str) -> bool:
    """Whether the host waits for the copy: `cudaMemcpy`, `hipMemcpyWithStream`, `cuMemcpyDtoH_v2`."""
    plain = _plain(name) or ""
    return plain.startswith("Memcpy") and "Async" not in plain


def _plain(name: str) -> str | None:
    found = _PREFIX.match(name)
    return _SUFFIX.sub("", name[found.end() :]) if found else None
