"""Steps without those that compute for nobody."""

from __future__ import annotations

from dataclasses import replace

from flint.ir.program import Kind
from flint.tools.share.synth.codec.reader import Steps
from flint.tools.share.synth.codec.template import StepKind, Template
from flint.tools.share.synth.codec.writer import new_sizes, trip_count


def pruned(steps: Steps) -> Steps:
    """The steps without rows of loops that nothing reads, and values that nothing reads.

    Work outside of loops that nothing reads stays: it is what the step returns. So do parameters
    and values that loops carry. Nothing borrows dimensions any more: sizes are settled.
    """
    live = _live(steps)
    idle = _idle_loops(steps)
    place: dict[int, int] = {}
    found = Steps(steps.scene)
    sizes = iter(steps.symbols.taken)
    for number, template in enumerate(steps.templates):
        taken = [next(sizes) for _ in new_sizes(template)]
        if not live[number]:
            continue
        settled = template
        if template.step is StepKind.OPEN:
            settled = _counted(steps, number, template, taken, once=number in idle)
        else:
            found.symbols.taken.extend(taken)
        operands = [place[o] for o in steps.operands[number][: template.arity]]
        place[number] = found.add(settled, operands, steps.types[number])
    return found


def _counted(
    steps: Steps, number: int, template: Template, sizes: list[int], *, once: bool
) -> Template:
    """The beginning of a loop with its trip count as a number."""
    lenders = [steps.types[o] for o in steps.operands[number]]
    trips = trip_count(template, [t for t in lenders if t is not None], steps.scene, sizes)
    trips = 1 if once else trips
    return replace(template, arguments=(("number", trips),), pointers=0)


def _idle_loops(steps: Steps) -> set[int]:
    """Loops that hand every value on as it came: running them again would do nothing."""
    opened: list[int] = []
    changing: set[int] = set()
    for number, template in enumerate(steps.templates):
        if template.step is StepKind.OPEN:
            opened.append(number)
        elif template.step is StepKind.CLOSE:
            opened.pop()
        elif template.step is StepKind.YIELD:
            made = steps.templates[steps.operands[number][0]]
            if not made.is_carry:
                changing.add(opened[-1])
    return {n for n, t in enumerate(steps.templates) if t.step is StepKind.OPEN} - changing


def _live(steps: Steps) -> list[bool]:
    depths = _depths(steps)
    live = [False] * len(steps)
    for number in range(len(steps) - 1, -1, -1):
        t = steps.templates[number]
        is_row = t.step is StepKind.ROW
        is_result = is_row and t.kind >= Kind.COMPUTE and depths[number] == 0
        stays = not is_row or is_result or t.is_carry or t.kind is Kind.PARAMETER
        if stays or live[number]:
            live[number] = True
            for operand in steps.operands[number][: t.arity]:
                live[operand] = True
    return live


def _depths(steps: Steps) -> list[int]:
    """How many loops are around each step."""
    found, depth = [], 0
    for t in steps.templates:
        depth += (t.step is StepKind.OPEN) - (t.step is StepKind.CLOSE)
        found.append(depth)
    return found
