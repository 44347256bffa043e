"""Options of an estimate that change nothing of it: found by leaving each one out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from flint.requests.estimate import EstimateRequest
from flint.requests.option import as_text


def idle_option_notes(
    request: EstimateRequest, changes_nothing: Callable[[EstimateRequest], bool]
) -> tuple[str, ...]:
    """A sentence for each given option that `changes_nothing`, asked with the other options, is true of.

    Of an option that is given several times each one is left out by itself.
    """
    return tuple(
        f"{said} changes nothing of this estimate"
        for said, others in _each_left_out(request)
        if changes_nothing(others)
    )


def _each_left_out(request: EstimateRequest) -> Iterator[tuple[str, EstimateRequest]]:
    """Each given option as a user writes it, and a request of all others."""
    options = request.options()
    for name, value in request.given().items():
        if name == "cluster":  # without it there is no estimate
            continue
        flag, usual = options[name].flag, options[name].default
        if value is True:
            yield f"{flag} {options[name].word}", request.but(**{name: usual})
        elif isinstance(value, list | tuple):
            for at, one in enumerate(value):
                left = (*value[:at], *value[at + 1 :])
                yield f"{flag} {as_text(one)}", request.but(**{name: left})
        else:
            yield f"{flag} {as_text(value)}", request.but(**{name: usual})
