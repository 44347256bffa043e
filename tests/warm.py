"""Child processes of tests that start at once: forks of a process that has imported what takes long.

`subprocess.Popen` asks here while tests run (`tests/conftest.py`). A fork has the arguments,
environment, folder, descriptors and process group of a process that was started anew, is a child of
the test, and ends as the interpreter ends. What cannot be had by a fork is started anew: other
programs, an environment that Python or JAX read as they start, a folder that hides a library.
Tests of how processes start are marked so that they get no forks (`cold`).

The server is this file run as a program: it imports nothing of the tests.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import inspect
import io
import json
import os
import pkgutil
import random
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from multiprocessing import spawn, util
from pathlib import Path
from typing import IO, Any, NamedTuple, TextIO, cast

ROOT = Path(__file__).resolve().parents[1]
_RECORDER = "flint.frontends.torch_world.record.child"
_SCRIPTS = "flint.frontends.jax_world.child"
_SPAWNED = "multiprocessing.spawn"
#: The modules that are run by forks, and which server has imported what they need: those that run
#: PyTorch programs have no JAX, as their errors say.
SERVERS = {
    "flint": "jax",
    "flint.passes.partition.child": "jax",
    "flint.tools.change.project.worker": "jax",
    _SCRIPTS: "jax",
    _SPAWNED: "jax",
    _RECORDER: "torch",
}
_IMPORTED = {
    "jax": ("flint.passes.partition.child:preload", "flint.cli", "flint.ir", "flint.passes")
    + ("flint.frontends.jax_step", "flint.frontends.jax_world", "flint.backends"),
    "torch": ("flint.frontends.torch_world.record.child:_preload", "flint.frontends.torch_world")
    + ("flint.cli", "flint.ir", "flint.backends.cost"),
}
#: Variables that nothing reads before a fork has its own.
_FREE = ("FLINT_", "PYTEST_", "XDG_", "TORCHINDUCTOR_", "TMPDIR", "PYTHONPATH", "OMP_NUM_THREADS")
_FREE += ("COLUMNS", "LINES", "NO_COLOR", "TERM", "HOME", "PATH", "TF_CPP_", "WARM_", "TPU_SKIP_")
_PLATFORMS = "JAX_PLATFORMS"
#: Variables that Dask and Polars set for processes that they start, and never take back.
OF_LIBRARIES = {
    "PYTHONHASHSEED",
    "MALLOC_TRIM_THRESHOLD_",
    "__DASK_PARENT_PID",
    "_RJEM_MALLOC_CONF",
}
OF_LIBRARIES -= set(os.environ)
_SET_SUBREAPER, _GET_SUBREAPER = 36, 37


class _Command(NamedTuple):
    """What is asked of a Python interpreter."""

    module: str
    arguments: tuple[str, ...]
    safe_path: bool
    quiet: bool


def _command(words: Sequence[object]) -> _Command | None:
    """`python [-P] [-W ignore] -m MODULE ARGUMENTS`; None for all else."""
    if not words or isinstance(words, str | bytes) or words[0] != sys.executable:
        return None
    texts = [os.fspath(word) for word in words[1:]]  # type: ignore[call-overload]
    safe = texts[:1] == ["-P"]
    rest = texts[safe:]
    quiet = rest[:2] == ["-W", "ignore"]
    rest = rest[2 * quiet :]
    if rest[:1] != ["-m"] or rest[1:2] == [] or rest[1] not in SERVERS:
        return None
    return _Command(rest[1], tuple(rest[2:]), safe, quiet)


class Server:
    """A process that has imported what a kind of child needs, and forks children for this one."""

    def __init__(self, connection: socket.socket, environment: Mapping[str, str]) -> None:
        self._lock = threading.Lock()
        self._socket = connection
        self._process: subprocess.Popen[bytes] | None = None
        self.environment = environment
        told = connection.recv(1 << 20)
        assert told, "the server has ended before it was ready"
        self.modules = frozenset(json.loads(told))

    @classmethod
    def started(cls, kind: str) -> Server:
        """A new one, which ends when its connection is closed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        environment = {k: os.environ[k] for k in sorted(os.environ) if k != _PLATFORMS}
        with theirs:
            process = _COLD(
                [sys.executable, "-P", __file__, kind, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                process_group=0,
                pass_fds=(theirs.fileno(),),
                env={**environment, "OMP_NUM_THREADS": "1"},
            )
        found = cls(ours, environment)
        found._process = process
        return found

    def fork(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        """The process id of a new child of this process."""
        with self._lock, _adopting():
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(64)
        assert answer, "the server has ended"
        return int(answer)

    def end(self) -> None:
        """Nothing is forked any more; the children that run go on."""
        self._socket.close()
        if self._process is not None:
            self._process.wait()


@contextmanager
def _adopting() -> Iterator[None]:
    """Orphans below become children of this process, as `waitpid` and their `getppid` want it."""
    system, before = ctypes.CDLL(None), ctypes.c_int()
    system.prctl(_GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    system.prctl(_SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        system.prctl(_SET_SUBREAPER, before.value, 0, 0, 0)


class Forks:
    """The servers of a run of tests, started when they are needed, and whether they are asked."""

    def __init__(self) -> None:
        self.on, self._starts = False, True
        self._servers: dict[str, Server] = {}
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def fork(
        self,
        command: _Command,
        environment: Mapping[str, str],
        cwd: str,
        descriptors: Mapping[int, int],
        group: int = -1,
    ) -> int:
        """The process id of a fork that runs a command; 0 if a process has to be started anew."""
        server = self._server(command, environment, cwd)
        if server is None:
            return 0
        request = {
            **command._asdict(),
            "descriptors": list(descriptors),
            "cwd": cwd,
            "env": dict(environment),
            "group": os.getpgrp() if group == -1 else group,
        }
        return server.fork(request, list(descriptors.values()))

    def _server(self, command: _Command, environment: Mapping[str, str], cwd: str) -> Server | None:
        if not self.on or os.getpid() != self._owner:
            return None
        kind = "torch" if "--world" in command.arguments else SERVERS[command.module]
        with self._lock:
            if kind not in self._servers and self._starts:
                self._servers[kind] = Server.started(kind)
            found = self._servers.get(kind)
        if found is None or not _same(environment, found.environment, command):
            return None
        folders = [] if command.safe_path else [cwd]
        folders += _folders_of(environment)
        return None if any(_hides(folder, found) for folder in folders) else found

    def use(self, kind: str, server: Server) -> None:
        """Ask a server that is there already."""
        self._servers[kind] = server
        self.on, self._starts = True, False

    def end(self) -> None:
        """End the servers."""
        self.on = False
        for server in self._servers.values():
            server.end()
        self._servers.clear()


def _same(asked: Mapping[str, str], had: Mapping[str, str], command: _Command) -> bool:
    """Whether two environments differ only in what is read late."""
    if command.module != _SCRIPTS and _PLATFORMS in asked:
        return False
    names = {name for name in {*asked, *had} if asked.get(name) != had.get(name)} - {_PLATFORMS}
    free = OF_LIBRARIES if command.module == _SPAWNED else set()
    return all(name.startswith(_FREE) or name in free for name in names)


def _folders_of(environment: Mapping[str, str]) -> list[str]:
    """The folders of PYTHONPATH."""
    return [f for f in environment.get("PYTHONPATH", "").split(os.pathsep) if f]


def _hides(folder: object, server: Server) -> bool:
    """Whether a folder, searched first, has a module that the server has from elsewhere."""
    place = Path(str(folder))
    if place.resolve() in (ROOT, ROOT / ".editable") or not place.is_dir():
        return False
    return any(name.partition(".")[0] in server.modules for name in os.listdir(place))


@cache
def forks() -> Forks:
    """Those of this process."""
    return Forks()


_COLD = subprocess.Popen
_SIGNATURE = inspect.signature(_COLD._execute_child)  # type: ignore[attr-defined]


class Popen(_COLD):  # type: ignore[type-arg]
    """A `subprocess.Popen` whose process may be a fork of one that is warm."""

    def _execute_child(self, *given: Any) -> None:
        asked = _SIGNATURE.bind(self, *given).arguments
        command = _command(asked["args"]) if _is_usual(asked) else None
        pid = 0
        if command is not None:
            ends = (asked["p2cread"], asked["c2pwrite"], asked["errwrite"])
            descriptors = {n: n if end == -1 else end for n, end in enumerate(ends)}
            descriptors |= {number: number for number in asked["pass_fds"]}
            environment = os.environ if asked["env"] is None else asked["env"]
            cwd = os.fspath(asked["cwd"] or os.getcwd())
            pid = forks().fork(command, environment, cwd, descriptors, asked["process_group"])
        if not pid:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        self.pid = pid
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(asked[name] for name in pipes))  # type: ignore[attr-defined]


def _is_usual(given: Mapping[str, Any]) -> bool:
    """Whether a process is asked for with nothing that a fork cannot have."""
    unusual = ("preexec_fn", "startupinfo", "shell", "start_new_session", "executable", "gids")
    identity = ("uid", "gid", "umask")
    return (
        given["close_fds"]
        and not any(given.get(name) for name in unusual)
        and all(given[name] in (-1, None) for name in identity)
    )


_COLD_SPAWN = util.spawnv_passfds  # type: ignore[attr-defined]
_SPAWN = re.compile(r".*spawn_main\(tracker_fd=(\d+), pipe_handle=(\d+)\)")


def _spawn(path: bytes, words: Sequence[str | bytes], descriptors: Sequence[int]) -> int:
    """The process id of a new process of `multiprocessing`, with its method `spawn`."""
    found = _SPAWN.fullmatch(os.fsdecode(words[-2]))
    pid = 0
    if found is not None and os.fsdecode(path) == sys.executable:
        command = _Command(_SPAWNED, ("--multiprocessing-fork", *found.groups()), True, False)
        own = {number: number for number in (0, 1, 2, *descriptors)}
        pid = forks().fork(command, os.environ, os.getcwd(), own)
    return pid or _COLD_SPAWN(path, words, descriptors)


def replace_processes() -> None:
    """From now on, this process starts forks where it can."""
    subprocess.Popen = Popen  # type: ignore[misc]
    util.spawnv_passfds = _spawn  # type: ignore[attr-defined]


# --- in the server --------------------------------------------------------------------------------


def _warm_up(kind: str) -> None:
    """Import packages and what they import late, and read what each process would read again."""
    preload, *packages = _IMPORTED[kind]
    importlib.import_module(kind)  # first: what its libraries log depends on it
    pkgutil.resolve_name(preload)()
    importlib.import_module("networkx")
    for name in packages:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(module.name)
    sys.modules["flint.cluster.load"].chips_with_constants("gpu")
    assert kind == "jax" or "jax" not in sys.modules


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each request; returns what is asked in a fork, and never in the server."""
    names = {name.partition(".")[0] for name in sys.modules} - {"__main__"}
    connection.send(json.dumps(sorted(names)).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 64)
        if not message:
            os._exit(0)
        ready, say = os.pipe()
        between = os.fork()
        if between == 0:
            parent = os.getpid()
            if os.fork() == 0:
                connection.detach()
                request: dict[str, Any] = json.loads(message)
                os.setpgid(0, request["group"])
                os.write(say, str(os.getpid()).encode())
                _take(descriptors, request["descriptors"])
                while os.getppid() == parent:  # it ends at once, and the test is the parent then
                    time.sleep(0.0001)
                return request
            os._exit(0)
        os.waitpid(between, 0)
        connection.send(os.read(ready, 64))
        for descriptor in (ready, say, *descriptors):
            os.close(descriptor)


def _with_own_server(request: dict[str, Any], kind: str) -> dict[str, Any]:
    """Let a command start warm children as well: of a fork that is as this process is now."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        return _serve(theirs)
    theirs.close()
    environment = {k: os.environ[k] for k in sorted(os.environ) if k != _PLATFORMS}
    forks().use(kind, Server(ours, environment))
    replace_processes()
    return request


def _take(received: Sequence[int], wanted: Sequence[int]) -> None:
    """Give descriptors the numbers that they have for the program."""
    import fcntl

    above = max(*received, *wanted) + 1
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, above) for descriptor in received]
    os.closerange(3, above)
    for source, number in zip(high, wanted, strict=True):
        os.dup2(source, number)
        os.close(source)


def _become(request: Mapping[str, Any], bare_path: Sequence[str]) -> None:
    """Be the program that was asked for, as far as a program can tell."""
    platforms = request["env"].get(_PLATFORMS)
    if platforms is not None:
        import jax

        jax.config.update("jax_platforms", platforms)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    first = [] if request["safe_path"] else [os.getcwd()]
    sys.path[:] = [*first, *map(os.path.abspath, _folders_of(request["env"])), *bare_path]
    sys.path_importer_cache.clear()
    importlib.invalidate_caches()
    tempfile.tempdir = None
    random.seed()
    sys.argv = ["-m", *request["arguments"]]
    sys.stdin = sys.__stdin__ = _stream(0, sys.stdin)
    sys.stdout = sys.__stdout__ = _stream(1, sys.stdout)
    sys.stderr = sys.__stderr__ = _stream(2, sys.stderr)
    if request["quiet"]:
        sys.warnoptions.append("ignore")
        warnings.simplefilter("ignore")
    # Said of a module that is run and has been imported: this one has, on purpose.
    warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)


