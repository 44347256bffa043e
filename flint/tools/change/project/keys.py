"""Requests as tables of flint.toml: keys with types for pydantic, and the request that a table means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, StrictBool, StrictInt, StrictStr

from flint.requests.option import Form, Option, Request

R = TypeVar("R", bound=Request)
Scalar = StrictStr | StrictBool | StrictInt | float
Texts = tuple[StrictStr, ...]


def keys_of(request: type[Request], *, without: tuple[str, ...] = ()) -> dict[str, tuple[Any, Any]]:
    """Keys with the type and the default of each, as `pydantic.create_model` takes them."""
    return {option.key: _key(option) for n, option in request.options().items() if n not in without}


def _key(option: Option) -> tuple[Any, Any]:
    if option.form is Form.TEXTS:
        return Texts, ()
    if option.form is Form.SWITCH:
        return StrictBool, False
    number = Annotated[StrictInt, Field(ge=option.least)]
    if option.form is Form.PAIRS:
        value = Scalar if option.least is None else number
        return dict[str, value], Field(default_factory=dict)  # type: ignore[valid-type]
    kind: Any = number if option.form is Form.NUMBER else StrictStr
    if option.words:
        kind = Literal[option.words]
    if option.is_required:
        return kind, ...
    return (kind | None if option.default is None else kind), option.default


def request_from(request: type[R], table: Mapping[str, Any]) -> R:
    """The request that the keys of a table mean; keys of others are left alone."""
    written = {}
    for name, option in request.options().items():
        value = table.get(option.key)
        if isinstance(value, Mapping):
            value = [f"{key}={_text(each)}" for key, each in value.items()]
        written[name] = value
    return request.of(written)


def table_of(request: Request) -> dict[str, Any]:
    """The keys and values of flint.toml that mean a request of texts."""
    found: dict[str, Any] = {}
    for name, value in request.given().items():
        option = request.options()[name]
        if option.form is Form.PAIRS:
            pairs = [text.partition("=")[::2] for text in value]
            value = {key: int(text) if option.least else text for key, text in pairs}
        found[option.key] = value
    return found


def _text(value: object) -> str:
    """A value of TOML as it is written on the command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)
