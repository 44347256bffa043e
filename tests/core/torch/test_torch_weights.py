"""Model files that use PyTorch are read without a byte of weights."""

import pytest

from flint.errors import FlintError
from flint.frontends.model_file import Target, load_step

torch = pytest.importorskip("torch")

MODEL = """
import torch

import flint

table = {table}


@flint.entry(axes=("data", "model"))
def step(mesh):
    return flint.TorchStep(torch.nn.Linear({size}, {size}), (torch.zeros(8, {size}),))
"""


def _load(tmp_path, size=16, table="None"):
    path = tmp_path / "model.py"
    path.write_text(MODEL.format(size=size, table=table))
    return load_step(Target(path), "4x2")


def test_a_model_of_256_gib_is_built_on_meta(tmp_path):
    step = _load(tmp_path, size=2**18).step
    assert step.module.weight.device.type == "meta"
    assert step.module.weight.nbytes == 2**38
    assert step.args[0].shape == (8, 2**18)


def test_a_huge_tensor_on_a_named_device_is_one_error_with_its_line(tmp_path):
    with pytest.raises(FlintError) as caught:
        _load(tmp_path, table='torch.empty(2**32, 4, dtype=torch.bfloat16, device="cpu")')
    assert str(caught.value).splitlines() == [
        "error[FL226]: a tensor bfloat16[4294967296,4] with real memory (32.0 GiB) is made on cpu",
        "  --> model.py:6",
        (
            "  help: omit the device: the model file runs with torch.device('meta'), which "
            "allocates nothing"
        ),
    ]


def test_small_tables_may_have_values(tmp_path):
    assert _load(tmp_path, table='torch.arange(5, device="cpu").tolist()').step.args


def test_outside_of_a_model_file_pytorch_is_as_before(tmp_path):
    _load(tmp_path)
    assert torch.zeros(2).device.type == "cpu"
