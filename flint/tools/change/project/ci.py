"""What CI shows of verdicts: annotations on source lines, a summary, outputs, JUnit XML.

GitHub's forms: https://docs.github.com/actions/reference/workflow-commands-for-github-actions.
"""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from flint.errors import FlintError
from flint.io.inputs import ReadInputKind
from flint.text import plural
from flint.tools.change.diff import show
from flint.tools.change.diff.match import Change
from flint.tools.change.project.captures import Captured
from flint.tools.change.project.verify import Verdict

#: Annotations of one kind that GitHub shows of a step.
MOST_ANNOTATIONS = 10
#: Bytes of a comment, below GitHub's 65,536 characters; a step's summary may have 1 MiB.
MOST_COMMENT_BYTES = 52_000
#: Verdicts or names that are said of more than fit, and characters of each.
MOST_LINES, MOST_LINE = 80, 300
#: Lets a workflow find the comment that it wrote before.
MARKER = "<!-- flint verify -->"


def summary_line(verdicts: Sequence[Verdict]) -> str:
    """`3 captures: 1 equal, 2 changed, 1 over budget`."""
    equal = sum(v.difference.is_equal for v in verdicts)
    over = sum(bool(v.broken) for v in verdicts)
    bare = sum(v.fails and not v.broken for v in verdicts)
    counts = (
        (equal, "equal"),
        (len(verdicts) - equal, "changed"),
        (over, "over budget"),
        (bare, "without budgets, which fail"),
    )
    said = ", ".join(f"{n} {what}" for n, what in counts if n)
    return f"{plural(len(verdicts), 'capture')}: {said}"


def markdown(verdicts: Sequence[Verdict]) -> str:
    """One comment: failures first, then what changed; what is equal in one line.

    A comment of GitHub has 64 KB: of more, only the verdicts are said, and at last only some.
    """
    changed = sorted((v for v in verdicts if not v.difference.is_equal), key=lambda v: not v.fails)
    equal = [show.escape(v.title) for v in verdicts if v.difference.is_equal]
    head = [MARKER, f"### {summary_line(verdicts)}", ""]
    last = [f"Equal: {_some(equal)}."] if equal else []
    text = _joined([*head, *map(_one, changed), *last])
    if len(text.encode()) <= MOST_COMMENT_BYTES:
        return text
    lines = [f"- {_sign(v)}{show.escape(show.verdict(v.difference))}" for v in changed]
    rest = len(lines) - MOST_LINES
    more = [f"- and {rest:,} more"] if rest > 0 else []
    cut = [_cut(line) for line in lines[:MOST_LINES]]
    return _joined([*head, *cut, *more, "", *last])


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def _some(names: Sequence[str]) -> str:
    rest = len(names) - MOST_LINES
    shown = ", ".join(map(_cut, names[:MOST_LINES]))
    return f"{shown} and {rest:,} more" if rest > 0 else shown


def _cut(line: str) -> str:
    return line if len(line) <= MOST_LINE else f"{line[:MOST_LINE]}..."


def _sign(verdict: Verdict) -> str:
    return ":x: " if verdict.fails else ""


def _one(verdict: Verdict) -> str:
    text = show.markdown(verdict.difference, verdict.broken, title=f"{verdict.title}:")
    sign = _sign(verdict) if not verdict.broken else ""
    return f"{text}\n{sign}{show.escape(verdict.note)}\n" if verdict.note else text


def workflow_commands(
    verdicts: Iterable[Verdict], captured: Mapping[str, Captured], root: Path
) -> Iterator[str]:
    """Workflow commands: an error on the line that broke a budget, notices on others that grew."""
    errors, notices = [], []
    for verdict in verdicts:
        files = _files(captured[verdict.name], root)
        worst = [(b, b.worst) for b in verdict.broken]
        errors += [_command("error", files, w, f"{verdict.title}: {b}") for b, w in worst]
        if verdict.fails and not verdict.broken:
            errors.append(_command("error", files, None, _changed(verdict)))
        grew = [c for c in verdict.difference.changes if c.source and _grew(c)]
        said = [(c, f"{verdict.title}: {_text(verdict, c)}") for c in grew]
        notices += [_command("notice", files, c, text) for c, text in said]
    for commands in (errors, notices):
        yield from list(dict.fromkeys(commands))[:MOST_ANNOTATIONS]


