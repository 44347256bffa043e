"""What the tables of other simulators say about a model: numbers of its `config.json`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError

from flint.backends.cost.chips.kernels import KernelKind
from flint.errors import FlintError, Malformed
from flint.io.bounded import FileKind, parse_json, read_bounded
from flint.tools.serve.surface.lines import PassLines, PassPart
from flint.tools.serve.surface.surface import Surface

#: A name that is a path of one or two folders, and leads nowhere else.
_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
#: Products of a layer, and of the head, by vLLM's names.
PRODUCTS = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head")
_HELP = "give the config.json of the model, as Hugging Face has it"


class ModelNumbers(BaseModel):
    """A `config.json` of Hugging Face, under its own names."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    name: str = Field(default="", alias="_name_or_path")
    hidden_size: PositiveInt
    num_hidden_layers: PositiveInt
    num_attention_heads: PositiveInt
    intermediate_size: PositiveInt
    vocab_size: PositiveInt
    num_key_value_heads: PositiveInt | None = None
    head_dim: PositiveInt | None = None
    hidden_act: str = ""
    num_experts: int | None = None
    num_local_experts: int | None = None
    n_routed_experts: int | None = None

    @property
    def kv_heads(self) -> int:
        """Heads of keys: as many as of queries where the file has no number."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Numbers of a head of a token."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def gated(self) -> bool:
        """Whether the first product of an MLP is twice as wide."""
        return self.hidden_act == "silu"

    @property
    def has_experts(self) -> bool:
        """Whether a token runs through some of several MLPs."""
        return bool(self.num_experts or self.num_local_experts or self.n_routed_experts)

    def products(self, devices: int) -> dict[tuple[int, int], str]:
        """Which of `PRODUCTS` has which columns and depth on one device."""
        if self.has_experts:
            return {}
        queries, keys = (n * self.head_size for n in (self.num_attention_heads, self.kv_heads))
        up = self.intermediate_size * (2 if self.gated else 1)
        sizes = (
            ((queries + 2 * keys) // devices, self.hidden_size),
            (self.hidden_size, queries // devices),
            (up // devices, self.hidden_size),
            (self.hidden_size, self.intermediate_size // devices),
            (self.vocab_size // devices, self.hidden_size),
        )
        return dict(zip(sizes, PRODUCTS, strict=True))


def read_model(path: Path, name: str | None) -> ModelNumbers:
    """Read a `config.json`; `name` is for one that has none.

    Raises FlintError FL896 for one that cannot be read, and without one of the numbers or a name.
    """
    try:
        found = ModelNumbers.model_validate(
            parse_json(read_bounded(path, FileKind.MODEL, "FL896", _HELP))
        )
    except ValidationError as error:
        wrong = ".".join(map(str, error.errors()[0]["loc"])) or "JSON object"
        raise FlintError("FL896", f"{path} has no usable {wrong}", help=_HELP) from error
    except Malformed as error:
        raise FlintError("FL896", f"cannot read {path}: {error}", help=_HELP) from error
    found = found.model_copy(update={"name": name or found.name})
    if not _NAME.fullmatch(found.name):
        raise FlintError(
            "FL896",
            f"the model of {path} has no usable name: '{found.name}'",
            help="give its name on Hugging Face: meta-llama/Llama-3.1-8B",
        )
    return found


def require_same_model(model: ModelNumbers, surface: Surface, path: Path) -> None:
    """Raise FlintError FL897 where layers or the hidden size are not those of the surface.

    Each layer attends as often as the others, and some product of the pass is as deep as the hidden size.
    """
    lines = surface.prefill
    attends = int(lines.counts[np.flatnonzero(lines.parts == PassPart.ATTENTION)].sum())
    depths = {depth for _, depth in sizes_of_products(lines)}
    if attends % model.num_hidden_layers or model.hidden_size not in depths:
        raise FlintError(
            "FL897",
            f"{path} is of another model: {model.num_hidden_layers} layers of {model.hidden_size}; the "
            f"captured one has {attends} kernels of attention, and products of the depths {sorted(depths)}",
            help="give the config.json of the model that is captured, and capture all of its layers",
        )


def sizes_of_products(lines: PassLines) -> list[tuple[int, int]]:
    """Columns and depth (0, 0: no product of matrices) of each line's kernel."""
    kernels = lines.kernels(np.arange(len(lines.base)), np.ones((1, 3)))
    sizes = np.where((kernels.kind == KernelKind.GEMM)[:, None], kernels.dims[:, 2:], 0)
    return [(int(columns), int(depth)) for columns, depth in sizes]
