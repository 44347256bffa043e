"""Small SQLite exports as Nsight Systems writes them, for tests."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_ACTIVITY = "start INT, end INT, deviceId INT, contextId INT, streamId INT, correlationId INT, globalPid INT"
#: Tables with their columns, of schema 3.
TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "META_DATA_EXPORT": "name TEXT, value TEXT",
    "TARGET_INFO_GPU": "id INT, name TEXT, totalMemory INT, smCount INT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId INT, cudaId INT, pid INT",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs INT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY}, demangledName INT, shortName INT, graphNodeId INT",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY}, bytes INT, copyKind INT, srcKind INT, dstKind INT",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY}, bytes INT",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INT, end INT, globalTid INT, correlationId INT, nameId INT",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": "start INT, end INT, streamId INT, correlationId INT, "
    "globalPid INT, syncType INT, eventId INT",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "correlationId INT, globalPid INT, streamId INT, eventId INT",
    "NVTX_EVENTS": "start INT, end INT, eventType INT, globalTid INT, text TEXT, textId INT, jsonText TEXT",
}


def pid(process: int) -> int:
    """A globalPid; a globalTid is this plus the thread's number."""
    return process << 24


class Export:
    """Rows by table; names become numbers of StringIds."""

    def __init__(self) -> None:
        self.rows: dict[str, list[Mapping[str, Any]]] = {
            "META_DATA_EXPORT": [{"name": "EXPORT_SCHEMA_VERSION", "value": "3.16.0"}]
        }
        self._strings: dict[str, int] = {}

    def add(self, table: str, **row: Any) -> None:
        """A row of a table."""
        self.rows.setdefault(table, []).append(row)

    def name(self, text: str) -> int:
        """The number of a string."""
        return self._strings.setdefault(text, len(self._strings) + 1)

    def kernel(self, name: str, start: int, end: int, correlation: int, *, process: int = 1, device: int = 0, stream: int = 7) -> None:  # fmt: skip
        """A kernel."""
        self.add(
            "CUPTI_ACTIVITY_KIND_KERNEL", start=start, end=end, deviceId=device, streamId=stream,
            correlationId=correlation, globalPid=pid(process), demangledName=self.name(name),
        )  # fmt: skip

    def call(self, name: str, start: int, end: int, correlation: int, *, process: int = 1) -> None:
        """A call of the runtime on thread 5."""
        self.add(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, globalTid=pid(process) + 5,
            correlationId=correlation, nameId=self.name(name),
        )  # fmt: skip

    def range(self, text: str, start: int, end: int, *, process: int = 1, payload: str | None = None) -> None:  # fmt: skip
        """A pushed and popped range on thread 5."""
        self.add(
            "NVTX_EVENTS", start=start, end=end, eventType=59, globalTid=pid(process) + 5, text=text,
            jsonText=payload,
        )  # fmt: skip

    def write(self, path: Path, without: Sequence[str] = ()) -> Path:
        """The database, without some columns."""
        connection = sqlite3.connect(path)
        strings = [{"id": i, "value": text} for text, i in self._strings.items()]
        for table, rows in {**self.rows, "StringIds": strings}.items():
            columns = [c.strip() for c in TABLES[table].split(",")]
            columns = [c for c in columns if c.split()[0] not in without]
            connection.execute(f'CREATE TABLE "{table}" ({", ".join(columns)})')
            names = [c.split()[0] for c in columns]
            marks = ", ".join("?" * len(names))
            connection.executemany(
                f'INSERT INTO "{table}" VALUES ({marks})', [[r.get(n) for n in names] for r in rows]
            )
        connection.commit()
        connection.close()
        return path


def small_export() -> Export:
    """Two processes with a device each, a graph, an event and an operator."""
    e = Export()
    e.add("TARGET_INFO_GPU", id=0, name="NVIDIA H100", totalMemory=80 << 30, smCount=132)
    e.add("TARGET_INFO_GPU", id=1, name="NVIDIA A100", totalMemory=40 << 30, smCount=108)
    e.add("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_790_000_000_000_000_000)
    e.range("step", 900, 9000)
    e.range("aten::mm, seq = 12, op_id = 3, sizes = [[8, 16], [16, 4]]", 1000, 1500)
    e.call("cudaLaunchKernel_v7000", 1100, 1200, 1)
    e.kernel("gemm", 2000, 2600, 1)
    e.call("cudaMemcpyAsync_v3020", 1600, 1700, 2)
    e.add(
        "CUPTI_ACTIVITY_KIND_MEMCPY", start=2600, end=2700, deviceId=0, streamId=9, correlationId=2,
        globalPid=pid(1), bytes=4096, copyKind=1, srcKind=1, dstKind=3,
    )  # fmt: skip
    e.call("cudaGraphLaunch_v10000", 3000, 3100, 3)
    e.kernel("a", 3200, 3300, 3)
    e.kernel("b", 3300, 3400, 3)
    e.call("cudaEventRecord_v3020", 3500, 3510, 4)
    e.add(
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT", correlationId=4, globalPid=pid(1), streamId=7, eventId=70
    )
    e.call("cudaStreamWaitEvent_v3020", 3520, 3530, 5)
    e.add("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", correlationId=5, globalPid=pid(1), syncType=2, streamId=9, eventId=70)  # fmt: skip
    e.call("cudaDeviceSynchronize_v3020", 3600, 4000, 6)
    # Another process has the same numbers.
    e.call("cudaLaunchKernel_v7000", 1150, 1160, 1, process=2)
    e.kernel("other", 2100, 2200, 1, process=2, device=1)
    return e
