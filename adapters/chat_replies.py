"""What a chat server's replies mean: pure, by status, headers and body.

| reply | becomes |
|---|---|
| 200 with a chat completion | `ChatAnswer` |
| 200 with anything else (a proxy's page, no choices) | `ModelAway`: no model has spoken, so asking it to mend its answer is vain |
| an error's document in a 200 | what its code says, as if it were the status |
| 400, 413, 422 about the context's length | `TooLong` |
| other 4xx | `Rejected` |
| 3xx, 401, 402, 403, 404, 405 | `Refused`: key, account, name of the model or address |
| 408, 429, 5xx | `ModelAway`, with `Retry-After` where it is said |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic import SecretStr

from ..memory.errors import ModelAway, RaygamError, Refused, Rejected, TooLong
from .chat_http import Reply

_SHOWN = 300
_DAY_SECONDS = 86_400.0
_MOST_TOKENS = 1_000_000_000
"""A server that counts more in one call cannot count."""
_TOO_LONG = re.compile(
    r"context.?(length|window|size)|maximum (model|context)|max_model_len|prompt .{0,20}too long|too many (input )?tokens"
    r"|longer than the maximum|string_above_max_length|exceeds? .{0,40}(context|maximum) .{0,20}(length|tokens)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Completion:
    """A chat completion as a server sends it; counts are None where it does not say them."""

    text: str
    cut_off: bool
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Who is spoken to, for messages.

    Attributes:
        url: its address.
        model: the name we ask for.
        secret: taken out of whatever the server says.
    """

    url: str
    model: str | None
    secret: SecretStr | None

    def said(self, text: str) -> str:
        """A server's words as they may be shown: on one line, not too many, without the key."""
        if self.secret and self.secret.get_secret_value():
            text = text.replace(self.secret.get_secret_value(), "***")
        text = " ".join(text.split())
        return text.removesuffix(".") if len(text) <= _SHOWN else f"{text[:_SHOWN]} …"


def read_completion(reply: Reply, endpoint: Endpoint, now: float) -> Completion:
    """Read the reply to a request for a chat completion.

    Args:
        reply: as it came.
        endpoint: who sent it.
        now: Unix time, against which a date in `Retry-After` is held.

    Raises:
        ModelAway, TooLong, Rejected, Refused: it is none; see the module.
    """
    document = read_document(reply, endpoint, now)
    try:
        choice = document["choices"][0]
        message = choice["message"]
        # What a model says instead of an answer is its text, for whoever reads the answer to judge.
        text = _text(message.get("content")) or _text(message.get("refusal"))
        usage = document.get("usage") or {}
        return Completion(
            text,
            choice.get("finish_reason") == "length",
            _count(usage.get("prompt_tokens")),
            _count(usage.get("completion_tokens")),
        )
    except (LookupError, TypeError, AttributeError):
        raise _no_model(reply, endpoint) from None


def read_document(reply: Reply, endpoint: Endpoint, now: float) -> dict[str, Any]:
    """Read the JSON object of a reply that says that all is well.

    Raises:
        ModelAway, TooLong, Rejected, Refused: it does not.
    """
    try:
        document = json.loads(reply.body)
    except (ValueError, RecursionError):
        document = None
    if reply.status != 200:
        raise _meaning(reply.status, document, reply, endpoint, now)
    if not isinstance(document, dict):
        raise _no_model(reply, endpoint)
    if document.get("error"):
        code = document["error"].get("code") if isinstance(document["error"], dict) else None
        status = code if isinstance(code, int) and 400 <= code < 600 else 500
        raise _meaning(status, document, reply, endpoint, now)
    return document


def _no_model(reply: Reply, endpoint: Endpoint) -> ModelAway:
    began = endpoint.said(reply.body[: 4 * _SHOWN].decode(errors="replace"))
    return ModelAway(
        f"{endpoint.url} answers with something else than a model's words ({began[:80] or 'nothing'}); "
        "is this the address of its API (chat_url), with the /v1 at the end?"
    )


def _meaning(status: int, document: Any, reply: Reply, endpoint: Endpoint, now: float) -> RaygamError:
    said = endpoint.said(_message(document) or reply.body[: 4 * _SHOWN].decode(errors="replace")) or "no reason"
    where = f"{endpoint.url} says {status}: {said}"
    if status in (408, 429) or status >= 500:
        busy = "has too much to do" if status in (429, 503) else "fails"
        asked = retry_after_seconds(reply.headers, now)
        at_work = status in (500, 502) and asked is None  # the others speak of load, or of nobody there
        return ModelAway(f"the chat model {busy}; {where}", asked, at_work=at_work)
    if status in (401, 403):
        return Refused(f"{where}. It does not take us by this key: check chat_key (or chat_key_file)")
    if status == 402:
        return Refused(f"{where}. The account of this key cannot pay: see to it, or name another key (chat_key)")
    if status in (404, 405):
        model = repr(endpoint.model) if endpoint.model else "of the name that it lists"
        return Refused(
            f"{where}. Either it has no model {model} (chat_model), or its API is elsewhere (chat_url, "
            "with the /v1 at the end)"
        )
    if 300 <= status < 400:
        to = endpoint.said(reply.headers.get("location", "elsewhere"))
        return Refused(f"{endpoint.url} says {status}: it is at {to} now; set chat_url to that")
    if status == 413 or (status in (400, 422) and _TOO_LONG.search(f"{_code(document)} {said}")):
        return TooLong(f"{where}. The request does not fit the model's context; check chat_context_tokens")
    return Rejected(
        f"{where}. It takes no such request; if it is about response_format or the schema, set chat_guided to false, "
        "if about temperature or seed, set chat_temperature or chat_seed to what it takes"
    )


def _message(document: Any) -> str:
    """The words of an error's document, in the forms that servers use."""
    error = document.get("error", document) if isinstance(document, dict) else document
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error.get("error")
    if isinstance(error, (list, dict)):
        error = json.dumps(error, ensure_ascii=False)
    return error if isinstance(error, str) else ""


def _code(document: Any) -> str:
    error = document.get("error", document) if isinstance(document, dict) else None
    return f"{error.get('code')} {error.get('type')}" if isinstance(error, dict) else ""


def retry_after_seconds(headers: Mapping[str, str], now: float) -> float | None:
    """What a server asks to wait, in seconds or as a date; None where it says nothing readable. A day at most."""
    said = headers.get("retry-after", "").strip()
    if not said:
        return None
    try:
        seconds = float(said)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(said).timestamp() - now
        except (ValueError, TypeError, OverflowError):
            return None
    return min(max(seconds, 0.0), _DAY_SECONDS) if math.isfinite(seconds) else None


def _text(content: Any) -> str:
    """A message's text; some servers send it in parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _count(value: Any) -> int | None:
    counts = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_TOKENS
    return value if counts else None
