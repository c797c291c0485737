"""What a query asks, read from its words: terms, times, speakers, and whether it looks back.

English and Chinese. A time condition is only taken from an expression that is clearly a
date: "may" is a month where a day, a year or a preposition says so, and a bare number is
never a year.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from .calendar_words import TimeCondition, time_conditions
from .text import fold, is_han, terms

_FUNCTION_WORDS = """
a an the is are was were be been being am do does did done doing have has had having i you he she it we they me him
her us them my your his its our their mine yours ours theirs this that these those of in on at to for from by with
and or but not so if then than what which who whom whose when where why how there here can could will would shall
should may might must as about into over too very just also any some out up s t d ll ve re m
"""
_FUNCTION_TERMS = frozenset(terms(_FUNCTION_WORDS))
_AMBIGUOUS_NAMES = frozenset(_FUNCTION_WORDS.split()) | {
    "mark",
    "bill",
    "grace",
    "hope",
    "joy",
    "rose",
    "april",
    "june",
}

_AUXILIARY = r"(?:did|do|does|is|are|was|were|will|would|has|have|had|can|should)"
_ASKS_WHEN = re.compile(
    rf"^\W*(?:since|until|by|from|and|so)?\s*when\b|\bwhen {_AUXILIARY}\b"
    r"|\b(?:what|which) (?:date|day|month|year|time|week|weekday)\b|\bhow long ago\b"
    r"|什么时候|什麼時候|何时|何時|哪天|哪一天|几号|几月|哪年|哪一年|哪个月|多久以前"
)
_ASKS_PAST = re.compile(
    r"\bused to\b|\bdid (?:\w+ ){1,4}use to\b|\bpreviously\b|\bformer(?:ly)?\b|\bprevious\b|\boriginally\b|\bin the past\b|\bback then\b|\bat first\b"
    r"|\bno longer\b|\banymore\b|\bonce\b(?= (?:was|had|lived|worked))|\bbefore\b|以前|之前|曾经|曾經|原来|原來|过去|過去|从前|當初|当初"
)


@dataclass(frozen=True, slots=True)
class Query:
    """A query as retrieval sees it.

    Attributes:
        text: as it was asked.
        terms: for lexical matching, without function words and without the names of
            speakers, unless nothing else is left.
        conditions: times that it names; a memory that meets any of them meets the query.
        asks_when: it asks for a time.
        asks_past: it asks how things were, so what is superseded counts in full.
        speakers: those of the memory's speakers that it names.
    """

    text: str
    terms: tuple[str, ...]
    conditions: tuple[TimeCondition, ...]
    asks_when: bool
    asks_past: bool
    speakers: frozenset[str]


def parse_query(text: str, speakers: Iterable[str], first_us: int, now_us: int) -> Query:
    """Read a query.

    Args:
        text: the query.
        speakers: the distinct speakers of the memory.
        first_us: the memory's earliest event time; a month without a year is meant in
            each year from here on.
        now_us: the memory's latest event time; "last week" counts from here.
    """
    folded = fold(text)
    named = frozenset(speaker for speaker in speakers if names_speaker(text, speaker))
    name_terms = {term for speaker in named for term in terms(speaker)}
    every = terms(text)
    content = [term for term in every if term not in _FUNCTION_TERMS and term not in name_terms]
    chosen = content or [term for term in every if term not in name_terms] or every
    return Query(
        text,
        tuple(chosen),
        time_conditions(text, first_us, now_us),
        _ASKS_WHEN.search(folded) is not None,
        _ASKS_PAST.search(folded) is not None,
        named,
    )


def names_speaker(text: str, speaker: str) -> bool:
    """Whether a text names a speaker: whole words, or the first name; Han names by substring.

    A one-word name that is also an ordinary word ("Will", "Mark") must be capitalised
    inside the sentence.
    """
    folded, name = fold(text), fold(speaker).strip()
    if not name:
        return False
    if any(is_han(character) for character in name):
        return name in folded
    if _has_word(folded, name) and name not in _AMBIGUOUS_NAMES:
        return True
    first = name.split()[0]
    if first in _AMBIGUOUS_NAMES:
        return re.search(rf"(?<=[\w,;:] )(?<!\w){re.escape(first.capitalize())}(?!\w)", text) is not None
    return len(first) > 1 and _has_word(folded, first)


def _has_word(folded: str, name: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(name)}(?!\w)", folded) is not None
