"""Calls of kernels as XLA's partitioner is given them: on the part of each device."""

from __future__ import annotations

import re

import pytest

from flint.passes.mlir import make_context, write_bytecode
from flint.passes.partition.prepare import inline
from flint.passes.partition.prepare.local_calls import with_local_calls

pytest.importorskip("jaxlib")

_HEAD = 'module {\n  sdy.mesh @mesh = <["data"=4, "model"=2]>\n  func.func @main('
_ATTENTION = '{backend_config = "{\\22causal\\22: true}"}'


def _local(text: str) -> str:
    from jaxlib.mlir import ir

    with make_context():
        bytecode = with_local_calls(write_bytecode(ir.Module.parse(text)), 8)
        return str(ir.Module.parse(bytecode))


def _attention(batch: int, q_heads: int, kv_heads: int, sharding: str) -> str:
    query, key = f"tensor<{batch}x{q_heads}x64x16xf32>", f"tensor<{batch}x{kv_heads}x64x16xf32>"
    stat = f"tensor<{batch}x{q_heads}x64xf32>"
    return (
        f"{_HEAD}%q: {query} {{sdy.sharding = #sdy.sharding<@mesh, {sharding}>}}, "
        f"%k: {key}, %v: {key}) -> {query} {{\n"
        f'    %0:2 = stablehlo.custom_call @"flint.attention[causal]"(%q, %k, %v) {_ATTENTION} : '
        f"({query}, {key}, {key}) -> ({query}, {stat})\n    return %0#0 : {query}\n  }}\n}}"
    )


@pytest.mark.parametrize(
    ("heads", "sharding", "inside", "axes"),
    [
        ((8, 8), '[{"data"}, {"model"}, {}, {}]', "2x4x64x16", '{"data", "model"}'),
        ((8, 2), '[{"data"}, {"model"}, {}, {}]', "2x4x64x16", '{"data", "model"}'),
        ((8, 8), '[{}, {"model"}, {}, {}]', "8x4x64x16", '{"model"}'),
    ],
)
def test_attention_is_called_with_what_a_device_holds(
    heads: tuple[int, int], sharding: str, inside: str, axes: str
) -> None:
    text = _local(_attention(8, *heads, sharding))
    assert f"manual_axes={axes}" in text
    (call,) = re.findall(r'custom_call @"flint.attention.*', text)
    assert f"(tensor<{inside}xf32>" in call
    assert "causal" in call and "sharding" not in call


def test_calls_of_a_function_that_are_split_in_two_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inline, "KEEP_FROM_OPERATIONS", 2)
    kind = "tensor<8x8x64x16xf32>"
    batch, heads = (
        f"{{sdy.sharding = #sdy.sharding<@mesh, {s}>}}"
        for s in ('[{"data"}, {}, {}, {}]', '[{}, {"model"}, {}, {}]')
    )
    text = f"""{_HEAD}%a: {kind} {batch}, %b: {kind} {heads}) -> ({kind}, {kind}) {{
        %0 = call @layer(%a) : ({kind}) -> {kind}
        %1 = call @layer(%b) : ({kind}) -> {kind}
        return %0, %1 : {kind}, {kind} }}
      func.func private @layer(%x: {kind}) -> {kind} {{
        %0:2 = stablehlo.custom_call @"flint.attention[causal]"(%x, %x, %x) {_ATTENTION} :
          ({kind}, {kind}, {kind}) -> ({kind}, tensor<8x8x64xf32>)
        %1 = stablehlo.tanh %0#0 : {kind}
        return %1 : {kind} }} }}"""
    found = re.findall("manual_axes=(.*?) ", _local(text))
    assert found == ['{"data"}', '{"model"}']


def test_what_no_sharding_splits_stays_as_it_is() -> None:
    """A sharded sequence: the rule keeps it whole, and nothing else is split."""
    text = _local(_attention(8, 8, 8, '[{}, {}, {"data"}, {}]'))
    assert "manual_computation" not in text


def test_a_call_that_nobody_knows_stays_as_it_is() -> None:
    kind = "tensor<8x8xf32>"
    text = (
        f'{_HEAD}%x: {kind} {{sdy.sharding = #sdy.sharding<@mesh, [{{"data"}}, {{}}]>}}) -> {kind} '
        f"{{\n    %0 = stablehlo.custom_call @theirs(%x) : ({kind}) -> {kind}\n"
        f"    return %0 : {kind}\n  }}\n}}"
    )
    assert "manual_computation" not in _local(text)
