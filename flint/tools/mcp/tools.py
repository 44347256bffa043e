"""The tools: which commands they are, what an agent may give them, and the command line that this means."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flint.cli.command_line import Commands, filled
from flint.errors import FlintError, nearest

#: Each tool with the questions that it answers: agents choose by these.
ANSWERS: Mapping[str, str] = {
    "capture": "What would a program do on every device of a mesh: operations, FLOPs, memory of arguments, "
    "collectives by mesh axis. Runs the model file or script on abstract arrays. Give `output` to keep it for other tools, "
    "`cluster` to estimate it at once.",
    "estimate": "How long does a captured step take on a cluster, where does the time go, what fills the memory of a "
    "device and does it fit; MFU; time to the first token and per token of generation.",
    "explain": "Why is there this collective, which line of the program does it come from, what does a layer cost.",
    "diff": "What changed between two captures or estimates: collectives, FLOPs, and with `cluster` time and memory.",
    "explore": "Which mesh, sharding and schedule is best on a number of devices. Runs the model file many times.",
    "check": "Are Chakra traces whole, and will a simulator finish them.",
    "compare": "Where do a measured step (a profile, or what flint import wrote) and a capture of it differ.",
    "clusters": "Which clusters and chips there are; with `name` every number of one and its source.",
}
#: Tools that run what the user wrote.
RUNS = ("capture", "explore")
#: How results are printed, which is no agent's choice.
_PRINTING = frozenset({"json_", "quiet", "verbose", "markdown", "help"})
#: Options that write files, start programs, or run code of the user.
_RUNNING = frozenset(
    ("output", "force", "perfetto", "html", "export", "study", "machine", "simulate", "compare")
    + ("dask", "scheduler", "binary", "rev", "mesh", "set_")
)
#: What workloads and saved estimates that `diff` reads are called; anything else it would capture.
_SAVED = (".flint", ".json")
#: Which parts of a document are wanted; of all tools.
FIELDS = "fields"


@dataclass(frozen=True)
class Tool:
    """A tool by the name of its command."""

    name: str
    allow_run: bool = False

    @cached_property
    def parameters(self) -> Mapping[str, Any]:
        """What can be given, by name: options without dashes, arguments as the command calls them."""
        command = Commands()[self.name]
        if self.name == "clusters":
            command = command.commands["show"]
        hidden = _PRINTING if self.allow_run or self.name in RUNS else _PRINTING | _RUNNING
        return {_word(p): p for p in command.params if p.name not in hidden}

    def schema(self) -> dict[str, Any]:
        """JSON schema of the arguments."""
        described = {name: _described(p) for name, p in self.parameters.items()}
        described[FIELDS] = {
            "type": "array",
            "items": {"type": "string"},
            "description": "Only these parts of the document, as paths: step_time_ns, classes.*.memory.peak_bytes.",
        }
        required = [name for name, p in self.parameters.items() if p.required]
        return {
            "type": "object",
            "properties": described,
            "required": [] if self.name == "clusters" else required,
            "additionalProperties": False,
        }

    def command_line(self, given: Mapping[str, Any]) -> list[str]:
        """The arguments of `flint` that a call means. Raises FlintError FL730 and FL731.

        Values are joined to their options, and arguments stand behind `--`: no text is taken for an option.
        """
        self._require_allowed(given)
        options: list[str] = []
        arguments: list[str] = []
        for name, value in given.items():
            if name == FIELDS:
                continue
            parameter = self.parameters.get(name)
            if parameter is None:
                raise self._unknown(name)
            texts = _texts(value)
            if getattr(parameter, "is_flag", False):
                off = getattr(parameter, "secondary_opts", [])[:1] if value is False else []
                options += [parameter.opts[0]] if value is True else off
            elif parameter.param_type_name != "argument":
                options += [f"{parameter.opts[0]}={text}" for text in texts]
        for name, parameter in self.parameters.items():
            if parameter.param_type_name == "argument":
                arguments += _texts(given.get(name))
        missing = [n for n in self.schema()["required"] if given.get(n) is None]
        if missing:
            raise FlintError("FL731", f"{self.name} needs {', '.join(missing)}")
        if self.name == "clusters":
            return [
                "clusters",
                *(["show", "--json", "--", *arguments] if arguments else ["list", "--json"]),
            ]
        return [self.name, *options, "--json", *(["--", *arguments] if arguments else [])]

    def _unknown(self, name: str) -> FlintError:
        near = nearest(name, list(self.parameters))
        known = ", ".join(self.parameters)
        return FlintError("FL731", f"{self.name} takes no '{name}'{near}", help=f"it takes {known}")

    def _require_allowed(self, given: Mapping[str, Any]) -> None:
        if self.allow_run:
            return
        sides = [str(given[side]) for side in ("before", "after") if given.get(side)]
        code = [s for s in sides if not (Path(s).is_dir() or s.endswith(_SAVED))]
        if self.name in RUNS or (self.name == "diff" and code):
            what = f"{code[0]} is not a capture: diff" if code else self.name
            raise FlintError(
                "FL730",
                f"{what} runs code of the user, and this server only reads",
                help="start it as: flint mcp --allow-run",
            )


def _texts(value: object) -> list[str]:
    """A value as it is written on a command line, each of several; none for None."""
    several = value if isinstance(value, list) else [] if value is None else [value]
    return [str(v) for v in several]


def _word(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name)
    return max(parameter.opts, key=len).lstrip("-").replace("-", "_")  # type: ignore[no-any-return]


def _described(parameter: Any) -> dict[str, Any]:
    """JSON schema of one argument, with the help of the command line."""
    one: dict[str, Any] = {"type": ["string", "number"]}
    if getattr(parameter, "is_flag", False):
        one = {"type": "boolean"}
    elif getattr(parameter, "multiple", False) or parameter.nargs == -1:
        one = {"type": "array", "items": one}
    text = getattr(parameter, "help", None)
    return {**one, "description": filled(text)} if text else one


# What is handed back of a document.

#: Entries of a list that are handed back unless the list is asked for.
MOST_ENTRIES = 40


def chosen(document: Any, fields: Sequence[str]) -> dict[str, Any]:
    """Parts of a document by path; of a `*` all entries. Raises FlintError FL731 for a path that it lacks."""
    return {path: _at(document, path.split("."), path) for path in fields}


def _at(value: Any, path: Sequence[str], whole: str) -> Any:
    if not path:
        return value
    key, rest = path[0], path[1:]
    if key == "*" and isinstance(value, list | dict):
        entries = value if isinstance(value, list) else list(value.values())
        return [_at(v, rest, whole) for v in entries]
    if isinstance(value, dict) and key in value:
        return _at(value[key], rest, whole)
    if isinstance(value, list) and key.isdigit() and int(key) < len(value):
        return _at(value[int(key)], rest, whole)
    there = f"it has {', '.join(value)}" if isinstance(value, dict) else None
    raise FlintError("FL731", f"the document has no '{whole}'", help=there)


def shortened(document: dict[str, Any]) -> dict[str, Any]:
    """A document with its long lists cut; `left_out` has their paths and how many entries are missing."""
    left: dict[str, int] = {}
    found: dict[str, Any] = {key: _cut(v, key, left) for key, v in document.items()}
    return {**found, "left_out": left} if left else found


def _cut(value: Any, path: str, left: dict[str, int]) -> Any:
    if isinstance(value, dict):
        return {key: _cut(v, f"{path}.{key}", left) for key, v in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) > MOST_ENTRIES:
        left[path] = len(value) - MOST_ENTRIES
    return [_cut(v, f"{path}.{n}", left) for n, v in enumerate(value[:MOST_ENTRIES])]


def tools(*, allow_run: bool) -> Iterator[Tool]:
    """All tools."""
    return (Tool(name, allow_run) for name in ANSWERS)
