"""`flint capture train.py --mesh 8` sees by itself whether a file is a step or a script."""

import json

import pytest

from flint.capturing import capture, decided
from flint.errors import FlintError
from flint.frontends.launch_command import TORCHRUN, Started, launch_of
from flint.requests.capture import CaptureRequest

DDP = """import torch, torch.nn as nn, torch.distributed as dist
dist.init_process_group("nccl")
torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
model = nn.parallel.DistributedDataParallel(nn.Linear(64, 64).cuda())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    model(torch.randn(4, 64, device="cuda")).sum().backward()
    optimizer.step()
"""
ENTRY = "import flint\n@flint.entry()\ndef step(mesh): ...\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (DDP, "line 2 runs"),
        ("import jax\nmesh = jax.make_mesh((8,), 'x')\nfor _ in range(3): pass", "line 3 runs"),
        ("def main(): ...\n\nif __name__ == '__main__':\n    main()\n", "line 3 runs"),
        ("from absl import app\ndef main(_): ...\napp.run(main)\n", "line 3 runs"),
        ("import other\nif other.ready():\n    other.go()\n", "line 2 runs"),
        (ENTRY, ""),
        (f"{ENTRY}if __name__ == '__main__':\n    step(None)\n", ""),
        ("from flint import Step\ns = Step(abs, (1,))\nprint(s)", ""),
        ("from ours import *\n", ""),
        ("def f(:\n", ""),
    ],
)
def test_what_a_file_shows(tmp_path, code, why):
    (tmp_path / "ours.py").write_text("import flint\nmark = flint.entry()\n")
    file = tmp_path / "train.py"
    file.write_text(code)
    found, said = decided(CaptureRequest(str(file), mesh="8"))
    assert found.world == bool(why) and why in said
    assert bool(said) == bool(why)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ndef train_step(x): ...\ndef other(): ...\n",
        "import torch\ntorch.manual_seed(0)\n\ndef train_step(x): ...\n",
        "import torch.distributed as d\ndef train_step(x):\n    d.init_process_group()\n",
    ],
)
def test_a_file_that_may_be_both_is_one_question_with_both_commands(tmp_path, code):
    file = tmp_path / "m.py"
    file.write_text(code)
    with pytest.raises(FlintError) as raised:
        capture(CaptureRequest(str(file), mesh="4"))
    step = f"a step: flint capture {file}:train_step --args {file}:ARGUMENTS --mesh 4"
    script = f"a script: flint capture {file} --mesh 4 --world"
    assert (raised.value.code, raised.value.help) == ("FL211", f"{step}; {script}")
    found, _ = decided(CaptureRequest(str(file), mesh="4", steps=1))
    assert found.world, "only scripts have steps"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("train.py --lr 1", Started("train.py", ("--lr", "1"))),
        ("python -u train.py -m x", Started("train.py", ("-m", "x"))),
        ("python3.11 -X dev -m pkg.train --lr 1", Started("pkg.train", ("--lr", "1"))),
        ("-m pkg.train -v", Started("pkg.train", ("-v",))),
        (
            "torchrun --standalone --nproc_per_node=8 --nnodes 2 train.py --nnodes 3",
            Started("train.py", ("--nnodes", "3"), 2, 8),
        ),
        ("torchrun --nnodes 1:4 --nproc-per-node gpu -m pkg", Started("pkg", (), 4, None)),
        ("torchrun --nproc 4 --rdzv_backend c10d t.py", Started("t.py", (), None, 4)),
        ("python -m torch.distributed.run --nproc-per-node 2 t.py", Started("t.py", (), None, 2)),
        (
            "python -m torch.distributed.launch --nproc_per_node=2 t.py -a",
            Started("t.py", ("--local-rank=${local_rank}", "-a"), None, 2),
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 OMP_NUM_THREADS=1 uv run torchrun --nproc_per_node 2 t.py",
            Started("t.py", (), None, 2, {"OMP_NUM_THREADS": "1"}),
        ),
        (
            "deepspeed --num_gpus 4 --num_nodes=2 t.py --deepspeed ds.json",
            Started("t.py", ("--local_rank=${local_rank}", "--deepspeed", "ds.json"), 2, 4),
        ),
        ("deepspeed --no_local_rank t.py", Started("t.py")),
    ],
)
def test_what_a_command_line_starts(line, found):
    first, *rest = line.split()
    assert launch_of(first, rest) == found


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("torchrun --nproc_per_node 8", "it names no script"),
        ("torchrun --gpus 8 t.py", "torchrun has no option --gpus"),
        ("torchrun --nnodes", "--nnodes needs a value"),
        ("python -c 'import x'", "it names no script"),
        ("accelerate config", "only `accelerate launch` starts a program"),
        ("python -m accelerate.commands.launch t.py", "accelerate says"),
    ],
)
def test_commands_that_start_nothing_that_is_known(line, why):
    first, *rest = line.split()
    with pytest.raises(FlintError, match="FL254") as raised:
        launch_of(first, rest)
    assert why in raised.value.message and "--world" in str(raised.value)


