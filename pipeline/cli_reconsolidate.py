"""`raygam reconsolidate`: topics made anew by another model, compared, then switched to or dropped."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ..memory.errors import Misconfigured, StateLocked
from ..memory.model import DEFAULT_TENANT, TopicRelation, User
from ..memory.reconsolidation import Difference, RelationChange, TopicChange
from ..memory.shadow import Standing
from ..memory.times import format_time
from . import difference_view, display, runtime
from .anew import make_anew
from .cli import EXIT_FAILED, EXIT_INTERRUPTED
from .cli_state import State
from .config import Settings, read_settings
from .interruption import Interruption
from .location import AnyState
from .reconsolidation import BuildReport, Reconsolidation
from .records import check_user
from .summary import topic_document

_CHANGED = ("added", "gone", "changed")


def reconsolidate(
    state: State,
    user: Annotated[str | None, typer.Argument(help="The user whose topics are made anew; or --all.")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="All users.")] = False,
    tenant: Annotated[str | None, typer.Option("--tenant", help="The tenant of the user.")] = None,
    consolidation: Annotated[
        str | None, typer.Option("--consolidation", help="What writes summaries: llm or extractive.")
    ] = None,
    relations: Annotated[str | None, typer.Option("--relations", help="What judges relations: llm or rules.")] = None,
    chat_url: Annotated[
        str | None, typer.Option("--chat-url", help="An OpenAI-compatible endpoint; default: setting chat_url.")
    ] = None,
    chat_model: Annotated[
        str | None, typer.Option("--chat-model", "--model", help="The model there; default: setting chat_model.")
    ] = None,
    switch: Annotated[bool, typer.Option("--switch", help="Let what was made take its place.")] = False,
    discard: Annotated[bool, typer.Option("--discard", help="Drop what was made.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Make topics and their relations anew from the archives, beside what is read, and show what would change.

    Then run it with --switch, or with --discard. The archives, and what was said, stay as they are. What was
    broken off goes on where it stopped; another model begins anew. Run it where no engine runs.
    """
    if (user is None) != everyone:
        raise Misconfigured("name a user, or give --all: one of the two")
    if everyone and tenant is not None:
        raise Misconfigured("--tenant goes with a user; leave it out, or leave out --all")
    if switch and discard:
        raise Misconfigured("--switch and --discard are two ways on; give one of them")
    chosen = {
        **{"consolidation": consolidation, "relations": relations, "chat_url": chat_url, "chat_model": chat_model}
    }
    given = [f"--{name.replace('_', '-')}" for name, value in chosen.items() if value is not None]
    if given and (switch or discard):
        raise Misconfigured(
            f"{', '.join(given)} says by what topics are made anew, and that was done before: leave it out with "
            f"--{'switch' if switch else 'discard'}"
        )
    owner = None if user is None else check_user(tenant or DEFAULT_TENANT, user)
    if switch or discard:
        found = (switched if switch else discarded)(state, owner)
    else:
        found = built(state, read_settings(**chosen), owner)
    if as_json:
        display.print_json(found)
    else:
        difference_view.print_report(display.shown(found))
    if found.get("interrupted"):
        raise typer.Exit(EXIT_INTERRUPTED)
    if found.get("failed"):
        raise typer.Exit(EXIT_FAILED)


def built(state: AnyState, settings: Settings, user: User | None) -> dict[str, Any]:
    """Make the shadows that are wanting; return what was done and what a switch would change.

    Raises:
        StateLocked: an engine has the state.
        Misconfigured: there is no state, or no such model.
        Rejected: the user was never seen.
        Retryable: the chat model is away; the next call goes on.
    """
    started = time.monotonic()
    interruption = Interruption("stopping; whole users are kept, and the same command goes on", _leave)
    with _opened(state, user) as work, interruption.watching(), _bar("making anew") as bar:
        anew = make_anew(runtime.make_models(runtime.make_embedder(work.facts.embedder, settings)), settings)
        shown = bar.add_task("making anew", total=None, detail="")

        def advance(report: BuildReport) -> None:
            bar.update(
                shown,
                completed=report.episodes,
                total=report.of_episodes,
                detail=f"{report.built:,} of {report.users - report.kept:,} users",
            )

        try:
            report = work.build(anew, lambda: interruption.asked, advance)
        finally:
            anew.close()
        differences = [_document(held, found, whole=user is not None) for held, found in work.differences()]
    return {
        "action": "build",
        "state": str(state),
        "model": anew.label,
        "users": report.users,
        "built": report.built,
        "kept": report.kept,
        "episodes": report.episodes,
        "failed": [{"tenant": who.tenant, "user_id": who.user_id, "error": why} for who, why in report.failed],
        "interrupted": report.interrupted,
        "topics": _summed(differences, "topics"),
        "relations": _summed(differences, "relations"),
        "differences": differences,
        "seconds": round(time.monotonic() - started, 3),
    }


