"""Draws of the corpus: the same number and seed give the same model, mesh and options."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from benchmarks.sharing.corpus.family import Example, Family
from benchmarks.sharing.corpus.plan import Plan, drawn_plan
from benchmarks.sharing.corpus.sizes import Options

#: The share of draws that take a model file of the repository, where the family has one.
OF_EXAMPLES = 0.2
#: Sizes of the first axis of such files' meshes.
_FIRST = (4, 8, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class Draw:
    """The capture `number` of a family: a model of this folder with a plan, or a model file with settings."""

    family: Family
    number: int
    options: Options
    plan: Plan | None
    example: Example | None
    mesh: str

    @property
    def file(self) -> str:
        """A name that no other draw has."""
        return f"{self.family.name.replace(' ', '_')}-{self.number:04}.flint"

    @property
    def words(self) -> str:
        """Options in one line: of the model, then of what is around it."""
        of_model = " ".join(f"{name}={_shown(value)}" for name, value in self.options.items())
        return f"{of_model} {self.plan.words}" if self.plan else of_model


def _shown(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def drawn(family: Family, number: int, seed: int) -> Draw:
    """Draw `number` of a family."""
    rng = Random(f"{seed}/{family.name}/{number}")
    if family.example is not None and rng.random() < OF_EXAMPLES:
        mesh = "x".join(str(rng.choice(sizes)) for sizes in (_FIRST, family.example.second))
        return Draw(family, number, dict(family.example.settings(rng)), None, family.example, mesh)
    plan = drawn_plan(rng, family.styles, family.inference)
    return Draw(family, number, family.draw(rng), plan, None, plan.mesh)
