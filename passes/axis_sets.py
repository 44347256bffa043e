"""Arithmetic on sets of mesh axes and sub-axes."""

from __future__ import annotations

from collections.abc import Iterable

from flint.mesh import AxisRef, Mesh


def subtract(
    mesh: Mesh, axes: Iterable[AxisRef], part: Iterable[AxisRef]
) -> tuple[AxisRef, ...] | None:
    """The axes that are in `axes` and not in `part`, canonical; None if `part` is not inside.

    `x` of size 8 without `x:(1)2` is `x:(2)4`. A part that cuts across a factor of an axis
    (2 out of the middle of 3) is not inside.
    """
    left = list(mesh.canonical(axes))
    for ref in mesh.canonical(part):
        pre, size = ref.pre_size, mesh.axis_size(ref)
        for i, whole in enumerate(left):
            outer_pre, outer_size = whole.pre_size, mesh.axis_size(whole)
            if whole.name != ref.name or pre % outer_pre:
                continue
            major = pre // outer_pre
            if outer_size % (major * size):
                continue
            minor = outer_size // (major * size)
            left[i : i + 1] = [
                AxisRef(ref.name, outer_pre, major),
                AxisRef(ref.name, pre * size, minor),
            ]
            break
        else:
            return None
    return mesh.canonical(left)
