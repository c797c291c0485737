"""Memories as text for a prompt, within a token budget.

Lines stand in event-time order, one memory each: time, speaker, text, reference id. The
salient ones are kept whole, by rank, as long as the budget lasts; what lies between two
kept lines is abbreviated to the number of events left out, so that a reader sees the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .model import Event, Origin, ResolvedDate
from .retrieval import RankedMemory
from .times import to_datetime

TokenCounter = Callable[[str], int]

_MARK_TOKENS_TEXT = "…100 events…"


def linearise(memories: Sequence[RankedMemory], max_tokens: int, count_tokens: TokenCounter) -> str:
    """Return memories as lines of at most `max_tokens` tokens.

    Args:
        memories: best first.
        max_tokens: the budget, by `count_tokens`.
        count_tokens: counts the tokens of a text.

    A memory whose line does not fit what is left is passed over for later, shorter ones.
    """
    lines = [memory_line(memory) for memory in memories]
    costs = [count_tokens(line) for line in lines]
    mark_cost = count_tokens(_MARK_TOKENS_TEXT)
    order = sorted(range(len(memories)), key=lambda at: memories[at].event.order)
    kept: set[int] = set()
    spent = 0
    for at, cost in enumerate(costs):
        grown = kept | {at}
        if spent + cost + mark_cost * _gaps(order, grown) <= max_tokens:
            kept, spent = grown, spent + cost
    return _joined(order, kept, lines, max_tokens, mark_cost)


def memory_line(memory: RankedMemory) -> str:
    """One line: `[time] speaker: text (caption …) (date …) [ref: id]`.

    A caption is marked as the caption of an attachment: nobody said it.
    """
    event = memory.event
    parts = [f"[{to_datetime(event.time_us):%Y-%m-%d %H:%M}] {event.speaker}: {' '.join(event.text.split())}"]
    parts.extend(f"(caption of an attachment: {' '.join(caption.split())})" for caption in event.captions)
    parts.extend(f"({date.text}: {_days(date)})" for date in memory.dates)
    parts.extend(_notes(event, memory.superseded))
    parts.append(f"[ref: {event.message_id}]")
    return " ".join(parts)


def _notes(event: Event, superseded: bool) -> list[str]:
    notes = []
    if event.origin == Origin.RECALLED:
        notes.append("(recalled from memory)")
    if superseded:
        notes.append("(past: superseded later)")
    return notes


def _days(date: ResolvedDate) -> str:
    return date.start if date.start == date.end else f"{date.start} to {date.end}"


def _gaps(order: Sequence[int], kept: set[int]) -> int:
    """Runs of left-out memories in event-time order."""
    left_out = [at not in kept for at in order]
    return sum(now and not before for before, now in zip([False, *left_out], left_out, strict=False))


def _joined(order: Sequence[int], kept: set[int], lines: Sequence[str], max_tokens: int, mark_cost: int) -> str:
    shown: list[str] = []
    missing = 0
    for at in [*order, -1]:
        if at >= 0 and at not in kept:
            missing += 1
            continue
        if missing:
            shown.append("…1 event…" if missing == 1 else f"…{missing} events…")
            missing = 0
        if at >= 0:
            shown.append(lines[at])
    if not kept and mark_cost > max_tokens:
        return ""  # not even the mark fits
    return "\n".join(shown)
