"""Lexical matching inside one user's memory: BM25 over postings, one document at a time.

The statistics (document frequencies, mean length) are those of one index, and an index
holds one user's documents only, so another user can never move a score. A query first
becomes a `LexicalMatch`: the postings of its terms. From it come the scores of whole
documents, or the term frequencies from which windows and groups of documents are scored.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ordinals = NDArray[np.int64]

K1 = 1.2
B = 0.75
MAX_QUERY_TERMS = 64
"""Of a longer query only the rarest terms are matched; it bounds the time of one search."""


@dataclass(frozen=True, slots=True)
class LexicalMatch:
    """The postings of a query's terms, rarest first.

    Attributes:
        terms: the distinct query terms that occur in some document.
        idf: their inverse document frequencies, `(terms,)`.
        documents: per term, the ordinals of the documents that hold it.
        counts: per term, how often each of these documents holds it.
        total_idf: summed over all distinct query terms, those that occur nowhere included.
    """

    terms: tuple[str, ...]
    idf: Floats
    documents: tuple[Ordinals, ...]
    counts: tuple[Floats, ...]
    total_idf: float

    def frequencies(self, size: int) -> Floats:
        """Term frequencies `(terms, size)` of the documents below `size`."""
        table = np.zeros((len(self.terms), size), dtype=np.float32)
        for row, (documents, counts) in enumerate(zip(self.documents, self.counts, strict=True)):
            table[row, documents] = counts
        return table

    def grouped(self, groups: Ordinals, size: int) -> Floats:
        """Term frequencies `(terms, size)` of groups; `groups[document]` is its group, -1 for none."""
        table = np.zeros((len(self.terms), size), dtype=np.float32)
        for row, (documents, counts) in enumerate(zip(self.documents, self.counts, strict=True)):
            held = groups[documents]
            inside = held >= 0
            table[row] = np.bincount(held[inside], weights=counts[inside], minlength=size)
        return table


class LexicalIndex:
    """An inverted index that only grows; a document is named by its ordinal, from 0."""

    def __init__(self) -> None:
        self._postings: dict[str, tuple[array[int], array[float]]] = {}
        self._lengths: array[float] = array("f")
        self._total_length = 0

    def __len__(self) -> int:
        return len(self._lengths)

    def add(self, terms: Sequence[str]) -> int:
        """Add a document and return its ordinal."""
        ordinal = len(self._lengths)
        for term, count in Counter(terms).items():
            posting = self._postings.get(term)
            if posting is None:
                posting = self._postings[term] = (array("q"), array("f"))
            posting[0].append(ordinal)
            posting[1].append(count)
        self._lengths.append(len(terms))
        self._total_length += len(terms)
        return ordinal

    @property
    def mean_length(self) -> float:
        """Mean number of terms of a document; 1 where there is none."""
        return max(1.0, self._total_length / max(1, len(self._lengths)))

    def lengths(self) -> Floats:
        """Number of terms per document, `(len(self),)`."""
        return np.array(self._lengths, dtype=np.float32)

    def idf(self, term: str) -> float:
        """Inverse document frequency, always above zero."""
        posting = self._postings.get(term)
        frequency = len(posting[0]) if posting else 0
        return math.log(1 + (len(self._lengths) - frequency + 0.5) / (frequency + 0.5))

    def match(self, terms: Sequence[str]) -> LexicalMatch:
        """Look up the distinct terms of a query."""
        weighted = sorted(((self.idf(term), term) for term in set(terms)), reverse=True)
        known = [(idf, term) for idf, term in weighted if term in self._postings][:MAX_QUERY_TERMS]
        postings = [self._postings[term] for _, term in known]
        return LexicalMatch(
            tuple(term for _, term in known),
            np.array([idf for idf, _ in known], dtype=np.float32),
            tuple(np.array(documents, dtype=np.int64) for documents, _ in postings),
            tuple(np.array(counts, dtype=np.float32) for _, counts in postings),
            sum(idf for idf, _ in weighted[:MAX_QUERY_TERMS]),
        )

    def scores(self, terms: Sequence[str]) -> Floats:
        """BM25 of every document, `(len(self),)`; zero where no term occurs."""
        match = self.match(terms)
        return bm25(match.frequencies(len(self)), match.idf, self.lengths(), self.mean_length)


def bm25(frequencies: Floats, idf: Floats, lengths: Floats, mean_length: float) -> Floats:
    """BM25 of documents, windows or groups.

    Args:
        frequencies: term frequencies, `(terms, documents)`.
        idf: weights of the terms, `(terms,)`.
        lengths: number of terms per document, `(documents,)`.
        mean_length: their mean over the memory.

    Returns:
        Scores `(documents,)`.
    """
    norm = K1 * (1 - B + B * lengths / mean_length)
    saturated = frequencies * (K1 + 1) / (frequencies + norm)
    scores: Floats = (idf @ saturated).astype(np.float32)
    return scores


def coverage(frequencies: Floats, match: LexicalMatch) -> Floats:
    """Share of the query's idf that each document holds, `(documents,)` in [0, 1]."""
    if match.total_idf <= 0:
        return np.zeros(frequencies.shape[1], dtype=np.float32)
    shares: Floats = (match.idf @ (frequencies > 0).astype(np.float32)).astype(np.float32)
    return shares / np.float32(match.total_idf)
