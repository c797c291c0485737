"""Memories as text for a prompt, within a token budget.

Lines stand in event-time order, one memory each: time, speaker, text, reference id. The
salient ones are kept whole, by rank, as long as the budget lasts; what lies between two
kept lines is abbreviated to the number of events left out, so that a reader sees the gap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from .model import Event, Origin, ResolvedDate
from .retrieval import RankedMemory
from .times import to_datetime

TokenCounter = Callable[[str], int]

_MARK_TOKENS_TEXT = "…100 events…"


@dataclass(frozen=True, slots=True)
class Budget:
    """At most so many tokens, counted so."""

    max_tokens: int
    count: TokenCounter


@dataclass(frozen=True, slots=True)
class Linearised:
    """Memories as text.

    Attributes:
        lines: in event-time order; a line that stands for events left out tells their number.
        shown: ordinals, among the memories that were given, of those that are shown whole.
    """

    lines: tuple[str, ...]
    shown: frozenset[int]


def linearise(memories: Sequence[RankedMemory], max_tokens: int, count_tokens: TokenCounter) -> str:
    """Return memories as lines of at most `max_tokens` tokens.

    Args:
        memories: best first.
        max_tokens: the budget, by `count_tokens`.
        count_tokens: counts the tokens of a text.

    A memory whose line does not fit what is left is passed over for later, shorter ones.
    """
    lines = [memory_line(memory) for memory in memories]
    return "\n".join(within(memories, lines, [Budget(max_tokens, count_tokens)]).lines)


def within(memories: Sequence[RankedMemory], lines: Sequence[str], budgets: Sequence[Budget]) -> Linearised:
    """Choose the lines that stay within every budget.

    Args:
        memories: best first.
        lines: the line of each memory, in the same order.
        budgets: of all lines together, by whichever counters.
    """
    order = sorted(range(len(memories)), key=lambda at: memories[at].event.order)
    kept = frozenset(range(len(memories)))
    for budget in budgets:
        kept = _kept(order, kept, lines, budget)
    marked = kept or all(budget.count(_MARK_TOKENS_TEXT) <= budget.max_tokens for budget in budgets)
    return Linearised(tuple(_shown(order, kept, lines)) if marked else (), kept)


def _kept(order: Sequence[int], among: frozenset[int], lines: Sequence[str], budget: Budget) -> frozenset[int]:
    mark_cost = budget.count(_MARK_TOKENS_TEXT)
    kept: frozenset[int] = frozenset()
    spent = 0
    for at in sorted(among):
        cost = budget.count(lines[at])
        grown = kept | {at}
        if spent + cost + mark_cost * _gaps(order, grown) <= budget.max_tokens:
            kept, spent = grown, spent + cost
    return kept


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


def _gaps(order: Sequence[int], kept: frozenset[int]) -> int:
    """Runs of left-out memories in event-time order."""
    left_out = [at not in kept for at in order]
    return sum(now and not before for before, now in zip([False, *left_out], left_out, strict=False))


def _shown(order: Sequence[int], kept: frozenset[int], lines: Sequence[str]) -> Iterator[str]:
    missing = 0
    for at in order:
        if at not in kept:
            missing += 1
            continue
        if missing:
            yield _mark(missing)
        missing = 0
        yield lines[at]
    if missing:
        yield _mark(missing)


def _mark(missing: int) -> str:
    return "…1 event…" if missing == 1 else f"…{missing} events…"
