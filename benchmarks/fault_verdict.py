"""What is wrong with a state after faults, by the ledger's word against what the producers were told.

Pure: it compares documents (`benchmarks.state_document`) with what was sent and acknowledged.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raygam.memory.model import User

KINDS = ("lost", "doubled", "mixed", "invented", "altered", "dead_letter", "untold", "unequal", "unrecovered")
"""Kinds of deviation, each a metric.

lost: acknowledged, and in neither buffer nor episode, or not found. doubled: two events of one message, or an event in
two places, or a task applied twice. mixed: anything of one user under another. invented: stored, and sent by nobody or
in an aborted transaction only. altered: another text than was sent. dead_letter: a bad record that is no dead letter, or
not once, or a good one that is. untold: a dead letter or an episode of which no other system is told. unequal: another state than that of the undisturbed run. unrecovered: a partition that
did not answer again in time.
"""

_MARK = re.compile(r"\[(\w+)/(\w+)/(\w+)\]")
_USER_WORD = re.compile(r"\buser\d+\b")

Message = tuple[User, str]


def mark(user: User, message_id: str) -> str:
    """The words by which a turn's text says whose it is."""
    return f"[{user.tenant}/{user.user_id}/{message_id}]"


@dataclass(frozen=True, slots=True)
class Deviation:
    """One thing that is not as it must be.

    Attributes:
        kind: one of `KINDS`.
        what: for a person.
    """

    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(frozen=True, slots=True)
class LogRecord:
    """A record as the topic holds it, for readers of what is committed."""

    partition: int
    offset: int
    value: bytes | None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Told:
    """What producers sent, and what they were told of it. Threads add to it.

    Attributes:
        texts: of every turn that was sent outside of a transaction that was to be aborted.
        acknowledged: those that are in the topic for certain, with where the latest copy stands.
        aborted: turns of transactions that were never committed.
        bad: reason of the dead letter that each bad record must become, by its bytes.
    """

    texts: dict[Message, str] = field(default_factory=dict)
    acknowledged: dict[Message, tuple[int, int]] = field(default_factory=dict)
    aborted: set[Message] = field(default_factory=set)
    bad: dict[bytes, str] = field(default_factory=dict)
    bad_at: dict[tuple[int, int], str] = field(default_factory=dict)


def verify(document: Mapping[str, Any], told: Told, log: Sequence[LogRecord]) -> list[Deviation]:
    """Compare a state with what producers were told.

    Args:
        document: the state's.
        told: by the brokers.
        log: everything that a reader of committed records finds in the topic.
    """
    found: list[Deviation] = []
    stored: dict[Message, Mapping[str, Any]] = {}
    for name, user in document["users"].items():
        owner = User(*name.split("/", 1))
        found += _of_user(owner, user)
        stored |= {(owner, message_id): event for message_id, event in user["events"].items()}
    return [*found, *_against_told(stored, told, log), *_dead_letters(document["dead_letters"], told, log)]


def verify_messages(document: Mapping[str, Any], sent: Sequence[LogRecord]) -> list[Deviation]:
    """Compare what other systems are told with what the state holds: everything at least once, and nothing else.

    Args:
        document: the state's; messages that are not sent yet count as well.
        sent: the records of the topics for dead letters and for updates.
    """
    waiting = [dict(headers) for _, _, headers, _ in document["messages"]]
    told = {_told_of(headers) for headers in [*(record.headers for record in sent), *waiting]}
    must = {f"{partition} {offset}" for offset, _, _, partition in document["dead_letters"]}
    must |= {episode for user in document["users"].values() for episode in user["episodes"]}
    return [
        *(Deviation("untold", f"no message tells of the dead letter or episode {one}") for one in sorted(must - told)),
        *(Deviation("invented", f"a message tells of {one}, which the state has not") for one in sorted(told - must)),
    ]


def _told_of(headers: Mapping[str, str]) -> str:
    return f"{headers['partition']} {headers['offset']}" if "offset" in headers else headers["id"]


def differences(document: Mapping[str, Any], undisturbed: Mapping[str, Any]) -> list[Deviation]:
    """Say where a state is another one than the undisturbed run's."""
    found = []
    mine, other = document["users"], undisturbed["users"]
    for name in sorted(mine.keys() | other.keys()):
        found += _user_differences(name, mine.get(name), other.get(name))
    for part in sorted(document.keys() - {"users", "messages"}):  # messages go when they are sent
        if document[part] != undisturbed[part]:
            found.append(Deviation("unequal", f"{part}: {_said(_unlike(document[part], undisturbed[part]))}"))
    return found


def found_by_search(owner: User, message_id: str, answer: Mapping[str, Any]) -> list[Deviation]:
    """Judge the answer to a search for a turn's own text.

    Args:
        owner: whose it is.
        message_id: the turn's.
        answer: what the engine answered.
    """
    memories = answer["memories"]
    found = _foreign(owner, "an answer", [memory["text"] for memory in memories])
    if message_id not in {memory["message_id"] for memory in memories}:
        found.append(Deviation("lost", f"{mark(owner, message_id)} is not found by its own text"))
    return found


