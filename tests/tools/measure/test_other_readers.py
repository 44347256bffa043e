"""Readers of profiles that other packages register (`flint.readers`)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from flint import plugins
from flint.errors import FlintError
from flint.tools.measure.profiles import formats

MODULE = """
from flint.tools.measure.profiles.formats import ProfileFormat

def ours(head):
    return b"their" in head or b"rocprofiler" in head or b"traceEvents" in head

def fails(*_):
    raise ZeroDivisionError("no licence")

broken = ProfileFormat("broken", fails, fails)
theirs = ProfileFormat("theirs", ours, fails)
"""
POINTS = """[flint.readers]
a_broken = their_module:broken
b_missing = their_module:missing
c_theirs = their_module:theirs
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plugins, "_points", plugins._points.__wrapped__)
    monkeypatch.setattr(formats, "others", formats.others.__wrapped__)
    monkeypatch.setenv("FLINT_WARNED_OF", "")
    log = logging.getLogger("flint.plugins")
    monkeypatch.setattr(log, "disabled", False)  # import-linter disables the loggers that it finds
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "their_module.py").write_text(MODULE)
    (info := tmp_path / "their-1.0.dist-info").mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ('{"traceEvents": []}', "PyTorch profiler (Kineto JSON)"),  # says what it is
        ('{"their": 1}', "theirs"),  # any JSON otherwise
        ('{"rocprofiler-sdk-tool": []}', "theirs"),  # Flint knows it and does not read it
        ('{"other": 1}', "PyTorch profiler (Kineto JSON)"),
    ],
)
def test_they_come_after_what_flint_recognizes(
    site: Path, text: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (file := site / "profile.json").write_text(text)
    with caplog.at_level(logging.WARNING, "flint"):
        assert formats.format_of(file).name == name
        formats.format_of(file)
    said = [r.message for r in caplog.records]
    assert len(said) == ("traceEvents" not in text) and all("(package their)" in s for s in said)


def test_what_they_raise_names_the_package(site: Path) -> None:
    (file := site / "profile.json").write_text('{"their": 1}')
    with pytest.raises(
        FlintError, match=r"read profile.json: no licence \(package their\)"
    ) as error:
        formats.read_profiles(file)
    assert error.value.code == "FL882"


def test_without_them_a_known_file_is_refused(tmp_path: Path) -> None:
    (file := tmp_path / "profile.json").write_text('{"rocprofiler-sdk-tool": []}')
    with pytest.raises(FlintError) as error:
        formats.read_profiles(file)
    assert error.value.code == "FL828"
