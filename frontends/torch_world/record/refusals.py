"""What cannot be recorded is refused by the operator's name, in words that a program on CUDA knows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from flint.errors import FlintError

if TYPE_CHECKING:
    from flint.frontends.torch_private import HigherOrderOperator, OpOverload

#: What PyTorch says of an operator without a kernel, up to its list of all backends.
_NO_KERNEL = re.compile(r"Could not run '([\w:.]+)' with arguments from the '(\w+)' backend\b.*")
#: The device's name for C++, as it stands in messages, and what the program calls it.
_NAMES = (
    (re.compile(r"\bflint:(?=\d)"), "cuda:"),
    (re.compile(r"\btorch\.flint\b"), "torch.cuda"),
    (re.compile(r", 'flint'(?=[],])"), ""),
    (re.compile(r"'flint'"), "'cuda'"),
    (re.compile(r"\bflint (?=device|tensor)"), "cuda "),
    (re.compile(r"\bPrivateUse1\b"), "CUDA"),
)


def said_of_cuda(message: str) -> str:
    """A message of PyTorch's without the name that C++ knows the virtual device by."""
    message = _NO_KERNEL.sub(r"'\1' has no kernel for tensors of '\2' here", message)
    for name, shown in _NAMES:
        message = name.sub(shown, message)
    return message


def no_shapes(func: OpOverload) -> FlintError:
    """FL255: nothing tells the shapes of an operator's results; FL257 if these are sparse."""
    name = func.name()
    if "sparse" in name:
        return sparse(func)
    own = name.startswith(("aten::", "prims::"))
    return FlintError(
        "FL255",
        f"{name} cannot be recorded: the shapes of its results are unknown without data",
        help="use another operator in the recorded step, or remove this one"
        if own
        else f'give its shapes: @torch.library.register_fake("{name}")',
    )


def of_functions(func: HigherOrderOperator) -> FlintError:
    """FL235: an operator of functions that nothing runs here."""
    return FlintError(
        "FL235",
        f"{func.name()} cannot be recorded: it runs functions inside of the compiler",
        help="write it as Python's own if, for or while in the recorded step",
    )


def of_data(func: OpOverload) -> FlintError:
    """FL256: the results of an operator are as large as its data say."""
    return FlintError(
        "FL256",
        f"{func.name()} cannot be recorded: the shapes of its results depend on data",
        help="use an operator whose result shapes do not depend on data",
    )


def sparse(func: OpOverload) -> FlintError:
    """FL257: a sparse tensor, of which nothing tells how many elements it has."""
    return FlintError(
        "FL257",
        f"{func.name()} cannot be recorded: the number of elements in its sparse result depends on data",
        help="use dense tensors: sparse=False of an embedding, or .to_dense() before the step",
    )
