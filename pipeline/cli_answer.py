"""What `raygam answer` does: a state opened read-only, a chat model, one question."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from . import cli_engine, display, runtime
from .answering import answer as answer_from
from .answering import answer_document
from .asking import Asker
from .config import Settings
from .location import AnyState
from .records import check_user


def answer(
    state: AnyState,
    settings: Settings,
    tenant: str,
    user: str,
    question: str,
    *,
    k: int = 10,
    mode: str = "gam",
    as_of: str | None = None,
    seconds: float | None = None,
    address: str | None = None,
) -> dict[str, Any]:
    """Answer a question as one document: the answer, its citations, what it cost, and whether the user is known.

    Args:
        state: with the memories.
        settings: name an endpoint's model.
        tenant: of the user.
        user: whose memory is asked.
        question: what is asked.
        k: memories to answer from.
        mode: of the search.
        as_of: ISO 8601; the answer's present.
        seconds: how long the model may take; None says `chat_timeout_seconds`.
        address: of the Ray cluster whose engine has the state: its own chat model is asked.

    Raises:
        Misconfigured: no model is named, or no engine runs there.
        RaygamError: as `answering.answer`.
    """
    owner = check_user(tenant, user)
    with _thinking(state, settings, address) as (asker, thinks):
        reading = runtime.open_reading(state, settings)
        try:
            with display.errors.status(f"asking {asker.label}"):  # seen on a terminal only
                given = answer_from(
                    reading,
                    asker,
                    owner,
                    question,
                    seconds=thinks.chat_timeout_seconds if seconds is None else seconds,
                    k=k,
                    mode=mode,
                    as_of=as_of,
                    off_tenants=thinks.chat_off_tenants,
                )
            head = {"tenant": owner.tenant, "user_id": owner.user_id, "known_user": reading.knows(owner)}
        finally:
            reading.close()
    return head | answer_document(given)


@contextmanager
def _thinking(state: AnyState, settings: Settings, address: str | None) -> Iterator[tuple[Asker, Settings]]:
    """The chat model to ask, and the settings that name it: of an engine that runs, or of this command."""
    from . import chat_runtime  # the client of an endpoint takes a while to load

    if address is None:
        asker = chat_runtime.asker(chat_runtime.open_endpoint(settings), settings)
        try:
            yield asker, settings
        finally:
            asker.close()
        return
    # Ray prints its warnings into standard output, which is for the result.
    with redirect_stdout(sys.stderr), cli_engine.running(state, address) as engine:
        own = engine.settings()
        asker = chat_runtime.asker(engine.chat(own) or chat_runtime.open_endpoint(own), own)
        try:
            yield asker, own
        finally:
            asker.close()


def answer_view(document: Mapping[str, Any]) -> RenderableType:
    """The answer, the memories it rests on, and what it cost."""
    parts = [Text(document["answer"], style="" if document["in_memory"] else "yellow")]
    for memory in document["citations"]:
        cited = Text("  ")
        cited.append(memory["timestamp"].replace("T", " ").removesuffix("Z")[:16], style="cyan")
        cited.append(f"  {memory['speaker']}: ", style="bold")
        cited.append(memory["text"])
        for attachment in memory["attachments"]:
            cited.append(f"  [caption of an attachment: {attachment['caption']}]", style="magenta")
        cited.append(f"   ref {memory['message_id']}", style="dim")
        parts.append(cited)
    parts.append(Text(_cost(document), style="dim"))
    return Group(*parts)


def _cost(document: Mapping[str, Any]) -> str:
    found, shown = document["memories_found"], document["memories_shown"]
    if not document["calls"]:
        return "no memories were found, no model was asked"
    considered = f"{found} memories" if shown == found else f"{shown} of {found} memories (the others do not fit)"
    calls = f"{document['calls']} call{'s' if document['calls'] > 1 else ''}"
    tokens = f"{document['prompt_tokens']:,} + {document['completion_tokens']:,} tokens"
    return f"{document['intent']}: {considered}; {document['model']}, {document['prompt']}, {calls}, {tokens}"
