"""MiniLM's vectors do not depend on how its work is spread over threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from raygam.adapters.minilm_embedder import MiniLMEmbedder

TEXTS = [f"{'word ' * (at * 7 % 40)}of text {at}" for at in range(60)]


@pytest.fixture(scope="module")
def embedder(minilm_weights: None) -> MiniLMEmbedder:
    return MiniLMEmbedder(batch_size=8)


def test_many_texts_get_the_vectors_that_each_gets_alone(embedder: MiniLMEmbedder) -> None:
    import torch

    threads = torch.get_num_threads()
    together = embedder.embed(TEXTS)
    alone = np.concatenate([embedder.embed([text]) for text in TEXTS])
    assert together.shape == (60, 384)
    assert together.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(together, alone, atol=1e-5)
    assert torch.get_num_threads() == threads
    with ThreadPoolExecutor(1) as other:
        assert other.submit(torch.get_num_threads).result() == threads, "nor does it bind threads that come later"


def test_callers_at_once_get_their_own(embedder: MiniLMEmbedder) -> None:
    parts = [TEXTS[at::3] for at in range(3)]
    with ThreadPoolExecutor(4) as threads:
        found = [threads.submit(embedder.embed, part) for part in parts]
        counted = [threads.submit(embedder.count_tokens, text) for text in TEXTS]
        for part, vectors in zip(parts, found, strict=True):
            np.testing.assert_allclose(vectors.result(), embedder.embed(part), atol=1e-5)
    assert [count.result() for count in counted] == [embedder.count_tokens(text) for text in TEXTS]


def test_an_error_in_one_thread_is_raised(embedder: MiniLMEmbedder) -> None:
    with pytest.raises((TypeError, ValueError, AttributeError)):
        embedder.embed([*TEXTS[:30], None])  # type: ignore[list-item]
    assert embedder.embed(TEXTS[:30]).shape == (30, 384)


def test_no_text_has_no_vector(embedder: MiniLMEmbedder) -> None:
    assert embedder.embed([]).shape == (0, 384)
