"""A request is the same after it was typed as a command, or written to flint.toml."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from flint.cli.requests import takes_requests
from flint.requests.capture import CaptureRequest
from flint.requests.estimate import EstimateRequest
from flint.requests.option import Form, Option, Request
from flint.tools.change.project.config import load_project, request_from, table_of

#: Words that a command cannot take for options, and flint.toml can hold.
_WORDS = st.from_regex(r"[a-z][a-z0-9=:.,_/-]{0,12}", fullmatch=True)
_NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)


def _values(option: Option) -> st.SearchStrategy[Any]:
    if option.form is Form.SWITCH:
        return st.booleans()
    if option.form is Form.NUMBER:
        return st.none() | st.integers(option.least or 0, 1 << 20)
    if option.words:
        return st.sampled_from(option.words)
    if option.form is Form.PAIRS:
        value = _WORDS if option.least is None else st.integers(option.least, 99).map(str)
        pairs = st.dictionaries(_NAMES, value, max_size=2)
        return pairs.map(lambda found: tuple(f"{k}={v}" for k, v in found.items()))
    if option.form is Form.TEXTS:
        return st.lists(_WORDS, max_size=2).map(tuple)
    return _WORDS if option.default is not None else st.none() | _WORDS


def requests(kind: type[Request]) -> st.SearchStrategy[Any]:
    """Requests of texts, as commands and files make them."""
    return st.fixed_dictionaries({n: _values(o) for n, o in kind.options().items()}).map(
        lambda found: kind(**found)
    )


def _typed(kind: type[Request]) -> tuple[typer.Typer, list[Request]]:
    app, seen = typer.Typer(), []

    def command(request: Any) -> None:
        seen.append(request)

    command.__annotations__["request"] = kind
    app.command()(takes_requests(command))
    return app, seen


def _words(request: Request) -> list[str]:
    """What is typed for a request, its arguments in front."""
    front = [getattr(request, n) for n, o in request.options().items() if not o.flags]
    texts = [w for f in front for w in (f if isinstance(f, tuple) else (f,))]
    return [*request.words(), "--", *texts]


@pytest.mark.parametrize("kind", [EstimateRequest, CaptureRequest])
def test_what_is_typed_is_the_request_again(kind: type[Request]) -> None:
    app, seen = _typed(kind)

    @settings(max_examples=30)
    @given(requests(kind))
    def same(request: Request) -> None:
        result = CliRunner().invoke(app, _words(request))
        assert result.exit_code == 0, result.output
        assert seen.pop() == request

    same()


@pytest.mark.parametrize("kind", [EstimateRequest, CaptureRequest])
def test_what_is_in_flint_toml_is_the_request_again(kind: type[Request]) -> None:
    @settings(max_examples=30)
    @given(requests(kind))
    def same(request: Request) -> None:
        text = _toml(table_of(request))
        assert request_from(kind, tomllib.loads(text)) == request

    same()


def _toml(table: dict[str, Any]) -> str:
    def value(found: Any) -> str:
        if isinstance(found, bool):
            return str(found).lower()
        if isinstance(found, dict):
            return "{" + ", ".join(f"{k} = {value(v)}" for k, v in found.items()) + "}"
        if isinstance(found, tuple):
            return "[" + ", ".join(map(value, found)) + "]"
        return str(found) if isinstance(found, int) else f"'{found}'"

    return "\n".join(f"{key} = {value(found)}" for key, found in table.items())


@settings(max_examples=15)
@given(requests(EstimateRequest), requests(CaptureRequest))
def test_a_project_takes_every_option(estimate: EstimateRequest, capture: CaptureRequest) -> None:
    """But the profile of an estimate, which is that of the capture, and the cluster, of which it has several."""
    estimate = estimate.but(cluster=None, profile=None)
    document = {**table_of(estimate), **table_of(capture)}
    project = _project(_toml(document))
    (found,) = project.captures.values()
    assert found.capture_request() == capture
    assert found.estimate_request("h100-dgx") == estimate.but(cluster="h100-dgx")


def _project(text: str) -> Any:
    from flint.io.scratch import scratch_folder

    with scratch_folder() as folder:
        (folder / "flint.toml").write_text(f"[capture.train]\n{text}\n")
        return load_project(folder / "flint.toml")
