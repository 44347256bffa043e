"""The core without `flint/tools`: the same traces and estimates, and its tests pass."""

from __future__ import annotations

import pytest

from benchmarks import core_alone


@pytest.mark.long
def test_the_core_stands_without_its_tools(capsys: pytest.CaptureFixture[str]) -> None:
    assert core_alone.main([]) == 0, capsys.readouterr().out
