"""How many tokens a text has for a chat model: by its tokenizer's file, by its server, or at most.

Without either, a text counts as its UTF-8 bytes: no tokenizer in use makes more of it than that. Three to
four times too many for English, so more input is split than need be, and never less.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..memory.errors import Misconfigured
from .chat_http import ChatHttp, Reply

_REMEMBERED = 65_536
_SECONDS = 10.0


class TokenCounter(Protocol):
    """Counts tokens. Thread-safe."""

    @property
    def means(self) -> str:
        """How it counts, for people."""
        ...

    def count(self, text: str) -> int:
        """Tokens of a text, none of those that frame a message."""
        ...


class BytesCounter:
    """An upper bound."""

    means = "UTF-8 bytes, an upper bound"

    def count(self, text: str) -> int:
        """Bytes of the text."""
        return len(text.encode("utf-8", "surrogatepass"))


class FileCounter:
    """By a `tokenizer.json`, as models of the Hugging Face hub have it.

    Raises:
        Misconfigured: the file is none.
    """

    def __init__(self, path: Path) -> None:
        from tokenizers import Tokenizer

        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            self._tokenizer = Tokenizer.from_str(file.read_text(encoding="utf-8"))
        except Exception as error:  # noqa: BLE001 - the library raises Exception itself
            raise Misconfigured(
                f"chat_tokenizer {path} is no tokenizer.json of a model ({error}); name the file, or the folder of it"
            ) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.means = f"the tokenizer in {file}"

    def count(self, text: str) -> int:
        """Tokens of the text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)


class ServerCounter:
    """By the server's own `/tokenize` (vLLM has it); each text is asked for once.

    Args:
        http: connections to the server.
        url: of its `/tokenize`.
        model: whose tokens.
        read: reads a reply; raises what it means where it is no count.
    """

    def __init__(self, http: ChatHttp, url: str, model: str, read: Callable[[Reply], int]) -> None:
        self._http = http
        self._url = url
        self._model = model
        self._read = read
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._lock = threading.Lock()
        self.means = f"the server's tokenizer ({url})"

    def count(self, text: str) -> int:
        """Tokens of the text.

        Raises:
            ModelAway: the server does not answer.
        """
        key = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        with self._lock:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        found = self._read(self.ask(text))
        with self._lock:
            self._known[key] = found
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found

    def ask(self, text: str) -> Reply:
        """The server's reply."""
        document = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return self._http.post(self._url, document, _SECONDS)


def counted(reply: Reply) -> int | None:
    """The count in a reply of `/tokenize`; None where the server has no such thing."""
    try:
        found = json.loads(reply.body)["count"] if reply.status == 200 else None
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return found if isinstance(found, int) else None