def _of_user(owner: User, user: Mapping[str, Any]) -> list[Deviation]:
    name = f"{owner.tenant}/{owner.user_id}"
    found = [Deviation("doubled", f"{name} has several events of {message}") for message in user["stored_twice"]]
    found += [Deviation("doubled", f"{name} has several vectors of {reference}") for reference in user["vectors_twice"]]
    events = user["events"]
    places = Counter(message for episode in user["episodes"].values() for message in episode["events"])
    found += [
        Deviation("doubled", f"{message} of {name} lies in {count} places of episodes")
        for message, count in places.items()
        if count > 1
    ]
    for message_id, event in events.items():
        episode = event["episode_id"]
        if tuple(event["user"]) != tuple(owner):
            found.append(Deviation("mixed", f"{message_id} of {event['user']} is read as one of {name}"))
        if episode is not None and message_id not in user["episodes"].get(episode, {"events": ()})["events"]:
            found.append(Deviation("lost", f"{message_id} of {name} lies neither in a buffer nor in episode {episode}"))
        if episode is None and message_id in places:
            found.append(Deviation("doubled", f"{message_id} of {name} lies in its buffer and in an episode"))
        if event["vector"] is None:
            found.append(Deviation("lost", f"{message_id} of {name} has no vector, and cannot be found"))
        if _MARK.findall(event["text"])[:1] != [(*owner, message_id)]:
            found.append(Deviation("mixed", f"{message_id} of {name} has the text {event['text']!r:.80}"))
    counts = user["counts"]
    if counts["events"] != len(events) or counts["topics"] != len(user["topics"]):
        found.append(
            Deviation("doubled", f"{name} counts {counts}, and has {len(events)} events, {len(user['topics'])} topics")
        )
    for topic in user["topics"].values():
        found += _foreign(owner, f"topic {topic['id']}", [topic["summary"], *topic["keywords"], *topic["entities"]])
    return found


def _foreign(owner: User, where: str, texts: Iterable[str]) -> list[Deviation]:
    joined = " ".join(texts)
    names = {f"{tenant}/{user}" for tenant, user, _ in _MARK.findall(joined) if (tenant, user) != tuple(owner)}
    names |= {word for word in _USER_WORD.findall(joined) if word != owner.user_id}
    return [Deviation("mixed", f"{where} of {owner.tenant}/{owner.user_id} speaks of {name}") for name in sorted(names)]


def _against_told(stored: Mapping[Message, Mapping[str, Any]], told: Told, log: Sequence[LogRecord]) -> list[Deviation]:
    found = [
        Deviation("lost", f"{mark(*message)} was acknowledged at {told.acknowledged[message]}, and is not stored")
        for message in told.acknowledged.keys() - stored.keys()
    ]
    for message, event in stored.items():
        text = told.texts.get(message)
        if text is None:
            why = "stood in an aborted transaction" if message in told.aborted else "was sent by nobody"
            words = mark(*message).encode()
            places = [(record.partition, record.offset) for record in log if words in (record.value or b"")]
            found.append(
                Deviation(
                    "invented", f"{mark(*message)} is stored, and {why}; the topic has it at {places or 'no place'}"
                )
            )
        elif event["text"] != text:
            found.append(Deviation("altered", f"{mark(*message)} was {text!r:.60}, and is {event['text']!r:.60}"))
    return found


def _dead_letters(
    letters: Sequence[tuple[int, str, bytes, int]], told: Told, log: Sequence[LogRecord]
) -> list[Deviation]:
    found = []
    wanted: dict[tuple[int, int], tuple[str, bytes]] = {}
    for record in log:
        reason = "blank" if record.value is None else told.bad.get(record.value)
        if reason is not None:
            wanted[(record.partition, record.offset)] = (reason, record.value or b"")
    for at, reason in told.bad_at.items():
        if wanted.get(at, ("",))[0] != reason:
            found.append(
                Deviation("lost", f"a bad record ({reason}) was acknowledged at {at}, and the topic has it not")
            )
    have: dict[tuple[int, int], tuple[str, bytes]] = {}
    for offset, reason, payload, partition in letters:
        at = (partition, offset)
        if at in have:
            found.append(Deviation("doubled", f"{at} is a dead letter twice"))
        have[at] = (reason, payload)
    for at in sorted(wanted.keys() | have.keys()):
        if wanted.get(at) != have.get(at):
            found.append(Deviation("dead_letter", f"{at} must be {wanted.get(at)!s:.90}, and is {have.get(at)!s:.90}"))
    return found


def _user_differences(name: str, mine: Any, other: Any) -> list[Deviation]:
    if mine is None or other is None:
        return [Deviation("unequal", f"{name} is {'missing' if mine is None else 'not in the undisturbed run'}")]
    found = []
    if mine["counts"]["tasks_applied"] > other["counts"]["tasks_applied"]:
        found.append(Deviation("doubled", f"{name}: {_said([(mine['counts'], other['counts'])])} (tasks applied)"))
    for part in mine:
        if mine[part] != other[part]:
            found.append(Deviation("unequal", f"{name}: {part}: {_said(_unlike(mine[part], other[part]))}"))
    return found


def _unlike(mine: Any, other: Any) -> list[tuple[Any, Any]]:
    """The first pairs that differ; None stands for what one of them has not."""
    if isinstance(mine, dict) and isinstance(other, dict):
        pairs = []
        for key in sorted(mine.keys() | other.keys(), key=str):
            if mine.get(key) != other.get(key):
                inner = _unlike(mine.get(key), other.get(key))
                pairs += [((key, one), (key, two)) for one, two in inner]
        return pairs
    if isinstance(mine, list) and isinstance(other, list):
        only = [item for item in mine if item not in other]
        missing = [item for item in other if item not in mine]
        length = max(len(only), len(missing))
        only += [None] * (length - len(only))
        missing += [None] * (length - len(missing))
        return list(zip(only, missing, strict=True)) or [(mine, other)]
    return [(mine, other)]


def _said(pairs: Sequence[tuple[Any, Any]]) -> str:
    shown = "; ".join(f"{one!s:.160} instead of {two!s:.160}" for one, two in pairs[:3])
    return shown if len(pairs) <= 3 else f"{shown}; and {len(pairs) - 3} more"
