"""Splitting text without a model: tokens to count, terms to match."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

import snowballstemmer

_HAN = r"\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u3040-\u30ff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_HAN}]|[^\W_{_HAN}]+|[^\w\s]|_")
_TERM = re.compile(rf"[{_HAN}]+|[^\W_{_HAN}]+")
_HAN_START = re.compile(rf"[{_HAN}]")
_STEMMER = snowballstemmer.stemmer("english")


_ASCII_MARKS = bytes(at for at in range(128) if not chr(at).isalnum() and not chr(at).isspace())
_ASCII_SPACED = bytes(at if chr(at).isalnum() else 32 for at in range(128)) + bytes(128)


def count_tokens(text: str) -> int:
    """Tokens by the documented model-free counter: words, punctuation marks, CJK characters.

    Within 15 % of MiniLM's word pieces on English dialogue.
    """
    if not text.isascii():
        return len(_TOKEN.findall(text))
    raw = text.encode()  # the same count, six times faster: every turn passes here
    return len(raw.translate(_ASCII_SPACED).split()) + len(raw) - len(raw.translate(None, _ASCII_MARKS))


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Snowball stem of a lower-case English word; other words come back unchanged."""
    return str(_STEMMER.stemWord(word)) if word.isascii() else word


def is_han(term: str) -> bool:
    """Whether a term is written without spaces (Chinese, Japanese, Korean)."""
    return _HAN_START.match(term) is not None


def terms(text: str) -> list[str]:
    """Terms for lexical matching, in order: stems of words, bigrams of CJK runs.

    Case and width are folded. A CJK run of one character is a term of its own.
    """
    found: list[str] = []
    for piece in _TERM.findall(fold(text)):
        if not is_han(piece):
            found.append(stem(piece))
        elif len(piece) == 1:
            found.append(piece)
        else:
            found.extend(piece[at : at + 2] for at in range(len(piece) - 1))
    return found


def fold(text: str) -> str:
    """Lower-case text with compatibility forms (full width, ligatures) made plain."""
    return (text if text.isascii() else unicodedata.normalize("NFKC", text)).lower()
