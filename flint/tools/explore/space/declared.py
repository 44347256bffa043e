"""What a model says of its own space: mesh axes, and options with choices."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from flint.errors import FlintError
from flint.frontends.contained import contained
from flint.frontends.model_file import ModelFile, OptionTaker, Target, importable
from flint.steps.choices import option_choices, spelled
from flint.steps.input_kind import InputKind, input_kind
from flint.steps.options import options_of
from flint.tools.explore.point import Pairs, PointField, SpaceDimension
from flint.tools.explore.subject import Subject

DECLARED = "declared"


class ModelKind(Enum):
    """What a model is, to a space."""

    ENTRY = "a Python model file"
    SCRIPT = "a script"  #: its options are its own, and not known here
    PROGRAM = "a program in a file"  #: for one mesh, without options


@dataclass(frozen=True)
class Declared:
    """What was read from a model. `taker` is of an ENTRY only."""

    kind: ModelKind
    name: str  #: what messages call it: "train.py:train"
    taker: OptionTaker | None = None

    @classmethod
    def of(cls, subject: Subject) -> Declared:
        """Read a model; of a model file, run its code.

        Raises FlintError FL218 for options of another kind of model, FL301 and FL210 for a file that
        cannot be read, and what importing a model file raises.
        """
        target = Target.parse(subject.model)
        if subject.world:
            return cls(ModelKind.SCRIPT, target.path.name)
        if input_kind(target.path) is not InputKind.PYTHON:
            return cls(ModelKind.PROGRAM, target.path.name)
        args = Target.parse(subject.args) if subject.args is not None else None
        with importable(target.path.parent), contained():
            taker = ModelFile.read(target).option_taker(args)
        return cls(ModelKind.ENTRY, taker.place, taker)

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that it declares."""
        return self.taker.axes if self.taker else ()

    @property
    def options(self) -> tuple[str, ...]:
        """The options that it has; those of a script are not known."""
        return tuple(self._parameters())

    @property
    def takes_anything(self) -> bool:
        """Whether options of any name may be given."""
        if self.kind is ModelKind.SCRIPT:
            return True
        function = self.taker.function if self.taker else None
        kinds = (
            [p.kind for p in inspect.signature(function).parameters.values()] if function else []
        )
        return inspect.Parameter.VAR_KEYWORD in kinds

    def defaults(self) -> Pairs:
        """Options with a default, with the text that stands for it."""
        found = {n: p.default for n, p in self._parameters().items() if p.default is not p.empty}
        return tuple(sorted((name, spelled(value)) for name, value in found.items()))

    def dimensions(self, fixed: Mapping[str, object]) -> tuple[SpaceDimension, ...]:
        """Options that list their choices and are not in `fixed`, in the order of the function."""
        if self.taker is None or self.taker.function is None:
            return ()
        choices = option_choices(self.taker.function)
        return tuple(
            SpaceDimension(name, PointField.SETTING, choices[name].texts, DECLARED)
            for name in self._parameters()
            if name in choices and name not in fixed
        )

    def check(self, settings: Mapping[str, str]) -> None:
        """Raise FlintError FL216 for an option that is not there, or does not take its value.

        A required option without a value is one, too. Options of scripts are not known.
        """
        if self.kind is ModelKind.SCRIPT:
            return
        if self.taker is not None and self.taker.function is not None:
            options_of(self.taker.function, settings, place=self.taker.place, skip=self.taker.skip)
        elif settings:
            raise FlintError(
                "FL216",
                f"{self.name} has no options: '{next(iter(settings))}' cannot be set",
                help="options are parameters of an entry, or of the function of --args",
            )

    def _parameters(self) -> dict[str, inspect.Parameter]:
        if self.taker is None or self.taker.function is None:
            return {}
        parameters = list(inspect.signature(self.taker.function).parameters.values())
        several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return {p.name: p for p in parameters[self.taker.skip :] if p.kind not in several}
