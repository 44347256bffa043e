"""The compiler process: whatever happens to it, the user sees one error and the next call works."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
import flint
from flint.passes.partition.worker import Worker, the_worker

pytestmark = pytest.mark.cold

MODULE = b"func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }"


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for all tests: what each does to its child, the next one must not notice."""
    worker = Worker()
    yield worker
    worker.stop()


def ask(worker: Worker) -> bytes:
    """One request that works."""
    _, result = worker.request("import", MODULE, {"source": "model.mlir"})
    assert result.startswith(b"ML\xefR")
    return result


def is_alive(pid: int) -> bool:
    """Whether a process exists, a zombie included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


def child_of(worker: Worker) -> int:
    assert worker._child is not None
    return worker._child.process.pid


def test_one_child_serves_many_requests(worker: Worker) -> None:
    assert ask(worker) == ask(worker)
    first = child_of(worker)
    ask(worker)
    assert child_of(worker) == first


def test_an_abort_is_one_error_that_names_the_step(worker: Worker) -> None:
    ask(worker)
    first = child_of(worker)
    with pytest.raises(flint.FlintError) as caught:
        worker.request("abort", b"")
    assert caught.value.code == "FL401"
    assert caught.value.message == "the compiler process died in 'abort-for-test' (SIGABRT)"
    assert not is_alive(first)  # reaped: no zombie
    ask(worker)
    assert child_of(worker) != first


def test_killed_between_requests_is_not_noticed(worker: Worker) -> None:
    ask(worker)
    first = child_of(worker)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    ask(worker)
    assert child_of(worker) != first and not is_alive(first)


def test_killed_during_a_request(worker: Worker) -> None:
    ask(worker)
    first = child_of(worker)
    os.kill(first, signal.SIGSTOP)  # so that the request is surely under way
    threading.Timer(0.3, os.kill, (first, signal.SIGKILL)).start()
    with pytest.raises(flint.FlintError) as caught:
        ask(worker)
    assert caught.value.code == "FL401" and "SIGKILL" in caught.value.message
    assert "memory has probably run out" in (caught.value.help or "")
    assert not is_alive(first)
    ask(worker)


def test_an_interrupt_leaves_no_stale_answer(
    worker: Worker, request: pytest.FixtureRequest
) -> None:
    # A shell starts what runs in its background with SIGINT ignored, and Python leaves it so.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    expected = ask(worker)
    first = child_of(worker)
    os.kill(first, signal.SIGSTOP)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        ask(worker)
    wait_for(lambda: not is_alive(first))
    assert ask(worker) == expected


def test_an_error_of_the_input_keeps_the_child(worker: Worker) -> None:
    ask(worker)
    first = child_of(worker)
    with pytest.raises(flint.FlintError) as caught:
        worker.request("import", b"func.func {", {"source": "broken.mlir"})
    assert caught.value.code == "FL302"
    ask(worker)
    assert child_of(worker) == first


def test_stopping_leaves_nothing(worker: Worker, tmp_path: Path) -> None:
    ask(worker)
    child = child_of(worker)
    worker.stop()
    worker.stop()  # twice is fine
    assert worker._child is None and not is_alive(child)


def run_in_new_process(program: str, tmp_path: Path, **options: Any) -> subprocess.Popen[str]:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", program],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def test_the_child_ends_with_its_parent_and_leaves_no_files(tmp_path: Path) -> None:
    program = (
        "import time\n"
        "from flint.passes.partition.worker import the_worker\n"
        f"the_worker().request('import', {MODULE!r}, {{'source': 'model.mlir'}})\n"
        "print(the_worker()._child.process.pid, flush=True)\n"
        "time.sleep(60 if KILLED else 0)\n"
    )
    for killed in (False, True):
        parent = run_in_new_process(program.replace("KILLED", str(killed)), tmp_path)
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        if killed:
            parent.kill()
        parent.wait(timeout=60)
        parent.stdout.close()
        wait_for(lambda pid=child: not is_alive(pid) or is_zombie(pid))  # type: ignore[misc]
    assert list(tmp_path.iterdir()) == []


def is_zombie(pid: int) -> bool:
    """Whether a process has ended but its new parent (outside of this test) has not noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_crash_in_a_trace_is_one_error_and_the_next_trace_works() -> None:
    import jax
    import jax.numpy as jnp

    x = jax.ShapeDtypeStruct((8, 16), jnp.float32)

    def step(x: Any) -> Any:
        os.kill(child_of(the_worker()), signal.SIGKILL)  # tracing runs while the child starts
        return x + 1

    def fine(x: Any) -> Any:
        return x + 1

    try:
        flint.trace(step, "4x2", x)
    except flint.FlintError as error:
        assert error.code == "FL401"
    assert flint.trace(fine, "4x2", x).program is not None


