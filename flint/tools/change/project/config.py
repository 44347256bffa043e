"""flint.toml, or `[tool.flint]` of pyproject.toml: the captures of a repository."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    create_model,
)

from flint.cluster.errors import help_of, said_of, where_of
from flint.cluster.load import key_lines, line_of
from flint.errors import FlintError, nearest
from flint.io.bounded import FileKind, is_directory, is_file, read_bounded
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.requests.option import Form, Option, Request
from flint.tools.change.diff.budgets import Budget, parse_budget

# Requests as tables of flint.toml: keys with types for pydantic, and the request that a table means.

R = TypeVar("R", bound=Request)
Scalar = StrictStr | StrictBool | StrictInt | float
Texts = tuple[StrictStr, ...]


def keys_of(request: type[Request], *, without: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    """Keys with the type and the default of each, as `pydantic.create_model` takes them."""
    return {option.key: _key(option) for n, option in request.options().items() if n not in without}


def _key(option: Option) -> tuple[Any, Any]:
    if option.form is Form.TEXTS:
        return Texts, ()
    if option.form is Form.SWITCH:
        return StrictBool, False
    number = Annotated[StrictInt, Field(ge=option.least)]
    if option.form is Form.PAIRS:
        value = Scalar if option.least is None else number
        return dict[str, value], Field(default_factory=dict)  # type: ignore[valid-type]
    kind: Any = number if option.form is Form.NUMBER else StrictStr
    if option.words:
        kind = Literal[option.words]
    if option.is_required:
        return kind, ...
    return (kind | None if option.default is None else kind), option.default


def request_from(request: type[R], table: Mapping[str, Any]) -> R:
    """The request that the keys of a table mean; keys of others are left alone."""
    written = {}
    for name, option in request.options().items():
        value = table.get(option.key)
        if isinstance(value, Mapping):
            value = [f"{key}={_text(each)}" for key, each in value.items()]
        written[name] = value
    return request.of(written)


def table_of(request: Request) -> dict[str, Any]:
    """The keys and values of flint.toml that mean a request of texts."""
    found: dict[str, Any] = {}
    for name, value in request.given().items():
        option = request.options()[name]
        if option.form is Form.PAIRS:
            pairs = [text.partition("=")[::2] for text in value]
            value = {key: int(text) if option.least else text for key, text in pairs}
        found[option.key] = value
    return found


def _text(value: object) -> str:
    """A value of TOML as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


NAME = "flint.toml"
#: How a file in which captures can be written is told apart.
_PYPROJECT = "pyproject.toml"
#: What a capture may be called: files are named after it.
_NAME = re.compile(r"\w[\w .+-]*")
_START = '[capture.train]\nmodel = "model.py"\nmesh = "64x8"\nclusters = ["h100-dgx"]'


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TraceOptions(_Table):
    """`[capture.NAME.traces]`: traces that `flint run` writes, as `flint capture -o` does."""

    output: StrictStr
    ranks: StrictStr = "all"
    granularity: Literal["op", "kernel"] = "kernel"
    link: StrictBool = False
    cluster: StrictStr | None = None


#: The keys of captures that are options of `flint capture` and `flint estimate`. Of both, one is the
#: profile, which the capture has; `clusters` are those of the estimates.
_KEYS: dict[str, Any] = {
    **keys_of(EstimateRequest, without=("cluster", "profile")),
    **keys_of(CaptureRequest),
}
_OfRequests: Any = create_model("_OfRequests", __base__=_Table, **_KEYS)


class Capture(_OfRequests):  # type: ignore[misc]  # pydantic made the base from the requests
    """`[capture.NAME]`: what is captured, and on which clusters it is estimated.

    Keys are those of `flint capture` and `flint estimate`. `extends` names another capture, whose
    keys count where this one has none.
    """

    extends: StrictStr | None = None
    traces: TraceOptions | None = None
    budgets: dict[str, StrictStr] = Field(default_factory=dict)
    environment: Texts = ()

    def capture_request(self) -> CaptureRequest:
        """What is captured."""
        return request_from(CaptureRequest, self.model_dump())

    def estimate_request(self, cluster: str) -> EstimateRequest:
        """How it is estimated on a cluster; files are named as in flint.toml."""
        keys = {**self.model_dump(), "cluster": cluster, "profile": None}
        return request_from(EstimateRequest, keys)

    def parsed_budgets(self) -> list[Budget]:
        """Its budgets. Raises FlintError FL720."""
        return [parse_budget(name, limit) for name, limit in self.budgets.items()]