def switched(state: AnyState, user: User | None) -> dict[str, Any]:
    """Switch to what was made; return by what, and how many users.

    Raises:
        StateLocked: an engine has the state.
        Misconfigured: there is nothing to switch to, or not all of it is made.
    """
    with _opened(state, user) as work, _bar("switching") as bar:
        shown = bar.add_task("switching", total=None, detail="")
        label, count = work.switch(lambda done, total: bar.update(shown, completed=done, total=total))
    return {"action": "switch", "state": str(state), "model": label, "switched": count}


def discarded(state: AnyState, user: User | None) -> dict[str, Any]:
    """Drop what was made; return of how many users.

    Raises:
        StateLocked: an engine has the state.
    """
    with _opened(state, user) as work:
        return {"action": "discard", "state": str(state), "discarded": work.discard()}


@contextmanager
def _opened(state: AnyState, user: User | None) -> Iterator[Reconsolidation]:
    try:
        store = runtime.open_made(state)
    except StateLocked as error:
        raise StateLocked(
            f"{error}. Topics are made anew where no engine runs: end it (Ctrl-C, or `raygam engine stop`), make them, "
            "switch, then start it again: it goes on from where it stood"
        ) from None
    try:
        yield Reconsolidation(store, user)
    finally:
        store.close()


def _bar(name: str) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        console=display.errors,
        transient=True,
    )


def _leave() -> None:
    os._exit(EXIT_INTERRUPTED)  # the ledger is whole at any moment; threads may wait for a model


def _document(held: Standing, found: Difference | None, *, whole: bool) -> dict[str, Any]:
    """One user's difference: the counts, and where it is `whole` every change."""
    document: dict[str, Any] = {
        "tenant": held.user.tenant,
        "user_id": held.user.user_id,
        "episodes": held.episodes,
        "model": held.label,
        "switched": held.switched,
        "outdated": held.label is not None and held.made_from != held.episodes,
        "topics": None,
        "relations": None,
    }
    if found is None:
        return document
    topics = [(_what(change), change) for change in found.topics]
    relations = [(_what(change), change) for change in found.relations]
    document |= {
        "topics": _counts([what for what, _ in topics], found.before[0], found.after[0]),
        "relations": _counts([what for what, _ in relations], found.before[1], found.after[1]),
    }
    if whole:
        document["changes"] = {
            "topics": [_topic_change(what, change) for what, change in topics],
            "relations": [_relation_change(what, change) for what, change in relations],
        }
    return document


def _what(change: TopicChange | RelationChange) -> str:
    return "added" if change.before is None else "gone" if change.after is None else "changed"


def _counts(found: list[str], before: int, after: int) -> dict[str, int]:
    return {"before": before, "after": after} | {what: found.count(what) for what in _CHANGED}


def _summed(differences: list[dict[str, Any]], of: str) -> dict[str, int]:
    return {name: sum(one[of][name] for one in differences if one[of]) for name in ("before", "after", *_CHANGED)}


def _topic_change(what: str, change: TopicChange) -> dict[str, Any]:
    return {
        "what": what,
        "episode": change.episode.id,
        "first": format_time(change.episode.first_us),
        "fields": list(change.fields),
        "before": topic_document(change.before) if change.before else None,
        "after": topic_document(change.after) if change.after else None,
    }


def _relation_change(what: str, change: RelationChange) -> dict[str, Any]:
    return {
        "what": what,
        "source_episode": change.source_episode,
        "target_episode": change.target_episode,
        "before": _relation(change.before),
        "after": _relation(change.after),
    }


def _relation(held: TopicRelation | None) -> dict[str, Any] | None:
    return None if held is None else {"type": held.type, "confidence": held.confidence}
