"""Which versions of PyTorch a distributed program can be recorded with."""

from __future__ import annotations

import importlib.metadata

from flint.errors import FlintError

#: The patches were written for, and are tested with, this version.
TESTED = (2, 13)


def torch_version() -> str:
    """The installed version. Raises FL224 if PyTorch is not installed. Does not import it."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        raise FlintError(
            "FL224",
            "PyTorch is not installed in this environment",
            help=f"pip install 'torch=={TESTED[0]}.{TESTED[1]}.*'; the CPU wheel is enough",
        ) from None


def check_version() -> str:
    """Raise FL234 for a version too old; return a warning for one that is newer, or ""."""
    text = torch_version()
    found = _major_minor(text)
    if found < TESTED:
        raise _unsupported(text, "is older than the oldest supported version")
    if found > TESTED:
        return f"PyTorch {text} is newer than {TESTED[0]}.{TESTED[1]}, the newest tested version"
    return ""


def failed_self_tests(names: list[str], recording: bool = True) -> FlintError:
    """FL234 for private names of PyTorch that are not what they were."""
    return _unsupported(torch_version(), f"changed {', '.join(sorted(names))}", recording)


def _unsupported(text: str, why: str, recording: bool = True) -> FlintError:
    wanted = f"{TESTED[0]}.{TESTED[1]}"
    doing = "distributed programs cannot be recorded" if recording else "modules cannot be captured"
    return FlintError(
        "FL234",
        f"PyTorch {text} {why}: {doing} with it",
        help=f"install torch {wanted} (the CPU wheel is enough) beside Flint",
    )


def _major_minor(text: str) -> tuple[int, int]:
    major, minor = text.split("+")[0].split(".")[:2]
    return int(major), int(minor)