def test_traces_in_threads() -> None:
    import jax
    import jax.numpy as jnp
    from jax.sharding import PartitionSpec as P

    def capture(width: int) -> bytes:
        x = jax.ShapeDtypeStruct((8, width), jnp.float32)
        trace = flint.trace(lambda x: jnp.tanh(x @ x.T).sum(), "4x2", x, in_shardings=P("data"))
        return trace.workload.to_bytes()

    widths = [16, 32]
    alone = [capture(width) for width in widths]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(capture, widths * 2))
    assert together == alone * 2


def test_a_request_that_never_ends_is_cut_off(worker: Worker) -> None:
    ask(worker)
    os.kill(child_of(worker), signal.SIGSTOP)
    with pytest.raises(flint.FlintError, match="FL401"):
        worker.request("import", MODULE, {"source": "model.mlir"}, seconds=0.3)
    ask(worker)


def test_a_slow_start_is_no_slow_answer(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = (
        "import sys, time; time.sleep(1.5); from flint.passes.partition import child; child.main()"
    )
    popen = subprocess.Popen
    monkeypatch.setattr(
        subprocess, "Popen", lambda command, **o: popen([command[0], "-P", "-c", begin], **o)
    )
    options = {"source": "model.mlir"}
    worker.stop()
    assert worker.request("import", MODULE, options, seconds=1.0)[1]


def test_a_child_without_progress_is_ended_and_says_where_it_stood(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(worker)
    first = child_of(worker)
    monkeypatch.setenv("FLINT_CHILD_IDLE_SECONDS", "1")
    with pytest.raises(flint.FlintError, match="no progress for 1 seconds in 'sleep-") as caught:
        worker.request("sleep", b"", {"length": 600})
    assert caught.value.code == "FL401" and not is_alive(first)
    stacks = str(caught.value.__cause__)
    assert re.search(r"(?s)in the child:.*_sleep.*in the parent:.*read_message", stacks)
    monkeypatch.setenv("FLINT_CHILD_IDLE_SECONDS", "soon")
    with pytest.raises(flint.FlintError, match="FL217"):
        ask(worker)


def test_errors_in_modules_inside_a_module_do_not_hang(worker: Worker) -> None:
    """MLIR's threads told Python of them, and waited for the thread that waited for them."""
    rule = "#sdy.op_sharding_rule<([ij])->([ij]) {i=1, j=1}, custom>"
    wrong = (
        "func.func private @NAME(%x: tensor<1xf32>) -> tensor<1xf32> {\n"
        f"%y = stablehlo.custom_call @c(%x) {{sdy.sharding_rule = {rule}}} :"
        " (tensor<1xf32>) -> tensor<1xf32>\n return %y : tensor<1xf32> }\n"
    )
    functions = "".join(wrong.replace("NAME", f"f{i}") for i in range(4))
    text = "module {\n" + "".join(f"module @m{i} {{\n{functions}}}\n" for i in range(4)) + "}"
    for _ in range(30):
        with pytest.raises(flint.FlintError, match="FL302.*factor of size 1"):
            worker.request("import", text.encode(), {"source": "m.mlir"}, seconds=60.0)


def test_a_bug_in_the_child_comes_back_with_its_traceback(worker: Worker) -> None:
    with pytest.raises(RuntimeError, match="(?s)Traceback.*KeyError: 'source'"):
        worker.request("import", MODULE, {})
    ask(worker)
