"""What is said of exceptions: the first of a chain, in words that a program on CUDA knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from flint.errors import FlintError
from flint.frontends.torch_world.record.refusals import said_of_cuda
from flint.frontends.user_process import place_of, what_happened

NO_KERNEL = (
    "Could not run 'aten::empty_strided' with arguments from the 'flint' backend. This could be "
    "because ... 'aten::empty_strided' is only available for these backends: [CPU, Meta]."
)


@pytest.mark.parametrize(
    "message, said",
    {
        NO_KERNEL: "'aten::empty_strided' has no kernel for tensors of 'cuda' here",
        "found flint:0 and cpu": "found cuda:0 and cpu",
        "must be on ['cuda', 'xpu', 'flint', 'xla'].": "must be on ['cuda', 'xpu', 'xla'].",
        "no such file: flint.toml": "no such file: flint.toml",
        "torch.flint.FloatTensor": "torch.cuda.FloatTensor",
    }.items(),
)
def test_the_device_has_one_name(message: str, said: str) -> None:
    assert said_of_cuda(message) == said


def _first() -> None:
    {}["rows"]


def _handled() -> None:
    try:
        _first()
    except KeyError:
        _no_rows()


def _no_rows() -> None:
    raise ValueError("no rows")


def _from() -> None:
    try:
        _handled()
    except ValueError as error:
        raise RuntimeError(f"could not train {object()}") from error


def _hidden() -> None:
    try:
        _first()
    except KeyError:
        raise ValueError("no rows") from None


def _exits() -> None:
    try:
        _first()
    finally:
        raise SystemExit(3)


@pytest.mark.parametrize(
    "run, said, line",
    [
        (_first, "raised KeyError: 'rows'", '{}["rows"]'),
        (_handled, "raised KeyError: 'rows', then raised ValueError: no rows", '{}["rows"]'),
        (
            _from,
            "raised KeyError: 'rows', then raised RuntimeError: could not train <object>",
            '{}["rows"]',
        ),
        (_hidden, "raised ValueError: no rows", 'raise ValueError("no rows") from None'),
        (_exits, "raised KeyError: 'rows', then exited with 3", '{}["rows"]'),
    ],
)
def test_the_first_exception_is_told(run: Callable[[], Any], said: str, line: str) -> None:
    with pytest.raises(BaseException) as caught:
        run()
    assert FlintError("FL230", what_happened(caught.value)).message == said
    assert str(place_of(caught.value, "x.py", lambda error: None)).endswith(line)
