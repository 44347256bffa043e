"""Pages that are made of the program itself: commands, documents, Python, notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

import flint
from flint.cli import app
from flint.schemas.catalog import read_schema, schema_names

#: Public names by what they are for.
_NAMES = {
    "Capture": ("trace", "trace_distributed", "import_profiles", "Trace"),
    "What is captured": (
        *(
            "entry",
            "Step",
            "TorchStep",
            "WorldStep",
            "Pipeline",
            "Stage",
            "Layers",
            "Disaggregated",
        ),
    ),
    "Kernels and operators of your own": ("cost_of", "CostEstimate", "KernelCall", "torch_op"),
    "Exploring": ("explore", "Answer", "propose", "Proposal", "sharded", "constrained"),
    "Comparing": ("Difference", "MeasuredComparison"),
    "Measurements": ("calibrate", "Calibration"),
    "Sharing": ("anonymize", "Anonymized", "grow", "Grown", "synth", "Synthetic", "learn"),
    "What comes out": (
        *(
            "Workload",
            "Program",
            "Estimate",
            "Hint",
            "StepHints",
            "OpClass",
            "Mesh",
            "Cluster",
            "FlintError",
        ),
    ),
}


def pages(root: Path) -> dict[str, str]:
    """Path in the site and text of each page."""
    return {
        "reference/commands.md": commands_page(),
        "reference/python.md": python_page(),
        "notebooks.md": notebooks_page(root),
        **{_document_path(name): document_page(name) for name in schema_names()},
    }


def decisions_list(root: Path) -> str:
    """The list of decisions, with the first line of each."""
    pages = sorted((root / "docs" / "decisions").glob("0*.md"))
    titles = [p.read_text("utf-8").partition("\n")[0].removeprefix("# ") for p in pages]
    return "".join(f"\n- [{t[:4]}]({p.name}){t[4:]}" for p, t in zip(pages, titles, strict=True))


def document_pages() -> list[str]:
    """The pages of documents."""
    return [_document_path(name) for name in schema_names()]


def commands_page() -> str:
    """What each command says of itself."""
    parts = ["# Commands", "As `flint COMMAND --help` prints them."]
    for name in _command_names(typer.main.get_command(app)):
        shown = CliRunner().invoke(app, [*name.split(), "--help"], env={"COLUMNS": "100"})
        if shown.exit_code:
            raise RuntimeError(f"flint {name} --help: {shown.output}")
        parts.append(f"## flint {name}\n\n```text\n{shown.output.strip()}\n```")
    return "\n\n".join(parts) + "\n"


def _command_names(group: Any, before: str = "") -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _command_names(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def python_page() -> str:
    """The public names, for mkdocstrings to fill in."""
    listed = sorted(n for names in _NAMES.values() for n in names)
    if listed != flint.__all__:
        raise RuntimeError(f"names of flint are not those of this page: {listed}")
    parts = [
        "# Python",
        "`import flint` has these names; it loads what they need when they are used.",
    ]
    for title, names in _NAMES.items():
        parts.append(f"## {title}")
        parts += [f"::: {getattr(flint, n).__module__}.{n}" for n in names]
    return "\n\n".join(parts) + "\n"


def _document_path(name: str) -> str:
    return f"reference/json/{name.removeprefix('flint.').replace('/', '-')}.md"


def document_page(name: str) -> str:
    """The fields of a document, and of the objects in it."""
    schema = read_schema(name)
    known = schema.get("$defs", {})
    objects = {n: p for n, p in known.items() if "properties" in p}
    _inline(schema, {n: p for n, p in known.items() if n not in objects})
    parts = [f"# {name}", schema["description"], *_fields(schema)]
    for part_name, part in objects.items():
        parts += [f"## {_plain(part_name)}", part["description"], *_fields(part)]
    return "\n\n".join(parts) + "\n"


def _inline(value: Any, simple: dict[str, Any]) -> None:
    """Put what is no object with fields (words that may stand somewhere) where it is referred to."""
    for inner in value.values() if isinstance(value, dict) else value:
        if isinstance(inner, dict):
            name = str(inner.get("$ref", "")).rpartition("/")[2]
            if name in simple:
                del inner["$ref"]
                inner.update({**simple[name], **inner})
        if isinstance(inner, dict | list):
            _inline(inner, simple)


def _fields(part: dict[str, Any]) -> Iterable[str]:
    required = part.get("required", ())
    rows = [
        f"| `{field}` | {_type(value)}{'' if field in required else ', may be absent'} | "
        f"{value['description'].replace('|', chr(92) + '|')} |"
        for field, value in part["properties"].items()
    ]
    return ["\n".join(["| field | type | |", "|---|---|---|", *rows])]


def _type(value: dict[str, Any]) -> str:
    """The type of a field in words."""
    if "$ref" in value:
        name = _plain(value["$ref"].rpartition("/")[2])
        return f"[{name}](#{name.lower().replace(' ', '-')})"
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "anyOf" in value:
        return " or ".join(map(_type, value["anyOf"]))
    if "enum" in value:
        return " or ".join(f"`{json.dumps(v)}`" for v in value["enum"])
    if value.get("type") == "array":
        inside = value.get("prefixItems") or [value.get("items", {})]
        return "array of " + ", ".join(dict.fromkeys(map(_type, inside)))
    if value.get("type") == "object":
        inside = value.get("additionalProperties")
        return f"object of {_type(inside if isinstance(inside, dict) else {})} by name"
    return str(value.get("type", "any"))


def _plain(name: str) -> str:
    """`MemoryDocument` as a heading."""
    short = name.removesuffix("Document")
    return "".join(f" {c.lower()}" if c.isupper() and i else c for i, c in enumerate(short))


def notebooks_page(root: Path) -> str:
    """The notebooks with what they printed."""
    parts = ["# Notebooks"]
    for path in sorted((root / "docs" / "notebooks").glob("*.ipynb")):
        parts.append(f"`docs/notebooks/{path.name}`; the tests run it.")
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            parts += _cell(cell)
    return "\n\n".join(parts) + "\n"


def _cell(cell: dict[str, Any]) -> Iterator[str]:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        yield source.replace("\n# ", "\n## ") if not source.startswith("# ") else f"#{source}"
        return
    yield f"```python\n{source}\n```"
    for output in cell.get("outputs", ()):
        text = "".join(output.get("text", ()) or output.get("data", {}).get("text/plain", ()))
        if text:
            yield f"```text\n{text.rstrip()}\n```"
