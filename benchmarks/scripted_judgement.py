"""What the scripted model answers: valid, and the same for the same prompt, by rules that a reader can foresee.

It reads what a prompt shows between its marks and the schema of the answer. Nothing here is
judgement worth measuring: words that two texts share, and the first words of a text.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import pairwise
from typing import Any

_BLOCK = re.compile(r"^<<<([A-Z]+)\n(.*?)^\1>>>", re.DOTALL | re.MULTILINE)
_STRING = r'"(?:[^"\\]|\\.)*"'
_DAY = re.compile(r"^\w+ (\d{4}-\d\d-\d\d)$")
_EVENT = re.compile(rf"^(\d+)\b(?: \([^)]*\))?(?: \d\d:\d\d)? ({_STRING})[^:]*: ({_STRING})(.*)$")
_TOPIC = re.compile(
    rf"^(\w+)(?: \([^)]*\)| {_STRING})?: ({_STRING}) keywords (\[.*?\])(?: entities (\[.*?\]))?(?: compare with (.*))?$"
)
_MEMORY = re.compile(rf"^(\d+) \w{{3}} (\d{{4}}-\d\d-\d\d) \d\d:\d\d ({_STRING})[^:]*: ({_STRING})")
_QUESTION = re.compile(rf"^Question: ({_STRING})$", re.MULTILINE)
_WORD = re.compile(r"[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]{2}|[^\W\d_\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]{4,}")
_NAME = re.compile(r"(?<=[\w,;] )[A-Z][a-z]+")
_TOKEN = re.compile(r"[\u3400-\u9fff\u3040-\u30ff\uac00-\ud7af]|\w+|[^\w\s]")
_COMMON = frozenset(
    "that this with have from your what about they them were will would just been really some there".split()
)
_REASONS = re.compile(r"\b(because|since|therefore|that is why)\b", re.IGNORECASE)
_CHANGES = re.compile(r"\b(no longer|not any ?more|stopped|instead)\b", re.IGNORECASE)
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}

WINDOW = 3
"""Events on either side of a place where the topic may change."""
CLOSE_SHARE, AKIN_SHARE = 0.4, 0.15
"""Shares of words from which two topics support each other, or are akin."""


def count_tokens(text: str) -> int:
    """Words, signs and characters of Chinese, Japanese and Korean."""
    return len(_TOKEN.findall(text))


@dataclass(frozen=True, slots=True)
class Shown:
    """An event as a prompt shows it; parts of one event are one."""

    number: int
    day: date
    speaker: str
    text: str

    @property
    def words(self) -> frozenset[str]:
        return _words(self.text)


@dataclass(frozen=True, slots=True)
class ShownTopic:
    """A topic as a prompt shows it, and the names of those that it is to be compared with."""

    name: str
    text: str
    keywords: tuple[str, ...]
    compared: tuple[str, ...]

    @property
    def words(self) -> frozenset[str]:
        return _words(f"{self.text} {' '.join(self.keywords)}")


def blocks(messages: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """The lines between marks, by the name of the block."""
    found: dict[str, list[str]] = {}
    for message in messages:
        for name, lines in _BLOCK.findall(str(message.get("content", ""))):
            found.setdefault(name, lines.splitlines())
    return found


def shown_events(lines: Sequence[str]) -> list[Shown]:
    """The events of a block; lines that are none are passed over."""
    found: dict[int, Shown] = {}
    day = date(2000, 1, 1)
    for line in lines:
        if begins := _DAY.match(line):
            day = date.fromisoformat(begins[1])
        elif read := _EVENT.match(line):
            text = " ".join([json.loads(read[3]), *map(json.loads, re.findall(_STRING, read[4]))])
            number = int(read[1])
            before = f"{found[number].text} " if number in found else ""
            found[number] = Shown(number, day, json.loads(read[2]), before + text)
    return list(found.values())


def shown_topics(lines: Sequence[str]) -> list[ShownTopic]:
    """The topics, or the notes of parts, of a block."""
    found = []
    for line in lines:
        if read := _TOPIC.match(line):
            compared = tuple(read[5].split(", ")) if read[5] else ()
            found.append(ShownTopic(read[1], json.loads(read[2]), tuple(json.loads(read[3])), compared))
    return found


def shown_memories(lines: Sequence[str]) -> list[Shown]:
    """The memories of a block; lines that are none are passed over."""
    read = [match for line in lines if (match := _MEMORY.match(line))]
    return [Shown(int(each[1]), date.fromisoformat(each[2]), json.loads(each[3]), json.loads(each[4])) for each in read]


def judged(messages: Sequence[Mapping[str, Any]], schema: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a prompt of `memory/prompts.py`; for any other schema a value of its form.

    Args:
        messages: the prompt's; a correction behind them changes nothing.
        schema: of the answer.
    """
    found = blocks(messages)
    events, topics = shown_events(found.get("EVENTS", [])), shown_topics(found.get("TOPICS", []))
    asked = schema.get("properties", {})
    if "boundaries" in asked:
        return {"boundaries": boundaries(events)}
    if "segments" in asked:
        return {"segments": _segments(events, "notes" in asked["segments"]["items"].get("required", ()))}
    if "PARTS" in found:
        return _joined(shown_topics(found["PARTS"]))
    if "summary" in asked:
        return notes(events)
    if "in_memory" in asked:
        return quotation(shown_memories(found.get("MEMORIES", [])), _question(messages))
    answer: dict[str, Any] = {}
    if "relations" in asked:
        answer["relations"] = _relations(topics, named="new" in asked["relations"]["items"]["properties"])
    if "events" in asked:
        answer["events"] = _edges(events, shown_events(found.get("EARLIER", [])), asked["events"].get("maxItems", 24))
    if not answer:
        return dict(_of_form(schema, [*events, *topics]))
    return answer


