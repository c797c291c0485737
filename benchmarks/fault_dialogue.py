"""What users say in a fault run, with all that real producers do wrong."""

from __future__ import annotations

import json
import random
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from benchmarks.fault_verdict import mark
from raygam.memory import identity
from raygam.memory.model import User

TENANTS = ("north", "south")
PROBE_TENANT = "probe"
WORDS = "garden river train ticket doctor sister holiday coffee recipe guitar match report laptop beach".split()
_MINUTE_MS = 60_000
_START_MS = 1_700_000_000_000
_BAD_SHARE = 0.02
_REMEMBERED = 400


@dataclass(frozen=True, slots=True)
class Record:
    """One record to be sent.

    Attributes:
        partition: where to.
        key: its key.
        value: its bytes; None is a tombstone.
        user: of a turn, whose it is.
        message_id: of a turn that is to be stored, its id; empty for all else.
        text: of a turn, what was said.
        reason: of a bad record, the reason of the dead letter that it must become.
    """

    partition: int
    key: bytes | None
    value: bytes | None
    user: User | None = None
    message_id: str = ""
    text: str = ""
    reason: str = ""


@dataclass(slots=True)
class _Speaker:
    """Where one user's talk stands; times in milliseconds of event time."""

    user: User
    partition: int
    key: bytes
    now_ms: int
    turns: int = 0
    sessions: list[int] = field(default_factory=lambda: [1, 2])


class Dialogue:
    """Turns of many users, record by record. Thread-safe; each caller brings its own randomness.

    Two tenants share all user ids and message ids, so that nothing but the pair tells users apart.

    Args:
        users: how many, at least two.
        partitions: the topic's.
        partitioner: how keys map to them.
    """

    def __init__(self, users: int, partitions: int, partitioner: str) -> None:
        self.partitions = partitions
        self._partitioner = partitioner
        self._lock = threading.Lock()
        self._speakers = [self._speaker(User(TENANTS[at % 2], f"user{at // 2}")) for at in range(users)]
        self._recent: deque[Record] = deque(maxlen=_REMEMBERED)
        self._numbers = 0
        self._bad = 0

    def next(self, chance: random.Random) -> Record:
        """A record: mostly a turn; also one that was sent before, the end of a session, or a bad one."""
        drawn = chance.random()
        with self._lock:
            if drawn < _BAD_SHARE:
                return self._bad_record(chance)
            if drawn < _BAD_SHARE + 0.04 and self._recent:
                return chance.choice(self._recent)
            speaker = chance.choice(self._speakers)
            if drawn < _BAD_SHARE + 0.05:
                return self._end(speaker, chance)
            record = self._turn(speaker, chance)
            self._recent.append(record)
            return record

    def fresh_turn(self, chance: random.Random) -> Record:
        """A turn that is sent once, by the caller alone."""
        with self._lock:
            return self._turn(chance.choice(self._speakers), chance)

    def probe(self, partition: int) -> Record:
        """The first turn of a user of its own, who belongs to the partition."""
        with self._lock:
            while True:
                self._numbers += 1
                speaker = self._speaker(User(PROBE_TENANT, f"user{1_000_000 + self._numbers}"))
                if speaker.partition == partition:
                    return self._turn(speaker, random.Random(self._numbers))

    def _speaker(self, user: User) -> _Speaker:
        key = identity.record_key(user)
        return _Speaker(user, identity.partition_of(key, self.partitions, self._partitioner), key, _START_MS)

    def _turn(self, speaker: _Speaker, chance: random.Random, **changed: Any) -> Record:
        speaker.turns += 1
        user, message_id = speaker.user, f"m{speaker.turns}"
        ending = chance.choice(("yesterday?", "tomorrow.", ".", ".", ".", "?"))
        text = f"{mark(user, message_id)} {' '.join(chance.choices(WORDS, k=10))} {ending}"
        session = speaker.sessions[0 if chance.random() < 0.8 else 1]  # sessions interleave
        turn = {
            "message_id": message_id,
            "tenant": user.tenant,
            "user_id": user.user_id,
            "session_id": f"s{session}",
            "speaker": chance.choice(("Ana", "Bo")),
            "role": "user",
            "text": text,
            "timestamp": self._time(speaker, chance),
        }
        value = json.dumps(turn | changed).encode()
        return Record(speaker.partition, speaker.key, value, user, message_id, text)

    def _time(self, speaker: _Speaker, chance: random.Random) -> int:
        """Event time: mostly some seconds on; also pauses, gaps, late turns and clocks that are days ahead."""
        drawn = chance.random()
        if drawn < 0.05:
            return speaker.now_ms - chance.randrange(1, 50 * _MINUTE_MS)
        if drawn < 0.055:
            return speaker.now_ms + 3 * 24 * 60 * _MINUTE_MS
        if drawn < 0.09:
            speaker.now_ms += chance.randrange(11, 28) * _MINUTE_MS
        elif drawn < 0.11:
            speaker.now_ms += chance.randrange(31, 300) * _MINUTE_MS
            speaker.sessions = [speaker.sessions[1], speaker.sessions[1] + 1]
        else:
            speaker.now_ms += chance.randrange(1, 90) * 1000
        return speaker.now_ms

    def _end(self, speaker: _Speaker, chance: random.Random) -> Record:
        ended = speaker.sessions[0]
        if chance.random() < 0.7:  # else its turns go on behind its end
            speaker.sessions = [speaker.sessions[1], speaker.sessions[1] + 1]
        end = {
            "type": "session_end",
            "tenant": speaker.user.tenant,
            "user_id": speaker.user.user_id,
            "session_id": f"s{ended}",
            "timestamp": speaker.now_ms,
        }
        return Record(speaker.partition, speaker.key, json.dumps(end).encode())

    def _bad_record(self, chance: random.Random) -> Record:
        """One that must become a dead letter; its bytes are like no other's, a tombstone's apart."""
        self._bad += 1
        name = f"bad{self._bad}"
        speaker = chance.choice(self._speakers)
        at, key = speaker.partition, speaker.key
        fine = {
            "message_id": name,
            "tenant": speaker.user.tenant,
            "user_id": speaker.user.user_id,
            "session_id": "s1",
            "speaker": "Ana",
            "role": "user",
            "text": "of no use",
            "timestamp": speaker.now_ms,
        }
        ownerless = {field: value for field, value in fine.items() if field != "user_id"}
        elsewhere = (at + 1 + chance.randrange(max(self.partitions - 1, 1))) % self.partitions
        kinds: list[tuple[str, int, Any]] = [
            ("not_json", at, f'{{"message_id": "{name}", '.encode()),
            ("missing_field", at, ownerless),
            ("bad_time", at, fine | {"timestamp": "some day"}),
            ("invalid_text", at, b'{"message_id": "' + name.encode() + b'\xff\xfe"}'),
            ("blank", at, None),
        ]
        if elsewhere != at:
            kinds.append(("wrong_partition", elsewhere, fine))
        reason, at, value = chance.choice(kinds)
        raw = json.dumps(value).encode() if isinstance(value, dict) else value
        return Record(at, key, raw, reason=reason)
