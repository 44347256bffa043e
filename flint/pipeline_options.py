"""What the command line says of a pipeline, put into the step that an entry returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from flint.errors import FlintError
from flint.pipeline import Pipeline
from flint.step import AnyStep, TorchStep


@dataclass(frozen=True)
class PipelineOptions:
    """`--cut`, `--schedule`, `--microbatches` and `--chunks`; None where one was not given."""

    cut: str | None = None
    schedule: str | None = None
    microbatches: int | None = None
    chunks: int | None = None

    def given(self) -> dict[str, str | int]:
        """Those that were given, by the name of the field of `Pipeline`."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def offered(self) -> Mapping[str, str]:
        """The same as text, for entries that have options of these names."""
        return {name: str(value) for name, value in self.given().items()}

    def applied_to(self, step: AnyStep) -> AnyStep:
        """The step with these options; a `TorchStep` becomes a pipeline of its stages.

        Raises FlintError FL240 for a step that has no stages and cannot be cut.
        """
        given = self.given()
        if not given:
            return step
        if isinstance(step, TorchStep):
            step = Pipeline(model=step, cut="")
        if not isinstance(step, Pipeline):
            names = ", ".join(f"--{name}" for name in given)
            raise FlintError(
                "FL240",
                f"{names} needs a pipeline, the entry returned a flint.{type(step).__name__}",
                help="return flint.Pipeline(model=loss_fn, params=..., inputs=...): Flint "
                "differentiates each stage itself",
            )
        return replace(step, **given)  # type: ignore[arg-type]  # names and types are its fields'
