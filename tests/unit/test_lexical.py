from __future__ import annotations

import math

import numpy as np
import pytest

from raygam.memory.lexical import K1, B, LexicalIndex, bm25, coverage
from raygam.memory.text import terms


def index_of(*texts: str) -> LexicalIndex:
    index = LexicalIndex()
    for text in texts:
        index.add(terms(text))
    return index


def plain_bm25(documents: list[list[str]], query: list[str]) -> list[float]:
    """The textbook formula, term by term."""
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for term in set(query):
            holding = sum(term in other for other in documents)
            if holding:
                idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
                count = document.count(term)
                score += idf * count * (K1 + 1) / (count + K1 * (1 - B + B * len(document) / mean))
        scores.append(score)
    return scores


TEXTS = ("The cat sat on the cat's mat.", "Dogs chase a cat", "We moved to Porto", "moving day in Porto, Porto!")


def test_scores_are_those_of_the_formula() -> None:
    index = index_of(*TEXTS)
    for query in ("cat", "cats in Porto moved", "porto porto", "nothing known"):
        expected = plain_bm25([terms(text) for text in TEXTS], terms(query))
        assert index.scores(terms(query)) == pytest.approx(expected, rel=1e-5)


def test_documents_added_one_at_a_time_end_as_documents_added_at_once() -> None:
    growing = LexicalIndex()
    for count, text in enumerate(TEXTS, start=1):
        assert growing.add(terms(text)) == count - 1
        whole = index_of(*TEXTS[:count])
        assert np.array_equal(growing.scores(terms("cat moves")), whole.scores(terms("cat moves")))
    assert len(growing) == len(TEXTS)


def test_stems_meet_and_case_does_not_matter() -> None:
    scores = index_of("I was MOVING house", "Nothing of the kind").scores(terms("moved"))
    assert scores[0] > 0 == scores[1]


def test_chinese_is_matched_without_spaces() -> None:
    scores = index_of("主要想去秋叶原。", "我下周去东京，大概待五天。", "今天天气很好").scores(terms("什么时候去东京"))
    assert int(np.argmax(scores)) == 1
    assert scores[2] == 0


def test_an_empty_index_and_an_empty_query_score_nothing() -> None:
    assert LexicalIndex().scores(terms("cat")).shape == (0,)
    assert index_of(*TEXTS).scores([]).tolist() == [0.0] * 4
    assert index_of("").scores(terms("cat")).tolist() == [0.0]


def test_groups_are_scored_as_if_their_texts_were_one() -> None:
    index = index_of(*TEXTS)
    match = index.match(terms("cat porto"))
    grouped = match.grouped(np.array([0, 0, -1, 1]), 2)
    rows = {term: row for row, term in enumerate(match.terms)}
    assert grouped[rows["cat"]].tolist() == [3, 0]
    assert grouped[rows["porto"]].tolist() == [0, 2]


def test_coverage_is_the_share_of_the_query_that_a_document_holds() -> None:
    index = index_of("red kite", "red car", "blue sea")
    match = index.match(["red", "kite", "unicorn"])
    shares = coverage(match.frequencies(3), match)
    total = index.idf("red") + index.idf("kite") + index.idf("unicorn")
    assert shares == pytest.approx([(index.idf("red") + index.idf("kite")) / total, index.idf("red") / total, 0])
    assert index.match([]).frequencies(3).shape == (0, 3)
    assert coverage(index.match([]).frequencies(3), index.match([])).tolist() == [0, 0, 0]


def test_a_very_long_query_keeps_its_rarest_terms() -> None:
    index = index_of(*[f"common word{at}" for at in range(100)])
    match = index.match(["common", *(f"word{at}" for at in range(100))])
    assert len(match.terms) == 64
    assert "common" not in match.terms


def test_bm25_rises_with_frequency_and_falls_with_length() -> None:
    idf = np.ones(1, dtype=np.float32)
    scores = bm25(np.array([[1, 2, 1]], np.float32), idf, np.array([10, 10, 20], np.float32), 10.0)
    assert scores[1] > scores[0] > scores[2] > 0
