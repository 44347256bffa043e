"""Stack: whose software runs on a machine. One named choice of kernels, libraries, overlap and host."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from flint.cluster.load import read_toml
from flint.cluster.tables import Library, Model, NotNegative, Positive
from flint.errors import FlintError, nearest

STACKS = Path(__file__).resolve().parent / "stacks"


class Stack(Model):
    """Whose software runs: what a program's operations become, and how they are launched."""

    name: str = Field(min_length=1)
    """What it is called, as in --stack."""
    title: str
    """What it is."""
    chips: tuple[Literal["gpu", "systolic"], ...] = Field(min_length=1)
    """The families of chips that it runs on."""
    profiles: tuple[str, ...] = Field(min_length=1)
    """Profiles of kernels that mean this stack; the first is its own."""
    policy: str = "overlap"
    """When communication begins, unless --overlap says otherwise."""
    libraries: tuple[Library, ...] = ()
    """Libraries whose constants stand before the chip's; of two, the later one has the word."""
    host_launch_ns: NotNegative | None = None
    """How often its host launches a kernel, where the machine's file does not say."""
    heap_share: Positive | None = None
    """Bytes of a compiler's heap over those that Flint lays out: tiles, copies into other layouts."""
    reserved_share: Positive | None = None
    """Bytes that a framework's allocator reserves over those in use, most often."""
    reserved_deviation: NotNegative | None = None
    """The standard deviation of the logarithm of that over programs."""
    context_bytes: NotNegative | None = None
    """Memory of a device that libraries, and the code of kernels, take before a program begins."""
    communicator_bytes: NotNegative | None = None
    """Buffers of a library of collectives for each group of devices."""
    infers: bool = True
    """Whether a program's profile alone means this stack. Others have to be asked for."""
    notes: str = ""
    """What else is to be known of it."""

    @classmethod
    def load(cls, name_or_path: str | Path | Stack) -> Stack:
        """The stack of a name ("megatron") or of a TOML file; a stack is returned as it is.

        Raises FlintError FL725 for an unknown name, FL701 for a file that cannot be used.
        """
        if isinstance(name_or_path, Stack):
            return name_or_path
        return _read(_file_of(name_or_path))

    @classmethod
    def names(cls) -> list[str]:
        """Names of the stacks that come with Flint, sorted."""
        return sorted(p.stem for p in STACKS.glob("*.toml"))


def shipped_stacks() -> tuple[Stack, ...]:
    """All stacks that come with Flint, by name."""
    return tuple(_read(STACKS / f"{name}.toml") for name in Stack.names())


def _file_of(name_or_path: str | Path) -> Path:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        return Path(name_or_path)
    if text in Stack.names():
        return STACKS / f"{text}.toml"
    raise FlintError(
        "FL725",
        f"no stack is called '{text}'{nearest(text, Stack.names())}",
        help=f"one of {', '.join(Stack.names())}, or the path of a TOML file",
    )


def _read(path: Path) -> Stack:
    return _shipped(path) if path.parent == STACKS else _checked(path)


@cache
def _shipped(path: Path) -> Stack:
    """Files that come with Flint do not change while it runs."""
    return _checked(path)


def _checked(path: Path) -> Stack:
    document, text = read_toml(path)
    try:
        return Stack.model_validate(document)
    except ValidationError as error:
        from flint.cluster.errors import cluster_error

        raise cluster_error(error, Stack, path, text, document) from error
