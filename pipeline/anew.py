"""What makes topics anew: rules, chat models, or both; a chat model takes a call for each summary and each topic's relations."""

from __future__ import annotations

from collections.abc import Mapping

from ..memory import prompts
from ..memory.judges import ChatScorer, ChatSummarizer
from ..memory.model import User
from .asking import Asker
from .config import Settings
from .reconsolidation import Anew, OnCall, Ports
from .worker import Models

_PROMPTS = {"consolidation": "summary", "relations": "relations"}


_PATIENCE_SECONDS = 30.0
"""A model that is away for longer ends the run; the next goes on."""


def make_anew(models: Models, settings: Settings) -> Anew:
    """What makes topics anew by these settings: rules, and what they name chat models for.

    Raises:
        Misconfigured: the settings name a model that needs Ray.
        ModelAway, Refused: the endpoint is to say which model it has, and does not.
    """
    settings.check_chat()
    served: dict[str, Asker] = {}
    if any(map(settings.thinks, _PROMPTS)):
        from . import chat_runtime  # its client takes a while to load

        served = chat_runtime.serving(settings, _PROMPTS)

    def ports(user: User, answers: Mapping[str, str], on_call: OnCall) -> Ports:
        if user.tenant in settings.chat_off_tenants:
            return models.summarizer, models.scorer
        asks = {
            port: asker.for_questions(user, answers, on_call, settings.lease_seconds, _PATIENCE_SECONDS)
            for port, asker in served.items()
        }
        return (
            ChatSummarizer(asks["consolidation"]) if "consolidation" in asks else models.summarizer,
            ChatScorer(asks["relations"], user) if "relations" in asks else models.scorer,
        )

    def close() -> None:
        for asker in served.values():
            asker.close()

    names = {"consolidation": models.summarizer.name, "relations": models.scorer.name}
    names |= {port: prompts.recorded(asker.model.name, _PROMPTS[port]) for port, asker in served.items()}
    off = f"; rules for {', '.join(sorted(settings.chat_off_tenants))}" if served and settings.chat_off_tenants else ""
    label = ", ".join(names.values()) + off
    return Anew(label, models.embedder, ports, at_once=settings.chat_concurrency if served else 1, close=close)
