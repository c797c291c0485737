"""Reading JSON values that a chat model wrote: what a key must hold, what counts as a number, a day, a text.

What lacks its form is a `BadAnswer`; single items that are none give None and are counted as left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, TypeVar

from .errors import BadAnswer

T = TypeVar("T")

_WHOLE = re.compile(r"[+-]?[0-9]{1,9}")
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(slots=True)
class LeftOut:
    """Items left out so far."""

    dropped: int = 0

    def kept(self, items: Iterable[Any], read: Callable[[Any], T | None], most: int | None = None) -> list[T]:
        """What `read` makes of the items: each once, at most `most`; the others are counted."""
        found: dict[T, None] = {}
        for item in items:
            value = read(item)
            if value is None or value in found or (most is not None and len(found) >= most):
                self.dropped += 1
            else:
                found[value] = None
        return list(found)


def array(value: Any, key: str, missing: list[Any] | None = None) -> list[Any]:
    """The array under a key; `missing`, if given, where there is none or null.

    Raises:
        BadAnswer: the value is no object, has no such key, or something else under it.
    """
    if not isinstance(value, dict):
        raise BadAnswer(f"an object with {key!r} was asked for, not {json_kind(value)}")
    if value.get(key) is None and missing is not None:
        return missing
    if key not in value:
        raise BadAnswer(f"{key!r} is missing from the answer, which has {', '.join(value) or 'no key'}")
    found = value[key]
    if not isinstance(found, list):
        raise BadAnswer(f"{key!r} must be a JSON array, not {json_kind(found)}")
    return found


def text_of(value: Mapping[str, Any], key: str) -> str:
    """The text under a key.

    Raises:
        BadAnswer: there is none, or it is blank.
    """
    if key not in value:
        raise BadAnswer(f"{key!r} is missing from the answer, which has {', '.join(value) or 'no key'}")
    found = clean(value[key])
    if not found:
        raise BadAnswer(f"{key!r} must be text that says something, not {json_kind(value[key])}")
    return found


def json_kind(value: Any) -> str:
    """What a JSON value is, for messages."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, str):
        return "a text" if value.strip() else "an empty text"
    return "null" if value is None else "true or false" if isinstance(value, bool) else "a number"


def clean(value: Any) -> str | None:
    """A text as it can be stored: no control characters, no halves of code points; None if it is none or blank."""
    if not isinstance(value, str):
        return None
    return _UNPRINTABLE.sub(" ", value.encode("utf-8", "replace").decode()).strip() or None


def folded_name(value: Any) -> str:
    """A name as it is compared; empty if the value is no text."""
    return value.strip().casefold() if isinstance(value, str) else ""


def folded(text: str) -> str:
    """A text without case and width of spaces."""
    return " ".join(text.casefold().split())


def number_among(value: Any, numbers: range) -> int | None:
    """A whole number out of `numbers`; also in quotes."""
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value not in numbers:
        return None
    return int(value)


def share(value: Any) -> float | None:
    """A number from 0 to 1; also in quotes."""
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        return None
    return float(value)


def confidence_of(value: Mapping[str, Any], unstated: float, left_out: LeftOut) -> float:
    """The stated confidence; the documented constant where none, or none that is one, is stated."""
    if value.get("confidence") is None:
        return unstated
    found = share(value["confidence"])
    if found is None:
        left_out.dropped += 1
        return unstated
    return found


def day(value: Any) -> str | None:
    """An ISO day that the calendar has."""
    if not isinstance(value, str) or not _DAY.fullmatch(value.strip()):
        return None
    try:
        return date.fromisoformat(value.strip()).isoformat()
    except ValueError:
        return None
