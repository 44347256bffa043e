"""Private names of PyTorch that are gone are one error."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from flint.errors import FlintError
from flint.frontends import torch_private


def test_every_name_is_there() -> None:
    torch_private.check(recording=True)
    for name in ("trace_forward_and_backward", "descriptors", "pipeline_modes", "backward_shapes"):
        assert getattr(torch_private, name)() is not None


@pytest.mark.parametrize("recording", [False, True])
def test_names_that_are_gone_are_one_error(
    recording: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_private, "_MISSING", [])
    assert torch_private._find("torch._C:_no_such_name") is None
    torch_private._attribute("_no_such_field", "torch:Tensor")
    torch_private._field("_nothing", "torch.nn:Module")
    with pytest.raises(FlintError) as caught:
        torch_private.check(recording)
    assert caught.value.code == "FL234"
    for name in (
        "torch._C._no_such_name",
        "torch.Tensor._no_such_field",
        "torch.nn.Module._nothing",
    ):
        assert name in caught.value.message
    assert ("recorded" in caught.value.message) is recording


def test_a_name_that_is_asked_for_later_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_private, "_MISSING", [])
    with pytest.raises(FlintError, match="torch.no_such_module.name"):
        torch_private._later("torch.no_such_module:name")()
