"""Replacing PyTorch's names while a program is recorded: self-tests, and everything put back."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from flint.errors import FlintError
from flint.frontends.torch_world.device.chips import chip_properties
from flint.frontends.torch_world.device.cuda import make_device_module
from flint.frontends.torch_world.device.device import NAME, DeviceTimeline
from flint.frontends.torch_world.record.handover import Handover
from flint.frontends.torch_world.record.modules import ModulePaths
from flint.frontends.torch_world.record.phases import Phases
from flint.frontends.torch_world.record.session import Session
from flint.frontends.torch_world.runtime.chunks import LazyChunks
from flint.frontends.torch_world.runtime.objects import Objects
from flint.frontends.torch_world.runtime.patches import PRIVATE
from flint.frontends.torch_world.runtime.patching import Patch, check, installed
from flint.frontends.torch_world.runtime.stand_ins import stand_ins

ABSENT = object()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session whose device module is there, without the device."""
    timeline = DeviceTimeline()
    module = make_device_module(timeline, chip_properties("h100"), 2)
    monkeypatch.setattr(torch, NAME, module, raising=False)
    return Session(0, 8, timeline, ModulePaths(), Phases(2), objects=Objects(Handover()))


def replaced(patches: list[Patch]) -> dict[str, Any]:
    return {patch.target: vars(patch.owner()[0]).get(patch.owner()[1], ABSENT) for patch in patches}


def test_every_patch_passes_its_self_test() -> None:
    check(PRIVATE.all)
    check(stand_ins())


def test_every_patch_says_why_and_has_one_target() -> None:
    assert all(inspect.getdoc(patch.make) for patch in PRIVATE.all)
    targets = [patch.target for patch in (*PRIVATE.all, *stand_ins())]
    assert len(set(targets)) == len(targets)


@pytest.mark.parametrize(
    "target, parameters",
    [
        ("torch.nn:Module._gone", None),
        ("torch.no_such_module:x", None),
        ("torch.nn:Module._apply", ("self", "renamed")),
    ],
)
def test_a_name_that_changed_is_one_error(target: str, parameters: tuple[str, ...] | None) -> None:
    broken = Patch(target, lambda session, original: original, parameters)
    with pytest.raises(FlintError) as caught:
        check([*PRIVATE.all, broken])
    assert caught.value.code == "FL234"
    assert target.replace(":", ".") in caught.value.message
    assert torch.__version__.split("+")[0] in caught.value.message


def test_everything_is_put_back(session: Session) -> None:
    patches = [*PRIVATE.all, *stand_ins()]
    before = replaced(patches)
    with installed(patches, session):
        assert any(replaced(patches)[target] is not before[target] for target in before)
        assert torch.compile(len)([1, 2]) == 2
        assert torch.compile(len, disable=True) is len
    after = replaced(patches)
    assert all(after[target] is before[target] for target in before)


def test_everything_is_put_back_after_an_exception(session: Session) -> None:
    patches = [*PRIVATE.all, *stand_ins()]
    before = replaced(patches)
    with pytest.raises(KeyboardInterrupt), installed(patches, session):
        raise KeyboardInterrupt
    after = replaced(patches)
    assert all(after[target] is before[target] for target in before)


def test_a_replacement_that_cannot_be_made_leaves_nothing_behind(session: Session) -> None:
    def fail(session: Session, original: Any) -> Any:
        raise ValueError("no")

    before = replaced(PRIVATE.all)
    broken = [*PRIVATE.all, Patch("torch.nn:Module.half", fail)]
    with pytest.raises(ValueError, match="no"), installed(broken, session):
        pytest.fail("nothing runs")
    assert all(replaced(PRIVATE.all)[target] is before[target] for target in before)


@pytest.mark.parametrize("size", [1, 5, 8, 9])
@pytest.mark.parametrize("count", [1, 3, 8, 12])
def test_lazy_chunks_are_chunks(size: int, count: int) -> None:
    tensor = torch.arange(size * 3).view(size, 3)
    chunks = list(torch.chunk(tensor, count))
    lazy = LazyChunks(tensor, count, 0)
    assert len(lazy) == count
    for index in range(count):
        expected = chunks[index] if index < len(chunks) else tensor.new_empty(0)
        assert torch.equal(lazy[index], expected)
    assert len(lazy[:2]) == min(2, count)


def test_a_newer_version_is_a_warning_and_an_older_one_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flint.frontends.torch_world.runtime import versions

    monkeypatch.setattr(versions, "torch_version", lambda: "2.14.1+cu130")
    assert "2.14.1" in versions.check_version()
    monkeypatch.setattr(versions, "torch_version", lambda: "2.12.0")
    with pytest.raises(FlintError) as caught:
        versions.check_version()
    assert caught.value.code == "FL234"
    monkeypatch.setattr(versions, "torch_version", lambda: "2.13.2")
    assert versions.check_version() == ""
