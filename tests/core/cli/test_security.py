"""SECURITY.md: a row for each command, and a canary in each input."""

from __future__ import annotations

import io
import json
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from flint.cli.options import Reads, Writes, roles_of
from tests.core.cli.test_outputs import REPOSITORY, arguments_of, commands

ROW = re.compile(r"^\| `([a-z ]+)` \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
TABLE = {
    name: (reads, runs, writes)
    for name, reads, runs, writes in ROW.findall((REPOSITORY / "SECURITY.md").read_text())
}
READERS = sorted(name for name, (_, runs, _) in TABLE.items() if runs == "nothing")
CANARY = "open('ran', 'w').close()\n"


class Bomb:
    """What runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return (exec, (CANARY,))


def bombs() -> dict[str, bytes]:
    """Files that run the canary if somebody unpickles, imports or evaluates them."""
    column, npz, workload = io.BytesIO(), io.BytesIO(), io.BytesIO()
    objects = np.array([Bomb()], dtype=object)
    np.lib.format.write_array(column, objects, allow_pickle=True)
    np.savez(npz, schema=objects, model=objects)
    with zipfile.ZipFile(workload, "w") as archive:
        archive.writestr("manifest.json", json.dumps({"schema": "flint.workload/2"}))
        archive.writestr("program.0.npz", npz.getvalue())
    yaml = b"!!python/object/apply:builtins.exec [\"open('ran', 'w').close()\"]\n"
    found = {"bomb.pkl": pickle.dumps(Bomb()), "bomb.npz": npz.getvalue(), "bomb.yml": yaml}
    text = f"__import__('builtins').exec({CANARY!r})\n".encode()
    return {
        **found,
        "bomb.flint": workload.getvalue(),
        "bomb.py": CANARY.encode(),
        "bomb.json": text,
    }


#: Runs commands in one process and prints what they did to files, and whether code of theirs ran.
RUNNER = """
import json, os, sys
from typer.testing import CliRunner
from flint.cli.command_line import app
here = os.getcwd()
seen = []
def look(event, arguments):
    if event == "exec" and getattr(arguments[0], "co_filename", "").startswith(here):
        seen.append("exec")
    if event in ("pickle.find_class", "subprocess.Popen", "os.system", "socket.connect"):
        seen.append(event)
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        if str(arguments[0]).startswith(here):
            seen.append(f"wrote {os.path.basename(arguments[0])}")
sys.addaudithook(look)
found = []
for folder, command in json.load(sys.stdin):
    os.chdir(folder)
    seen.clear()
    status = CliRunner().invoke(app, command).exit_code
    found.append([command, status, list(seen)])
print(json.dumps(found))
"""


def run(
    folder: Path, wanted: list[list[str]], inside: list[Path] | None = None
) -> list[tuple[list[str], int, list[str]]]:
    """What each command did in `folder`, or its own inside: itself, its exit status, what was seen."""
    folders = map(str, inside or [folder] * len(wanted))
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUNNER],
        input=json.dumps(list(zip(folders, wanted, strict=True))),
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[tuple[list[str], int, list[str]]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_each_command_has_its_row_and_each_row_its_command() -> None:
    assert set(TABLE) == {name for name, _, _ in commands()}


def test_rows_name_what_commands_write() -> None:
    for name, function, command in commands():
        roles, (reads, _, writes) = roles_of(function), TABLE[name]
        options = {
            next(o for o in parameter.opts if o.startswith("--"))
            for parameter in command.params
            if isinstance(roles.get(parameter.name), Writes)
        }
        assert options <= set(re.findall(r"`(--[a-z-]+)`", writes)), name
        assert options or writes == "nothing" or name in ("run", "mcp"), name
        if any(isinstance(role, Reads) for role in roles.values()):
            assert reads != "nothing", name


def test_what_runs_nothing_runs_no_canary_in_any_input(tmp_path: Path) -> None:
    for name, data in bombs().items():
        (tmp_path / name).write_bytes(data)
    wanted = []
    for name, function, command in commands():
        for parameter in command.params if name in READERS else ():
            if not isinstance(roles_of(function).get(parameter.name), Reads):
                continue
            option = next((o for o in parameter.opts if o.startswith("--")), "")
            for bomb in bombs():
                others = [a if a != "given" else bomb for a in arguments_of(name, option)]
                output = ["new.flint" if a == bomb and b in ("-o", "--output") else a
                          for b, a in zip(["", *others], others, strict=False)]  # fmt: skip
                wanted.append([*name.split(), *output, *([option, bomb] if option else [])])
    found = run(tmp_path, wanted)
    assert len(found) == len(wanted) > 60
    for arguments, status, seen in found:
        assert status in (1, 2), arguments  # nothing of it can be used; 70 would be a bug
        assert not {"exec", "pickle.find_class", "os.system", "socket.connect"} & set(seen), (
            arguments
        )
    assert not (tmp_path / "ran").exists()


def test_readers_write_what_they_are_asked_to_and_nothing_else(tmp_path: Path) -> None:
    from flint.backends.chakra import write
    from tests.estimates import layers

    workload = layers().workload
    workload.save(tmp_path / "w.flint")
    write(workload, tmp_path / "traces")
    before = sorted(p.name for p in tmp_path.rglob("*"))
    on = ["-c", "h100-dgx"]
    wanted = [
        ["check", "traces"],
        ["clusters", "list"],
        ["clusters", "show", "h100-dgx"],
        ["clusters", "stacks"],
        ["diff", "w.flint", "traces"],
        ["estimate", "w.flint", *on],
        ["explain", "traces", "--list"],
        ["export", "traces"],
        ["grow", "w.flint"],
        ["opt", "w.flint", "-p", "drop-dead-code"],
        ["schedules", "1f1b"],
        ["schema"],
    ]
    for arguments, status, seen in run(tmp_path, wanted):
        assert (status, seen) == (0, []), arguments
    assert sorted(p.name for p in tmp_path.rglob("*")) == before


MODEL = f"import flint\n{CANARY}raise ValueError\n"
RUNS = {
    "capture": ["capture", "model.py", "--mesh", "2"],
    "diff": ["diff", "model.py", "model.py", "--mesh", "2"],
    "explore": ["explore", "model.py", "--devices", "2", "-c", "h100-dgx"],
    "propose": ["propose", "model.py", "--devices", "2", "-c", "h100-dgx"],
    "serve": ["serve", "model.py", "--mesh", "2", "-c", "h100-dgx", "--requests", "constant:1/s,input=9,output=9"],
    "run": ["run"],
    "verify": ["verify"],
    "estimate": ["estimate", "traces", "-c", "traces/network.yml", "--compare", "simulated", "--binary", "sim"],
    "simulate": ["simulate", "traces", "--with", "astra-sim", "--binary", "sim"],
}  # fmt: skip


def _input_of(name: str, tmp_path: Path) -> Path:
    """A folder with all that a command runs, each of which makes the file `ran`."""
    from flint.backends.chakra import write
    from tests.estimates import layers

    tmp_path.mkdir()
    (tmp_path / "model.py").write_text(MODEL.replace("'ran'", repr(str(tmp_path / "ran"))))
    (tmp_path / "flint.toml").write_text('[capture.llama]\nmodel = "model.py"\nmesh = "2"\n')
    if name == "verify":
        shutil.copy(REPOSITORY / "examples" / "flint.lock", tmp_path)  # it knows a 'llama'
    (tmp_path / "sim").write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
    (tmp_path / "sim").chmod(0o755)
    if "traces" in RUNS[name]:
        write(layers().workload, tmp_path / "traces")
    return tmp_path


def test_what_runs_its_input_says_so(tmp_path: Path) -> None:
    # What `flint mcp` runs, its clients ask for: tests/tools/mcp.
    names = sorted(set(TABLE) - set(READERS) - {"mcp"})
    folders = [_input_of(name, tmp_path / name) for name in names]
    done = run(tmp_path, [RUNS[name] for name in names], folders)
    for (arguments, status, _), folder in zip(done, folders, strict=True):
        assert status in (0, 1, 2) and (folder / "ran").exists(), arguments
