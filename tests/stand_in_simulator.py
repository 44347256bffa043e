"""Behaves as badly as a simulator can: `python stand_in_simulator.py BEHAVIOUR --network-configuration=...`.

Says what ASTRA-sim says, in the order and with the noise of the behaviour, and ends as that wants.
Writes the numbers of its processes to the file that STAND_IN_PIDS names.
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

PREFIX = "[2026-11-23 09:48:01.235] [workload] [info] "


def make_binary(path, behaviour):
    """Write a program at `path` that behaves in this way."""
    script = Path(__file__).resolve()
    path.write_text(f"#!/bin/sh\nexec '{sys.executable}' -S '{script}' {behaviour} \"$@\"\n")
    path.chmod(0o755)
    return path


def ranks(arguments):
    """The ranks of the network that it was given."""
    (path,) = (a.partition("=")[2] for a in arguments if a.startswith("--network-"))
    counts = re.search(r"npus_count: \[([^]]*)\]", Path(path).read_text())[1]
    total = 1
    for count in counts.split(","):
        total *= int(count)
    return total


def say(text, stream=sys.stdout):
    stream.write(text)
    stream.flush()


def finished(rank, prefix=PREFIX, end="\n"):
    """The lines of a rank that has finished, as ASTRA-sim prints them."""
    cycles = 1000 + rank // 2
    lines = [f"sys[{rank}] finished, {cycles} cycles, exposed communication {cycles - 700} cycles."]
    lines += [
        f"sys[{rank}]. Post statistics processing start.",
        f"sys[{rank}], Wall time: {cycles}",
    ]
    lines += [f"sys[{rank}], GPU time: 700", f"sys[{rank}], Comm time: 500"]
    return "\n".join(prefix + line for line in lines) + end


def remember(pid):
    with open(os.environ.get("STAND_IN_PIDS", os.devnull), "a") as file:
        file.write(f"{pid}\n")


def child_that_stays():
    """A process in a session of its own that holds the streams open and does not want to end."""
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    command = [sys.executable, "-S", "-c", program]
    remember(subprocess.Popen(command, start_new_session=True).pid)


# --- behaviours -----------------------------------------------------------------------------------


def fine(n):
    """Every rank, in any order, in pieces, in colour, in a flood of other lines."""
    os.mkdir("log")
    with open("log/log.log", "w") as file:
        file.write("x" * 100_000)
    for i in range(20_000):
        sys.stdout.write(f"[2026-11-23 09:48:01.235] [system] [info] ring of node {i}\n")
    sys.stdout.write("y" * 300_000 + "\n")
    for rank in sorted(range(n), key=lambda r: (r % 3, -r)):
        text = finished(rank, f"\x1b[32m{PREFIX}\x1b[m")
        say(text[:70])
        time.sleep(0.5 if rank == 0 else 0.01)
        say(text[70:])


def plain(n):
    """An older one: no prefix, no statistics, on stderr."""
    for rank in range(n):
        say(f"sys[{rank}] finished, {50 + rank} cycles\n", sys.stderr)


def brief(n):
    """One without statistics."""
    for rank in range(n):
        say(f"sys[{rank}] finished, {50 + rank} cycles, exposed communication 7 cycles.\n")


def contradicts(n):
    """It waits longer than it runs, and says of a rank that it finished, twice."""
    for rank in range(n):
        exposed = 9999 if rank == 1 else 7
        say(f"sys[{rank}] finished, 500 cycles, exposed communication {exposed} cycles.\n")
    say("sys[2] finished, 900 cycles\n")
    say("sys[3], GPU time: 501\n")


def unfinished(n):
    """Some never end, and all is said to be well."""
    for rank in range(n):
        if rank not in (3, 4, 6):
            say(finished(rank))


def silent(n):
    """Nothing at all."""


def chatty(n):
    """Another program, which is content."""
    say("usage: whatever\n")


def hangs(n):
    """Some ranks end, then nothing happens; asked to end, it does not."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child_that_stays()
    for rank in range(n - 2):
        say(finished(rank))
    time.sleep(600)


def spins(n):
    """Some ranks end, then it turns in circles."""
    say(finished(0))
    while True:
        pass


def closes(n):
    """It closes its streams and stays."""
    say(finished(1))
    os.close(1)
    os.close(2)
    time.sleep(600)


def crashes(n):
    """An assertion of C++ in the middle of a line."""
    say(finished(0) + "sys[1] finished, 10")
    say("AstraSim: ring.cc:42: Assertion `index_in_ring >= 0' failed.\n", sys.stderr)
    os.abort()


def fails(n):
    """It says what it cannot do in its log, on stdout."""
    say("[2026-11-23 09:48:01.584] [workload] [critical] workload file: t.3.et does not exist\n")
    sys.exit(1)


def hungry(n):
    """It takes all memory that it can get."""
    held = []
    try:
        while True:
            held.append(bytearray(64 << 20))
    except MemoryError:
        held.clear()
        say("terminate called after throwing an instance of 'std::bad_alloc'\n", sys.stderr)
        os.abort()


def killed(n):
    """The system ends it, as it does when memory is short."""
    say(finished(0))
    os.kill(os.getpid(), signal.SIGKILL)


def late(n):
    """It finishes, and then it crashes."""
    for rank in range(n):
        say(finished(rank))
    os.kill(os.getpid(), signal.SIGSEGV)


def leaves(n):
    """It finishes, and leaves a process behind that holds its streams open."""
    child_that_stays()
    for rank in range(n + 1):
        say(finished(rank))


if __name__ == "__main__":
    remember(os.getpid())
    globals()[sys.argv[1]](ranks(sys.argv[2:]))
