"""What is asked of `flint grow`, `flint synth` and `flint anonymize`: each option once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from flint.errors import FlintError
from flint.requests.option import Form, Request, option

if TYPE_CHECKING:
    from flint.ir.mesh import Mesh

Size: TypeAlias = int | str
T = TypeVar("T")


#: A whole size, or a factor.
_SIZE = "N|Nx"


@dataclass(frozen=True)
class GrowRequest(Request):
    """Sizes are whole ones, over all devices, or factors ("2x")."""

    _: KW_ONLY
    mesh: Mesh | str | None = option(
        "--mesh", "-m", metavar="SPEC", help="The same axes with other sizes: 16x4."
    )
    layers: Size | None = option("--layers", metavar=_SIZE, help="Layers: 32, or 4x.")
    width: Size | None = option("--width", metavar=_SIZE, help="Width of the model only.")
    ffn: Size | None = option("--ffn", metavar=_SIZE, help="Width within feed-forward blocks.")
    heads: Size | None = option("--heads", metavar=_SIZE, help="Heads of queries.")
    kv_heads: Size | None = option("--kv-heads", metavar=_SIZE, help="Heads of keys and values.")
    head_size: Size | None = option("--head-size", metavar=_SIZE, help="Size of each head.")
    vocabulary: Size | None = option("--vocabulary", metavar=_SIZE, help="Words.")
    experts: Size | None = option("--experts", metavar=_SIZE, help="Experts of each layer.")
    slots: Size | None = option(
        "--slots",
        metavar=_SIZE,
        help="Slots of an expert (default: they follow tokens and experts).",
    )
    sequence: Size | None = option(
        "--sequence", metavar=_SIZE, help="Tokens of a sequence; positions of a cache."
    )
    batch: Size | None = option(
        "--batch", metavar=_SIZE, help="Sequences over all devices; 2x: twice as many on each."
    )
    values: Mapping[str, Size] | Sequence[str] | None = option(
        "--set", form=Form.PAIRS, metavar="dN=SIZE", help="Set a variable by its name (repeatable)."
    )
    split: Mapping[str, str] | Sequence[str] | None = option(
        "--split",
        form=Form.PAIRS,
        metavar="dN=AXES",
        help="Say which axes split a variable: d7=data+model.",
    )
    keep_global_batch: bool = option(
        "--keep-global-batch",
        form=Form.SWITCH,
        default=False,
        help="With a larger mesh, reduce the batch per device (default: keep it).",
    )

    @property
    def roles(self) -> Mapping[str, Size]:
        """The sizes of roles that are asked for, by role."""
        others = ("mesh", "values", "split", "keep_global_batch")
        named = {n: getattr(self, n) for n in self.options() if n not in others}
        return {name: size for name, size in named.items() if size is not None}

    @property
    def variables(self) -> Mapping[str, Size]:
        """The sizes of variables that are asked for. Raises FlintError FL920 for other texts."""
        return _pairs("--set", "d7=4096", self.values)

    @property
    def axes(self) -> Mapping[str, str]:
        """The axes that are said to split variables. Raises FlintError FL920 for other texts."""
        return _pairs("--split", "d7=model, or d7=data+model", self.split)

    @property
    def changes(self) -> bool:
        """Whether anything is to be another than it is."""
        return self.mesh is not None or bool(self.roles) or bool(self.variables)


def _pairs(
    flag: str, example: str, given: Mapping[str, T] | Sequence[str] | None
) -> Mapping[str, T | str]:
    """`d7=4096` by name; a mapping is as it is."""
    if isinstance(given, Mapping):
        return dict(given)
    found: dict[str, T | str] = {}
    for text in given or ():
        name, equals, value = (word.strip() for word in text.partition("="))
        if not (name and equals and value) or name in found:
            raise FlintError(
                "FL920",
                f"{flag} cannot be '{text}'",
                help=f"give it as {flag} {example}, each variable once",
            )
        found[name] = value
    return found


@dataclass(frozen=True)
class SynthRequest(Request):
    """How many workloads, like what, and with which totals."""

    count: int = option(
        "--count",
        "-n",
        form=Form.NUMBER,
        default=1,
        metavar="N",
        help="How many workloads to make.",
    )
    like: Sequence[str] = option(
        "--like",
        form=Form.TEXTS,
        default=(),
        metavar="PATH",
        reads=True,
        help="Captures whose mesh, layers, FLOPs and memory the samples copy in turn: .flint files, "
        "traces, folders.",
    )
    model: Path | None = option(
        "--model",
        form=Form.PATH,
        metavar="DIR",
        reads=True,
        help="Programs to start from: what flint learn wrote, or captures; not Flint's own.",
    )
    mesh: str | None = option("--mesh", metavar="MESH", help="The mesh: 64x8, data=64,model=8.")
    flops: str | None = option("--flops", metavar="N", help="FLOPs of one device: 1e15, 1.2PFLOP.")
    bytes: str | None = option(
        "--bytes",
        metavar="AXIS=N,...",
        help="Bytes that one device sends over axes: data=2GiB,data+model=100MB.",
    )
    layers: int | None = option("--layers", form=Form.NUMBER, metavar="N", help="Layers.")
    memory: str | None = option("--memory", metavar="N", help="Peak memory: 40GiB.")
    rows: int | None = option("--rows", form=Form.NUMBER, metavar="N", help="Rows of the program.")
    seed: int = option(
        "--seed",
        form=Form.NUMBER,
        default=0,
        metavar="N",
        help="Seed of the first sample; each next one adds 1.",
    )


@dataclass(frozen=True)
class AnonymizeRequest(Request):
    """What is given up, and how far totals may move."""

    level: str = option(
        "--level",
        default="names",
        metavar="NAME",
        help="What is removed: names (names and sources), or shapes (sizes too).",
    )
    keep: str | None = option(
        "--keep",
        metavar="SHARE",
        help="How far totals and step times may move at the level shapes (default: 2%).",
    )
    seed: int | None = option(
        "--seed",
        form=Form.NUMBER,
        metavar="N",
        help="Seed for the sizes. Whoever knows it can draw the same sizes; without it nobody can.",
    )
