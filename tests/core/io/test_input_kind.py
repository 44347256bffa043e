"""What a file given to capture holds."""

import pytest

from flint.errors import FlintError
from flint.steps.input_kind import InputKind, input_kind


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.py", b"import jax\n", InputKind.PYTHON),
        ("a.mlir", b"module @jit_f {\n}", InputKind.STABLEHLO),
        ("a.mlir", b"// comment\n#loc = loc(unknown)\nmodule {}", InputKind.STABLEHLO),
        ("noext", b"ML\xefR\x01StableHLO", InputKind.STABLEHLO),
        ("a.txt", b"module @f attributes {mhlo.num_partitions = 8 : i32} {", InputKind.STABLEHLO),
        ("a.mlirbc", b"ML\xefR\x01", InputKind.STABLEHLO),
        ("a.hlo", b"HloModule jit_f", InputKind.HLO),
        ("a.mlir", b"HloModule jit_f", InputKind.HLO),
        ("after_optimizations.txt", b"HloModule jit_f, entry", InputKind.HLO),
        ("a.pb", b"\x0a\x05jit_f", InputKind.HLO),
        ("A.PY", b"x = 1", InputKind.PYTHON),
    ],
)
def test_kinds(tmp_path, name, content, kind):
    path = tmp_path / name
    path.write_bytes(content)
    assert input_kind(path) is kind


@pytest.mark.parametrize(
    ("name", "content", "code", "words"),
    [
        ("a.onnx", b"\x08\x07", "FL210", "not a kind of file that flint captures"),
        ("a.py", b"", "FL301", "is empty"),
        ("a.hlo", b" \n\n", "FL301", "is empty"),
    ],
)
def test_unusable_files(tmp_path, name, content, code, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(FlintError, match=words) as caught:
        input_kind(path)
    assert caught.value.code == code


def test_directories_and_missing_files(tmp_path):
    with pytest.raises(FlintError, match="is a directory, not a regular file"):
        input_kind(tmp_path)
    with pytest.raises(FlintError, match="No such file"):
        input_kind(tmp_path / "model.py")