def test_the_options_of_torchrun_are_its_own():
    from torch.distributed.run import get_args_parser

    actions = [a for a in get_args_parser()._actions if a.dest != "help"]
    valued = {o for a in actions if a.nargs != 0 for o in a.option_strings}
    flags = {o for a in actions if a.nargs == 0 for o in a.option_strings}
    plain = lambda options: {o.lstrip("-").replace("-", "_") for o in options}
    assert plain(valued) == TORCHRUN.valued and plain(flags) == TORCHRUN.flags - {"use_env"}


def test_a_notebook_runs_without_what_only_ipython_knows(tmp_path):
    cells = [["%matplotlib inline\n", "!nvidia-smi\n", "x = (7\n", "  % 4)"], ["%%bash\n", "ls"]]
    cells += [["%%time\n", *DDP.splitlines(keepends=True), "assert x == 3"]]
    made = [{"cell_type": "code", "source": source} for source in cells]
    file = tmp_path / "train.ipynb"
    file.write_text(json.dumps({"cells": [{"cell_type": "markdown", "source": ["#"]}, *made]}))
    trace = capture(CaptureRequest(str(file), mesh="8"))
    assert (
        trace.recorded == "train.ipynb was recorded as a script, as with --world: it is a notebook"
    )
    kinds = [(c.collective, c.count, c.comm_bytes) for c in trace.summary().classes[0].collectives]
    assert kinds == [("all_reduce", 1, 4 * 65 * 64)]
    file.write_text(json.dumps({"cells": [made[0] | {"source": ["import torch\n", "1/0"]}]}))
    with pytest.raises(FlintError, match="ZeroDivisionError") as raised:
        capture(CaptureRequest(str(file), mesh="8"))
    assert raised.value.place == "train.ipynb cell 1:2  1/0"
    assert "--world" in str(raised.value)


@pytest.mark.parametrize(
    ("tail", "said", "products"),
    [
        ("model(x)\nmodel(x)\n", "no optimizer stepped", 2),
        ("model(x).sum().backward()\noptimizer.step()\n", "only 1 optimizer step", 2),
    ],
)
def test_a_script_with_fewer_steps_is_recorded_as_far_as_it_goes(tmp_path, tail, said, products):
    file = tmp_path / "train.py"
    file.write_text(f"{DDP.partition('for _')[0]}x = torch.randn(4, 64, device='cuda')\n{tail}")
    trace = capture(CaptureRequest(str(file), mesh="8"))
    assert [said in warning for warning in trace.warnings] == [True]
    assert trace.summary().classes[0].matmul_flops == products * 2 * 4 * 64 * 64
    with pytest.raises(FlintError, match="FL231"):
        capture(CaptureRequest(str(file), mesh="8", steps=2))


def test_a_pasted_command_has_its_mesh_modules_and_arguments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "package").mkdir()
    (tmp_path / "package/train.py").write_text(
        "import os, sys\n"
        "assert sys.argv[1:] == ['--local-rank=' + os.environ['LOCAL_RANK'], 'a']\n"
        f"assert os.environ['LOCAL_WORLD_SIZE'] == '4' and os.environ['HOW'] == 'x'\n{DDP}"
    )
    words = "python -m torch.distributed.launch --nproc_per_node 4 --nnodes 2 -m package.train a"
    request = CaptureRequest("HOW=x", script_arguments=tuple(words.split()))
    trace = capture(request)
    assert trace.mesh.size == 8 and trace.summary().name == "train"
    assert trace.recorded.startswith("package.train was recorded as a script")


@pytest.mark.parametrize("name", ["train.py", "train.ipynb"])
def test_a_file_of_gigabytes_is_not_read(tmp_path, name):
    with (tmp_path / name).open("wb") as file:
        file.truncate(5 * 2**30)
    with pytest.raises(FlintError, match="a model file has at most") as raised:
        capture(CaptureRequest(model=str(tmp_path / name), mesh="8"))
    assert raised.value.code == "FL301"
