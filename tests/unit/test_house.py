"""What `benchmarks/house.py` counts, on a checkout small enough to count by hand."""

from pathlib import PurePosixPath

import pytest

from benchmarks.house import sizes
from benchmarks.structure import findings
from benchmarks.structure.sources import PRODUCT, Source, importers, read_sources

FILES = {
    "flint/__init__.py": "",
    "flint/one.py": "class Part:\n    pass\n\n\ndef first(x: int) -> int:\n    return x\n",
    "passes/__init__.py": "",
    "passes/two.py": "from flint.one import first\n\n\nclass Part:\n    pass\n",
    "passes/deep/__init__.py": "",
    "passes/deep/one.py": "def late():\n    from ..two import Part\n    from flint import one\n",
}


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "flint" / "passes").symlink_to("../passes")
    return read_sources(tmp_path, PRODUCT)


def source(text):
    return Source(path=PurePosixPath("passes/x.py"), text=text)


def test_links_are_not_followed(checkout):
    assert [str(s.path) for s in checkout] == sorted(FILES)


def test_sizes(checkout):
    assert sizes(checkout) == (
        "6 / 0.0k",
        "2 / 6",
        "2, 2.5, 3, 3",
        "33 % (1 of 3)",
        "2 (flint)",
    )


def test_imports_in_functions_and_relative_ones_count(checkout):
    users = importers(checkout)
    assert users["flint.one"] == {"flint.passes.two", "flint.passes.deep.one"}
    assert users["flint.passes.two"] == {"flint.passes.deep.one"}


def test_names_that_are_used_again(checkout):
    assert findings.reused_classes(checkout) == {"Part": ["flint.one", "flint.passes.two"]}
    assert findings.reused_files(checkout) == {"one.py": ["flint", "passes/deep"]}


def test_bare_any():
    text = "def f(a: Any, b: 'Any', *c: list[Any]) -> None:\n    d: Any = 1\n    e = 2\n"
    assert findings.bare_any(source(text)) == (3, 5)


@pytest.mark.parametrize(
    ("text", "reached", "likely", "named"),
    [
        ("import torch\ntorch.nn._functions.f(1)", 1, 0, 0),
        ("from torch._C import _x", 1, 0, 0),
        ("from jax._src import core\ncore.f()", 1, 0, 0),
        ("import jax\njax.numpy.sum(__name__)", 0, 0, 0),
        ("from jax import numpy as jnp\njnp._f", 1, 0, 0),
        ("def f(tensor):\n    return tensor._spec", 0, 1, 0),
        ("def f(part):\n    return part._own", 0, 0, 0),
        ("class A:\n    def f(self):\n        return self._spec", 0, 0, 0),
        ("import os\nos._exit(0)", 0, 0, 0),
        ("P = 'torch.optim.optimizer:_foreach'", 0, 0, 1),
    ],
)
def test_private_names(text, reached, likely, named):
    assert findings.private_names(source(text), {"_own"}) == findings.Private(
        reached, named, likely
    )


def test_opcode_strings():
    text = '"""stablehlo.dot in a docstring"""\nf("hlo.dot", f"aten.{x}", "no.hlo.x")\np.opcodes\n'
    assert findings.opcode_strings(source(text)) == findings.Opcodes(2, 1)
