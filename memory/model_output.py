"""From what a chat model wrote to one JSON value: the one repair that an answer gets.

Models wrap the value that they were asked for: thoughts before it, a fence or prose around
it, the array without its object. All this is taken off. What is then not exactly one whole
value is a `BadAnswer`: half an answer is never used, and a guess at its end never made.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from .errors import BadAnswer
from .json_values import json_kind

_THOUGHT = re.compile(r"<(/?)(think|thinking|thought|reasoning)>", re.IGNORECASE)
_BRACKET = re.compile(r"[{\[]")
_BROKEN = re.compile(r"\{\s*[\"']|\{\s*\w+\s*:|\[\s*(?:[\[{\"]|-?\d+\s*,)")
"""How a bracket goes on that opens JSON and no remark in prose."""

_SHOWN = 160
_LONGEST = 250_000
"""Characters; to look for a value in something longer that holds none takes seconds."""


def json_value(text: str, schema: Mapping[str, Any], cut_off: bool = False) -> Any:
    """Return the JSON value that an answer holds.

    Taken off: think-blocks (also one that was never opened or never closed), code fences, prose
    around the value. A bare array becomes the object that the schema wants, if that has one
    property and it is an array. The value's own properties are checked by whoever reads it.

    Args:
        text: the answer, whole.
        schema: what was asked for; an object with properties.
        cut_off: the answer reached its greatest length.

    Raises:
        BadAnswer: the answer is cut off or empty, holds no such value, more than one, or the schema.
    """
    if cut_off:
        raise BadAnswer(f"the answer was cut off at its greatest length: {_shown(text, end=True)}; answer more briefly")
    if len(text) > _LONGEST:
        raise BadAnswer(f"the answer has {len(text):,} characters, more than any that fits: {_shown(text)}")
    found = _parsed(text.strip())
    if found is None:
        found = _only(_told(text), schema)
    return _shaped(found[0], schema)


def _told(text: str) -> str:
    """The text without thoughts; those that were never closed stay, with the value behind them."""
    kept, at = [""], 0
    name, begin = "", 0  # of the thought that is open
    for tag in _THOUGHT.finditer(text):
        if not tag[1]:
            name, begin = (name, begin) if name else (tag[2].casefold(), tag.start())
        elif tag[2].casefold() == name:
            kept.append(text[at:begin])
            name, at = "", tag.end()
        else:  # it was never opened: all before it is thought
            kept, at = [""], tag.end()
    return "".join(kept) + text[at:]


def _only(text: str, schema: Mapping[str, Any]) -> tuple[Any]:
    """The one value in a text that has the schema's form."""
    values: list[Any] = list(_values(text))
    if not values:
        raise BadAnswer(f"the answer holds no JSON value: {_shown(text)}")
    objects = [value for value in values if isinstance(value, dict)]
    fitting: list[Any] = [value for value in objects if _is_meant(value, schema)] or objects
    if not fitting:  # a list in prose is taken only where it may stand for the object
        fitting = [value for value in values if isinstance(value, list)]
    distinct = {json.dumps(value, sort_keys=True): value for value in fitting}
    if len(distinct) > 1:
        raise BadAnswer(f"the answer holds {len(distinct)} different JSON values; give one: {_shown(text)}")
    return (next(iter(distinct.values())),)


def _values(text: str) -> Iterator[Any]:
    """The JSON objects and arrays of a text that are in no other."""
    at = 0
    while (bracket := _BRACKET.search(text, at)) is not None:
        begin = bracket.start()
        try:
            value, at = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError):
            if _BROKEN.match(text, begin):  # what lies inside it is a part of something lost
                raise BadAnswer(f"the answer is broken JSON or has no end: {_shown(text[begin:], end=True)}") from None
            at = begin + 1
        else:
            yield value


def _shaped(value: Any, schema: Mapping[str, Any]) -> Any:
    properties = schema.get("properties", {})
    if isinstance(value, list) and len(properties) == 1:
        (name,) = properties
        if properties[name].get("type") == "array":
            return {name: value}
    if not isinstance(value, dict):
        raise BadAnswer(
            f"the answer is {json_kind(value)}, not an object with {_named(schema)}: {_shown(json.dumps(value))}"
        )
    if not _is_meant(value, schema) and ("properties" in value or "$schema" in value):
        raise BadAnswer(f"the answer repeats the schema instead of following it; give an object with {_named(schema)}")
    return value


def _is_meant(value: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    return not schema.get("properties", {}).keys().isdisjoint(value)


def _parsed(text: str) -> tuple[Any] | None:
    """The value that the whole text is, if it is one: nothing inside it is taken for a wrapping."""
    try:
        return (_DECODER.decode(text),)
    except (ValueError, RecursionError):
        return None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise ValueError(f"{name!r} has two values")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_no_number, object_pairs_hook=_object)


def _named(schema: Mapping[str, Any]) -> str:
    return ", ".join(repr(name) for name in schema.get("properties", {}))


def _shown(text: str, *, end: bool = False) -> str:
    """A piece of the text for whoever reads the error."""
    text = " ".join(text.split())
    if len(text) <= _SHOWN:
        return repr(text)
    return repr("…" + text[-_SHOWN:] if end else text[:_SHOWN] + "…")
