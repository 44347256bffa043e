"""What is known of a compiler's process that ended by itself: how, and its last words."""

from __future__ import annotations

import re
import signal

_LOG_PREFIX = re.compile(r"^[IWEF]\d{4} [\d:.]+\s+\d+ ")
#: Lines of stack frames, which say nothing of why.
_FRAMES = ("@", "***", "File", "Extension", "PC:", "Current thread", "Thread", "Fatal Python")


def how_it_ended(code: int) -> str:
    """`SIGABRT`, or `exit status 1`."""
    return signal.Signals(-code).name if code < 0 else f"exit status {code}"


def last_words(stderr: bytes) -> str:
    """The fatal line of a log if there is one, else its last line, without stack frames."""
    lines = [line.strip() for line in stderr.decode(errors="replace").splitlines() if line.strip()]
    fatal = [line for line in lines if re.match(r"F\d{4} ", line)]
    said = [line for line in lines if not line.startswith(_FRAMES)]
    return _LOG_PREFIX.sub("", (fatal or said or ["it said nothing"])[-1])[:400]
