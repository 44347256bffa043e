"""Where a graph node comes from: module path, line of the user's code, phase.

JAX carries one string of names per operation, so all three go into it as parts between slashes:
`@forward/layers/0/attention/@model.py:41` (`@` where no line is known). `flint.passes.locations` reads them back.
"""

from __future__ import annotations

import os
import re
from functools import cache

import torch

from flint.errors import FlintError
from flint.frontends.torch_precision import require_one_type
from flint.io.user_places import is_users
from flint.passes.locations import file_name

#: Name of the wrapped module inside the exported one; every path starts with it.
ROOT = "module"

_TORCH = os.path.dirname(torch.__file__) + os.sep
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def name_stack(node: torch.fx.Node, phase: str, inside: str = "") -> str:
    """The parts that a node adds to JAX's name stack; `inside` is the path of its block."""
    path = module_path(node)
    if inside and (path == inside or path.startswith(inside + ".")):
        path = path[len(inside) + 1 :]
    parts = [f"@{phase}", *path.split(".")] if path else [f"@{phase}"]
    place = place_of(node)
    return "/".join([*parts, f"@{place}"])


def module_path(node: torch.fx.Node) -> str:
    """Dotted path of the module whose forward made this node (or its gradient), or ""."""
    return without_root(_exported_path(node))


def who_uses(node: torch.fx.Node) -> str:
    """The module whose forward made this node, in words that an error can use."""
    return module_path(node) or ("the model" if _exported_path(node) else "the loss")


def _exported_path(node: torch.fx.Node) -> str:
    """The path of a node's module inside the exported one, which is "" itself."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    return str(next(reversed(stack.values()))[0]) if stack else ""


def scope_of_parameter(name: str, phase: str) -> str:
    """The name stack of what is done to a parameter: that of the module that holds it."""
    return "/".join([f"@{phase}", *name.split(".")[:-1], "@"])


def without_root(name: str) -> str:
    """A name inside the exported module as the user knows it: without the wrapper's part."""
    return name[len(ROOT) + 1 :] if name.startswith(ROOT + ".") else "" if name == ROOT else name


def place_of(node: torch.fx.Node) -> str:
    """`file.py:line` of the innermost frame of the user's code, or ""."""
    return _place(node.meta.get("stack_trace") or "")


@cache
def _place(stack_trace: str) -> str:
    frames = _FRAME.findall(stack_trace)
    users = [f for f in frames if is_users(f[0])]
    others = [f for f in frames if not f[0].startswith(_TORCH)]
    for found in (users, others, frames):
        if found:
            return f"{file_name(found[-1][0])}:{found[-1][1]}"
    return ""


def refuse_impossible(graph: torch.fx.Graph) -> None:
    """Raise FlintError FL228 for a tensor whose size depends on data (a mask as an index), and FL223
    for a product of two types, which export lets pass."""
    for node in graph.nodes:
        try:
            values = [getattr(a, "meta", {}).get("val") for a in node.args]
            require_one_type(getattr(getattr(node.target, "_schema", None), "name", ""), values)
        except RuntimeError as error:
            raise export_failure(error, place_of(node)) from error
        if torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ()) and _is_open(node):
            raise FlintError(
                "FL228",
                f"{node.target}: the size of the result depends on numbers that are not known before a run",
                place=place_of(node) or None,
                help="use where, masks of a fixed size, or torch.nonzero_static",
            )


def _is_open(node: torch.fx.Node) -> bool:
    shape = getattr(node.meta.get("val"), "shape", ())
    return not all(isinstance(n, int) for n in shape)


def export_failure(error: BaseException, place: str | None) -> FlintError:
    """FlintError FL223: what the module raised while it was exported, and where."""
    from flint.io.user_places import user_place

    lines = [ln.strip() for ln in str(error).strip().splitlines() if ln.strip()]
    reason = lines[0] if lines else "no message"
    kind, where = type(error).__name__, user_place(error) or _place(str(error)) or place
    if kind.startswith(("GuardOnDataDependent", "DataDependent", "DynamicOutputShape")):
        message = "the module cannot be exported: it decides by the value of a tensor"
        help_ = "decide without it (torch.where), or capture the training script with --world"
    else:
        message = f"the module cannot be exported: {kind}: {reason}"
        help_ = "-v shows the traceback; a script that distributes itself takes --world"
    return FlintError("FL223", message, place=where, help=help_)
