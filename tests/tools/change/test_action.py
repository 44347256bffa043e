"""action.yml as a runner runs it: its steps with bash, in folders of their own, without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.project_folders import MODEL, PROJECT, flint

yaml: Any = pytest.importorskip("yaml", reason="reads action.yml")
pytest.importorskip("jax", reason="captures a JAX program")

ROOT = Path(__file__).parents[3]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = ACTION["runs"]["steps"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def in_workflows() -> Iterator[dict[str, Any]]:
    """The steps of all workflows."""
    for workflow in WORKFLOWS:
        for job in yaml.safe_load(workflow.read_text())["jobs"].values():
            yield from job["steps"]


def test_others_are_pinned_and_inputs_are_no_part_of_scripts() -> None:
    for step in [*STEPS, *in_workflows()]:
        action = step.get("uses", "./")
        assert action == "./" or re.fullmatch(r"(actions|pypa)/[\w-]+@[0-9a-f]{40}", action)
        assert "${{" not in step.get("run", "")
    assert all("run" not in step or step["shell"] == "bash" for step in STEPS)


def test_inputs_outputs_and_the_page_agree() -> None:
    page = (ROOT / "docs" / "changes.md").read_text()
    text = (ROOT / "action.yml").read_text()
    for name, about in ACTION["inputs"].items():
        assert f"inputs.{name}" in text and f"| `{name}` |" in page and about["description"]
    steps = {s["id"] for s in STEPS}
    for about in ACTION["outputs"].values():
        (said,) = EXPRESSION.findall(about["value"])
        assert said.split(".")[1] in steps
    (given,) = (step["with"] for step in in_workflows() if step.get("uses") == "./")
    assert set(given) <= set(ACTION["inputs"])


def test_the_hook_of_pre_commit_is_the_command() -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert hook["id"] == "flint-verify" and hook["entry"].split() == ["flint", "verify"]
    names = ("model.py", "deep/x.py", "flint.toml", "pyproject.toml", "flint.lock")
    assert all(re.search(hook["files"], n) for n in names)
    assert not hook["pass_filenames"] and not re.search(hook["files"], "README.md")


# a runner ---------------------------------------------------------------------------------------


@dataclass
class Runner:
    """Runs the steps of a composite action: those with `run`, as GitHub's runner does."""

    workspace: Path
    inputs: dict[str, str]
    event: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    printed: dict[str, str] = field(default_factory=dict)
    status: int = 0

    def run(self, first: str = "") -> Runner:
        """All steps, or those from one on, until one fails. `uses` needs a network, and is left out."""
        self.temporary = self.workspace.parent / f"{self.workspace.name}-temp"
        self.temporary.mkdir(exist_ok=True)
        self.summary = self.temporary / "summary.md"
        if not first:
            self.summary.write_text("")
        names = [step["id"] for step in STEPS]
        for step in STEPS[names.index(first) if first else 0 :]:
            if "run" in step and not self.status and self._wanted(step.get("if", "")):
                status = self._step(step)
                self.status = 0 if step.get("continue-on-error") else status
        return self

    def _wanted(self, condition: str) -> bool:
        return all(map(self._true, filter(None, condition.split(" && "))))

    def _true(self, term: str) -> bool:
        found = re.fullmatch(r"(\S+) (==|!=) '(.*)'", term)
        if found is None:
            return bool(self.value(term))
        return (self.value(found[1]) == found[3]) == (found[2] == "==")

    def value(self, name: str) -> str:
        """An expression that names a value."""
        first, *rest = name.split(".")
        if first == "inputs":
            about = ACTION["inputs"][rest[0]]
            return self.inputs.get(rest[0], str(about["default"]))
        if first == "steps":
            return self.outputs.get(rest[0], {}).get(rest[2], "")
        found: Any = {"action_path": str(ROOT), "event": self.event}
        for part in rest:
            found = found.get(part, {}) if isinstance(found, dict) else {}
        return "" if found == {} else str(found)

    def text(self, value: object) -> str:
        """A value of the file with its expressions."""
        return EXPRESSION.sub(lambda m: self.value(m[1]), str(value))

    def _step(self, step: dict[str, Any]) -> int:
        output = self.temporary / f"{step['id']}.out"
        output.write_text("")
        script = self.temporary / f"{step['id']}.sh"
        script.write_text(step["run"])
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("GITHUB_")},
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_ACTIONS": "true",
            "RUNNER_TEMP": str(self.temporary),
            **self.variables,
            **{k: self.text(v) for k, v in step.get("env", {}).items()},
        }
        done = subprocess.run(  # noqa: PLW1510
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            cwd=self.workspace / self.text(step.get("working-directory", ".")),
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed[step["id"]] = done.stdout
        lines = output.read_text().splitlines()
        self.outputs[step["id"]] = dict(line.split("=", 1) for line in lines)
        return done.returncode

    def said(self, name: str) -> str:
        """An output of the action."""
        return self.text(ACTION["outputs"][name]["value"])


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with its project in a folder, and the lock that was committed."""
    root = tmp_path_factory.mktemp("workspace")
    (root / "sub dir").mkdir()
    (root / "sub dir" / "model.py").write_text(MODEL)
    budgets = '[capture.train.budgets]\nstep-time = "+10%"\n'
    (root / "sub dir" / "flint.toml").write_text(PROJECT + budgets)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root / "sub dir")
        assert flint("run").exit_code == 0
    return root


def runner(workspace: Path, **inputs: str) -> Runner:
    own = {"python": sys.executable, "install": "none", "working-directory": "sub dir"}
    return Runner(workspace, {**own, **{k.replace("_", "-"): v for k, v in inputs.items()}})


def test_equal(workspace: Path) -> None:
    own = workspace / "sub dir" / "flint.py"  # the user's; `python -m` would find it first
    own.write_text("raise SystemExit('not this one')")
    done = runner(workspace, captures="train").run()
    own.unlink()
    assert done.status == 0, done.printed
    assert (done.said("verdict"), done.said("summary")) == ("equal", "1 capture: 1 equal")
    report = Path(done.said("report"))
    assert json.loads((report / "verify.json").read_text())["schema"] == "flint.verify/1"
    assert done.summary.read_text() == (report / "comment.md").read_text()
    assert "comment" not in done.outputs and "install" not in done.outputs


class Api(BaseHTTPRequestHandler):
    """GitHub's comments of one pull request."""

    comments: list[dict[str, Any]] = []  # noqa: RUF012 - emptied by each test
    refused = 0

    def _answer(self, status: int, document: object) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())

    def _body(self) -> str:
        assert self.headers["Authorization"] == "Bearer secret"
        return str(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"])

    def do_GET(self) -> None:
        """One page of comments."""
        assert self.path.startswith("/repos/o/r/issues/7/comments?")
        page = int(self.path.rpartition("=")[2]) - 1
        self._answer(200, self.comments[100 * page : 100 * page + 100])

    def do_POST(self) -> None:
        """A new comment, unless the token only reads."""
        body = self._body()
        if self.refused:
            return self._answer(self.refused, {"message": "Resource not accessible"})
        number = len(self.comments)
        self.comments.append({"id": number, "body": body})
        return self._answer(201, {"html_url": f"https://comments/{number}"})

    def do_PATCH(self) -> None:
        """Another text."""
        number = int(self.path.rpartition("/")[2])
        self.comments[number]["body"] = self._body()
        self._answer(200, {"html_url": f"https://comments/{number}"})

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture
def api() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Api)
    Api.comments, Api.refused = [{"id": n, "body": "hello"} for n in range(100)], 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_over_budget(workspace: Path, api: str) -> None:
    model = workspace / "sub dir" / "model.py"
    model.write_text(MODEL.replace("HIDDEN = 256", "HIDDEN = 512"))
    done = runner(workspace, comment="true", github_token="secret")
    done.event = {"pull_request": {"number": 7}}
    done.variables = {"GITHUB_API_URL": api, "GITHUB_REPOSITORY": "o/r"}
    for times, first in ((1, ""), (2, "comment")):  # the other steps would do the same again
        done.status = 0
        done.run(first)
        assert done.status == 1, "the last step says so"
        assert done.said("verdict") == "over-budget"
        assert done.printed["comment"] == "https://comments/100\n"
        assert len(Api.comments) == 101, f"one comment after {times} runs"
    text = Api.comments[-1]["body"]
    assert text.startswith("<!-- flint: sub dir -->\n<!-- flint verify -->\n### 1 capture: ")
    assert text.count("\n") < 60 and "shape: 256 -" in text
    errors = [x for x in done.printed["verify"].splitlines() if x.startswith("::error")]
    assert len(errors) == 1
    assert re.match(r"::error file=sub dir/model\.py,line=1\d,title=flint::train on ", errors[0])
    assert re.search(r"\+\d+\.\d %25", errors[0]), "percent signs are escaped"
    suite = ET.parse(Path(done.said("report")) / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("1", "1")
    Api.refused = 403
    Api.comments.clear()
    done.status = 0
    done.run("comment")
    assert done.status == 1 and done.said("verdict") == "over-budget"
    assert (
        "::warning title=flint::the comment was not written: HTTP Error 403"
        in done.printed["comment"]
    )
    assert done.summary.read_text().startswith("<!-- flint verify -->")
    model.write_text(MODEL)


def test_what_cannot_be_compared_is_said_where_people_look(workspace: Path, api: str) -> None:
    done = runner(workspace, captures="train $(touch injected) `id`", comment="true")
    done.event = {"pull_request": {"number": 7}}
    done.variables = {"GITHUB_API_URL": "http://127.0.0.1:9", "GITHUB_REPOSITORY": "o/r"}
    done.run()
    assert done.status == 2 and done.said("verdict") == "error"
    assert done.said("summary").startswith("flint verify could not compare: error[FL722]: ")
    assert "    error[FL722]: flint.toml has no capture '$(touch'" in done.summary.read_text()
    assert "::warning title=flint::the comment was not written" in done.printed["comment"]
    assert not (workspace / "sub dir" / "injected").exists()


def test_only_extras_are_installed(workspace: Path) -> None:
    done = runner(workspace, install="jax]; touch injected; [").run()
    assert done.status == 2 and "::error title=flint::install is" in done.printed["install"]
    assert not list(workspace.rglob("injected"))
    missing = runner(workspace, python="/nowhere/python").run()
    assert missing.status == 127 and missing.said("verdict") == "error"
