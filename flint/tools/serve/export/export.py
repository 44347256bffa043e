"""A surface written for another simulator."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from flint.errors import FlintError, nearest
from flint.io.outputs import OutputKind, refuse_to_replace, write_output
from flint.tools.serve.engine.engines import rules_of
from flint.tools.serve.engine.rules import EngineRules
from flint.tools.serve.export.chakra import refuse_steps, write_steps
from flint.tools.serve.export.llmservingsim import llmservingsim_files
from flint.tools.serve.export.model import read_model, require_same_model
from flint.tools.serve.export.passes import PassTimes, longest_of
from flint.tools.serve.export.sglang import sglang_files
from flint.tools.serve.export.vidur import vidur_files
from flint.tools.serve.request import ServeRequest
from flint.tools.serve.serve import Served
from flint.tools.serve.surface.surface import Surface


class ExportKind(StrEnum):
    """Whose tables they are, or traces."""

    VIDUR = "vidur"
    LLMSERVINGSIM = "llmservingsim"
    SGLANG = "sglang"
    CHAKRA = "chakra"  #: traces of steps, for ASTRA-sim


def exports_of(asked: ServeRequest, *, force: bool) -> list[tuple[ExportKind, Path]]:
    """What `--export` asks for, before any work. Raises FlintError FL909 for a kind that is none, FL896 without
    the `config.json` that a kind needs, and what `refuse_steps` does.
    """
    found = []
    for text in asked.export:
        kind, _, directory = text.partition(":")
        if kind not in [*ExportKind] or not directory:
            raise FlintError(
                "FL909",
                f"--export {text} is no KIND:DIR{nearest(kind, [*ExportKind])}",
                help=f"kinds are {', '.join(ExportKind)}: --export vidur:tables",
            )
        _require_config(ExportKind(kind), asked.model_config)
        if kind == ExportKind.CHAKRA:
            refuse_steps(Path(directory), force=force)
        found.append((ExportKind(kind), Path(directory)))
    return found


def export_served(
    found: Served, asked: ServeRequest, kind: ExportKind, directory: Path, *, force: bool
) -> None:
    """Write the steps of a run, or the surface of the first pool. Raises what `write_steps` and `export` do."""
    if kind is ExportKind.CHAKRA:
        write_steps(found, directory, force=force)
        return
    surface, rules = found.surfaces[0], rules_of(asked.engine)
    export(surface, kind, directory, engine=rules, config=asked.model_config, force=force)


def export(
    surface: Surface,
    kind: ExportKind,
    directory: Path,
    *,
    engine: EngineRules,
    config: Path | None = None,
    name: str | None = None,
    force: bool = False,
) -> list[Path]:
    """Write a surface as tables of another simulator, with a README of what they cannot hold.

    `config` is the model's `config.json`, `name` its name on Hugging Face if that does not say it; tables
    for SGLang need neither. Nothing is written unless every file can be. Raises FlintError FL896
    (no usable config), FL897 (another model's, or one that the format cannot hold), FL502 and FL508.
    """
    files = _files(surface, kind, engine, config, name)
    found = {directory / path: data for path, data in files.items()}
    for path in found:
        refuse_to_replace(path, OutputKind.SERVING_TABLE, force=force)
    for path, data in found.items():
        write_output(path, data, OutputKind.SERVING_TABLE, force=force)
    return list(found)


def _require_config(kind: ExportKind, config: Path | None) -> None:
    if config is None and kind not in (ExportKind.SGLANG, ExportKind.CHAKRA):
        raise FlintError(
            "FL896",
            f"tables for {kind} say the numbers of their model",
            help="give its config.json, as Hugging Face has it: --model-config config.json",
        )


def _files(
    surface: Surface, kind: ExportKind, engine: EngineRules, config: Path | None, name: str | None
) -> Mapping[str, bytes]:
    _require_config(kind, config)
    if kind is ExportKind.SGLANG or config is None:
        return sglang_files(surface, engine)
    model = read_model(config, name)
    require_same_model(model, surface, config)
    times = PassTimes(surface, engine, model, longest_of(surface))
    return vidur_files(times) if kind is ExportKind.VIDUR else llmservingsim_files(times)
