"""What a command line that starts a program says: `torchrun --nproc-per-node 8 train.py --lr 1`."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from flint.errors import FlintError
from flint.frontends.user_program import LOCAL_RANK

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
#: Programs in front of a launcher that only start it.
_WRAPPERS = (("uv", "run"), ("poetry", "run"), ("nohup",), ("time",), ("exec",))
#: Which devices a process may use: the mesh says it here.
_DEVICES = re.compile(r"\w+_VISIBLE_(DEVICES|CORES|MODULES)")


@dataclass(frozen=True)
class Started:
    """A program (a file, or a module's name), its arguments, and what its launcher adds.

    `hosts` and `per_host` are numbers of hosts and of processes on each, None where the command leaves
    them open.
    """

    program: str
    arguments: tuple[str, ...] = ()
    hosts: int | None = None
    per_host: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def processes(self) -> int | None:
        """How many processes the job has, None if the command does not say it."""
        return None if self.per_host is None else self.per_host * (self.hosts or 1)


def is_launch(word: str) -> bool:
    """Whether a command line begins with `word`, and not with the name of a model or script."""
    if os.path.exists(word):
        return False
    first = os.path.basename(word)
    named = first in _LAUNCHERS or first in {wrapper[0] for wrapper in _WRAPPERS} or word == "-m"
    return named or bool(_PYTHON.fullmatch(first) or _ASSIGNMENT.fullmatch(word))


def launch_of(model: str, arguments: Sequence[str]) -> Started:
    """The program of a command line whose first word is `model`, or `model` itself with arguments.

    Raises FlintError FL254 for a command that cannot be understood.
    """
    if not is_launch(model):
        return Started(model, tuple(arguments))
    words, given = [model, *arguments], dict[str, str]()
    while words and (found := _ASSIGNMENT.fullmatch(words[0])):
        given[found[1]] = found[2]
        words = words[1:]
    for wrapper in _WRAPPERS:
        if tuple(words[: len(wrapper)]) == wrapper:
            words = words[len(wrapper) :]
    launch = _launched(words)
    variables = {**given, **launch.environment}.items()
    return replace(launch, environment={n: v for n, v in variables if not _DEVICES.fullmatch(n)})


def _launched(words: Sequence[str]) -> Started:
    first = os.path.basename(words[0]) if words else ""
    if first in _LAUNCHERS:
        return _LAUNCHERS[first](words[1:])
    if _PYTHON.fullmatch(first):
        words = words[1:]
        while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
            words = words[2 if words[0] in ("-X", "-W") else 1 :]
    if len(words) > 1 and words[0] == "-m":
        module = _MODULES.get(words[1])
        return module(words[2:]) if module else Started(words[1], tuple(words[2:]))
    if not words or words[0].startswith("-"):
        raise _not_understood(words, "it names no script")
    return Started(words[0], tuple(words[1:]))


def _not_understood(words: Sequence[str], why: str) -> FlintError:
    return FlintError(
        "FL254",
        f"the command {shlex.join(words)!r} cannot be followed: {why}",
        help="give the script itself: flint capture train.py --mesh 8 --world -- ARGUMENTS",
    )


# launchers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Syntax:
    """Options of a launcher: those with a value and those without, dashes as underscores."""

    name: str
    valued: frozenset[str]
    flags: frozenset[str]

    def split(self, words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
        """The options, and the program with its arguments. Raises FlintError FL254."""
        found: dict[str, str] = {}
        rest = list(words)
        while rest and rest[0].startswith("-"):
            word, equals, value = rest.pop(0).partition("=")
            if word == "--":
                break
            option = self._known(word, words)
            if option in self.valued and not equals:
                if not rest:
                    raise _not_understood([self.name, *words], f"{word} needs a value")
                value = rest.pop(0)
            found[option] = value
        if not rest:
            raise _not_understood([self.name, *words], "it names no script")
        return found, rest

    def _known(self, word: str, words: Sequence[str]) -> str:
        """The option of a word; like argparse, a beginning that only one option has is enough."""
        name = word.lstrip("-").replace("-", "_")
        every = self.valued | self.flags
        fits = [o for o in every if o.startswith(name)] if word.startswith("--") else []
        if name in every or len(fits) == 1:
            return name if name in every else fits[0]
        raise _not_understood([self.name, *words], f"{self.name} has no option {word}")


_TORCHRUN_VALUED = """nnodes nproc_per_node rdzv_backend rdzv_endpoint rdzv_id rdzv_conf max_restarts
    monitor_interval start_method event_log_handler role log_dir r redirects t tee local_ranks_filter
    node_rank master_addr master_port local_addr logs_specs numa_binding signals_to_handle
    duplicate_stdout_filters duplicate_stderr_filters shutdown_timeout"""
_TORCHRUN_FLAGS = "standalone m module no_python run_path virtual_local_rank use_env"
_DEEPSPEED_VALUED = """H hostfile i include e exclude num_nodes num_gpus num_accelerators master_port
    master_addr node_rank launcher launcher_args enable_each_rank_log autotuning bind_core_list
    venv_script log_level ssh_port"""
_DEEPSPEED_FLAGS = """module no_python no_local_rank no_ssh no_ssh_check force_multi save_pid
    bind_cores_to_rank q quiet"""
TORCHRUN = _Syntax(
    "torchrun", frozenset(_TORCHRUN_VALUED.split()), frozenset(_TORCHRUN_FLAGS.split())
)
DEEPSPEED = _Syntax(
    "deepspeed", frozenset(_DEEPSPEED_VALUED.split()), frozenset(_DEEPSPEED_FLAGS.split())
)


def _torchrun(words: Sequence[str]) -> Started:
    options, (program, *arguments) = TORCHRUN.split(words)
    hosts, per_host = (_last_number(options.get(n, "")) for n in ("nnodes", "nproc_per_node"))
    return Started(program, tuple(arguments), hosts, per_host)


def _torch_launch(words: Sequence[str]) -> Started:
    """`torch.distributed.launch` gives every process its number, unless `--use-env` is there."""
    launch, options = _torchrun(words), TORCHRUN.split(words)[0]
    own = () if "use_env" in options else (f"--local-rank={LOCAL_RANK}",)
    return replace(launch, arguments=(*own, *launch.arguments))


def _deepspeed(words: Sequence[str]) -> Started:
    options, (program, *arguments) = DEEPSPEED.split(words)
    own = () if "no_local_rank" in options else (f"--local_rank={LOCAL_RANK}",)
    per_host = options.get("num_gpus", options.get("num_accelerators", ""))
    hosts = _last_number(options.get("num_nodes", ""))
    return Started(program, (*own, *arguments), hosts, _last_number(per_host))


def _last_number(text: str) -> int | None:
    """8 of "8", 4 of "1:4" (at most so many hosts); None of words (gpu, auto)."""
    number = text.rpartition(":")[2]
    return int(number) if number.isdigit() and int(number) else None


def _accelerate(words: Sequence[str]) -> Started:
    if words[:1] != ["launch"]:
        raise _not_understood(["accelerate", *words], "only `accelerate launch` starts a program")
    return _accelerate_launch(words[1:])


def _accelerate_launch(words: Sequence[str]) -> Started:
    """Accelerate itself reads its options and its configuration, in a process of its own."""
    return _asked_of_accelerate(tuple(words), os.getcwd())


@cache
def _asked_of_accelerate(words: tuple[str, ...], folder: str) -> Started:
    code = Path(__file__).with_name("accelerate_launch.py")
    done = subprocess.run(
        [sys.executable, "-P", str(code), *words],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    if done.returncode:
        last = next(iter(done.stderr.strip().splitlines()[::-1]), "it said nothing")
        raise _not_understood(["accelerate", "launch", *words], f"accelerate says {last!r}")
    said = json.loads(done.stdout.splitlines()[-1])
    processes, hosts = said["processes"], said["hosts"] or 1
    per_host = processes // hosts if processes else None
    own = (f"--local_rank={LOCAL_RANK}",) if said["deepspeed_launcher"] else ()
    arguments = (*own, *said["arguments"])
    return Started(said["program"], arguments, hosts, per_host, said["environment"])


_LAUNCHERS: Mapping[str, Callable[[Sequence[str]], Started]] = {
    "torchrun": _torchrun,
    "deepspeed": _deepspeed,
    "accelerate": _accelerate,
    "accelerate-launch": _accelerate_launch,
}
_MODULES: Mapping[str, Callable[[Sequence[str]], Started]] = {
    "torch.distributed.run": _torchrun,
    "torch.distributed.launch": _torch_launch,
    "accelerate.commands.launch": _accelerate_launch,
    "deepspeed.launcher.runner": _deepspeed,
}
