"""A retrieval result as plain data, for JSON and for the terminal."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from .model import ResolvedDate, Topic
from .retrieval import RankedMemory, RetrievalResult
from .times import format_time


def as_document(result: RetrievalResult, context: str | None = None) -> dict[str, Any]:
    """Return a result as JSON-able data; `context` is added if one was made."""
    document: dict[str, Any] = {
        "mode": result.mode,
        "memories": [memory_document(memory) for memory in result.memories],
        "topics": [topic_document(topic) for topic in result.topics],
        "candidate_share": result.candidate_share,
    }
    if context is not None:
        document["context"] = context
    return document


def memory_document(memory: RankedMemory) -> dict[str, Any]:
    """One memory: the turn as it was said, its score with each factor, and its provenance."""
    event = memory.event
    path = {"topic": memory.path.topic, "episode": memory.path.episode, "event": memory.path.event}
    if memory.path.via is not None:
        path = {"via": memory.path.via, **path}
    return {
        "message_id": event.message_id,
        "session_id": event.session_id,
        "speaker": event.speaker,
        "role": event.role,
        "kind": str(event.kind),
        "origin": str(event.origin),
        "text": event.text,
        "attachments": [{"caption": caption} for caption in event.captions],
        "timestamp": format_time(event.time_us),
        "dates": [_date_document(date) for date in memory.dates],
        "score": memory.score,
        "factors": asdict(memory.factors),
        "path": path,
        "superseded": memory.superseded,
        "source": memory.source,
    }


def topic_document(topic: Topic) -> dict[str, Any]:
    """One topic that narrowed the search."""
    return {
        "id": topic.id,
        "episode": topic.episode_id,
        "summary": topic.summary,
        "keywords": list(topic.keywords),
        "first": format_time(topic.first_us),
        "last": format_time(topic.last_us),
        "confidence": topic.confidence,
        "superseded_by": topic.superseded_by,
    }


def _date_document(date: ResolvedDate) -> dict[str, str]:
    return {"text": date.text, "start": date.start, "end": date.end}
