"""What makes topics anew: rules, chat models, or both; a chat model takes a call for each summary and each topic's relations."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from ..memory import prompts
from ..memory.chat import ModelCall, Prompt
from ..memory.judges import ChatScorer, ChatSummarizer
from ..memory.model import User
from ..memory.ports import Ask
from .asking import Asker
from .config import Settings
from .reconsolidation import Anew, OnCall, Ports
from .worker import Models

T = TypeVar("T")
_PROMPTS = {"consolidation": "summary", "relations": "relations"}


def make_anew(models: Models, settings: Settings) -> Anew:
    """What makes topics anew by these settings: rules, and what they name chat models for.

    Raises:
        Misconfigured: the settings name a model that needs Ray.
        ModelAway, Refused: the endpoint is to say which model it has, and does not.
    """
    settings.check_chat()
    askers: dict[str | None, Asker] = {}
    served: dict[str, Asker] = {}
    for port in filter(settings.thinks, _PROMPTS):
        name = settings.model_for(port)
        if name not in askers:
            from . import chat_runtime  # its client takes a while to load

            askers[name] = chat_runtime.asker(chat_runtime.open_endpoint(settings, name), settings)
        served[port] = askers[name]

    def ports(user: User, answers: Mapping[str, str], on_call: OnCall) -> Ports:
        if user.tenant in settings.chat_off_tenants:
            return models.summarizer, models.scorer
        asks = {
            port: _PatientAsk(asker, user, answers, on_call, settings.lease_seconds) for port, asker in served.items()
        }
        return (
            ChatSummarizer(asks["consolidation"]) if "consolidation" in asks else models.summarizer,
            ChatScorer(asks["relations"], user) if "relations" in asks else models.scorer,
        )

    def close() -> None:
        for asker in askers.values():
            asker.close()

    names = {"consolidation": models.summarizer.name, "relations": models.scorer.name}
    names |= {port: prompts.recorded(asker.model.name, _PROMPTS[port]) for port, asker in served.items()}
    off = f"; rules for {', '.join(sorted(settings.chat_off_tenants))}" if served and settings.chat_off_tenants else ""
    label = ", ".join(names.values()) + off
    return Anew(label, models.embedder, ports, at_once=settings.chat_concurrency if served else 1, close=close)


class _PatientAsk:
    """`Ask` for a task that nobody waits for: each question has the time that a lease has."""

    def __init__(
        self,
        asker: Asker,
        user: User,
        answers: Mapping[str, str],
        on_call: Callable[[ModelCall], None],
        seconds: float,
    ) -> None:
        self._asker = asker
        self._user = user
        self._answers = answers
        self._on_call = on_call
        self._seconds = seconds

    @property
    def model(self) -> str:
        """The model's name."""
        return self._asker.model.name

    @property
    def context_tokens(self) -> int:
        """Of the model."""
        return self._asker.model.context_tokens

    def count_tokens(self, text: str) -> int:
        """By the model's tokenizer."""
        return self._asker.model.count_tokens(text)

    def __call__(self, prompt: Prompt[T]) -> T:
        """Return what the model says, read by the prompt."""
        deadline = self._asker.clock.now() + self._seconds
        ask: Ask = self._asker.for_task(self._user, self._answers, self._on_call, deadline)
        return ask(prompt)
