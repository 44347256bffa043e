"""A step captured and compiled, side by side: what `--cross-check` asks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from flint.backends.summary.cross_check import CrossCheck, cross_check
from flint.cluster.named import load_cluster
from flint.errors import FlintError
from flint.log import stage
from flint.passes.compilers.target import TARGETS, find_target
from flint.passes.work.totals import totals

if TYPE_CHECKING:
    from flint.cluster.models import Cluster
    from flint.ir.workload import HasWorkload, Workload

T = TypeVar("T", bound="HasWorkload")
#: Captures the step through a compiler, "" for none.
CaptureBy = Callable[[str], T]

AUTO: Final = "auto"
#: What `auto` compiles: a compiler takes longer for more (docs/decisions/0083).
MOST_OPERATIONS, MOST_DEVICES = 1000, 4096
#: Of a request that a compiler has no place for: recorded, or compiled already.
_NOTHING_TO_COMPILE = frozenset({"FL218", "FL219", "FL240"})


def cross_checked(
    capture_by: CaptureBy[T], asked: str, chip: str = "", cluster: str | None = None
) -> tuple[T, CrossCheck]:
    """The captured step, and how it compares with what a compiler makes of it.

    `asked` is a compiler or "auto", `chip` what it is for, `cluster` where both are priced. Raises
    FlintError FL252 for a step that no compiler takes, and what captures and compilers raise; for
    "auto" those of the compiler are the reason why nothing was compared.
    """
    on = None if cluster is None else load_cluster(cluster)
    if asked == AUTO:
        captured = _captured(capture_by)
        with stage("cross-check"):
            return captured, _automatic(captured.workload, capture_by, chip, on)
    compiled = _compiled(capture_by, asked)
    captured = _captured(capture_by)
    with stage("cross-check"):
        return captured, cross_check(captured.workload, compiled, on)


def _captured(capture_by: CaptureBy[T]) -> T:
    found = capture_by("")
    if found.workload.compiled_by is None:
        return found
    raise FlintError(
        "FL252",
        f"there is nothing to cross-check: {found.workload.compiled_by} makes the program itself",
        help="omit --compiler",
    )


def _compiled(capture_by: CaptureBy[T], compiler: str) -> Workload:
    try:
        return capture_by(compiler).workload
    except FlintError as error:
        if error.code not in _NOTHING_TO_COMPILE:
            raise
        raise FlintError(
            "FL252",
            f"there is nothing to cross-check: {error.message}",
            place=error.place,
            help="omit --cross-check",
        ) from error


def _automatic(
    captured: Workload, capture_by: CaptureBy[T], chip: str, cluster: Cluster | None
) -> CrossCheck:
    compiler, reason = _compiler_of(chip), _too_large(captured)
    if compiler and not reason:
        try:
            return cross_check(captured, _compiled(capture_by, compiler), cluster)
        except FlintError as error:
            reason = error.message
    return CrossCheck(compiler, not_checked=reason or f"no compiler is known for '{chip}'")


def _compiler_of(chip: str) -> str:
    for compiler in TARGETS:
        try:
            find_target(compiler, chip)
        except FlintError as error:
            if error.code != "FL413":
                raise
        else:
            return compiler
    return ""


def _too_large(captured: Workload) -> str:
    operations = sum(totals(program).op_count for program in captured.programs)
    if operations <= MOST_OPERATIONS and captured.mesh.size <= MOST_DEVICES:
        return ""
    return (
        f"{operations:,} operations on {captured.mesh.size:,} devices; auto compiles up to "
        f"{MOST_OPERATIONS:,} on {MOST_DEVICES:,} (name the compiler to have it done)"
    )
