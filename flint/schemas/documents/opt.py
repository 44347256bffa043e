"""What `flint opt` says."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

#: A pass that was applied to a program. A call, since "pass" is a word of Python.
AppliedDocument = TypedDict(
    "AppliedDocument",
    {
        "pass": Annotated[str, Field(description="The pass with its options, as in --passes.")],
        "program": Annotated[
            str, Field(description="Number of the program, and its rank classes.")
        ],
        "rows_before": Annotated[int, Field(description="Rows of the program before.")],
        "rows_after": Annotated[int, Field(description="Rows of the program after.")],
    },
)
AppliedDocument.__doc__ = "A pass that was applied to a program."


class OptDocument(TypedDict):
    """What passes made of programs."""

    schema: Literal["flint.opt/1"]
    """Kind and version of this document."""
    passes: list[AppliedDocument]
    """Each pass on each program, in order."""
    file: str | None
    """The file that was written; null without -o."""
