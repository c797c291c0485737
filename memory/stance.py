"""What a speaker claims: likes and dislikes, and values that change ("now work at Vela").

Rules over clauses, in English and Chinese, for the one judgement that must not be
wrong: that a later claim makes an earlier one past. Only what people say of
themselves counts; most utterances claim nothing, and a first look at their words
shows it.
"""

from __future__ import annotations

import re
from collections.abc import Set
from typing import NamedTuple

from .words import han_pieces, han_runs, plain_words, words

_LIKING = "love like enjoy adore prefer into fond fan crazy favorite favourite favorites favourites"
_DISLIKING = "hate dislike detest loathe stand sick tired fed allergic not don didn doesn never"
_ENDING = "longer anymore more quit gave given stopped used broke canceled cancelled sold"
_WORKING = "work working joined employed"
_LIVING = "live living moved relocated based settled"
_OWNED = (
    "name job address phone number car password birthday major title boss manager team size weight deadline flight "
    "doctor teacher roommate favorite favourite"
)
_SELF_WORDS = frozenset({b"i", b"my"})
_SELF_REACH = 5


def _byte_words(names: str) -> frozenset[bytes]:
    return frozenset(name.encode() for name in names.split())


_LIKING_WORDS = _byte_words(_LIKING)
_AGAINST_WORDS = _byte_words(f"{_DISLIKING} {_ENDING}")
_VALUE_WORDS = _byte_words(f"{_WORKING} {_LIVING} {_OWNED}")
_CLAIM_WORDS = (
    _LIKING_WORDS
    | _VALUE_WORDS
    | _byte_words("hate dislike detest loathe stand sick tired fed allergic longer anymore quit gave stopped used sold")
)

_CLAUSE_GAP = re.compile(
    r"(?<=[.!?;。！？；\n])\s*|,? (?:but|although|though|because|since|after|so|while) |, (?:and )?(?=(?:[iI]|my|My|we)\b)|，(?:但|不过|而)"
)
_LIKES = re.compile(
    r"\bi(?:['’]m| am|['’]d| would|['’]ve| have)?(?: \w+){0,2}? "
    r"(?:love|like|enjoy|adore|prefer|into|fond of|an? (?:big |huge )?fan of|crazy about)\b|\b(?:is|are|['’]s) my favou?rites?\b"
)
_DISLIKES = re.compile(
    r"\b(?:hate|dislike|detest|loathe|(?:can['’]?t|cannot|can not) stand|sick of|tired of|fed up with|allergic to"
    r"|not (?:an? (?:big |huge )?fan|into|fond)|(?:do|did|does)(?:n['’]?t| not) (?:\w+ )?(?:like|love|enjoy|care for))\b"
)
_ENDED = re.compile(
    r"\b(?:no longer|any ?more|quit|gave up|given up|stopped|(?<!got )(?<!get )(?<!getting )used to|broke up|cancell?ed|sold)\b"
)
_CHANGED = re.compile(
    r"\b(?:now|moved|switched|changed|started|joined|new|instead|these days|currently|no longer|any ?more)\b"
    r"|现在|改|换|搬|已经|如今"
)
_SELF = r"\b[iI](?:['’]m|['’]ve| am| have)?(?: (?:now|just|currently|recently|finally|still|also|actually)){0,2}"
_NAMED = r"((?:the )?[A-Z][\w&-]*(?: [A-Z][\w&-]*)*)"
_WORK = re.compile(rf"{_SELF} (?:work(?:ing)? (?:at|for|with)|joined|employed (?:at|by)) {_NAMED}")
_LIVE = re.compile(rf"{_SELF} (?:liv(?:e|ing) in|moved (?:back )?to|relocated to|based in|settled in) {_NAMED}")
_OWN = re.compile(
    rf"\b[mM]y (?:new |current )?((?:{_OWNED.replace(' ', '|')})(?: \w+)??)(?: is|['’]s) (?:now )?([\w@.+-]*\w(?: [A-Z]\w+)*)"
)
_HAN_LIKES = re.compile("喜欢|最爱|热爱|爱(?=[吃喝看听玩上])")
_HAN_AGAINST = re.compile("讨厌|不(?:再|太|怎么)?(?:喜欢|爱)|受不了|不再|戒了?|放弃了?|辞职|取消了?|恨")
_HAN_WORK = re.compile(r"(?:现在|目前|已经)?在([^，。！？\s在]{1,10}?)(?:工作|上班)")
_HAN_LIVE = re.compile(r"(?:住在|搬到|搬去)了?([^，。！？\s了]{1,8})")
_HAN_CUES = re.compile("[喜爱厌受戒弃辞恨消]|不再|工作|上班|住在|搬[到去]")
_STANCE_KEYS = frozenset(
    {"fan", "prefer", "hate", "dislik", "detest", "loath", "ador", "allerg", "sick", "tire", "fed", "quit", "longer"}
)
_STANCE_PIECES = ("喜欢", "讨厌", "受不了", "最爱", "放弃", "工作", "上班")


