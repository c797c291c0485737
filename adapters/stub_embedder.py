"""An embedder without a model: words hashed into a vector. For tests and load runs.

Texts that share words are similar, so search works; nothing else is understood. Its
vectors are the same to the bit on every machine and in every batch.
"""

from __future__ import annotations

import re
import string
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"[\u3400-\u9fff]|\w+")
_SPACED = str.maketrans(string.punctuation, " " * len(string.punctuation))
_REMEMBERED_WORDS = 65536
_NO_WORD = ("",)


class _Places(dict[str, int]):
    """A word's place in the vector, computed when it is first asked for."""

    def __init__(self, dimension: int) -> None:
        super().__init__()
        self._dimension = dimension

    def __missing__(self, word: str) -> int:
        place = self[word] = zlib.crc32(word.encode()) % self._dimension
        return place


class StubEmbedder:
    """Counts hashed words, and normalises. Thread-safe.

    Args:
        dimension: length of the vectors.
    """

    def __init__(self, dimension: int = 384) -> None:
        self.dimension = dimension
        self.name = f"stub-{dimension}"
        self._places = _Places(dimension)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors `(len(texts), dimension)`; a text without a word gets a fixed one."""
        if len(self._places) > _REMEMBERED_WORDS:
            self._places = _Places(self.dimension)
        place = self._places.__getitem__
        places: list[int] = []
        counts: list[int] = []
        for text in texts:
            lowered = text.lower()
            words = lowered.translate(_SPACED).split() if text.isascii() else _WORD.findall(lowered)
            places.extend(map(place, words or _NO_WORD))
            counts.append(len(words) or 1)
        rows = np.repeat(np.arange(len(texts)) * self.dimension, counts)
        vectors = np.zeros((len(texts), self.dimension), dtype=np.float32)
        np.add.at(vectors.reshape(-1), rows + np.asarray(places, dtype=np.int64), np.float32(1.0))
        vectors /= np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
        return vectors
