"""The reader of one partition, beside its writer, over any database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from operator import itemgetter
from typing import Any

from ..memory.model import Episode, Event, EventRelation, Layer, Topic, TopicRelation, User
from ..memory.ports import Vectors
from ..memory.shadow import Consolidated, Shadow, Standing
from ..memory.writes import (
    DeadLetter,
    LoggedTopics,
    ModelUsage,
    OutboxMessage,
    PartitionInfo,
    StoredLetter,
    TaskRow,
    TaskStatus,
    UserRow,
    VectorEntries,
)
from . import rows
from .outbox_rows import first_messages
from .place import Place
from .queries import Queries
from .schema import EVENT_STEP
from .shadow_rows import to_archives, to_shadow, to_standing
from .statements import Statements

_PAGE = 1000
_LETTERS_PAGE = 64  # each may have megabytes


class LedgerReader(ABC):
    """A partition opened for reading; see `Reader` in `memory/ports.py` for what is promised.

    Args:
        place: the partition's place.
        statements: in the database's own SQL.
        queries: the same.
        dimension: of the vectors.
    """

    def __init__(self, place: Place, statements: Statements, queries: Queries, dimension: int) -> None:
        self._place = place
        self._statements = statements
        self._queries = queries
        self._dimension = dimension
        self._closed = False

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """Everything that this thread reads inside the block is of one moment."""

    @abstractmethod
    def close(self) -> None:
        """Close every connection; twice is once. A read under way closes its own when it ends."""

    @abstractmethod
    def _read(self, statement: str, parameters: tuple[Any, ...] = ()) -> list[rows.Row]:
        """All rows of a statement, of one moment."""

    def _of(self, user: User) -> tuple[Any, ...]:
        return (user.tenant, user.user_id, *self._place.owners_here)

    def version(self, user: User) -> tuple[int, int, int] | None:
        """`(last seq, tasks applied, rebuilds)` of the user, None if unknown; equal means unchanged."""
        found = self._read(self._queries.VERSION, self._of(user))
        return (found[0][0], found[0][1], found[0][2]) if found else None

    def events(self, user: User, after_seq: int = 0, seqs: Sequence[int] | None = None) -> list[Event]:
        """Events with `seq > after_seq` by `seq`, or the named ones that are stored, in the order named."""
        if seqs is None:
            found = self._read(self._queries.EVENTS_AFTER, (*self._of(user), after_seq))
        else:
            found = self._read(self._queries.EVENTS_NAMED, (rows.encode(list(seqs)), *self._of(user)))
        return [rows.to_event(user, row) for row in found]

    def episodes(self, user: User) -> list[Episode]:
        """The user's episodes by time."""
        return [rows.to_episode(user, row) for row in self._read(self._queries.EPISODES, self._of(user))]

    def topics(self, user: User) -> list[Topic]:
        """The user's topics by time, superseded ones too."""
        return [rows.to_topic(user, row) for row in self._read(self._queries.TOPICS, self._of(user))]

    def topic_relations(self, user: User) -> list[TopicRelation]:
        """The user's topic relations."""
        return [TopicRelation(*row) for row in self._read(self._queries.TOPIC_RELATIONS, self._of(user))]

    def event_relations(self, user: User) -> list[EventRelation]:
        """The user's event relations, by the events' `seq`."""
        return [EventRelation(*row) for row in self._read(self._queries.EVENT_RELATIONS, self._of(user))]

    def entries(self, user: User, after_seq: int = 0) -> VectorEntries:
        """The user's entries with a log number above `after_seq`, in order."""
        of_user, base = self._of(user), self._place.log_base
        parameters = (*of_user, after_seq // EVENT_STEP, *of_user, after_seq + base)
        found = self._read(self._queries.VECTORS_AFTER, parameters)
        found.sort(key=itemgetter(0))
        return rows.to_entries(found, self._dimension, base)

    def vectors(self, user: User, layer: Layer, refs: Sequence[str]) -> Vectors:
        """The stored vectors of the named references, in their order.

        Raises:
            KeyError: a reference has no vector.
        """
        if layer is Layer.EVENT:
            base = self._place.log_base
            wanted = rows.encode([int(ref) * EVENT_STEP + base for ref in refs])
            found = self._read(self._queries.VECTORS_NUMBERED, (wanted, *self._of(user)))
        else:
            found = self._read(self._queries.VECTORS_OF_TOPICS, (*self._of(user), rows.encode(list(refs))))
        blobs: dict[str, bytes] = dict(found)
        return rows.to_vectors([blobs[ref] for ref in refs], self._dimension)

    def turns(self, asked: Sequence[tuple[User, Sequence[int]]]) -> list[tuple[list[Event], Vectors]]:
        """For each user the events of these `seq`s and their vectors, in the order named.

        Raises:
            KeyError: the user has no such event.
        """
        lists = rows.encode([(user.tenant, user.user_id, seqs) for user, seqs in asked])
        found = {(row[0], row[2]): row for row in self._read(self._queries.TURNS, (lists, *self._place.owners_here))}
        placed = [[found[at, seq] for seq in seqs] for at, (_, seqs) in enumerate(asked)]
        vectors = rows.to_vectors([row[1] for mine in placed for row in mine], self._dimension)
        turns = []
        start = 0
        for (user, _), mine in zip(asked, placed, strict=True):
            events = [rows.to_event(user, row[2:]) for row in mine]
            turns.append((events, vectors[start : start + len(mine)]))
            start += len(mine)
        return turns

    def topics_logged(self, after: Mapping[User, int]) -> dict[User, LoggedTopics]:
        """Topics with a log number above what is named per user; a user without any is left out."""
        users = list(after)
        with self.snapshot():
            here, base = self._place.owners_here, self._place.log_base
            asked = [(user.tenant, user.user_id, after[user] + base) for user in users]
            logs = self._read(self._queries.TOPICS_LOGGED, (rows.encode(asked), *here))
            found = sorted(logs, key=itemgetter(0, 1))
            newer = [(*users[at], id_) for at, _, _, id_, *_ in found if after[users[at]]]
            superseded = self._read(self._queries.SUPERSEDED_BY, (rows.encode(newer), *here)) if newer else []
        logged = {}
        for at, group in groupby(found, key=itemgetter(0)):
            mine = list(group)
            topics = [rows.to_topic(users[at], row[3:]) for row in mine]
            ids = {topic.id for topic in topics}
            logged[users[at]] = LoggedTopics(
                mine[-1][1] - base,
                topics,
                rows.to_vectors([row[2] for row in mine], self._dimension),
                {old: new for old, new in superseded if new in ids},
            )
        return logged

    def answers(self, task_ids: Sequence[str]) -> dict[str, dict[str, str]]:
        """What chat models said for unfinished tasks, by task and `Prompt.key`; a task without any is left out."""
        found: dict[str, dict[str, str]] = {}
        asked = (rows.encode(list(task_ids)), *self._place.owners_here)
        for task_id, key, answer in self._read(self._queries.ANSWERS, asked) if task_ids else ():
            found.setdefault(task_id, {})[key] = answer
        return found

    def episode_turns(self, user: User, episode_ids: Sequence[str]) -> dict[str, tuple[list[Event], Vectors]]:
        """The events of these episodes of a user, in order, with their vectors; what does not exist is left out."""
        if not episode_ids:
            return {}
        with self.snapshot():
            wanted = rows.encode(list(dict.fromkeys(episode_ids)))
            found = self._read(self._queries.EPISODES_NAMED, (wanted, *self._of(user)))
            turns = self.turns([(user, rows.decode_numbers(seqs)) for _, seqs in found]) if found else []
        return {id_: turn for (id_, _), turn in zip(found, turns, strict=True)}

    def position(self) -> int:
        """The latest `seq` that the partition gave."""
        found = self._read(self._queries.POSITION, self._place.partition_here)
        return int(found[0][0]) - 1 if found else 0

    def users(self) -> Iterator[UserRow]:
        """Every user of the partition; read in pages, each of one moment."""
        after = self._place.owner_base
        while True:
            with self.snapshot():
                page = self._read(self._queries.USERS_PAGE, (after, *self._place.owners_here, _PAGE, 0))
                owners = rows.encode([row[0] for row in page])
                buffers = rows.group_buffers(self._read(self._statements.READ_BUFFERS, (owners,)))
            for owner, *values in page:
                yield rows.to_user_row(tuple(values), buffers.get(owner, {}))
            if len(page) < _PAGE:
                return
            after = page[-1][0]

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Records put aside, in the order in which they came."""
        return (stored.letter for stored in self.letters())

    def letters(self, after: int = 0) -> Iterator[StoredLetter]:
        """The same with their numbers, those above `after`, and whether they were replayed."""
        here = self._place.partition_here
        while page := self._read(self._queries.DEAD_LETTERS_PAGE, (after, *here, _LETTERS_PAGE, 0)):
            for number, *values, run, done in page:
                yield StoredLetter(number, DeadLetter(*values), run, bool(done))
            after = page[-1][0]

    def standings(self) -> list[Standing]:
        """Every user of the partition that has episodes, in the order in which they came."""
        return [to_standing(row) for row in self._read(self._queries.STANDINGS, self._place.owners_here)]

    def archives(self, user: User) -> list[Consolidated]:
        """The user's episodes by task, in the order in which the tasks were applied."""
        return to_archives(user, self._read(self._queries.ARCHIVES, self._of(user)))

    def shadow(self, user: User) -> Shadow | None:
        """The user's shadow; None if there is none, or if it has been switched to."""
        found = self._read(self._queries.SHADOW, self._of(user))
        return to_shadow(user, found[0], self._dimension) if found else None

    def messages(self, kind: str, limit: int, max_bytes: int) -> list[OutboxMessage]:
        """The first messages of a kind that are still to be sent, in order, with their values."""
        with self.snapshot():
            return first_messages(self._read, self._statements, self._place, kind, limit, max_bytes)

    def unsent(self) -> dict[str, int]:
        """How many messages are still to be sent, by kind."""
        return dict(self._read(self._statements.COUNT_MESSAGES, self._place.partition_here))

    def partition_info(self) -> PartitionInfo:
        """The partition at a glance, of one moment."""
        with self.snapshot():
            here, own = self._place.owners_here, self._place.partition_here
            held = self._read(self._statements.READ_PARTITION, own)
            users, events = self._read(self._queries.COUNT_USERS, here)[0]
            tasks: dict[str, int] = dict(self._read(self._queries.COUNT_TASKS, here))
            sources = self._read(self._statements.READ_SOURCES, own)
            opener = self._read(self._statements.READ_OPENERS, own)
            letters: int = self._read(self._queries.COUNT_DEAD_LETTERS, own)[0][0]
            unsent = sum(self.unsent().values())
        parked = tasks.get(TaskStatus.PARKED, 0)
        return PartitionInfo(
            partition=self._place.partition,
            epoch=held[0][1] if held else 0,
            positions={source: rows.to_position(tuple(position)) for source, _, *position in sources},
            users=users,
            events=int(events),
            open_tasks=sum(tasks.values()) - parked,
            parked_tasks=parked,
            dead_letters=letters,
            counts=rows.decode_counts(held[0][5]) if held else {},
            opened_by=opener[0][0] if opener else "",
            unsent_messages=unsent,
        )

    def tasks(self) -> list[TaskRow]:
        """Tasks that are open, leased or parked, by `(position_seq, ordinal)`."""
        return [rows.to_task(row) for row in self._read(self._statements.UNFINISHED_TASKS, self._place.owners_here)]

    def model_usage(self) -> list[ModelUsage]:
        """What chat models were asked, summed per user, model and prompt, in this order."""
        found = self._read(self._queries.MODEL_USAGE, self._place.owners_here)
        return [
            ModelUsage(User(tenant, user_id), model, prompt, *map(int, counts))
            for tenant, user_id, model, prompt, *counts in found
        ]

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._closed