class Claim(NamedTuple):
    """One clause that takes a stance or gives a value.

    Attributes:
        speaker: who claims it, in lower case; empty if unknown.
        terms: stems of what it is about.
        stance: 1 for liking, -1 for disliking or having ended, 0 for neither.
        frame: the kind of value it gives ("work"), or empty.
        value: the value, lower case.
        changed: whether it says that something has changed.
    """

    speaker: str
    terms: frozenset[str]
    stance: int
    frame: str
    value: str
    changed: bool


def claims(speaker: str, text: str) -> list[Claim]:
    """The claims that one utterance makes of its speaker."""
    plain = plain_words(text)
    cues = _CLAIM_WORDS.intersection(plain)
    english = bool(cues) and _speaks_of_self(plain, cues)
    chinese = not text.isascii() and _HAN_CUES.search(text) is not None
    if not (english or chinese):
        return []
    found: list[Claim] = []
    for clause in _clauses(text):
        claim = _han_claim(speaker, clause) if chinese and han_runs(clause) else _claim(speaker, clause)
        if claim is not None:
            found.append(claim)
    return found


def may_meet(new: list[Claim], text: str) -> bool:
    """A first look: whether a text may hold a claim about the same things."""
    lower = text.lower()
    return any(claim.frame or any(term[: max(3, len(term) - 1)] in lower for term in claim.terms) for claim in new)


def opposes(later: Claim, earlier: Claim) -> float:
    """Whether two claims about the same thing take opposite stances; 0, or up to .3 by how much they share."""
    if later.stance * earlier.stance >= 0:
        return 0.0
    shared = len(later.terms & earlier.terms)
    if not shared or 3 * shared < 2 * max(len(later.terms), len(earlier.terms)):
        return 0.0
    return 0.15 + 0.05 * min(shared, 3)


def changes_value(later: Claim, earlier: Claim) -> float:
    """Whether a later claim gives another value of the same kind; .25 if it says that it is new, else .15."""
    if not later.frame or later.frame != earlier.frame or later.value == earlier.value:
        return 0.0
    return 0.25 if later.changed else 0.15


def _speaks_of_self(plain: list[bytes], cues: Set[bytes]) -> bool:
    """Whether one of the words that make a claim stands near an "I" or "my"."""
    if _SELF_WORDS.isdisjoint(plain):
        return False
    return any(
        not _SELF_WORDS.isdisjoint(plain[max(0, at - _SELF_REACH) : at + 1])
        for at, word in enumerate(plain)
        if word in cues
    )


def _clauses(text: str) -> list[str]:
    """Clauses of a text, without its questions."""
    return [clause for clause in _CLAUSE_GAP.split(text) if clause and clause[-1] not in "?？"]


def _claim(speaker: str, clause: str) -> Claim | None:
    plain = plain_words(clause)
    stance = 0
    frame = value = ""
    lower = clause.lower()
    if not _AGAINST_WORDS.isdisjoint(plain) and (_DISLIKES.search(lower) or _ENDED.search(lower)):
        stance = -1
    elif not _LIKING_WORDS.isdisjoint(plain) and _LIKES.search(lower):
        stance = 1
    elif not _VALUE_WORDS.isdisjoint(plain):
        frame, value = _value(clause)
    if not stance and not frame:
        return None
    terms = frozenset(word.key for word in words(clause) if word.key and word.key not in _STANCE_KEYS)
    return Claim(speaker.lower(), terms, stance, frame, value, _CHANGED.search(lower) is not None)


def _value(clause: str) -> tuple[str, str]:
    for frame, pattern in (("work", _WORK), ("live", _LIVE)):
        match = pattern.search(clause)
        if match is not None:
            return frame, match.group(1).lower()
    match = _OWN.search(clause)
    return (match.group(1).lower(), match.group(2).lower()) if match is not None else ("", "")


def _han_claim(speaker: str, clause: str) -> Claim | None:
    stance = -1 if _HAN_AGAINST.search(clause) else 1 if _HAN_LIKES.search(clause) else 0
    frame = value = ""
    if not stance:
        for kind, pattern in (("work", _HAN_WORK), ("live", _HAN_LIVE)):
            match = pattern.search(clause)
            if match is not None:
                frame, value = kind, match.group(1)
                break
    if not stance and not frame:
        return None
    pieces = [piece for run in han_runs(clause) for piece in han_pieces(run) if piece not in _STANCE_PIECES]
    return Claim(speaker.lower(), _han_terms(pieces), stance, frame, value, _CHANGED.search(clause) is not None)


def _han_terms(pieces: list[str]) -> frozenset[str]:
    """Pairs of characters, since what a clause cuts out is seldom cut the same way twice."""
    return frozenset(piece[at : at + 2] for piece in pieces for at in range(len(piece) - 1))
