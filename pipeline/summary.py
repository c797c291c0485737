"""What is in a state, as plain documents: for `show`, for the run's summary, for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..memory.errors import Rejected
from ..memory.model import Episode, Event, ResolvedDate, Topic, User
from ..memory.ports import Reader
from ..memory.times import format_time
from ..memory.writes import TaskRow, UserRow


def user_document(reader: Reader, user: User) -> dict[str, Any]:
    """Everything the graphs hold of one user: topics, relations, episodes, buffers, tasks.

    Raises:
        Rejected: the user was never seen.
    """
    if reader.version(user) is None:
        raise Rejected(f"nothing is known of user {user}; `raygam doctor --state DIR` lists how many users there are")
    events = {event.seq: event for event in reader.events(user)}
    topics = reader.topics(user)
    relations = reader.topic_relations(user)
    live: dict[str, list[Event]] = {}
    for event in events.values():
        if event.episode_id is None:
            live.setdefault(event.session_id, []).append(event)
    return {
        "tenant": user.tenant,
        "user_id": user.user_id,
        "topics": [topic_document(topic) for topic in topics],
        "relations": [
            {"source": held.source_id, "target": held.target_id, "type": held.type, "confidence": held.confidence}
            for held in relations
        ],
        "episodes": [_episode(episode, events) for episode in reader.episodes(user)],
        "buffers": [_buffer(session, sorted(held, key=lambda event: event.order)) for session, held in live.items()],
        "tasks": [_task(task) for task in reader.tasks() if task.user == user],
    }


def totals(readers: Sequence[Reader]) -> dict[str, Any]:
    """Counts over all partitions."""
    total = {"users": 0, "events": 0, "open_tasks": 0, "parked_tasks": 0, "dead_letters": 0}
    counts: dict[str, int] = {}
    for reader in readers:
        info = reader.partition_info()
        for name in total:
            total[name] += getattr(info, name)
        for name, count in info.counts.items():
            counts[name] = counts.get(name, 0) + count
    return total | {"counts": counts}


def gained(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, int]:
    """What came between two `totals`: turns, duplicates, dead letters."""
    repeated = [held["counts"].get("duplicates", 0) for held in (before, after)]
    return {
        "accepted": after["events"] - before["events"],
        "duplicates": repeated[1] - repeated[0],
        "dead_letters": after["dead_letters"] - before["dead_letters"],
    }


def user_counts(reader: Reader, row: UserRow) -> dict[str, Any]:
    """What was built for one user."""
    return {
        "tenant": row.user.tenant,
        "user_id": row.user.user_id,
        "turns": row.events,
        "episodes": len(reader.episodes(row.user)),
        "topics": row.topics,
        "relations": len(reader.topic_relations(row.user)),
    }


def _dates(dates: Sequence[ResolvedDate]) -> list[dict[str, str]]:
    return [{"text": date.text, "start": date.start, "end": date.end} for date in dates]


def relationships(topic: Topic) -> list[dict[str, str]]:
    """What a chat model read of the topic's entities."""
    return [{"subject": held.subject, "relation": held.relation, "object": held.object} for held in topic.relationships]


def topic_document(topic: Topic) -> dict[str, Any]:
    """One topic."""
    return {
        "id": topic.id,
        "episode": topic.episode_id,
        "summary": topic.summary,
        "keywords": list(topic.keywords),
        "entities": list(topic.entities),
        "dates": _dates(topic.dates),
        "first": format_time(topic.first_us),
        "last": format_time(topic.last_us),
        "confidence": topic.confidence,
        "model": topic.model,
        "superseded_by": topic.superseded_by,
        "label": topic.label,
        "facts": list(topic.facts),
        "relationships": relationships(topic),
    }


def _episode(episode: Episode, events: dict[int, Event]) -> dict[str, Any]:
    return {
        "id": episode.id,
        "session_id": episode.session_id,
        "first": format_time(episode.first_us),
        "last": format_time(episode.last_us),
        "trigger": episode.trigger,
        "detector": episode.detector,
        "confidence": round(episode.confidence, 4),
        "reason": episode.reason,
        "events": [events[seq].message_id for seq in episode.seqs],
    }


def _buffer(session: str, held: Sequence[Event]) -> dict[str, Any]:
    return {
        "session_id": session,
        "tokens": sum(event.tokens for event in held),
        "first": format_time(held[0].time_us),
        "last": format_time(held[-1].time_us),
        "events": [event.message_id for event in held],
    }


def _task(task: TaskRow) -> dict[str, Any]:
    return {
        "id": task.id,
        "session_id": task.session_id,
        "trigger": task.trigger,
        "status": str(task.status),
        "parked_by_person": task.parked_by_person,
        "attempts": task.attempts,
        "error": task.error,
    }
