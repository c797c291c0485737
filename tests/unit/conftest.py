"""What unit tests of thinking share: a chat model that replays what the test says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from raygam.memory.chat import Prompt
from raygam.memory.model_output import json_value
from raygam.memory.text import count_tokens

T = TypeVar("T")


class ReplayedAsk:
    """An `Ask` that reads given answers: the next of `answers`, or what `by` makes of the prompt.

    It fails the test if it is asked more than it was given, or a prompt and its answer are over its context.
    """

    model = "scripted"

    def __init__(
        self, *answers: object, by: Callable[[Prompt[Any]], object] | None = None, context_tokens: int = 8192
    ) -> None:
        self.answers, self.by = list(answers), by
        self.context_tokens = context_tokens
        self.prompts: list[Prompt[Any]] = []
        self.dropped = 0

    def count_tokens(self, text: str) -> int:
        return count_tokens(text)

    def __call__(self, prompt: Prompt[T]) -> T:
        self.prompts.append(prompt)
        tokens = sum(self.count_tokens(message.text) for message in prompt.messages)
        assert tokens + prompt.max_tokens <= self.context_tokens
        assert self.by or self.answers, f"nobody expected {prompt.label}"
        answer = self.by(prompt) if self.by else self.answers.pop(0)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        reading = prompt.read(json_value(text, prompt.schema))
        self.dropped += reading.dropped
        return reading.value

    @property
    def asked(self) -> list[str]:
        """The names of the prompts, in order."""
        return [prompt.name for prompt in self.prompts]

    @property
    def shown(self) -> str:
        """The data of all prompts."""
        return "\n".join(prompt.messages[-1].text for prompt in self.prompts)


@pytest.fixture(scope="session")
def replayed() -> type[ReplayedAsk]:
    """`replayed(answer, …)` makes an `Ask` of these answers."""
    return ReplayedAsk
