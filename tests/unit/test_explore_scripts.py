"""Options of a script, swept: what a point of it runs."""

from dataclasses import replace
from pathlib import Path

from flint.exploring.evaluate import Evaluator
from flint.exploring.point import Point
from flint.exploring.space import space_of
from flint.exploring.subject import Subject

SCRIPT = str(Path(__file__).resolve().parents[2] / "examples" / "torch_cuda_script.py")
SMALL = ("--width=64", "--depth=1", "--heads=2", "--seq=32")


def test_a_swept_option_is_one_of_the_script():
    subject = Subject(SCRIPT, world=True, script_arguments=SMALL)
    found = space_of(subject, devices=[4], clusters=["h100-dgx"], sweeps=["batch=4"])
    (swept,) = Evaluator(subject).evaluate(list(found.points()))
    typed = replace(subject, script_arguments=(*SMALL, "--batch=4"))
    (asked,) = Evaluator(typed).evaluate([Point("data=4", "h100-dgx")])
    assert not swept.reason
    assert swept.step_time_ns > 0
    assert replace(swept, point=asked.point) == asked
    (usual,) = Evaluator(subject).evaluate([Point("data=4", "h100-dgx")])
    assert usual.compute_ns > swept.compute_ns
