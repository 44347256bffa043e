"""Run a script as every rank of a gloo world: `python ranks.py SCRIPT ARGS`, {rank} is replaced.

The ranks are forks of this process, which has imported what takes long. WORLD_SIZE says how many.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from pathlib import Path

ROOT = Path(__file__).parents[2]


#: Seconds after which the ranks have not met: another process took the port that was free.
PATIENCE_SECONDS = 120


def run_as_ranks(world: int, script: str | Path, *arguments: str) -> tuple[int, str]:
    """The worst exit status of the ranks, and what all of them wrote, errors included."""
    try:
        return _started(world, script, arguments)
    except subprocess.TimeoutExpired:
        return _started(world, script, arguments)


def _started(world: int, script: str | Path, arguments: tuple[str, ...]) -> tuple[int, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    environment = os.environ | {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-W", "ignore", __file__, str(script), *arguments]
    with subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as started:
        try:
            said, _ = started.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(started.pid, signal.SIGKILL)  # its forks, too
            raise
    return started.returncode, said


def _run(rank: int, script: str, arguments: list[str]) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    sys.argv = [script, *(a.replace("{rank}", str(rank)) for a in arguments)]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except BaseException:  # noqa: BLE001 - whatever the script raises
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def main() -> None:
    """Fork the ranks and wait for them."""
    import torch.distributed.fsdp
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel  # noqa: F401 - all three, before the forks

    children = []
    for rank in range(int(os.environ["WORLD_SIZE"])):
        child = os.fork()
        if not child:
            _run(rank, sys.argv[1], sys.argv[2:])
        children.append(child)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    sys.exit(any(statuses))


if __name__ == "__main__":
    main()