def _stream(number: int, before: TextIO) -> TextIO:
    """A standard stream as the interpreter opens it; the one before knows another file."""
    bare = bool(os.environ.get("PYTHONUNBUFFERED")) and number > 0
    file = open(number, "wb" if number else "rb", buffering=0 if bare else -1, closefd=False)  # noqa: SIM115
    found = io.TextIOWrapper(
        cast("IO[bytes]", file),
        encoding=before.encoding,
        errors=before.errors,
        newline="\n" if number else None,
        line_buffering=number == 2 or file.isatty(),
        write_through=bare,
    )
    found.mode = "w" if number else "r"
    return found


def main() -> None:
    """`python -P warm.py KIND SOCKET`: import, serve until the other end is closed."""
    kind, connection = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    given = set(map(os.path.abspath, _folders_of(os.environ)))
    bare_path = [folder for folder in sys.path if os.path.abspath(folder) not in given]
    _warm_up(kind)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.collect()
    gc.freeze()
    request = _serve(connection)
    if not request["module"].endswith(".child"):  # which start no others
        request = _with_own_server(request, kind)
    _become(request, bare_path)
    if request["module"] == _SPAWNED:
        tracker, pipe = map(int, request["arguments"][1:])
        spawn.spawn_main(tracker_fd=tracker, pipe_handle=pipe)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
