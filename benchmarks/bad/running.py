"""Run cases in forks of a warm process, each with limits of time and memory, and judge them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import io
import json
import os
import pkgutil
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.bad.calls import CALLS, call
from benchmarks.bad.case import Case, Outcome, Special, Verdict
from benchmarks.bad.sound import wrong_number

#: Limits of one case: address space beyond that of the warm process, CPU and wall seconds.
MEMORY_BYTES = 2 << 30
CPU_SECONDS, WALL_SECONDS = 30, 120
_CODE = re.compile(r"error\[FL\d{3}\]: \S")
_USAGE = re.compile(r"^Usage: ", re.MULTILINE)
_NO_MEMORY = re.compile(
    r"(?<!raised )(?<!raise )MemoryError|bad_alloc|length_error|Cannot allocate memory"
)
_RAW = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e]")
_SHOWN = 4000
#: A model that sends its own process a signal ends it as the signal does, with one line.
_ENDED_BY_SIGNALS = {(130, "interrupted"), (143, "terminated")}


def warm_up() -> None:
    """Import what commands import, once: forks then start in milliseconds."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.export
    import networkx  # noqa: F401
    import pydantic  # noqa: F401

    import flint.backends
    import flint.cli
    import flint.frontends.files
    import flint.frontends.jax_pipeline
    import flint.ir
    import flint.passes
    import flint.tools.change
    import flint.tools.explore
    import flint.tools.hints
    import flint.tools.measure
    import flint.tools.report
    import flint.tools.simulators
    import flint.tracing
    from benchmarks.bad.compilers import use_forks
    from flint.backends.chakra.schema import messages
    from flint.cluster.load import chips_with_constants
    from flint.passes.hlo.module import message_class
    from flint.passes.mlir import make_context

    packages = (
        flint.backends, flint.cli, flint.frontends.files, flint.ir, flint.passes,
        flint.tools.change, flint.tools.explore, flint.tools.hints, flint.tools.measure,
        flint.tools.report, flint.tools.simulators,
    )  # fmt: skip
    for package in packages:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    jax.ShapeDtypeStruct((), "float32")
    messages()
    chips_with_constants("gpu")
    message_class("HloModule")
    make_context()
    use_forks()


def run_all(cases: Iterable[Case], folder: Path) -> Iterator[tuple[Case, Outcome]]:
    """Each case with its outcome, one after another, in folders of their own that are removed."""
    for case in cases:
        place = folder / f"{case.kind}-{case.number}"
        place.mkdir()
        try:
            write_files(place, case)
            yield case, _run(place, case)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def write_files(place: Path, case: Case) -> None:
    """Write the files of a case into a folder, and what is no file."""
    for name, content in case.files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is Special.FIFO:
            os.mkfifo(path)
        elif content is Special.DIRECTORY:
            path.mkdir()
        elif content is Special.SPARSE:
            path.touch()
            os.truncate(path, 64 << 30)
        else:
            path.symlink_to("/dev/zero" if content is Special.ZERO else place / "nowhere")


def _run(place: Path, case: Case) -> Outcome:
    """The first verdict on a command that is not fine, else the verdict on the first command."""
    first = None
    for command in case.commands:
        outcome = _run_command(place, command)
        first = first or outcome
        if not outcome.verdict.fine:
            return outcome
        if first.verdict is Verdict.REJECTED:
            break
    assert first is not None
    return first


def _run_command(place: Path, command: tuple[str, ...]) -> Outcome:
    out, err = place / ".stdout", place / ".stderr"
    pid = os.fork()
    if not pid:
        _in_child(place, command, out, err)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    status = _wait(pid)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    printed = [_read(p) for p in (out, err)]
    verdict = _judge(place, command, status, *printed)
    text = f"{printed[1][-_SHOWN:]}{printed[0][:_SHOWN] if not verdict.fine else ''}"
    if verdict is Verdict.ABSURD:
        text += f"\n{_unsound(place, command, printed[0])}"
    return Outcome(verdict, command, text, used)


def _in_child(place: Path, command: tuple[str, ...], out: Path, err: Path) -> None:
    """Run the command as `flint` would, and end the process."""
    code = 70
    try:
        atexit._clear()  # a command runs what is left to do at exit, the generator's folder included
        os.setsid()
        os.chdir(place)
        os.environ["TMPDIR"] = str(place)
        for descriptor, path in ((1, out), (2, err)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, descriptor)
            os.close(handle)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        limit = size + MEMORY_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 30, 4 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        code = _flint(command)
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


def _flint(command: tuple[str, ...]) -> int:
    """Run the command line; it ends the process itself."""
    from flint.cli import main

    if command[0] in CALLS:
        main = functools.partial(call, *command)
    sys.argv = ["flint", *command]
    try:
        main()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except Exception:  # noqa: BLE001  a bug of the command line itself
        traceback.print_exc()
        return 70
    return 0


def _wait(pid: int) -> int | None:
    """Exit status of a child, negative for a signal; None if it had to be killed for its time."""
    end = time.monotonic() + WALL_SECONDS
    pause = 0.002
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > end:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)  # what it left running
    return os.waitstatus_to_exitcode(status)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(1 << 24).decode("utf-8", "replace")
    return ""


def _judge(
    place: Path, command: tuple[str, ...], status: int | None, out: str, err: str
) -> Verdict:
    if status is None or status in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict.HANG
    if _NO_MEMORY.search(err):
        return Verdict.MEMORY
    if status < 0:
        return Verdict.SIGNAL
    if (status, err.strip().rpartition("\n")[2]) in _ENDED_BY_SIGNALS:
        return Verdict.REJECTED
    if status == 70:
        return Verdict.BUG
    if _RAW.search(out) or _RAW.search(err):
        return Verdict.RAW
    if status == 2:
        clear = _CODE.search(err) or _USAGE.search(err)
        return Verdict.REJECTED if clear else Verdict.UNCLEAR
    if status not in (0, 1) or (status == 1 and command[0] != "check"):
        return Verdict.ODD
    if _unsound(place, command, out):
        return Verdict.ABSURD
    return Verdict.ACCEPTED if status == 0 else Verdict.FOUND


def _unsound(place: Path, command: tuple[str, ...], out: str) -> str:
    """What of that which was printed or exported cannot be read, or be; "" if all can."""
    if "--json" in command or command[0] in CALLS:
        try:
            return wrong_number(json.loads(out))
        except ValueError as error:
            return str(error)
    graph = place / "g.graphml"
    if "graphml" in command and graph.exists():
        try:
            ElementTree.parse(graph)
        except ElementTree.ParseError as error:
            return str(error)
    return ""


def unbuffered() -> None:
    """Empty the buffers of this process: forks would write them again."""
    sys.stdout.flush()
    sys.stderr.flush()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
