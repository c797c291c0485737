"""What is said to a chat model, and what comes of it: the values of the ports `ChatModel` and `Ask`.

A chat model returns text. A `Prompt` knows the schema that the text must have and reads it; what
does not fit is a `BadAnswer` and is asked for again, never taken for "nothing to remember".
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from .model import User

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation; `role` is "system", "user" or "assistant"."""

    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One call of a chat model.

    Attributes:
        messages: the conversation so far; the model writes the next message.
        schema: JSON schema of the answer, for models that decode under guidance.
        schema_name: its name, for whoever reads a server's log.
        max_tokens: of the answer.
        user: whose memory it is about: budgets and fairness go by it.
    """

    messages: tuple[Message, ...]
    schema: Mapping[str, Any]
    schema_name: str
    max_tokens: int
    user: User


@dataclass(frozen=True, slots=True)
class ChatAnswer:
    """What a chat model said.

    Attributes:
        text: whole, as it came; what no store takes (halves of code points, NUL) is U+FFFD in it.
        prompt_tokens: as the model counts them.
        completion_tokens: likewise.
        cut_off: it reached `max_tokens`, so the text has no end.
    """

    text: str
    prompt_tokens: int
    completion_tokens: int
    cut_off: bool = False

    def __post_init__(self) -> None:
        text = self.text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").replace("\x00", "\ufffd")
        object.__setattr__(self, "text", text)


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What an answer says, and how many of its items were left out since they name nothing that exists."""

    value: T
    dropped: int = 0


@dataclass(frozen=True, slots=True)
class Prompt(Generic[T]):
    """A question to a chat model and how its answer is read.

    Attributes:
        name: what is asked for ("boundaries", "segments", …); with `version` it is recorded with each result.
        version: rises when the words, the schema or the reading change what comes of an input.
        user: whose memory it is about.
        messages: instructions and the delimited input.
        schema: of the answer.
        max_tokens: of the answer.
        read: reads the answer's JSON value; raises `BadAnswer` where it does not fit the schema.
    """

    name: str
    version: int
    user: User
    messages: tuple[Message, ...]
    schema: Mapping[str, Any]
    max_tokens: int
    read: Callable[[Any], Reading[T]]

    @property
    def label(self) -> str:
        """Name and version as they are recorded ("segments/1")."""
        return f"{self.name}/{self.version}"

    def key(self, model: str) -> str:
        """What an identical request is known by: model, prompt version and input, hashed."""
        said = [model, self.label, self.max_tokens, [[message.role, message.text] for message in self.messages]]
        text = json.dumps([*said, self.schema], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """What one prompt of a task cost, and the answer that was taken.

    Attributes:
        key: `Prompt.key`.
        model: the model's name.
        prompt: `Prompt.label`.
        calls: how often the model was called for it; 0 where the answer was known.
        prompt_tokens: of all these calls.
        completion_tokens: likewise.
        answer: the text that was taken; None while there is none.
        dropped: items of it that were left out.
    """

    key: str
    model: str
    prompt: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    answer: str | None = None
    dropped: int = 0
