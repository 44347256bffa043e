"""Models in a user's file are built without weights: PyTorch makes its tensors on `meta`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flint.errors import FlintError
from flint.io.bounded import FileKind, is_file, read_bounded
from flint.io.user_places import calling_place
from flint.text import format_bytes

if TYPE_CHECKING:
    from flint.frontends.torch_private import OpOverload


#: A tensor with memory behind it may be this large: tables and test inputs, never weights.
MAX_REAL_BYTES = 2**30


@contextmanager
def without_weights(path: Path) -> Iterator[None]:
    """Inside, tensors that name no device are on `meta`, if the file at `path` uses PyTorch.

    A file that uses PyTorch has the word `torch` in it: for others, PyTorch is not even imported.
    Raises FlintError FL226, inside, for a tensor of more than `MAX_REAL_BYTES` on a real device.
    """
    if not _uses_torch(path):
        yield
        return
    import torch

    with _refuse_weights(), torch.device("meta"):
        yield


def _uses_torch(path: Path) -> bool:
    """Whether PyTorch is installed and the file names it; importing it comes later."""
    if find_spec("torch") is None or not is_file(path):
        return False
    return b"torch" in read_bounded(path, FileKind.MODEL, "FL301")


def _refuse_weights() -> AbstractContextManager[object]:
    """A mode that looks at every tensor that is made, before it is."""
    import torch

    from flint.frontends.torch_private import TorchDispatchMode

    class RefuseWeights(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            func: OpOverload,
            types: object,
            args: Sequence[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> object:
            options = kwargs or {}
            if args and isinstance(args[0], list | tuple) and "device" in options:
                _check_size(args[0], options, torch)
            return func(*args, **options)

    return RefuseWeights()


def _check_size(shape: Sequence[Any], options: Mapping[str, Any], torch: Any) -> None:
    device = options["device"] or torch.device("cpu")
    if device.type == "meta" or not all(isinstance(n, int) for n in shape):
        return
    dtype = options.get("dtype") or torch.get_default_dtype()
    size = math.prod(shape) * int(dtype.itemsize)
    if size > MAX_REAL_BYTES:
        shown = f"{str(dtype).removeprefix('torch.')}[{','.join(map(str, shape))}]"
        raise FlintError(
            "FL226",
            f"a tensor {shown} with real memory ({format_bytes(size)}) is made on {device}",
            place=calling_place(),
            help="omit the device: the model file runs with torch.device('meta'), which allocates nothing",
        )