def boundaries(events: Sequence[Shown]) -> list[int]:
    """Where no word of the last events comes back in the next ones; never behind a question or in a short run."""
    found: list[int] = []
    for at in range(WINDOW, len(events) - WINDOW + 1):
        if (found and at - found[-1] < WINDOW) or events[at - 1].text.rstrip().endswith("?"):
            continue
        before = frozenset().union(*(event.words for event in events[at - WINDOW : at]))
        after = frozenset().union(*(event.words for event in events[at : at + WINDOW]))
        if not before & after:
            found.append(at)
    return [events[at].number for at in found]


def notes(events: Sequence[Shown]) -> dict[str, Any]:
    """First words, frequent words, names in mid-sentence, and days that one word names."""
    telling = sorted(sorted(events, key=lambda event: -len(event.text))[:3], key=lambda event: event.number)
    counts = Counter(word for event in events for word in _WORD.findall(event.text) if word.casefold() not in _COMMON)
    keywords = [word[:40] for word, _ in counts.most_common(6)]
    speaker = telling[0].speaker[:80] if telling else "nobody"
    said = [f"{event.speaker}: {_first_words(event.text, 20)}" for event in telling]
    return {
        "summary": " / ".join(said)[:800] or "Nothing was said.",
        "keywords": keywords,
        "topic": " ".join(keywords[:3]) or "nothing",
        "entities": list(dict.fromkeys(name for event in events for name in _NAME.findall(event.text)))[:12],
        "relationships": [{"subject": speaker, "relation": "speaks of", "object": keywords[0]}] if keywords else [],
        "facts": [f"{speaker} spoke of {keywords[0]}."] if keywords else [],
        "dates": [
            {"event": event.number, "text": word[0], "start": day.isoformat(), "end": day.isoformat()}
            for event in events
            for word in re.finditer("|".join(_DAYS), event.text, re.IGNORECASE)
            for day in [event.day + timedelta(days=_DAYS[word[0].lower()])]
        ][:10],
        "confidence": 0.9,
    }


