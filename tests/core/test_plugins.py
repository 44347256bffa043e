"""What other packages register wrongly is left out, and an error where it is asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flint import plugins
from flint.errors import FlintError
from flint.ir.builder import ProgramBuilder
from flint.ir.mesh import Mesh
from flint.ir.op_class import OpClass
from flint.ir.program import Kind
from flint.ir.workload import Workload
from flint.tracing import Trace

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("nccl")
model = torch.nn.Linear(64, 64, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which packages are installed."""
    monkeypatch.setattr(plugins, "_points", plugins._points.__wrapped__)
    monkeypatch.setenv("FLINT_WARNED_OF", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def workload(name: str) -> Workload:
    b = ProgramBuilder(Mesh(("data",), (4,)))
    about: dict[str, Any] = {"dtype": "f32", "shape": (512, 512), "result_bytes": 1 << 20}
    x = b.add("parameter", Kind.PARAMETER, name="x", **about)
    work = {"operand_bytes": 2 << 20, "flops": 2 << 27, "dims": (1, 512, 512, 512)}
    b.add("stablehlo.dot_general", op=OpClass.MATMUL, deps=[x, x], **work, **about)
    return Workload.single(b.build(), {"name": name})


def install(site: Path, points: str, module: str, name: str = "their") -> None:
    (site / f"{name}_module.py").write_text(module)
    (info := site / f"{name}-1.0.dist-info").mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)


def flint(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{site}"}
    command = [sys.executable, "-m", "flint", *arguments]
    return subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, cwd=site
    )


@pytest.fixture
def step(site: Path) -> str:
    workload("step").save(site / "step.flint")
    return "step.flint"


OTHER = """
from flint.cluster.tables import ChipFamily, Family

class Other(ChipFamily):
    table = "other"
    constants: dict = {}

FAMILY = Family(Other, print)
"""
FAMILIES = {
    "cannot be imported": ("their_module:gone", "no licence", "raise RuntimeError('no licence')"),
    "is something else": ("their_module:gone", "a function, not a Family", "def gone(): ..."),
    "has another table": (
        "their_module:FAMILY",
        "it has the table 'other'",
        OTHER,
    ),
}


@pytest.mark.cold  # a warm process knows its families
@pytest.mark.parametrize("case", FAMILIES)
def test_a_broken_chip_family_stops_only_its_own_clusters(site: Path, step: str, case: str) -> None:
    place, why, module = FAMILIES[case]
    install(site, f"[flint.chip_families]\nnpu = {place}\n", module)
    (site / "theirs.toml").write_text('base = "h100-dgx"\n[chip.npu]\nstart_ns = 1\n')

    found = flint(site, "estimate", step, "-c", "h100-dgx", "--json")
    assert json.loads(found.stdout)["step_time_ns"] > 0
    assert found.stderr.count("left out: 'npu' of flint.chip_families") == 1
    assert why in found.stderr and "(package their)" in found.stderr
    refused = flint(site, "estimate", step, "-c", "theirs.toml")
    assert refused.returncode == 2 and "error[FL882]" in refused.stderr and why in refused.stderr


def test_families_of_flint_need_no_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    from flint.cluster import tables

    monkeypatch.setattr(plugins, "_points", lambda group: {})
    assert list(tables.families.__wrapped__()) == ["gpu", "systolic"]


@pytest.mark.cold
def test_a_broken_stand_in_stops_only_programs_that_import_it(site: Path) -> None:
    pytest.importorskip("torch")
    around = (
        "from flint.frontends.torch_world.packages.package import Package\n"
        "PACKAGE = Package('late', '1', 'late', 'their_module', {'late': ()}, around='gone:gone')\n"
    )
    install(site, "[flint.stand_ins]\nnorm = gone:PACKAGE\nlate = their_module:PACKAGE\n", around)
    for name, text in (("plain.py", SCRIPT), ("normed.py", f"import norm\n{SCRIPT}")):
        (site / name).write_text(text)

    found = flint(site, "capture", "plain.py", "--mesh", "4", "--world", "--json")
    assert json.loads(found.stdout)["summary"]["devices"] == 4, found.stderr
    assert found.stderr.count("left out: ") == 1 and "(package their)" in found.stderr
    refused = flint(site, "capture", "normed.py", "--mesh", "4", "--world")
    assert refused.returncode == 2 and "error[FL882]: 'norm' of flint.stand_ins" in refused.stderr


def test_documents_of_other_packages_have_schemas(site: Path) -> None:
    install(
        site,
        "[flint.documents]\ntheir.kinds/1 = their_module:Kinds\ntheir.bad/1 = their_module:Kinds\n",
        "from typing import Literal\nfrom typing_extensions import TypedDict\n"
        "class Kinds(TypedDict):\n    '''Operations by kind.'''\n\n"
        "    schema: Literal['their.kinds/1']\n    products: int  #: How many products.\n",
    )
    listed = flint(site, "schema")
    assert "their.kinds/1" in listed.stdout and "Operations by kind." in listed.stdout
    assert "their.bad/1" not in listed.stdout and "their.bad/1" in listed.stderr
    found = json.loads(flint(site, "schema", "their.kinds/1").stdout)
    assert found["properties"]["products"]["description"] == "How many products."
    refused = flint(site, "schema", "their.bad/1")
    assert refused.returncode == 2 and "error[FL882]" in refused.stderr


def test_a_broken_sharding_rule_is_an_error_where_its_call_is(site: Path) -> None:
    pytest.importorskip("jaxlib")
    from tests.core.partition.test_sharding_rules import rule_of

    install(site, "[flint.sharding_rules]\ncustom_call:theirs = gone:rule\n", "")
    call = "%0 = stablehlo.custom_call @{} (%x) : (tensor<4xf32>) -> tensor<4xf32>"
    assert rule_of(call.format("other"), "%x: tensor<4xf32>")
    with pytest.raises(FlintError, match="custom_call:theirs") as error:
        rule_of(call.format("theirs"), "%x: tensor<4xf32>")
    assert error.value.code == "FL882"


def test_notebooks_show_text_where_no_tool_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace(workload("<step>"))
    shown = (trace, trace.summary(), trace.estimate("h100-dgx"))
    assert not any("<pre>" in one._repr_html_() for one in shown)
    monkeypatch.setattr(plugins, "_points", lambda group: {})
    for one in shown:
        assert one._repr_html_().startswith("<pre>") and "&lt;step&gt;" in one._repr_html_()
