"""A dialogue as a chat model is shown it: numbered lines between marks, all that people wrote as JSON strings.

    <<<EVENTS
    Thursday 2023-05-11
    0 13:56 "Ana": "The kiln broke."
    1 "Bo": "Again?" image "a cracked kiln"
    2 14:02 "agent" action: "order(\\"kiln\\")"
    3 (part 1 of 2) "Ana": "A long st"
    EVENTS>>>

Days and times are the speaker's. A day stands before its first event, a time where it differs
from that of the line before. Nothing inside a string can look like a mark, a line or one of
the control tokens of a model.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from .model import Event, Kind
from .times import to_datetime

OPEN, CLOSE = "<<<", ">>>"

_CONTROL = re.compile(r"<(?=[A-Za-z/|!<｜])|\[(?=/?[A-Z_]{3,}\])|>(?=>)")
"""Where marks (`<<<`, `>>>`) and control tokens (`<|im_end|>`, `</s>`, `[INST]`) begin."""

_ESCAPES = {"<": "\\u003c", ">": "\\u003e", "[": "\\u005b"}
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_LINE_ENDS = str.maketrans({mark: f"\\u{ord(mark):04x}" for mark in "\x7f\x85\u2028\u2029"})


@dataclass(frozen=True, slots=True)
class Passage:
    """An event, or a part of one that is too long to be shown at once.

    Attributes:
        event: the event.
        text: of it, what is shown here.
        captions: of its captions, what is shown here.
        part: which part, from 1.
        parts: how many there are.
    """

    event: Event
    text: str
    captions: tuple[str, ...] = ()
    part: int = 1
    parts: int = 1


def whole(events: Sequence[Event]) -> list[Passage]:
    """The events as passages, each whole."""
    return [Passage(event, event.text, event.captions) for event in events]


def events_of(passages: Sequence[Passage]) -> list[Event]:
    """The events that the passages show, each once; their places are the numbers in the prompt."""
    found: list[Event] = []
    for passage in passages:
        if not found or found[-1].seq != passage.event.seq:
            found.append(passage.event)
    return found


def quoted(text: str) -> str:
    """A text as a JSON string of one line that holds no mark and no control token."""
    encoded = json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)
    return _CONTROL.sub(lambda match: _ESCAPES[match[0]], encoded.translate(_LINE_ENDS))


def quoted_list(texts: Sequence[str]) -> str:
    """Texts as a JSON array of one line."""
    return f"[{', '.join(map(quoted, texts))}]"


def between_marks(name: str, lines: Sequence[str]) -> str:
    """Lines of data as one block of a prompt."""
    return "\n".join([f"{OPEN}{name}", *lines, f"{name}{CLOSE}"])


def lines(passages: Sequence[Passage], first_number: int = 0) -> list[str]:
    """The lines that show passages, with a line for each new day.

    Args:
        passages: those of one event next to each other.
        first_number: the first event's.
    """
    shown: list[str] = []
    number = first_number - 1
    before: Passage | None = None
    day = time = ""
    for passage in passages:
        if before is None or passage.event.seq != before.event.seq:
            number += 1
        local = local_time(passage.event)
        if day != (day := local.date().isoformat()):
            shown.append(f"{_WEEKDAYS[local.weekday()]} {day}")
        clock = f"{local:%H:%M}"
        shown.append(_line(number, passage, clock if clock != time else ""))
        before, time = passage, clock
    return shown


def _line(number: int, passage: Passage, clock: str) -> str:
    event = passage.event
    parts = [str(number)]
    if passage.parts > 1:
        parts.append(f"(part {passage.part} of {passage.parts})")
    if clock:
        parts.append(clock)
    parts.append(quoted(event.speaker))
    if event.kind != Kind.UTTERANCE:
        parts.append(str(event.kind))
    line = f"{' '.join(parts)}: {quoted(passage.text)}"
    return line + "".join([f" image {quoted(caption)}" for caption in passage.captions])


def local_time(event: Event) -> datetime:
    """When it was said by the speaker's own clock; by UTC where the offset is not known or leads out of the calendar."""
    moment = to_datetime(event.time_us)
    try:
        return moment + timedelta(minutes=event.utc_offset_minutes or 0)
    except OverflowError:
        return moment


def local_day(event: Event) -> str:
    """The speaker's day, ISO 8601."""
    return local_time(event).date().isoformat()
