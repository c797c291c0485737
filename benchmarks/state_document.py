"""Everything a state holds that a reader can see, as one document that two runs can be compared by."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from raygam.adapters.postgres_store import PostgresStore
from raygam.adapters.sqlite_store import SqliteStore
from raygam.memory.model import Event, User
from raygam.memory.ports import Reader
from raygam.memory.writes import MessageKind, UserRow

Document = dict[str, Any]


def state_document(state: Path | str) -> Document:
    """Graphs, positions, dead letters, unsent messages and tasks of a state, named by ids and not by internal numbers.

    Nothing is passed over that should not be there: `stored_twice` of a user names the messages of which it
    has several events, `vectors_twice` what has several vectors.

    Args:
        state: a directory, or a database's URL.
    """
    store = PostgresStore.open_read_only(state) if isinstance(state, str) else SqliteStore.open_read_only(state)
    try:
        users: dict[str, Any] = {}
        letters: list[tuple[int, str, bytes, int]] = []
        positions: dict[str, int] = {}
        messages: list[Any] = []
        for partition in range(store.facts.partitions):
            reader = store.reader(partition)
            for row in reader.users():
                users[f"{row.user.tenant}/{row.user.user_id}"] = _user_document(reader, row)
            letters += [(letter.offset, letter.reason, letter.payload, partition) for letter in reader.dead_letters()]
            for kind in MessageKind:
                messages += [(one.id, one.key, one.headers, one.value) for one in reader.messages(kind, 10**6, 10**9)]
            for source, position in reader.partition_info().positions.items():
                positions[f"{partition} {source}"] = position.next_offset
        return {
            "users": users,
            "dead_letters": sorted(letters),
            "positions": positions,
            "messages": sorted(messages, key=lambda message: message[0]),
        }
    finally:
        store.close()


def _user_document(reader: Reader, row: UserRow) -> Document:
    user = row.user
    events = reader.events(user)
    names = {event.seq: event.message_id for event in events}
    log = _vectors(reader, user)
    vectors = {entry.ref: entry.vector for entry in log}
    return {
        "watermark": row.progress.watermark_us,
        "open_tasks": row.progress.open_tasks,
        "counts": {"events": row.events, "topics": row.topics, "tasks_applied": row.tasks_applied},
        "stored_twice": _repeated(event.message_id for event in events),
        "vectors_twice": _repeated(entry.ref for entry in log),
        "events": {event.message_id: _event_document(event, vectors.get(str(event.seq))) for event in events},
        "episodes": {
            episode.id: {
                "session_id": episode.session_id,
                "events": tuple(names.get(seq, f"no event {seq}") for seq in episode.seqs),
                "cut": (episode.trigger, episode.reason, episode.confidence, episode.first_us, episode.last_us),
            }
            for episode in reader.episodes(user)
        },
        "topics": {topic.id: asdict(topic) | {"vector": vectors.get(topic.id)} for topic in reader.topics(user)},
        "topic_relations": sorted(map(str, reader.topic_relations(user))),
        "event_relations": sorted(
            (names[relation.source_seq], names[relation.target_seq], relation.type, relation.weight)
            for relation in reader.event_relations(user)
        ),
    }


def _event_document(event: Event, vector: bytes | None) -> Document:
    document = event._asdict() | {"user": tuple(event.user), "metadata": dict(event.metadata), "vector": vector}
    del document["seq"]  # a number of the partition's, not of the user's
    return document


def _repeated(names: Any) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


class _Entry(NamedTuple):
    ref: str
    vector: bytes


def _vectors(reader: Reader, user: User) -> list[_Entry]:
    log = reader.entries(user)
    added = zip(log.refs, log.vectors, log.removed, strict=True)
    return [_Entry(ref, vector.tobytes()) for ref, vector, removed in added if not removed]
