"""The comment on a pull request: `python -m flint.tools.change.project.comment FILE KEY`, in an action of GitHub.

The comment that was written before, which begins with a marker of `KEY`, is edited. Whatever goes
wrong is a warning and never ends a job: tokens of forks may only read, and the summary says it all.
"""

from __future__ import annotations

import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flint.tools.change.project.ci import command

#: Comments of a page, and pages in which the earlier one is looked for.
_PER_PAGE, _MOST_PAGES = 100, 20
_SECONDS = 30.0
#: Characters that GitHub takes.
_MOST = 65_000


def main() -> None:
    """Write or edit the comment; say on stdout what went wrong."""
    path, key = Path(sys.argv[1]), sys.argv[2]
    try:
        said = publish(path.read_text("utf-8"), key)
    except (OSError, ValueError, KeyError, TypeError) as error:  # URLError is an OSError
        said = command("warning", f"the comment was not written: {_reason(error)}")
    print(said)


def publish(text: str, key: str) -> str:
    """Write a comment, or edit the one of before, and return its address.

    Where and as whom stands in the environment. Raises OSError, ValueError or KeyError.
    """
    marker = f"<!-- flint: {key.replace('--', '- -')} -->"
    body = f"{marker}\n{text}"[:_MOST]
    repository = f"/repos/{os.environ['GITHUB_REPOSITORY']}/issues"
    thread = f"{repository}/{int(os.environ['PULL_REQUEST'])}/comments"
    for comment in _comments(thread):
        if str(comment.get("body", "")).startswith(marker):
            return _address(_call("PATCH", f"{repository}/comments/{int(comment['id'])}", body))
    return _address(_call("POST", thread, body))


def _comments(thread: str) -> Iterator[dict[str, Any]]:
    for page in range(1, _MOST_PAGES + 1):
        found = _call("GET", f"{thread}?per_page={_PER_PAGE}&page={page}")
        yield from found
        if len(found) < _PER_PAGE:
            return


def _call(method: str, path: str, body: str | None = None) -> Any:
    """One request of GitHub's API, and the JSON that it answers."""
    api = os.environ.get("GITHUB_API_URL", "https://api.github.com")
    request = urllib.request.Request(
        f"{api}{path}",
        method=method,
        data=None if body is None else json.dumps({"body": body}).encode(),
        headers={
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        return json.loads(answer.read())


def _address(comment: dict[str, Any]) -> str:
    return str(comment.get("html_url", "the comment was written"))


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError) and error.code in (401, 403, 404):
        return f"{error} (a fork's token is read-only; permissions: pull-requests: write)"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is not set"
    return str(error)


if __name__ == "__main__":
    main()
