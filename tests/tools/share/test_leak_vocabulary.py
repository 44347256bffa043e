"""The public vocabulary: it has every word of Flint's readers and passes, and nobody's names."""

from __future__ import annotations

import pytest

from flint.ir.op_class import OpClass
from flint.passes.fusion.merging import MERGED_NAMES
from flint.passes.hlo.op_classes import CLASSES
from flint.passes.pipeline.schedule.schedules import SCHEDULES
from flint.passes.work import host_copies
from flint.tools.share.leaks import vocabulary


def test_operators_of_the_readers_are_public():
    """Each name to which HLO's reader gives a class, and each of fused kernels."""
    hlo = [f"hlo.{name}" for name in CLASSES]
    names = [*hlo, *MERGED_NAMES.values(), *host_copies.OPCODES.values()]
    assert [n for n in names if not vocabulary.is_public_opcode(n)] == []


@pytest.mark.parametrize("op", OpClass)
def test_class_words_are_public(op: OpClass):
    """What anonymising writes for an unknown opcode is of the vocabulary."""
    assert vocabulary.is_public_opcode(vocabulary.op_word(op))


def test_streams_and_schedules_of_flint_are_public():
    """Names that Flint gives itself in every workload."""
    assert all(map(vocabulary.is_neutral_name, host_copies.STREAMS.values()))
    assert all(map(vocabulary.is_public_value, SCHEDULES))


@pytest.mark.parametrize(
    "text",
    ["aten.mm", "c10d.allreduce_", "hlo.fusion", "chlo.erf", "aten._flash_attention_forward"],
)
def test_operators_of_frameworks_are_public(text: str):
    """Names that frameworks declare, with masks too."""
    assert vocabulary.is_public_opcode(text)
    assert vocabulary.is_public_opcode(text + "[causal]")


@pytest.mark.parametrize(
    "text",
    ["custom_call.acme_router", "aten.acme", "acme.add", "stablehlo.add ", "nccl.acme", "op.acme"],
)
def test_operators_of_somebody_are_not(text: str):
    """A public namespace does not make a name public."""
    assert not vocabulary.is_public_opcode(text)


@pytest.mark.parametrize("text", ["acme", "axis", "axis0acme", "acme 0", "stage 1 acme", "0"])
def test_names_of_somebody_are_not_neutral(text: str):
    """Only whole generated words are neutral."""
    assert not vocabulary.is_neutral_name(text)


@pytest.mark.parametrize("text", ["axis0", "stream 3", "class12", "", "all", "compute (2)"])
def test_generated_names_are_neutral(text: str):
    """Words with numbers, and fixed names."""
    assert vocabulary.is_neutral_name(text)


@pytest.mark.parametrize(
    "text", ["bf16", "float32", "f32:highest", "bf16:block,groups8", "f32:ieee"]
)
def test_types_of_products_are_public(text: str):
    """Element types, and how they are multiplied."""
    assert vocabulary.is_public_product(text)
    assert not vocabulary.is_public_product(text + ":acme")
