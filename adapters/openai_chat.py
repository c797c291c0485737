"""Any endpoint that speaks OpenAI's chat completions: a vLLM server, Ollama, llama.cpp, a hosted model.

Synchronous for its callers, who are threads; the calls themselves are under way in one thread of
their own, and can all be ended at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from ..memory.chat import ChatAnswer, ChatRequest
from ..memory.errors import Misconfigured, ModelAway, Refused, Rejected
from .chat_http import ChatHttp, Reply
from .chat_replies import Endpoint, read_completion, read_document
from .token_counts import BytesCounter, FileCounter, ServerCounter, TokenCounter, counted

DEFAULT_CONTEXT_TOKENS = 8192
"""Where neither a setting nor the server says it. Counted in bytes (`token_counts`), 8,192 are some 2,500 tokens of
English and fit into the 4,096 at which Ollama cuts in silence."""
_MODELS_SECONDS = 10.0
_CONTEXT_KEYS = ("max_model_len", "context_length", "max_context_length", "context_window")


@dataclass(frozen=True, slots=True)
class Served:
    """What an endpoint says of itself.

    Attributes:
        models: names that it lists; empty where it lists none.
        context_tokens: of the model that we ask for; None where it does not say.
        counts_by: how tokens are counted.
    """

    models: tuple[str, ...]
    context_tokens: int | None
    counts_by: str


class OpenAIChat:
    """A `ChatModel` behind HTTP. Thread-safe; nothing is opened before the first call.

    Args:
        url: where the API is, with its /v1 ("http://127.0.0.1:8000/v1").
        model: the name that the server knows it by; None for the only one that it lists.
        api_key: a bearer's token; never shown, in no message and no log.
        context_tokens: of a request and its answer together; None asks the server.
        temperature: None leaves it to the server.
        seed: likewise.
        guided: whether the server is asked to decode along the schema (`response_format`).
        calls: completions under way at most, by the callers' word.
        ca_file: a certificate (PEM) to trust beside the system's.
        tokenizer: a `tokenizer.json`, or the folder of one; None asks the server, else counts bytes.
        now: Unix time.

    Raises:
        Misconfigured: a setting cannot be.
    """

    def __init__(
        self,
        url: str,
        model: str | None,
        *,
        api_key: SecretStr | None = None,
        context_tokens: int | None = None,
        temperature: float | None = 0.0,
        seed: int | None = None,
        guided: bool = True,
        calls: int = 64,
        ca_file: Path | None = None,
        tokenizer: Path | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if model == "":
            raise Misconfigured("chat_model is empty; give the name that the server lists (GET /v1/models)")
        self._http = ChatHttp(url, api_key, calls, ca_file)
        self._model = model
        self._endpoint = Endpoint(self._http.url, model, api_key)
        self._options: dict[str, Any] = {"temperature": temperature, "seed": seed}
        self._guided = guided
        self._limit_key = "max_tokens"
        self._now = now
        self._context_tokens = context_tokens
        self._counter: TokenCounter | None = FileCounter(tokenizer) if tokenizer else None
        self._asking = threading.Lock()

    def __repr__(self) -> str:
        return f"OpenAIChat({self._http.url!r}, {self._model!r})"

    @property
    def name(self) -> str:
        """As set, or as the server lists it.

        Raises:
            ModelAway, Refused: the server is asked, and does not answer, not to us, or with several.
        """
        if self._model is None:
            with self._alone():
                if self._model is None:
                    self._model = _only(self._listed(), self._endpoint)
        return self._model

    @property
    def context_tokens(self) -> int:
        """As set, or as the server says it, or `DEFAULT_CONTEXT_TOKENS`.

        Raises:
            ModelAway, Refused: the server is asked and does not answer, or not to us.
        """
        model = self.name
        if self._context_tokens is None:
            with self._alone():
                if self._context_tokens is None:
                    found = _context_of(self._listed(), model)
                    self._context_tokens = found or DEFAULT_CONTEXT_TOKENS
        return self._context_tokens

    def count_tokens(self, text: str) -> int:
        """By the tokenizer's file; else by the server's `/tokenize`, if it has one; else UTF-8 bytes, an upper bound.

        Raises:
            ModelAway, Refused: the server is asked and does not answer, or not to us.
        """
        return self._counting().count(text)

    def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        """Call the model once.

        Raises:
            ModelAway: no whole answer within `seconds`, none at all, or the server has too much to do (429, 503).
            TooLong: request and answer do not fit its context.
            Rejected: it takes no such request.
            Refused: the server answers, and not to these settings (key, name of the model, address).
        """
        started = time.monotonic()
        key = self._limit_key
        try:
            found = self._asked(request, key, seconds)
        except Rejected as error:
            # OpenAI's newer models take this name only; a server that asks for it is asked so from then on.
            if key == "max_completion_tokens" or "max_completion_tokens" not in str(error):
                raise
            self._limit_key = "max_completion_tokens"
            found = self._asked(request, self._limit_key, max(0.1, seconds - (time.monotonic() - started)))
        prompt, completion = found.prompt_tokens, found.completion_tokens
        if prompt is None:
            prompt = sum(self._roughly(message.text) for message in request.messages)
        if completion is None:
            completion = self._roughly(found.text)
        return ChatAnswer(found.text, prompt, completion, found.cut_off)

    def served(self) -> Served:
        """Ask the endpoint what it serves.

        Raises:
            ModelAway, Refused: it does not answer, or not to us.
        """
        listed = self._listed()
        names = tuple(str(entry.get("id")) for entry in listed)
        return Served(names, _context_of(listed, self.name), self._counting().means)

    def close(self) -> None:
        """End; calls under way raise `ModelAway` at once."""
        self._http.close()

    def _asked(self, request: ChatRequest, limit_key: str, seconds: float) -> Any:
        document: dict[str, Any] = {
            "model": self.name,
            "messages": [{"role": message.role, "content": message.text} for message in request.messages],
            limit_key: request.max_tokens,
            **{name: value for name, value in self._options.items() if value is not None},
        }
        if self._guided:
            form = {"name": request.schema_name, "schema": request.schema, "strict": True}
            document["response_format"] = {"type": "json_schema", "json_schema": form}
        reply = self._http.post(f"{self._http.url}/chat/completions", document, seconds)
        return read_completion(reply, self._endpoint, self._now())

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One asks, the others wait for what it learns; not longer than one may ask, as each has a deadline of its own.

        Raises:
            ModelAway: it has learnt nothing by then.
        """
        if not self._asking.acquire(timeout=_MODELS_SECONDS):
            raise ModelAway(f"{self._http.url} does not say what it serves; another call asks it")
        try:
            yield
        finally:
            self._asking.release()

    def _listed(self) -> list[Mapping[str, Any]]:
        """The models that the endpoint lists; none where it has no such list."""
        reply = self._http.get(f"{self._http.url}/models", _MODELS_SECONDS)
        if reply.status in (400, 404, 405, 501):
            return []
        entries = read_document(reply, self._endpoint, self._now()).get("data")
        return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []

    def _counting(self) -> TokenCounter:
        model = self.name
        if self._counter is None:
            with self._alone():
                if self._counter is None:
                    root = self._http.url.removesuffix("/v1")
                    asked = ServerCounter(self._http, f"{root}/tokenize", model, self._count_in)
                    has_one = self._has_tokenizer(asked.ask("one"))
                    self._counter = asked if has_one else BytesCounter()
        return self._counter

    def _has_tokenizer(self, reply: Reply) -> bool:
        """Whether a reply to the first question shows that the server counts tokens.

        Raises:
            ModelAway: it shows nothing: the server is busy or failing.
        """
        if reply.status in (408, 429) or (reply.status >= 500 and reply.status != 501):
            read_document(reply, self._endpoint, self._now())
        return counted(reply) is not None

    def _count_in(self, reply: Reply) -> int:
        found = counted(reply)
        if found is None:
            read_document(reply, self._endpoint, self._now())
            raise ModelAway(f"{self._endpoint.url} counted tokens before, and now answers something else")
        return found

    def _roughly(self, text: str) -> int:
        """Tokens of a text whose count the server left out; an answer is not lost over it."""
        try:
            return self.count_tokens(text)
        except (ModelAway, Refused, Rejected):
            return BytesCounter().count(text)


def _only(listed: list[Mapping[str, Any]], endpoint: Endpoint) -> str:
    names = [str(entry["id"]) for entry in listed if entry.get("id")]
    if len(names) != 1:
        hint = "" if names else ", and see whether chat_url has the API's /v1 at its end"
        some = f"{', '.join(names[:5])}{', …' if len(names) > 5 else ''}" if names else "none"
        raise Refused(f"{endpoint.url} lists {len(names)} models ({endpoint.said(some)}); name one as chat_model{hint}")
    return names[0]


def _context_of(listed: list[Mapping[str, Any]], model: str) -> int | None:
    """What the list says of the model's context, by the names that servers have for it."""
    for entry in listed:
        if entry.get("id") == model:
            for key in _CONTEXT_KEYS:
                if isinstance(found := entry.get(key), int) and found > 0:
                    return found
    return None