class _File(_Table):
    """The whole document. `clusters` are those of captures that name none, `budgets` those of all.

    A capture's own budget of the same name counts before one of the file.
    """

    capture: dict[str, Capture] = Field(default_factory=dict)
    clusters: Texts = ()
    budgets: dict[str, StrictStr] = Field(default_factory=dict)


class Project(BaseModel):
    """The captures of a repository, by name, in the order of the file. Paths are below `root`."""

    model_config = ConfigDict(frozen=True)

    root: Path
    file: str
    captures: dict[str, Capture]

    @property
    def lock_path(self) -> Path:
        """The lock file, beside the project file."""
        return self.root / "flint.lock"

    def cluster(self, name: str) -> str:
        """What `estimate` takes for a cluster of a capture: files are found from the project."""
        is_path = name.endswith((".toml", ".yml", ".yaml")) or "/" in name or "\\" in name
        return str(self.root / name) if is_path else name

    def estimate_request(self, capture: Capture, cluster: str) -> EstimateRequest:
        """How a capture is estimated on one of its clusters."""
        request = capture.estimate_request(self.cluster(cluster))
        found = {
            name: _placed(self.root, value, name)
            for name, value in request.given().items()
            if name != "cluster" and request.options()[name].reads
        }
        return request.but(**found)

    def chosen(self, names: list[str] | None) -> dict[str, Capture]:
        """The captures with these names; all without any. Raises FlintError FL722 for others."""
        for name in names or ():
            if name not in self.captures:
                raise FlintError(
                    "FL722",
                    f"{self.file} has no capture '{name}'{nearest(name, list(self.captures))}",
                    help="its captures are " + ", ".join(self.captures),
                )
        return {n: c for n, c in self.captures.items() if not names or n in names}


def _placed(root: Path, value: Any, option: str) -> Any:
    """A value, or each of several, with the file that it names below `root`; KIND=FILE too.

    A bare word names what Flint has, whatever lies there, except workloads.
    """
    if isinstance(value, tuple):
        return tuple(_placed(root, each, option) for each in value)
    kind, equals, name = value.partition("=") if option == "replace" else ("", "", value)
    is_bare = not Path(name).suffix and "/" not in name and "\\" not in name
    path = root / name
    is_there = name and (is_file(path) or is_directory(path))
    return f"{kind}{equals}{path}" if is_there and not (is_bare and option != "measured") else value


def find_project(start: Path) -> Path:
    """flint.toml, or pyproject.toml with `[tool.flint]`, in a folder or one above it.

    Raises FlintError FL722 if there is none.
    """
    for folder in (start, *start.parents):
        if is_file(folder / NAME):
            return folder / NAME
        if is_file(folder / _PYPROJECT) and _tool(_parsed(folder / _PYPROJECT)[0]) is not None:
            return folder / _PYPROJECT
    raise FlintError(
        "FL722", f"there is no {NAME} here or in a folder above", help=f"write one:\n{_START}"
    )


