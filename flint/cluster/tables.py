"""Tables of a cluster file: numbers with their sources, names that may stand there, families of chips.

What a table [chip.NAME] says of a GPU, of systolic arrays ... is said by a family of chips: its table (a
`ChipFamily`) and its prices. Flint's own are listed below, other packages register theirs (`flint.chip_families`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticCustomError

from flint.errors import nearest
from flint.plugins import CHIP_FAMILIES, blamed, load, of_others, registered, usable

#: Beyond these nothing is a quantity of hardware, and times overflow.
LEAST, MOST = 1e-30, 1e30


class SourceKind(StrEnum):
    """Where a number comes from."""

    DATASHEET = "datasheet"
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


class Model(BaseModel):
    """What a table of a cluster file is read as: no other keys, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def _of_a_machine(value: float) -> float:
    if value and not LEAST <= abs(value) <= MOST:
        raise ValueError(f"should be 0 or between {LEAST:g} and {MOST:g}, it is {value:g}")
    return value


class Quantity(Model):
    """A number, how it is known, and from where."""

    value: Annotated[float, AfterValidator(_of_a_machine)] = Field(strict=True, allow_inf_nan=False)
    """In the unit that the name of its key ends in; 0 or between 1e-30 and 1e30, of any sign."""
    kind: SourceKind
    """How it is known."""
    source: str = Field(min_length=1)
    """From where: a document, a measurement, a reason."""


def _positive(quantity: Quantity) -> Quantity:
    if quantity.value <= 0:
        raise ValueError(f"should be greater than 0, it is {quantity.value:g}")
    return quantity


def _not_negative(quantity: Quantity) -> Quantity:
    if quantity.value < 0:
        raise ValueError(f"should not be negative, it is {quantity.value:g}")
    return quantity


def _whole(quantity: Quantity) -> Quantity:
    if quantity.value < 1 or quantity.value != int(quantity.value):
        raise ValueError(f"should be a whole number of at least 1, it is {quantity.value:g}")
    return quantity


def _share(quantity: Quantity) -> Quantity:
    if not 0 < quantity.value <= 1:
        raise ValueError(f"should be greater than 0 and at most 1, it is {quantity.value:g}")
    return quantity


Positive = Annotated[Quantity, AfterValidator(_positive)]
NotNegative = Annotated[Quantity, AfterValidator(_not_negative)]
Count = Annotated[Quantity, AfterValidator(_whole)]
Share = Annotated[Quantity, AfterValidator(_share)]


#: StableHLO's element types, and "tf32", which a GPU multiplies f32 matrices in.
ELEMENT_TYPES = (
    *("bf16", "f16", "f32", "tf32", "f64"),
    *("f4E2M1FN", "f6E2M3FN", "f6E3M2FN", "f8E3M4", "f8E4M3", "f8E4M3B11FNUZ", "f8E4M3FN"),
    *("f8E4M3FNUZ", "f8E5M2", "f8E5M2FNUZ", "f8E8M0FNU"),
    *("i1", "i2", "i4", "i8", "i16", "i32", "i64"),
    *("ui2", "ui4", "ui8", "ui16", "ui32", "ui64"),
    *("complex64", "complex128"),
)
M = TypeVar("M", bound=Model)


class Constant(NamedTuple):
    """What a constant means, and what it may be: from `least` to `most`.

    Without `least` itself where it `is_open`. `assumed` is its value where a file has none and no
    chip lends one.
    """

    meaning: str
    least: float = 0.0
    most: float = math.inf
    is_open: bool = False
    assumed: float = 0.0

    def allows(self, value: float) -> bool:
        """Whether a value is inside."""
        return (self.least < value if self.is_open else self.least <= value) and value <= self.most

    @property
    def limits(self) -> str:
        """What it may be, for people."""
        least = f"greater than {self.least:g}" if self.is_open else f"at least {self.least:g}"
        return least if math.isinf(self.most) else f"{least} and at most {self.most:g}"


def positive(meaning: str) -> Constant:
    """A constant that is more than 0."""
    return Constant(meaning, is_open=True)


def share(meaning: str, assumed: float = 0.0) -> Constant:
    """A constant that is a share of something."""
    return Constant(meaning, most=1, is_open=True, assumed=assumed)


def efficiency(meaning: str) -> Constant:
    """A share of a datasheet's number: nothing that was measured reaches more than 0.95 of one."""
    return Constant(meaning, most=0.95, is_open=True)


