"""Rules for operations that Shardy has none for, from Flint and from other packages."""

import pytest

from flint import plugins
from flint.passes.mlir import make_context
from flint.passes.partition.prepare.rules import FactorRule, attach_rules, pointwise

jax = pytest.importorskip("jax")
P = jax.sharding.PartitionSpec


def rule_of(operation: str, function: str = "") -> str:
    """The rule attached to the last operation of a function's body."""
    from jaxlib.mlir import ir

    with make_context():
        module = ir.Module.parse(
            f"func.func public @main({function}) {{\n {operation}\n return\n}}"
        )
        attach_rules(module)
        body = list(module.body.operations[0].regions[0].blocks[0])
        attributes = body[-2].operation.attributes
        return str(attributes["sdy.sharding_rule"]) if "sdy.sharding_rule" in attributes else ""


def test_elementwise_chlo() -> None:
    operation = "%0 = chlo.erf %x : tensor<4x8xf32> -> tensor<4x8xf32>"
    expected = "<([i, j])->([i, j]) {i=4, j=8}, custom>"
    assert rule_of(operation, "%x: tensor<4x8xf32>").endswith(expected)


def test_a_call_that_nothing_is_known_about_sees_its_operands_whole() -> None:
    operation = "%0 = stablehlo.custom_call @my_kernel(%x) : (tensor<4x8xf32>) -> tensor<4xf32>"
    found = rule_of(operation, "%x: tensor<4x8xf32>")
    assert "([i, j])->([k])" in found
    assert "need_replication={i, j, k}" in found


def test_a_call_that_annotates_is_left_alone() -> None:
    operation = "%0 = stablehlo.custom_call @Sharding(%x) : (tensor<4xf32>) -> tensor<4xf32>"
    assert rule_of(operation, "%x: tensor<4xf32>") == ""


def test_matrices_of_a_batch() -> None:
    operation = (
        "%0:2 = stablehlo.custom_call @Eigh(%x) : (tensor<2x4x4xf32>) "
        "-> (tensor<2x4x4xf32>, tensor<2x4xf32>)"
    )
    found = rule_of(operation, "%x: tensor<2x4x4xf32>")
    assert "([i, j, k])->([i, l, m], [i, n])" in found
    assert "need_replication={j, k, l, m, n}" in found


def test_rules_of_other_packages_come_from_entry_points(tmp_path, monkeypatch) -> None:
    (tmp_path / "their_rules.py").write_text(
        "from flint.passes.partition.prepare.rules import pointwise\nrule = pointwise\n"
    )
    info = tmp_path / "their-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[flint.sharding_rules]\ncustom_call:my_kernel = their_rules:rule\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    plugins._points.cache_clear()
    try:
        operation = "%0 = stablehlo.custom_call @my_kernel(%x) : (tensor<4xf32>) -> tensor<4xf32>"
        found = rule_of(operation, "%x: tensor<4xf32>")
    finally:
        plugins._points.cache_clear()
    assert found.endswith("<([i])->([i]) {i=4}, custom>")


def test_pointwise_wants_one_shape() -> None:
    assert pointwise([(4, 8)], [(4, 8)], None) == FactorRule((4, 8), ((0, 1),), ((0, 1),))
    assert pointwise([(8,)], [(4, 8)], None) is None