def load_project(path: Path) -> Project:
    """Read and check a project file. Raises FlintError FL722 with the line, FL720 for budgets."""
    document, text = _parsed(path)
    prefix: tuple[str, ...] = ()
    if path.name == _PYPROJECT:
        document, prefix = dict(_tool(document) or {}), ("tool", "flint")
    document = _extended(document, path, text, prefix)
    try:
        found = _File.model_validate(document)
    except ValidationError as error:
        raise _wrong(error, path, text, prefix) from error
    if not found.capture:
        raise FlintError(
            "FL722", f"{path.name} has no captures", place=str(path), help=f"write one:\n{_START}"
        )
    captures = {name: _with_defaults(c, found) for name, c in found.capture.items()}
    lines = key_lines(text)
    _check_budgets(found.budgets, path, (*prefix, "budgets"), lines)
    for name, capture in found.capture.items():
        at = (*prefix, "capture", name)
        if not _NAME.fullmatch(name):
            raise FlintError(
                "FL722",
                f"{path.name}: {name!r} cannot be the name of a capture",
                place=f"{path}:{line_of(at, lines)}",
                help="names have letters, digits, spaces, and - _ . + after the first letter",
            )
        _check_budgets(capture.budgets, path, (*at, "budgets"), lines)
    return Project(root=path.parent, file=path.name, captures=captures)


def _with_defaults(capture: Capture, file: _File) -> Capture:
    clusters = capture.clusters or file.clusters
    budgets = {**file.budgets, **capture.budgets}
    found: Capture = capture.model_copy(update={"clusters": clusters, "budgets": budgets})
    return found


def _check_budgets(
    budgets: Mapping[str, str],
    path: Path,
    at: tuple[str, ...],
    lines: Mapping[tuple[str | int, ...], int],
) -> None:
    for budget, limit in budgets.items():
        try:
            parse_budget(budget, limit)
        except FlintError as error:
            place = f"{path}:{line_of((*at, budget), lines)}"
            raise FlintError(error.code, error.message, place=place, help=error.help) from error


def _parsed(path: Path) -> tuple[dict[str, Any], str]:
    data = read_bounded(path, FileKind.PROJECT, "FL722", f"a project has a {NAME}")
    try:
        text = data.decode("utf-8-sig")
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:
        line = str(error).partition("at line ")[2].partition(",")[0]
        place = f"{path}:{line}" if line.isdigit() else str(path)
        raise FlintError(
            "FL722", f"{path.name} is not a TOML file: {error}", place=place
        ) from error


def _tool(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    tool = document.get("tool")
    found = tool.get("flint") if isinstance(tool, dict) else None
    return found if isinstance(found, dict) else None


def _extended(
    document: dict[str, Any], path: Path, text: str, prefix: tuple[str, ...]
) -> dict[str, Any]:
    """The document with captures that extend others written out."""
    captures = document.get("capture")
    if not isinstance(captures, dict):
        return document
    lines = key_lines(text)

    def of(name: str, inside: tuple[str, ...]) -> Any:
        own = captures[name]
        base = own.get("extends") if isinstance(own, dict) else None
        if not isinstance(base, str):
            return own
        place = f"{path}:{line_of((*prefix, 'capture', name, 'extends'), lines)}"
        if base in (name, *inside):
            cycle = " -> ".join((*inside, name, base))
            raise FlintError("FL722", f"captures extend each other: {cycle}", place=place)
        if base not in captures:
            raise FlintError(
                "FL722",
                f"capture '{name}' extends '{base}', which does not exist{nearest(base, list(captures))}",
                place=place,
                help="the captures are " + ", ".join(captures),
            )
        below = of(base, (*inside, name))
        return _on_top(below, own) if isinstance(below, dict) else own

    return {**document, "capture": {name: of(name, ()) for name in captures}}


def _on_top(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A capture on top of the one it extends: tables key by key."""
    tables = {
        n for n, value in own.items() if isinstance(value, dict) and isinstance(base.get(n), dict)
    }
    return {**base, **{n: _on_top(base[n], v) if n in tables else v for n, v in own.items()}}


def _wrong(error: ValidationError, path: Path, text: str, prefix: tuple[str, ...]) -> FlintError:
    """The first finding of pydantic, with its line: unknown keys first, which others then lack."""
    lines = key_lines(text)

    def order(e: Mapping[str, Any]) -> tuple[bool, int]:
        return e["type"] != "extra_forbidden", line_of((*prefix, *where_of(e)), lines)

    found = min(error.errors(), key=order)
    return FlintError(
        "FL722",
        f"{path.name}: {said_of(found, _File)}",
        place=f"{path}:{line_of((*prefix, *where_of(found)), lines)}",
        help=help_of(found, _File),
    )
