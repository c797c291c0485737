"""A question answered by a chat model from one user's memory, with citations.

Nothing of it is stored: whoever asked waits for it, and may ask again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from ..memory import answering
from ..memory.chat import ModelCall
from ..memory.errors import BadAnswer, Misconfigured, ModelAway
from ..memory.model import User
from ..memory.presentation import memory_document
from ..memory.retrieval import RankedMemory
from ..memory.times import parse_timestamp
from .asking import Asker
from .reading import Reading

_PATIENCE_SECONDS = 10.0
"""Somebody waits: a model that is away is told of, and not waited for."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a chat model answers from a memory.

    Attributes:
        question: as it was asked.
        text: the answer, in the question's language; "Not in memory." where the memory does not say it.
        in_memory: whether it does.
        citations: the memories that the answer rests on, one at least if it is in memory, else none.
        intent: what the question was taken to want: "fact", "several", "time" or "inference".
        model: the chat model; None if none was asked, since nothing was found.
        prompt: which prompt was put to it, with its version ("answer/1").
        calls: how often it was called.
        prompt_tokens: of all calls, as the model counts.
        completion_tokens: likewise.
        context_tokens: of the memories shown, by the embedder's tokenizer.
        found: memories that the search returned.
        shown: those of them that the model was shown; the others did not fit.
        dropped: citations that were left out since they name no memory that was shown.
    """

    question: str
    text: str
    in_memory: bool
    citations: tuple[RankedMemory, ...]
    intent: str
    model: str | None
    prompt: str
    calls: int
    prompt_tokens: int
    completion_tokens: int
    context_tokens: int
    found: int
    shown: int
    dropped: int


def answer(
    reading: Reading,
    asker: Asker,
    user: User,
    question: str,
    *,
    seconds: float,
    k: int = 10,
    mode: str = "gam",
    min_position: int | None = None,
    as_of: str | None = None,
    off_tenants: Collection[str] = (),
) -> Answer:
    """Search for a question and have it answered from what is found.

    Args:
        reading: the memories.
        asker: the chat model; the call is on the user's tenant's budget.
        user: the owner.
        question: what is asked.
        seconds: how long the model may take, repeats and waiting included.
        k: memories to answer from.
        mode: of the search.
        min_position: see at least this position of the user's partition.
        as_of: ISO 8601; only what was said by then is seen, and it is the answer's present.
        off_tenants: tenants whose memory no chat model reads.

    Raises:
        Rejected: an argument is wrong; `TooLong`: the question, or every memory found, is too long for the model.
        Stale: `min_position` is not reached.
        ModelAway: the model does not answer in time.
        BadAnswer: no answer of the model can be used.
        Misconfigured: the tenant is off; `Refused`: the model is not served to these settings.
    """
    if user.tenant in off_tenants:
        raise Misconfigured(
            f"no chat model reads the memory of tenant {user.tenant}, which is in chat_off_tenants; its memories can be had "
            "by search (raygam search), answers once it is taken out there"
        )
    result = reading.search(user, question, k=k, mode=mode, min_position=min_position, as_of=as_of)
    as_of_us = parse_timestamp(as_of)[0] if as_of is not None else None
    calls: list[ModelCall] = []
    ask = asker.for_questions(user, {}, calls.append, seconds, _PATIENCE_SECONDS)
    try:
        answered = answering.answer_from(ask, user, result, reading.budget, as_of_us)
    except ModelAway as error:
        raise ModelAway(
            f"{error}; the question is not answered: ask again later. The memories themselves can be had by search "
            "(raygam search)",
            error.retry_after_seconds,
        ) from error
    except BadAnswer as error:
        raise BadAnswer(
            f"{error}; the question is not answered: ask again, or name another model (chat_model). The memories "
            "themselves can be had by search (raygam search)"
        ) from error
    return Answer(
        question=question,
        text=answered.text,
        in_memory=answered.in_memory,
        citations=answered.citations,
        intent=str(answered.intent),
        model=calls[-1].model if calls else None,
        prompt=f"{answering.NAME}/{answering.VERSION}",
        calls=sum(call.calls for call in calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        context_tokens=answered.context_tokens,
        found=len(result.memories),
        shown=answered.shown,
        dropped=sum(call.dropped for call in calls),
    )


def answer_document(given: Answer) -> dict[str, Any]:
    """An answer as JSON-able data; its citations are those documents that a search returns."""
    return {
        "question": given.question,
        "answer": given.text,
        "in_memory": given.in_memory,
        "citations": [memory_document(memory) for memory in given.citations],
        "intent": given.intent,
        "model": given.model,
        "prompt": given.prompt,
        "calls": given.calls,
        "prompt_tokens": given.prompt_tokens,
        "completion_tokens": given.completion_tokens,
        "context_tokens": given.context_tokens,
        "memories_found": given.found,
        "memories_shown": given.shown,
        "citations_dropped": given.dropped,
    }