def _changed(verdict: Verdict) -> str:
    note = f" ({verdict.note})" if verdict.note else ""
    return f"{verdict.title}: {show.verdict(verdict.difference)}{note}"


def _grew(c: Change) -> bool:
    d = c.delta
    return d.path_ns > 0 or (not d.path_ns and (d.comm_bytes > 0 or d.flops > 0))


def _text(verdict: Verdict, c: Change) -> str:
    return f"{show.name_of(c)} {show.delta_text(verdict.difference, c)}"


def _files(captured: Captured, root: Path) -> dict[str, str]:
    """Files that a capture was made of, by their name alone, as the runner's repository has them.

    Of several with one name, which lines of programs do not tell apart, only the model is there.
    """
    workspace = Path(os.environ.get("GITHUB_WORKSPACE") or root).resolve()
    top = workspace if root.is_relative_to(workspace) else root
    found: dict[str, list[Path]] = {}
    for one in captured.entry.inputs:
        path = Path(one.path)
        if one.kind is ReadInputKind.FILE and path.is_relative_to(top):
            found.setdefault(path.name, []).append(path)
    model = (root / captured.model.partition(":")[0]).resolve()
    known = {
        n: model if model in p else p[0] for n, p in found.items() if len(p) == 1 or model in p
    }
    return {name: path.relative_to(top).as_posix() for name, path in known.items()}


def _command(kind: str, files: Mapping[str, str], change: Change | None, message: str) -> str:
    name, _, line = (change.source if change is not None else "").rpartition(":")
    file = files.get(Path(name).name) if name else None
    if file is None or not line.isdigit():
        return command(kind, message)
    return command(kind, message, file=file, line=line)


def command(kind: str, message: str, **properties: str) -> str:
    """A workflow command: `::error file=model.py,line=3,title=flint::message`."""
    said = ",".join(f"{k}={_property(v)}" for k, v in {**properties, "title": "flint"}.items())
    return f"::{kind} {said}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def tell_runner(verdicts: Sequence[Verdict], comment: str) -> None:
    """Append the summary and the outputs to the files that a runner of GitHub names.

    Outputs are `verdict` and `summary`. Raises FlintError FL502.
    """
    _append("GITHUB_STEP_SUMMARY", comment)
    _append("GITHUB_OUTPUT", f"verdict={word(verdicts)}\nsummary={summary_line(verdicts)}\n")


def word(verdicts: Sequence[Verdict]) -> str:
    """`over-budget` if one fails (also for want of budgets), else `equal` or `changed`."""
    if any(v.fails for v in verdicts):
        return "over-budget"
    return "equal" if all(v.difference.is_equal for v in verdicts) else "changed"


def _append(variable: str, text: str) -> None:
    path = os.environ.get(variable)
    if not path:
        return
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise FlintError("FL502", f"cannot write {path}: {error.strerror}") from error


def junit(verdicts: Sequence[Verdict]) -> bytes:
    """JUnit XML with a test for each capture."""
    suite = ET.Element(
        "testsuite",
        name="flint verify",
        tests=str(len(verdicts)),
        failures=str(sum(v.fails for v in verdicts)),
    )
    for verdict in verdicts:
        case = ET.SubElement(suite, "testcase", classname="flint", name=_xml(verdict.title))
        said = _xml(show.verdict(verdict.difference))
        if verdict.fails:
            text = _xml(show.text(verdict.difference, verdict.broken))
            ET.SubElement(case, "failure", message=said).text = text
        else:
            ET.SubElement(case, "system-out").text = said
    ET.indent(suite)
    return bytes(ET.tostring(suite, encoding="utf-8", xml_declaration=True))


#: What XML 1.0 cannot hold.
_NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def _xml(text: str) -> str:
    return _NO_XML.sub("?", text)