#: Constants by name. A name that ends in `.D` stands for those with a whole number there.
Constants = Mapping[str, Constant]
_NUMBERED = ".D"
_NUMBER = re.compile("[1-9][0-9]{0,5}")
#: Constants that every tier of the network has; docs/clusters.md tells what is assumed without one.
_TIER: Constants = {
    "a0_ns": Constant("start of a collective; for an outer tier, the addition to it"),
    "a1_ns": Constant("one step of its algorithm"),
    "c": Constant("protocol loss between latency and bandwidth, in roots of bytes"),
    "efficiency": share("of the bandwidth that large messages get"),
    "own_part": Constant("share of a rank's own data that costs as if it were sent"),
    "host_bytes_per_s": positive("what members that reach each other through a host send together"),
    "sockets_bytes_per_s": positive("the same for groups of more than half of a domain"),
}
#: What algorithms of collectives and their protocols read beside these
#: (`flint.backends.cost.collectives`): those of protocols are 0 where a tier does not have them.
OF_ALGORITHMS: Constants = {
    "p2p_a0_ns": Constant("additional start of all-to-alls of large messages"),
    "p2p_efficiency": Constant(
        "of the bandwidth that large messages of an all-to-all get together", most=1
    ),
    "p2p_peer_ns": Constant("start of each message of an all-to-all to another domain"),
    "nvls_a0_ns": Constant("start of a reduction in the switch", assumed=50000.0),
    "nvls_member_ns": Constant("what each member adds to that start"),
    "nvls_efficiency": share("of the bandwidth that it gets", assumed=0.7),
    "nvls_from": Constant("number of members from which it is used", least=2, assumed=5.0),
    "message_a0_ns": Constant("additional start of the protocol of large messages"),
    "message_efficiency": Constant("of the bandwidth that a large message gets", most=1),
    "p2p_low_bytes_per_s": Constant("rate of the protocol of small messages, to each peer"),
    "low_efficiency": Constant("of the bandwidth that the protocol of small messages gets", most=1),
    "bulk_a0_ns": Constant("additional start of the protocol of many bytes"),
    "bulk_a1_ns": Constant("additional time of each of its steps"),
}
#: Constants of a tier of the network.
NETWORK: Constants = {**_TIER, **OF_ALGORITHMS}


def constant_of(known: Constants, name: str) -> Constant | None:
    """The constant of the table `known` that a name in a file means; None if there is none."""
    if name.endswith(_NUMBERED):
        return None
    head, _, tail = name.rpartition(".")
    numbered = known.get(head + _NUMBERED) if _NUMBER.fullmatch(tail) else None
    return known.get(name, numbered)


def wrong(said: str, *at: str | int, help: str = "") -> PydanticCustomError:
    """What a validator of the models raises: `said` follows the key, which is `at` below its own."""
    return PydanticCustomError("wrong", "{said}", {"said": said, "at": at, "help": help})


def unknown(name: str, known: Sequence[str], value: Any = None) -> PydanticCustomError:
    """What a validator of a table raises for a name, with a `value`, that is not one of `known`.

    TOML takes dots in names for tables, unless the names are quoted.
    """
    below = [f"{name}.{k}" for k in value] if isinstance(value, dict) else []
    quoted = next((b for b in below if b in known), "")
    help_ = f"the names there are {', '.join(known)}"
    if quoted:
        help_ = f'write the name in quotes: "{quoted}" = ...'
    context = {"said": nearest(name, list(known)), "at": (name,), "help": help_}
    return PydanticCustomError("unknown_name", "{said}", context)


def names_of(known: Constants) -> list[str]:
    """The names that a table `known` allows, for people; numbered ones last."""
    numbered = [n.removesuffix(_NUMBERED) + ".128" for n in known if n.endswith(_NUMBERED)]
    return [n for n in known if not n.endswith(_NUMBERED)] + numbered


def named(known: Constants) -> BeforeValidator:
    """Refuse constants that the table `known` does not have."""

    def check(table: Any) -> Any:
        for name in table if isinstance(table, dict) else ():
            if constant_of(known, name) is None:
                raise unknown(name, names_of(known), table[name])
        return table

    return BeforeValidator(check)


def limited(known: Constants) -> AfterValidator:
    """Refuse constants with values that the table `known` does not allow."""

    def check(table: dict[str, Quantity]) -> dict[str, Quantity]:
        for name, quantity in table.items():
            constant = constant_of(known, name)
            if constant is not None and not constant.allows(quantity.value):
                raise wrong(f"should be {constant.limits}, it is {quantity.value:g}", name)
        return table

    return AfterValidator(check)


def _typed(table: Any) -> Any:
    for name in table if isinstance(table, dict) else ():
        if name not in ELEMENT_TYPES:
            raise unknown(name, list(ELEMENT_TYPES), table[name])
    return table


