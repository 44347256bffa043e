"""Options of a script, swept: what a point of it runs."""

from dataclasses import replace
from pathlib import Path

from flint.tools.explore.evaluation.evaluate import Evaluator
from flint.tools.explore.point import Point
from flint.tools.explore.space.space import space_of
from flint.tools.explore.subject import Subject

SCRIPT = str(Path(__file__).resolve().parents[3] / "examples" / "torch_cuda_script.py")
SMALL = ("--width=64", "--depth=1", "--heads=2", "--seq=32")


def test_a_swept_option_is_one_of_the_script():
    subject = Subject(SCRIPT, world=True, script_arguments=SMALL)
    counted = replace(subject, tokens="batch * data * 32")
    found = space_of(counted, devices=[4], clusters=["h100-dgx"], sweeps=["batch=4"])
    (swept,) = Evaluator(counted).evaluate(list(found.points()))
    typed = replace(subject, script_arguments=(*SMALL, "--batch=4"), tokens="4 * 4 * 32")
    (asked,) = Evaluator(typed).evaluate([Point("data=4", "h100-dgx")])
    assert swept.tokens == 4 * 4 * 32
    assert not swept.reason
    assert swept.step_time_ns > 0
    assert replace(swept, point=asked.point) == asked
    (usual,) = Evaluator(subject).evaluate([Point("data=4", "h100-dgx")])
    assert usual.compute_ns > swept.compute_ns


ASKS = """
import torch, torch.distributed as dist
dist.init_process_group(backend="nccl")
width = 256 if "MI300X" in torch.cuda.get_device_name() else 64
model = torch.nn.Linear(width, width, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(8, width, device="cuda")).sum().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
    optimizer.step()
"""


def test_a_script_is_told_the_chip_of_its_cluster(tmp_path):
    (tmp_path / "train.py").write_text(ASKS)
    evaluator = Evaluator(Subject(str(tmp_path / "train.py"), world=True))
    points = [Point("data=4", cluster) for cluster in ("h100-dgx", "mi300x", "h100-dgx")]
    together = evaluator.evaluate(points)
    assert [r.reason for r in together] == ["", "", ""]
    assert together[1] == evaluator.evaluate(points[1:2])[0]
    assert together[0] == together[2]
    larger = [
        Point("data=4", "h100-dgx", changes=(*changes, ("nvlink.bandwidth", "400GB/s")))
        for changes in ((), (("chip", "mi300x"),))
    ]
    usual, other = evaluator.evaluate(larger)
    assert (usual.reason, other.reason) == ("", "")
    assert other.memory["parameters"] > usual.memory["parameters"], "it was told of an MI300X"


TELLS = """
import os, sys, torch, torch.distributed as dist
width = int(sys.argv[1].rpartition("=")[2])
open(f"{__file__}.{os.getpid()}.{os.getppid()}", "w").close()
dist.init_process_group(backend="nccl")
model = torch.nn.Linear(width, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(8, width, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_points_of_a_study_fork_from_one_process(tmp_path):
    (tmp_path / "train.py").write_text(TELLS)
    subject = Subject(str(tmp_path / "train.py"), world=True)
    points = [
        Point("data=2", "h100-dgx", settings=(("width", width),)) for width in ("32", "48", "32")
    ]
    evaluator = Evaluator(subject)
    found = [evaluator.evaluate([p])[0] for p in points]
    assert [r.reason for r in found] == ["", "", ""]
    assert found[0] == found[2] != replace(found[1], point=points[0])
    parents = [path.suffix for path in tmp_path.glob("train.py.*.*")]
    assert len(parents) > 2
    assert len(set(parents)) == 1
    evaluator.close()
    assert Evaluator(subject).evaluate(points[1:2]) == found[1:2]
