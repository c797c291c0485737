"""Fitting a question into a model's context: how long its answer may be, and which passages it can show.

Tokens are the model's own. What a prompt takes is its messages, a margin for the template around
them, and the least that its answer needs; what is left beyond goes to the answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from .chat import Prompt
from .errors import TooLong
from .model import Event
from .ports import Ask
from .prompts import PART
from .transcript import Passage, events_of, lines

T = TypeVar("T")

TEMPLATE_TOKENS = 64
"""What a chat template puts around two messages, at most."""

STRETCH = 3
"""An answer may take so many times what it needs at least: models that write spaced JSON need twice as much."""

OVERLAP = 4
"""Passages that a window shows again, for what changes at its edge."""

_LONGEST_TOKEN = 8
_BLUNT = 4


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """A question that can be asked about any run of passages.

    Attributes:
        build: makes the prompt that shows them.
        least: tokens that its answer needs, by the number of events shown.
    """

    build: Callable[[Sequence[Passage]], Prompt[T]]
    least: Callable[[int], int]

    def sized(self, ask: Ask, passages: Sequence[Passage]) -> Prompt[T] | None:
        """The prompt on these passages with room for its answer; None if the context has no such room."""
        return sized(ask, self.build(passages), self.least(len(events_of(passages))))


def sized(ask: Ask, prompt: Prompt[T], least: int) -> Prompt[T] | None:
    """The prompt with as many tokens for its answer as the context leaves, `least` to `STRETCH * least`; else None."""
    free = ask.context_tokens - TEMPLATE_TOKENS - _tokens(ask, prompt)
    return None if free < least else replace(prompt, max_tokens=min(free, STRETCH * least))


def as_part(prompt: Prompt[T]) -> Prompt[T]:
    """The prompt under the name of one that is asked only because an input was too long."""
    return replace(prompt, name=f"{prompt.name}{PART}")


def too_long(ask: Ask, what: str, prompt: Prompt[T], least: int) -> TooLong:
    """The error for what cannot be split any further."""
    needed = _tokens(ask, prompt) + TEMPLATE_TOKENS + least
    return TooLong(
        f"{what} needs {needed} tokens with its answer and {ask.model} has a context of {ask.context_tokens}; "
        "serve the model with a longer context, or choose another"
    )


def passages_for(ask: Ask, form: Form[T], events: Sequence[Event]) -> list[Passage]:
    """The events as passages each of which fits alone; nothing of their texts and captions is left out.

    Raises:
        TooLong: the context does not even hold the instructions and a word.
    """
    room = _room(ask, form, events[0])
    found: list[Passage] = []
    for event in events:
        passage = Passage(event, event.text, event.captions)
        # No text has more tokens than bytes: most events need no count, which may be a request to a server.
        short = len("\n".join(lines([passage])).encode()) <= room
        found += [passage] if short or form.sized(ask, [passage]) is not None else _parts(ask, form, event)
    return found


def first_window(ask: Ask, form: Form[T], passages: Sequence[Passage]) -> tuple[Prompt[T], int]:
    """The prompt on as many passages from the beginning as fit, and how many these are.

    Raises:
        TooLong: not even the first one fits.
    """
    best = form.sized(ask, passages[:1])
    if best is None:
        raise too_long(ask, "one passage", form.build(passages[:1]), form.least(1))
    fits, over = 1, len(passages) + 1
    while over - fits > 1:
        middle = (fits + over) // 2
        prompt = form.sized(ask, passages[:middle])
        if prompt is None:
            over = middle
        else:
            best, fits = prompt, middle
    return best, fits


def next_window(
    ask: Ask, form: Form[T], passages: Sequence[Passage], reached: int, wanted: int | None = None
) -> tuple[int, Prompt[T], int]:
    """The window that goes on after `reached` passages: its start, its prompt, its end.

    It starts at `wanted` if it then shows anything new, else up to `OVERLAP` passages before the new ones.
    """
    starts = [] if wanted is None else [wanted]
    for start in [*starts, *range(max(reached - OVERLAP, 0), reached)]:
        prompt, count = first_window(ask, form, passages[start:])
        if start + count > reached:
            return start, prompt, start + count
    prompt, count = first_window(ask, form, passages[reached:])
    return reached, prompt, reached + count


def _parts(ask: Ask, form: Form[T], event: Event) -> list[Passage]:
    empty = _emptied(event)
    room = _room(ask, form, event) + ask.count_tokens("\n".join(lines([empty])))
    found = [Passage(event, piece) for piece in _pieces(ask, empty, event.text, room, caption=False)]
    for caption in event.captions:
        found += [Passage(event, "", (piece,)) for piece in _pieces(ask, empty, caption, room, caption=True)]
    if any(piece.text == "" and piece.captions in ((), ("",)) for piece in found):
        raise too_long(ask, f"a piece of the turn {event.message_id!r}", form.build([empty]), form.least(1))
    return [replace(piece, part=at, parts=len(found)) for at, piece in enumerate(found, start=1)]


def _room(ask: Ask, form: Form[T], event: Event) -> int:
    """Tokens for the text of an event beside the instructions, the answer and what else its line has."""
    return ask.context_tokens - TEMPLATE_TOKENS - _tokens(ask, form.build([_emptied(event)])) - form.least(1)


def _emptied(event: Event) -> Passage:
    return Passage(event, "", (), 99, 99)


def _pieces(ask: Ask, empty: Passage, text: str, room: int, *, caption: bool) -> list[str]:
    """A text in pieces whose lines have at most `room` tokens each; an empty piece means that none can be so small."""
    found: list[str] = []
    rest = text
    while rest:
        fits, over = 0, min(len(rest), max(room, 0) * _LONGEST_TOKEN) + 1
        while over - fits > 1:
            middle = (fits + over) // 2
            shown = replace(empty, captions=(rest[:middle],)) if caption else replace(empty, text=rest[:middle])
            if ask.count_tokens("\n".join(lines([shown]))) <= room:
                fits = middle
            else:
                over = middle
        if fits == 0:
            return ["", *found]
        if fits < len(rest):  # between words, if there is a gap in the last quarter
            gap = rest.rfind(" ", fits - fits // _BLUNT, fits)
            fits = gap + 1 if gap >= 0 else fits
        found.append(rest[:fits])
        rest = rest[fits:]
    return found


def _tokens(ask: Ask, prompt: Prompt[T]) -> int:
    return sum(ask.count_tokens(message.text) for message in prompt.messages)