#: The library of rates that chips keep for minutes.
SUSTAINED = "sustained"
#: Names that [chip.gpu.libraries.NAME], [network.libraries.NAME] and a stack's `libraries` may have, and what they mean.
LIBRARIES: Mapping[str, str] = {
    SUSTAINED: "rates of steps that run for minutes: the clock that the chip's power allows",
    "aten": "PyTorch's own kernels, as it launches them operator by operator",
    "triton": "kernels that Inductor or XLA generates: fused chains, softmax, norms, reductions",
    "cudnn": "cuDNN: attention, convolutions",
    "cublaslt": "cuBLASLt: products of 8 and 4 bits of PyTorch, Transformer Engine and XLA",
    "flash-2": "FlashAttention-2",
    "flash-3": "FlashAttention-3",
    "flash-4": "FlashAttention-4, for Blackwell",
    "triton-flash": "FlashAttention of 2023 in Triton",
    "transformer-engine": "Transformer Engine and Apex: fused norms, softmax, optimizers",
    "moe-triton": "SGLang's and vLLM's fused experts in Triton",
    "moe-cutlass": "FlashInfer's fused experts with CUTLASS",
    "moe-trtllm": "TensorRT-LLM's fused experts",
    "serving": "kernels of serving engines (TensorRT-LLM, SGLang, vLLM)",
    "nccl-2-29": "NCCL 2.27 to 2.29: constants of networks unless they say otherwise",
    "nccl-2-20": "NCCL 2.18 to 2.20: small collectives start later",
}


def _known(name: str) -> str:
    if name not in LIBRARIES:
        said = f"'{name}' is not a known library{nearest(name, list(LIBRARIES))}"
        raise wrong(said, help=f"one of {', '.join(LIBRARIES)}")
    return name


def _known_names(tables: Any) -> Any:
    for name in tables if isinstance(tables, dict) else ():
        if name not in LIBRARIES:
            raise unknown(name, list(LIBRARIES), tables[name])
    return tables


Library = Annotated[str, AfterValidator(_known)]
#: One that need not be said.
MaybeLibrary = Annotated[str, AfterValidator(lambda name: name and _known(name))]
#: Of tables by the name of a library.
KnownLibraries = BeforeValidator(_known_names)
NetworkConstants = Annotated[dict[str, Quantity], named(NETWORK), limited(NETWORK)]
Peaks = Annotated[dict[str, Positive], BeforeValidator(_typed)]


class ChipFamily(Model):
    """A table [chip.`table`] of a cluster file, with the keys that the family's prices read.

    Each family has a field `constants`, empty if it needs none.
    """

    table: ClassVar[str]
    #: What its constants mean and may be.
    known: ClassVar[Constants] = {}
    #: Keys whose product the peak goes with, and of them those that count what works side by side.
    peak_keys: ClassVar[tuple[str, ...]] = ()
    unit_keys: ClassVar[tuple[str, ...]] = ()
    #: Constants that are times of one unit's work, and shrink as its share of the peak grows.
    unit_times: ClassVar[frozenset[str]] = frozenset()
    if TYPE_CHECKING:
        constants: dict[str, Quantity]


class Family(NamedTuple):
    """A family of chips, as packages register it by the name of its table.

    `model` gives the prices of a chip that has the table: a `flint.backends.cost.chips.model.ChipModel`.
    It imports them: whoever reads a file needs none.
    """

    table: type[ChipFamily]
    model: Callable[[Any], Any]


#: Flint's own families by the names of their tables. Prices import this room, so that they are named here.
OWN_FAMILIES = {
    "gpu": "flint.backends.cost.chips.families.gpu:FAMILY",
    "systolic": "flint.backends.cost.chips.families.systolic:FAMILY",
}


@cache
def families() -> Mapping[str, Family]:
    """The families that chips may be of, by the names of their tables, sorted.

    What packages register wrongly is omitted, with a warning: `refuse_unusable` refuses its tables.
    """
    own = {name: resolve_name(place) for name, place in OWN_FAMILIES.items()}
    return dict(
        sorted({**usable(CHIP_FAMILIES, of_others(CHIP_FAMILIES), _registered), **own}.items())
    )


def _registered(name: str) -> Family:
    """A registered family. Raises FlintError FL880 and FL882 for what packages register wrongly."""
    found: Family = load(CHIP_FAMILIES, name, Family)
    with blamed(CHIP_FAMILIES, name, "be a family of chips"):
        if name in OWN_FAMILIES:
            raise ValueError("Flint has a family of that name")
        if found.table.table != name:
            raise ValueError(f"it has the table '{found.table.table}': its name must be the same")
        if not isinstance(found.table, type) or not issubclass(found.table, ChipFamily):
            raise TypeError("its table is no ChipFamily")
    return found


def refuse_unusable(tables: Mapping[str, object]) -> None:
    """Raise FlintError FL880 or FL882 for a table of a family that is registered, and was omitted."""
    for name in tables:
        if name not in families() and name in registered(CHIP_FAMILIES):
            _registered(name)


def with_families(chip: type[M]) -> type[M]:
    """The model of a chip with a key for each family, none of which has to be there."""
    keys: dict[str, Any] = {n: (f.table | None, None) for n, f in families().items()}
    return create_model(
        chip.__name__, __base__=chip, __module__=chip.__module__, __doc__=chip.__doc__, **keys
    )
