"""A text as words with what the rules need to know of each: its stem, capitals, what follows it.

Words are looked up by how they stand between spaces, so the work is done once per
word, not once per text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain

from .stopwords import CHINESE, CHINESE_CHARACTERS, ENGLISH
from .text import stem

_MAX_CACHED = 65_536
_MAX_CACHED_LENGTH = 40
_MAX_PIECE = 160
_PART = re.compile(r"[^\W_]+(?:['’._-][^\W_]+)*")
_HAN = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af]")
_HAN_RUN = re.compile(rf"({_HAN.pattern}+)")
_NUMBER = re.compile(r"[0-9].*|.")
_IDENTIFIER = re.compile(
    r"(?:[\w.-]+)?(?:/[\w.-]+){2,}|[\w-]+(?:/[\w.-]+)*\.(?:py|js|ts|md|txt|json|yaml|yml|toml|csv|log|sh|sql|html|java|go|rs|c|cpp)"
    r"|[\w.-]+_[\w.-]+|[A-Za-z]*[a-z][A-Z][A-Za-z0-9]+|[A-Za-z]+-?[0-9]+(?:[.-][A-Za-z0-9]+)*"
)
_HAN_STOP = frozenset(CHINESE) | frozenset(CHINESE_CHARACTERS)
_HAN_LONGEST = max(map(len, _HAN_STOP))
_HAN_COUNT = re.compile("[〇零一二两三四五六七八九十百千万几半第]+[个天年月日次周岁点只条件号块元分种位名本张家杯]?")
_SHORTENED = ("'s", "'ll", "'re", "'ve", "'d", "'m")
_ENDS = frozenset(".!?…\n")
_FULL_LENGTH = 9
_ENDING_WEIGHTS = (("ly", 0.5), ("ing", 0.8), ("ed", 0.7))
_TRAILING = "\"'”’)]}*_~"


def _plain(code: int) -> int:
    if 0x30 <= code <= 0x39:
        return 0x30
    if 0x41 <= code <= 0x5A:
        return code + 0x20
    return code if 0x61 <= code <= 0x7A else 0x20


_PLAIN = bytes(map(_plain, range(256)))


@dataclass(frozen=True, slots=True, eq=False)
class Word:
    """One word of a text. Slots, not a tuple: a consolidation reads its attributes a dozen times a word.

    Attributes:
        surface: as written, without punctuation and without 's.
        key: its stem; empty for words that say nothing of a topic.
        capital: begins with a capital and may be (part of) a name.
        breaks: punctuation or 's follows, so no phrase goes on.
        ends: a sentence ends here.
        identifier: a path, a job name, CamelCase.
        folded: lower-case surface.
        weight: how well such a word serves as a keyword, by its length and ending.
    """

    surface: str
    key: str
    capital: bool
    breaks: bool
    ends: bool
    identifier: bool
    folded: str
    weight: float


class _Pieces(dict[str, tuple[Word, ...]]):
    """Pieces between spaces and their words; starts afresh when full."""

    def __missing__(self, piece: str) -> tuple[Word, ...]:
        found = _analyse(piece)
        if len(piece) <= _MAX_CACHED_LENGTH:
            if len(self) >= _MAX_CACHED:
                self.clear()
            self[piece] = found
        return found


_PIECES = _Pieces()
_words_of_piece = _PIECES.__getitem__

PAUSE = Word("", "", False, True, True, False, "", 0.0)
"""No word: stands between two turns when their words are put in one list."""


def plain_words(text: str) -> list[bytes]:
    """The runs of ASCII letters and digits of a text, lower case, each digit as 0: a cheap first look."""
    return text.encode("utf-8", "replace").translate(_PLAIN).split()


def words(text: str) -> list[Word]:
    """The words of a text that are written with spaces, in order; runs of Chinese and over-long pieces are left out."""
    if not text.isascii() and _HAN.search(text) is not None:
        text = _HAN_RUN.sub(" ", text)
    return [*chain.from_iterable(map(_words_of_piece, text.split()))]


def han_runs(text: str) -> list[str]:
    """The runs of Chinese, Japanese or Korean characters of a text, in order."""
    return [] if text.isascii() else _HAN_RUN.findall(text)


def han_pieces(run: str) -> list[str]:
    """Cut a run of Chinese at words that say nothing; drop single characters and counts (五天)."""
    pieces: list[str] = []
    begin = at = 0
    while at < len(run):
        for length in range(_HAN_LONGEST, 0, -1):
            if run[at : at + length] in _HAN_STOP:
                if at - begin > 1:
                    pieces.append(run[begin:at])
                at += length
                begin = at
                break
        else:
            at += 1
    if at - begin > 1:
        pieces.append(run[begin:])
    return [piece for piece in pieces if _HAN_COUNT.fullmatch(piece) is None]


def _analyse(piece: str) -> tuple[Word, ...]:
    if len(piece) > _MAX_PIECE or "://" in piece or piece.startswith("www."):
        return ()
    stripped = piece.rstrip(_TRAILING)
    core = piece.strip(".,;:!?…\"'“”‘’()[]{}*~")
    tail = piece[piece.rfind(core) + len(core) :] if core else ""
    ends = bool(stripped) and stripped[-1] in _ENDS
    if not core:
        return ()
    if _IDENTIFIER.fullmatch(core):
        return (Word(core, core.lower(), core[0].isupper(), bool(tail), ends, True, core.lower(), 2.0),)
    parts = [match.group() for match in _PART.finditer(core)]
    return tuple(_word(part, last=number == len(parts) - 1, tail=tail, ends=ends) for number, part in enumerate(parts))


def _weight(plain: str) -> float:
    weight = 1 + min(len(plain), _FULL_LENGTH) / _FULL_LENGTH
    return next((weight * factor for ending, factor in _ENDING_WEIGHTS if plain.endswith(ending)), weight)


def _word(part: str, *, last: bool, tail: str, ends: bool) -> Word:
    surface = part
    plain = part.lower().replace("’", "'")
    if plain.endswith(_SHORTENED) and plain not in ENGLISH:
        cut = plain.rfind("'")
        surface, plain = part[:cut], plain[:cut]
    idle = plain in ENGLISH or _NUMBER.fullmatch(plain) is not None
    return Word(
        surface=surface,
        key="" if idle else stem(plain),
        capital=surface[:1].isupper() and not idle,
        breaks=bool(tail) or surface != part if last else True,
        ends=ends if last else False,
        identifier=False,
        folded=plain,
        weight=_weight(plain),
    )
