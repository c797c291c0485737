"""The composition root for chat models: the settings' models, one asker each, ports over them."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec

from ..adapters.openai_chat import OpenAIChat
from ..memory.errors import Misconfigured, ModelAway, Refused
from ..memory.ports import ChatModel
from .asking import Asker, AskLimits
from .budgets import TokenBudgets
from .chat_config import PORTS, ChatFields
from .metrics import Metrics, NoMetrics
from .thinking import Minds
from .worker import Models


def minds(
    rules: Models,
    settings: ChatFields,
    chat: ChatModel | None,
    metrics: Metrics,
    *,
    concurrency: int,
    share: int,
) -> Minds:
    """What thinks by these settings.

    Args:
        rules: serve the ports that no chat model serves.
        settings: choose per port.
        chat: the model that serves all ports, if it is not an endpoint's.
        metrics: where figures go.
        concurrency: calls under way of each model here, at most.
        share: so many processes or threads share the tenants' budgets.

    Raises:
        Misconfigured: the settings name a model that needs Ray.
    """
    askers = serving(settings, PORTS, chat, metrics, concurrency=concurrency, share=share)
    return Minds(rules, askers, frozenset(settings.chat_off_tenants))


def serving(
    settings: ChatFields,
    ports: Iterable[str],
    chat: ChatModel | None = None,
    metrics: Metrics | None = None,
    *,
    concurrency: int | None = None,
    share: int = 1,
) -> dict[str, Asker]:
    """Who asks for each of the ports that a chat model serves: one asker for each model. Arguments as `minds`."""
    askers: dict[str | None, Asker] = {}
    served: dict[str, Asker] = {}
    for port in filter(settings.thinks, ports):
        name = None if chat is not None else settings.model_for(port)
        if name not in askers:
            model = chat or open_endpoint(settings, name)
            askers[name] = asker(model, settings, metrics, concurrency=concurrency, share=share)
        served[port] = askers[name]
    return served


def asker(
    model: ChatModel,
    settings: ChatFields,
    metrics: Metrics | None = None,
    *,
    concurrency: int | None = None,
    share: int = 1,
) -> Asker:
    """One model's callers in this process."""
    per_minute = settings.chat_tenant_tokens_per_minute
    return Asker(
        model,
        AskLimits(
            concurrency=concurrency or settings.chat_concurrency,
            call_seconds=settings.chat_timeout_seconds,
            tries=settings.chat_tries,
        ),
        budgets=TokenBudgets(max(1, per_minute // share) if per_minute else None),
        metrics=metrics or NoMetrics(),
        label=_label(model, settings),
    )


def _label(model: ChatModel, settings: ChatFields) -> str:
    """What a model is called in messages: an endpoint may have to be asked for its name."""
    if isinstance(model, OpenAIChat):
        return f"the chat model at {settings.chat_url}"
    return f"the chat model {model.name}"


def open_endpoint(settings: ChatFields, name: str | None = None) -> OpenAIChat:
    """The endpoint's model of a name, or the one that the settings name, or its only one.

    Raises:
        Misconfigured: no endpoint is named.
    """
    if settings.chat_url is None:
        if settings.vllm_model is not None:
            raise Misconfigured(
                f"vllm_model {settings.vllm_model} is served by replicas on Ray: run with --ray (or raygam serve), or start "
                "a vLLM server and name it by chat_url"
            )
        raise Misconfigured("no chat model is named: set chat_url (an endpoint) or vllm_model (replicas on Ray)")
    return OpenAIChat(
        settings.chat_url,
        name or settings.chat_model,
        api_key=settings.chat_secret(),
        context_tokens=settings.chat_context_tokens,
        temperature=settings.chat_temperature,
        seed=settings.chat_seed,
        guided=settings.chat_guided,
        calls=settings.chat_concurrency,
        ca_file=settings.chat_ca_file,
        tokenizer=settings.chat_tokenizer,
    )


_RULES = {
    "boundaries": "text-tiling over the embedder (stands in for an LLM)",
    "consolidation": "extraction (stands in for an LLM)",
    "relations": "rules (stands in for an LLM)",
}


def thinkers(settings: ChatFields) -> dict[str, str]:
    """What serves each port by these settings, in words."""
    return {
        port: (settings.vllm_model or settings.model_for(port) or "the chat model")
        if settings.thinks(port)
        else _RULES[port]
        for port in PORTS
    }


def chat_at_hand(settings: ChatFields) -> str:
    """What the chat model says of itself, or what is wrong with it, in words; asks an endpoint once."""
    if settings.vllm_model is not None:
        there = "installed" if find_spec("vllm") else "not installed here: make llm-cpu, or pip install raygam[llm]"
        return f"{settings.vllm_model} by {settings.chat_replicas} vLLM replicas on Ray (vLLM is {there})"
    if settings.chat_url is None:
        return "none needed"
    try:
        endpoint = open_endpoint(settings)
    except Misconfigured as error:
        return str(error)
    try:
        served = endpoint.served()
    except (ModelAway, Refused) as error:
        return f"away, tasks wait: {error}"
    finally:
        endpoint.close()
    names = sorted({name for port in PORTS if settings.thinks(port) and (name := settings.model_for(port))})
    missing = [name for name in names if served.models and name not in served.models]
    if missing:
        return f"{settings.chat_url} does not list {', '.join(missing)}; it lists {', '.join(served.models)}"
    context = settings.chat_context_tokens or served.context_tokens
    told = f"context {context:,} tokens" if context else "its context is not told: chat_context_tokens says it"
    return (
        f"{', '.join(names or served.models)} at {settings.chat_url}; {told}; tokens are counted by {served.counts_by}"
    )
