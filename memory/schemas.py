"""JSON schemas of the answers that prompts ask for, in constructs that guided decoding knows.

Every object is closed and every property required, so that a model under guidance gives all of it;
`model_readings` asks for less, since models without guidance leave things out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .model import EventRelationType, TopicRelationType
from .model_readings import MAX_DATES, MAX_ENTITIES, MAX_FACTS, MAX_KEYWORDS, MAX_RELATIONSHIPS, UNRELATED

Schema = Mapping[str, Any]

MAX_EDGES = 24
"""Edges between events that one answer may name."""

_TOPIC_TYPES = (*map(str, TopicRelationType), UNRELATED)
_EDGE_TYPES = (str(EventRelationType.CAUSAL), str(EventRelationType.ENTITY))


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _array(items: Schema, most: int) -> Schema:
    return {"type": "array", "items": items, "maxItems": most}


def _text(most: int) -> Schema:
    return {"type": "string", "maxLength": most}


def _choice(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _number(least: int, most: int) -> Schema:
    return {"type": "integer", "minimum": least, "maximum": max(least, most)}


_SHARE: Schema = {"type": "number", "minimum": 0, "maximum": 1}
_RELATIONSHIP = _object(subject=_text(80), relation=_text(80), object=_text(80))


def notes(count: int) -> Schema:
    """Notes of a segment; `count` events are shown."""
    date = _object(event=_number(0, count - 1), text=_text(80), start=_text(10), end=_text(10))
    return _object(
        summary=_text(800),
        keywords=_array(_text(60), MAX_KEYWORDS),
        topic=_text(80),
        entities=_array(_text(80), MAX_ENTITIES),
        relationships=_array(_RELATIONSHIP, MAX_RELATIONSHIPS),
        facts=_array(_text(240), MAX_FACTS),
        dates=_array(date, MAX_DATES),
        confidence=_SHARE,
    )


JOINED = _object(summary=_text(1200), keywords=_array(_text(60), MAX_KEYWORDS), topic=_text(80), confidence=_SHARE)
"""Of the notes of a segment's parts."""


def boundaries(count: int) -> Schema:
    """Boundaries among `count` events."""
    return _object(boundaries=_array(_number(1, count - 1), max(count - 1, 1)))


def segments(count: int, *, closes: bool) -> Schema:
    """Segments of `count` events; if the last one stays open, notes may be left out."""
    item = _object(first=_number(0, count - 1), confidence=_SHARE, reason=_text(160), notes=notes(count))
    required = item["required"] if closes else item["required"][:-1]
    return _object(segments=_array({**item, "required": required}, max(count, 1)))


def relations(names: tuple[str, ...]) -> Schema:
    """Relations of one topic to the candidates of these names."""
    item = _object(topic=_choice(*names), type=_choice(*_TOPIC_TYPES), confidence=_SHARE)
    return _object(relations=_array(item, len(names)))


def links(new: tuple[str, ...], names: tuple[str, ...], pairs: int, events: int) -> Schema:
    """Relations of new topics to candidates, and edges between events; either is left out if there can be none."""
    asked: dict[str, Schema] = {}
    if pairs:
        item = _object(new=_choice(*new), topic=_choice(*names), type=_choice(*_TOPIC_TYPES), confidence=_SHARE)
        asked["relations"] = _array(item, pairs)
    if events > 1:
        end = _number(0, events - 1)
        item = _object(source=end, target=end, type=_choice(*_EDGE_TYPES), confidence=_SHARE)
        asked["events"] = _array(item, MAX_EDGES)
    return _object(**asked)
