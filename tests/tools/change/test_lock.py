"""flint.lock: what stands in it, and what becomes of one that cannot be used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from flint.errors import FlintError
from flint.tools.change.diff.snapshot import Snapshot
from flint.tools.change.project.cache import Entry
from flint.tools.change.project.captures import Captured
from flint.tools.change.project.config import Project, load_project
from flint.tools.change.project.lock import Lock, load_lock
from flint.tools.change.project.verify import accept
from tests.project_folders import PROJECT, files, flint
from tests.tools.change.test_compare import program, side

VERSIONS = {"flint-ir": "0.1.0", "jax": "0.10.2"}


def snapshot(*arguments: str, gathers: int = 1) -> Snapshot:
    return side(program(*arguments, gathers=gathers), "h100-dgx").snapshot


def project(folder: Path) -> Project:
    (folder / "flint.toml").write_text(PROJECT)
    return load_project(folder / "flint.toml")


def captured(folder: Path, name: str, found: Snapshot, **versions: str) -> Captured:
    (folder / f"{name}.flint").write_bytes(b"a workload")
    return Captured(
        name, "model.py", Entry(found, folder / f"{name}.flint", (), (), versions), False
    )


def test_equal_locks_are_equal_bytes_and_read_back(tmp_path: Path) -> None:
    one, other = snapshot("a"), snapshot("a", "b")
    lock = Lock({"x": one, "y": other}, {"x": VERSIONS})
    assert lock.to_bytes() == Lock({"y": other, "x": one}, {"x": VERSIONS}).to_bytes()
    assert lock.save(tmp_path / "flint.lock") and not lock.save(tmp_path / "flint.lock")
    back = load_lock(tmp_path / "flint.lock")
    assert back is not None and back.captures == lock.captures
    assert back.made_with == {"x": VERSIONS, "y": {}}
    assert back.to_bytes() == lock.to_bytes()
    assert load_lock(tmp_path / "none.lock") is None


def test_what_an_older_lock_does_not_say_stays_unsaid(tmp_path: Path) -> None:
    """Accepting another capture does not write `null` into an entry that nobody touched."""
    path, lock = tmp_path / "flint.lock", Lock({"x": snapshot("a", "b")})
    for said in (', "is_donated": false', ', "is_donated": null'):
        older = lock.to_bytes().replace(b', "is_donated": false', said.encode() * ("null" in said))
        path.write_bytes(older)
        found = load_lock(path)
        assert found is not None and found.captures["x"].program is not None
        assert {a.is_donated for a in found.captures["x"].program.arguments} == {None}
        new = Lock({"y": snapshot("c")})
        text = Lock({**found.captures, **new.captures}).to_bytes()
        assert b"null" not in text
        assert text.count(b"is_donated") == new.to_bytes().count(b"is_donated") > 0
    assert b"is_donated" in lock.to_bytes()


def test_nothing_of_a_machine_or_of_the_source_stands_there() -> None:
    text = Lock({"x": snapshot("a")}).to_bytes().decode()
    assert "m.py" not in text and ":30" not in text and str(Path.cwd()) not in text
    assert max(map(len, text.splitlines())) < 400  # one fact a line


def test_another_collective_is_another_line() -> None:
    """What git shows of a change: its own lines, the digest, and totals."""
    old, new = (
        Lock({"x": side(program("a", gathers=n)).snapshot}).to_bytes().decode().splitlines()
        for n in (1, 2)
    )
    changed = {line.strip().split(":")[0] for line in set(new) - set(old)}
    assert changed == {
        '"structure"',
        '"kernels"',
        '"comm_bytes"',
        '{"kind"',
        *changed & {'"bytes"'},
    }


def test_an_equal_entry_is_not_rewritten_for_other_versions(tmp_path: Path) -> None:
    p, found = project(tmp_path), snapshot("a")
    lock = Lock({"train": found, "gone": found}, {"train": VERSIONS, "gone": VERSIONS})
    lock.save(p.lock_path)
    newer = {"flint-ir": "9", "jax": "9"}
    assert not accept(p, lock, [captured(tmp_path, "train", found, **newer)])
    other = captured(tmp_path, "train", snapshot("b"), **newer)
    assert accept(p, lock, [other], drop=["gone"])
    after = load_lock(p.lock_path)
    assert after is not None and after.made_with == {"train": newer}


BROKEN: dict[str, Callable[[str], str]] = {
    "has git conflict markers": lambda t: f"<<<<<<< HEAD\n{t}=======\n{t}>>>>>>> main\n",
    "is 'flint.lock/2', but this flint reads 'flint.lock/1'": lambda t: t.replace(
        "lock/1", "lock/2"
    ),
    "is not a lock file of flint": lambda t: t[: len(t) // 2],
    "does not conform to flint.lock/1": lambda t: t.replace('"flops"', '"flop"'),
    "has no capture 'train'": lambda t: t.replace('"train"', '"other"'),
    "has no estimate of 'train' on h100-dgx": lambda t: t.replace('"h100-dgx": {', '"v5p": {'),
}


@pytest.mark.parametrize("said", BROKEN)
def test_a_lock_that_cannot_be_used_is_one_error(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is captured: the model is not even there."""
    monkeypatch.chdir(tmp_path)
    lock = project(tmp_path).lock_path
    lock.write_text(BROKEN[said](Lock({"train": snapshot("a")}).to_bytes().decode()))
    before = files(tmp_path)
    for command in (["verify"], ["run"], ["run", "--update", "train"]):
        if command != ["verify"] and "has no " in said:
            continue  # this is what flint run is for
        result = flint(*command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("error[FL723]: ") and result.stderr.count("error[") == 1
        assert said in result.stderr and "flint run" in result.stderr
        assert files(tmp_path) == before


def test_a_missing_lock_and_a_missing_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lock = project(tmp_path).lock_path
    result = flint("verify")
    assert result.exit_code == 2 and "error[FL723]: there is no flint.lock" in result.stderr
    Lock({"train": snapshot("a")}).save(lock)
    before = lock.read_bytes()
    for command in ("verify", "run"):
        result = flint(command)
        assert (result.exit_code, result.stdout) == (2, "")
        assert "error[FL301]: capture 'train': cannot read model.py" in result.stderr
        assert result.stderr.count("error[") == 1
    assert lock.read_bytes() == before and sorted(files(tmp_path)) == ["flint.lock", "flint.toml"]


def test_json_of_other_types_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flint.lock"
    document = json.loads(Lock({"a": snapshot("a")}).to_bytes())
    for spoilt in ([], {}, {"schema": "flint.lock/1"}, {**document, "captures": []}):
        path.write_text(json.dumps(spoilt))
        with pytest.raises(FlintError) as error:
            load_lock(path)
        assert error.value.code == "FL723" and error.value.place == str(path)