def quotation(memories: Sequence[Shown], question: str) -> dict[str, Any]:
    """The words of the memory that shares most words with the question, the first of several; none, if none does."""
    asked = _words(question)
    best = max(memories, key=lambda memory: len(asked & memory.words), default=None)
    if best is None or not asked & best.words:
        return {"citations": [], "in_memory": False, "answer": ""}
    return {"citations": [best.number], "in_memory": True, "answer": best.text}


def _question(messages: Sequence[Mapping[str, Any]]) -> str:
    asked = [match for message in messages if (match := _QUESTION.search(str(message.get("content", ""))))]
    return str(json.loads(asked[0][1])) if asked else ""


def _segments(events: Sequence[Shown], closes: bool) -> list[dict[str, Any]]:
    starts = [0, *[at for at, event in enumerate(events) if event.number in set(boundaries(events))]]
    found = []
    for start, after in zip(starts, [*starts[1:], len(events)], strict=True):
        segment: dict[str, Any] = {
            "first": events[start].number if events else 0,
            "confidence": 0.9,
            "reason": "no word comes back" if start else "the first event",
        }
        if closes or after < len(events):
            segment["notes"] = notes(events[start:after])
        found.append(segment)
    return found


def _joined(parts: Sequence[ShownTopic]) -> dict[str, Any]:
    keywords = list(dict.fromkeys(word for part in parts for word in part.keywords))[:8]
    summary = " ".join(_first_words(part.text, 12) for part in parts)[:1200]
    return {"summary": summary, "keywords": keywords, "topic": " ".join(keywords[:3]), "confidence": 0.9}


def _relations(topics: Sequence[ShownTopic], *, named: bool) -> list[dict[str, Any]]:
    by_name = {topic.name: topic for topic in topics}
    found = []
    for topic in topics:
        against = topic.compared if named else [name for name in by_name if name != "new" and topic.name == "new"]
        for name in against:
            kind, confidence = _related(topic, by_name[name])
            item = {"topic": name, "type": kind, "confidence": confidence}
            found.append({"new": topic.name, **item} if named else item)
    return found


def _related(new: ShownTopic, other: ShownTopic) -> tuple[str, float]:
    share = len(new.words & other.words) / max(1, min(len(new.words), len(other.words)))
    if share < AKIN_SHARE:
        return "unrelated", 0.9
    if _CHANGES.search(new.text):
        return "contradict", 0.9
    return ("support", 0.9) if share >= CLOSE_SHARE else ("semantic", 0.7)


def _edges(events: Sequence[Shown], earlier: Sequence[Shown], most: int) -> list[dict[str, Any]]:
    """From an event to the next that gives a reason and shares a word, and between those that share a name."""
    found: list[dict[str, Any]] = []
    for before, event in pairwise(events):
        if _REASONS.search(event.text) and before.words & event.words:
            found.append({"source": before.number, "target": event.number, "type": "causal", "confidence": 0.8})
    for event in events:
        for other in [*earlier, *[each for each in events if each.number < event.number]]:
            if set(_NAME.findall(event.text)) & set(_NAME.findall(other.text)):
                found.append({"source": other.number, "target": event.number, "type": "entity", "confidence": 0.8})
    return found[:most]


def _of_form(schema: Mapping[str, Any], shown: Sequence[Shown | ShownTopic]) -> Any:
    """A value of a schema's form: first words for texts, the least of numbers, empty lists."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _of_form(schema["anyOf"][0], shown)
    kind = schema.get("type", "object")
    if kind == "object":
        return {name: _of_form(of, shown) for name, of in schema.get("properties", {}).items()}
    if kind == "array":
        return [_of_form(schema["items"], shown) for _ in range(schema.get("minItems", 0))]
    if kind == "string":
        return _first_words(shown[0].text if shown else "nothing", 12)[: schema.get("maxLength")]
    return {"boolean": False, "null": None}.get(kind, schema.get("minimum", 0))


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in map(str.casefold, _WORD.findall(text)) if word not in _COMMON)


def _first_words(text: str, count: int) -> str:
    """The first words of a text; of one without spaces the first characters."""
    return " ".join(word[:40] for word in text.split()[:count])
