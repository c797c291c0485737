"""A language model's folder: its name, the length of its context, its tokenizer, without the weights.

A name that is no folder is one on a model hub; the two small files are taken from the hub's cache
on this machine, or fetched, by whoever needs them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..memory.errors import Misconfigured

_CONTEXT_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


def model_name(model: str) -> str:
    """What a model is called in records: a folder's own name, or the name on the hub."""
    return Path(model).name if Path(model).is_dir() else model


def context_of(model: str, given: int | None) -> int:
    """Tokens of a request and its answer together.

    Args:
        model: a folder, or a name on a model hub.
        given: by a person; None takes what the model's `config.json` says.

    Raises:
        Misconfigured: nobody says it, or there is no such model.
    """
    if given is not None:
        return given
    path = _file(model, "config.json")
    if path is None:
        raise _missing(model, "config.json")
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for part in (config, config.get("text_config", {})):
        for key in _CONTEXT_KEYS:
            if isinstance(part.get(key), int):
                return int(part[key])
    raise Misconfigured(
        f"how long the context of the model {model} is cannot be read from its config.json; set chat_context_tokens"
    )


class LocalTokenizer:
    """Counts tokens as the model does. Thread-safe.

    Args:
        model: a folder, or a name on a model hub.

    Raises:
        Misconfigured: the tokenizer is not at hand.
    """

    def __init__(self, model: str) -> None:
        from tokenizers import Tokenizer

        path = _file(model, "tokenizer.json")
        if path is None:
            raise _missing(model, "tokenizer.json")
        self._tokenizer: Any = Tokenizer.from_file(str(path))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def count(self, text: str) -> int:
        """Tokens of a text, without those that frame a message."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


def _missing(model: str, name: str) -> Misconfigured:
    return Misconfigured(
        f"the model {model} has no {name} here: it is neither a folder with the whole model nor a name whose files are in "
        "the model hub's cache of this machine or can be fetched; look at vllm_model"
    )


def _file(model: str, name: str) -> Path | None:
    """A file of the model, None where it cannot be had."""
    folder = Path(model)
    if folder.is_dir():
        return folder / name if (folder / name).is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, name))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError):
        return None
