"""A replay as names with values, one of several that are explored: rate=10/s, engine.max_num_seqs=64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from flint.errors import FlintError, nearest
from flint.requests.option import Form
from flint.tools.serve.engine.engines import rules_of
from flint.tools.serve.request import ServeRequest
from flint.tools.serve.requests.generated import GeneratedLoad
from flint.tools.serve.result import limits_of

#: Options of a replay by the name that is typed, and what generators of requests take.
_REPLAY = {o.typed: name for name, o in ServeRequest.options().items()}
_LOAD = tuple(f.name for f in fields(GeneratedLoad))
_ENGINE = "engine."


def served_as(options: Mapping[str, str]) -> ServeRequest:
    """The request that options by name are: those of `flint serve` (`decode_replicas`), of generators of
    requests (`rate`, `lengths`) and of engines (`engine.max_num_seqs`).

    Requests are as in ShareGPT if nothing says how long they are. Raises FlintError FL899 for a name that
    is none, values that are none, and for no requests; FL890 and FL891 for engines and limits.
    """
    for name in options:
        if name not in (*_REPLAY, *_LOAD) and not name.startswith(_ENGINE):
            known = (*_REPLAY, *_LOAD, f"{_ENGINE}max_num_seqs")
            raise FlintError(
                "FL899",
                f"--serve {name}: a replay has no such option{nearest(name, known)}",
                help=f"it takes {', '.join(known)}",
            )
    found: dict[str, object] = {_REPLAY[n]: v for n, v in options.items() if n in _REPLAY}
    found["requests"] = _requests(options)
    own = [f"{n.removeprefix(_ENGINE)}={v}" for n, v in options.items() if n.startswith(_ENGINE)]
    engine = options.get("engine", "vllm")
    found["engine"] = engine + ("," if ":" in engine else ":") * bool(own) + ",".join(own)
    request = ServeRequest.of({name: _value(name, value) for name, value in found.items()})
    rules_of(request.engine)
    if request.limits:
        limits_of(request.limits)
    return request


def _requests(options: Mapping[str, str]) -> str:
    load = {name: options[name] for name in _LOAD if name in options}
    if "requests" in options:
        if load:
            raise FlintError(
                "FL899",
                f"--serve has requests, and {min(load)} as well",
                help="a log says when requests come, and how long they are",
            )
        return options["requests"]
    kind = "gamma" if "burstiness" in load else "poisson"
    kind, first = ("concurrency",) * 2 if "concurrency" in load else (kind, "rate")
    if first not in load:
        raise FlintError(
            "FL899",
            "--serve does not say which requests come",
            help="add rate=1..50/s, concurrency=16..64 or requests=FILE",
        )
    if not {"lengths", "input", "output"} & load.keys():
        load["lengths"] = "sharegpt"
    rest = (f"{name}={value}" for name, value in load.items() if name != first)
    return ",".join((f"{kind}:{load[first]}", *rest))


def _value(name: str, value: object) -> object:
    """A value as its option has it."""
    option, text = ServeRequest.options()[name], str(value)
    if option.words and text not in option.words:
        text = f"--serve {option.typed}={text}: it is one of {', '.join(option.words)}"
        raise FlintError("FL899", text)
    if option.form is not Form.NUMBER:
        return text
    if not text.isascii() or not text.isdigit() or int(text) < (option.least or 0):
        text = f"--serve {option.typed}={text}: a whole number from {option.least or 0} on"
        raise FlintError("FL899", text)
    return int(text)
