"""What other names of a value say of dimensions, as frameworks and loops make them."""

from __future__ import annotations

import math

from flint.ir.program import Flag
from flint.tools.share.sizes.copies import among, part_of, reshape, transpose, update_slice
from flint.tools.share.sizes.rows import Outcome, Rows


def view_of(rows: Rows, row: int) -> Outcome:
    """A value as it is, in another shape, turned, spread or a part of it; or nothing that is read."""
    reads = rows.reads[row]
    if not reads:
        return Outcome.DONE
    if all(rows.shapes[r] == rows.shapes[row] for r in reads):
        for read in reads:
            rows.equate_rows(read, row)
        return Outcome.DONE
    if rows.program.flags[row] & Flag.IN_PLACE and len(reads) > 1:
        return update_slice(rows, row)
    if len(reads) != 1:
        return Outcome.UNKNOWN
    alike = math.prod(rows.shapes[reads[0]]) == math.prod(rows.shapes[row])
    if not (alike or rows.view.is_plain[reads[0]]):
        return among(rows, row, reads[0])
    return _other_shape(rows, row, reads[0])


def _other_shape(rows: Rows, row: int, read: int) -> Outcome:
    own, shape = rows.shapes[read], rows.shapes[row]
    if math.prod(own) == math.prod(shape):
        turned = sorted(rows.long_shape(read)) == sorted(rows.long_shape(row))
        if turned and rows.long_shape(read) != rows.long_shape(row):
            return transpose(rows, row)
        return reshape(rows, row)
    if len(own) == len(shape) and all(a in (1, b) for a, b in zip(own, shape, strict=True)):
        pairs = zip(rows.dims[read], rows.dims[row], own, strict=True)
        for a, b in [(a, b) for a, b, size in pairs if size != 1]:
            rows.symbols.equate(a, b)
        return Outcome.DONE
    return part_of(rows, row, read)
