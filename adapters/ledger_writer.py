"""The writer of one partition over any database: opening it, and one transaction a write.

The stores connect, run transactions and say what the database's errors mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..memory.errors import LeaseLost, Misconfigured, RaygamError
from ..memory.model import Layer, User
from ..memory.progression import Progress
from ..memory.writes import SourcePosition, TaskCalls, TaskStatus, UserRow, WriteSet
from . import rows
from .outbox_rows import message_rows
from .schema import EVENT_STEP
from .shadow_writer import ShadowWriter
from .shard_ledger import ShardLedger
from .write_rules import check_write

_MAX_CACHED_OWNERS = 100_000
_KEPT_OPENINGS = 20
_MESSAGES_MADE = "outbox_messages"
"""The count of all messages that a partition ever put out: the number of the latest."""


class _Draft:
    """What the writer will hold in memory once the transaction is committed."""

    __slots__ = ("counts", "next_owner", "next_vector_seq", "owners", "sessions", "sources")

    def __init__(self, writer: LedgerWriter, counts: Mapping[str, int]) -> None:
        self.next_owner = writer._next_owner
        self.next_vector_seq = writer._next_vector_seq
        self.counts = dict(writer._counts)
        for name, added in counts.items():
            self.counts[name] = self.counts.get(name, 0) + added
        self.owners: dict[User, int] = {}
        self.sources: dict[str, int] = {}
        self.sessions: dict[int, frozenset[str]] = {}


class LedgerWriter(ShardLedger):
    """A partition opened for writing; see `Writer` in `memory/ports.py` for what is promised.

    A store's own writer connects, then calls `_open`.
    """

    def commit(self, write: WriteSet) -> None:
        """Write everything in one transaction, or nothing."""
        self._ready()
        check_write(write, self._dimension, self._next_seq)
        draft = _Draft(self, write.counts)
        numbers = [event.seq for event in write.events]
        numbers.extend(command.seq for command in write.commands)
        next_seq = max(self._next_seq, max(numbers, default=0) + 1)
        if next_seq > self._place.end_seq:
            raise Misconfigured(
                f"partition {self._place.partition} of {self._place.state} has no numbers left for new turns "
                f"(the last is {self._place.end_seq - 1}); make a new state with more partitions from the sources"
            )
        with self._errors(), self._transaction():
            self._check_epoch(self._statements.HOLD_PARTITION)
            self._find_owners(write, draft)
            self._write_positions(write, draft)
            self._settle_leases(write)
            self._write_events(write, draft)
            self._write_tasks(write, draft)
            self._write_archives(write, draft, next_seq)
            self._write_links(write, draft)
            self._write_users(write, draft)
            self._write_shadows(write, draft)
            # Turns to come are numbered behind what the vector log has by now.
            next_seq = max(next_seq, (draft.next_vector_seq - 1) // EVENT_STEP + 1)
            self._write_dead_letters(write)
            self._write_messages(write, draft)
            self._write_replays(write)
            self._session.execute(
                self._statements.ADVANCE_PARTITION,
                (
                    *(next_seq, draft.next_vector_seq, draft.next_owner, rows.encode(draft.counts)),
                    *(self._place.partition, self._epoch),
                ),
            )
        self._next_seq = next_seq
        self._next_vector_seq = draft.next_vector_seq
        self._next_owner = draft.next_owner
        self._counts = draft.counts
        self._sources.update(draft.sources)
        self._remember(draft)

    def _open(self) -> None:
        """Take the partition over and hold in memory what it says."""
        with self._errors():
            with self._transaction():
                held = self._take_over()
            self._hold(held)

    def _hold(self, held: rows.Row) -> None:
        """Hold what the partition's row says; what was held of users is forgotten."""
        self._epoch = held[1]
        self._next_seq = held[2]
        self._next_vector_seq = held[3]
        self._next_owner = held[4]
        self._counts = rows.decode_counts(held[5])
        found = self._session.execute(self._statements.READ_SOURCES, self._place.partition_here)
        self._sources: dict[str, int] = {row[0]: row[1] for row in found}
        self._owners.clear()
        self._sessions.clear()

    def _take_over(self) -> rows.Row:
        """Bump the epoch, so that an earlier writer is fenced, and return the partition's row.

        The first opening makes it.
        """
        at = self._place.partition
        if self._session.execute(self._statements.BUMP_EPOCH, (at,)).rowcount == 0:
            self._refuse_other()
            first = (at, 1, 1, 1, 1, rows.EMPTY_MAPPING)
            if self._session.executemany(self._statements.INSERT_PARTITION, [first]).rowcount == 0:
                self._session.execute(self._statements.BUMP_EPOCH, (at,))  # another has just made it
        held = self._partition_row(self._statements.READ_PARTITION)
        self._session.executemany(self._statements.INSERT_OPENING, [(at, held[1], self._opened_by)])
        self._session.execute(self._statements.FORGET_OPENINGS, (at, held[1] - _KEPT_OPENINGS))
        return held

    def _find_owners(self, write: WriteSet, draft: _Draft) -> None:
        """Give every user of the write a number; a new one gets a row."""
        users: dict[User, UserRow | None] = dict.fromkeys(event.user for event in write.events)
        users.update(dict.fromkeys(command.user for command in write.commands))
        users.update(dict.fromkeys(task.user for task in write.tasks))
        users.update(dict.fromkeys(closed.episode.user for closed in write.closed))
        users.update(dict.fromkeys(user for user, _ in write.links))
        users.update(dict.fromkeys((*(each.user for each in write.shadows), *write.switched, *write.discarded)))
        users.update((row.user, row) for row in write.users)
        draft.owners = self._stored_owners(users)
        made = []
        for user, row in users.items():
            if user not in draft.owners:
                number = self._place.owner_base + draft.next_owner
                draft.owners[user] = number
                draft.sessions[number] = frozenset()
                made.append(rows.owner_row(number, self._place.partition, row or UserRow(user, Progress())))
                draft.next_owner += 1
        if made:
            self._session.executemany(self._statements.INSERT_OWNER, made)

    def _write_positions(self, write: WriteSet, draft: _Draft) -> None:
        for source in (*write.positions, *{source for source, _ in write.event_sources}):
            if source not in self._sources and source not in draft.sources:
                draft.sources[source] = len(self._sources) + len(draft.sources) + 1
                self._move_source(source, draft.sources[source], SourcePosition(0))
        for source, position in write.positions.items():
            number = self._sources.get(source) or draft.sources[source]
            self._move_source(source, number, position)

    def _move_source(self, source: str, number: int, position: SourcePosition) -> None:
        self._session.execute(
            self._statements.MOVE_SOURCE,
            (
                *(self._place.partition, number, source),
                *(position.next_offset, position.name, position.prefix_bytes, position.prefix_hash),
            ),
        )

    def _settle_leases(self, write: WriteSet) -> None:
        for task_id, token in write.finished:
            self._settle(self._statements.FINISH_TASK, (task_id, token), task_id, token)
        if write.finished:
            applied = rows.encode([task_id for task_id, _ in write.finished])
            self._session.execute(self._statements.FORGET_ANSWERS, (applied,))
        for failure in write.failures:
            status = TaskStatus.PARKED if failure.parks else TaskStatus.OPEN
            self._settle(
                self._statements.GIVE_BACK_TASK,
                (status, int(not failure.counts), failure.error, failure.task_id, failure.token),
                failure.task_id,
                failure.token,
            )
        for asked in write.calls:
            self._write_calls(asked)
        many = self._session.executemany
        if write.reopened:
            opened = many(self._statements.REOPEN_TASK_MANY, [(task_id,) for task_id in write.reopened])
            if opened.rowcount != len(write.reopened):
                raise self._fault("a task is opened again that is not parked")
        if write.parked:
            parked = many(self._statements.PARK_TASK_MANY, [(why, task_id) for task_id, why in write.parked])
            if parked.rowcount != len(write.parked):
                raise self._fault("a task is parked that is done or not stored")

    def _write_calls(self, asked: TaskCalls) -> None:
        if asked.token is None:
            held = self._session.execute(self._statements.DONE_TASK, (asked.task_id,)).fetchone()
            if held is None:
                raise self._fault(f"calls were made again for task {asked.task_id}, which is not done")
        else:
            held = self._session.execute(self._statements.HELD_TASK, (asked.task_id, asked.token)).fetchone()
            if held is None:
                raise _lease_lost(asked.task_id, asked.token)
        many = self._session.executemany
        many(self._statements.INSERT_MODEL_CALL, rows.call_rows(asked.task_id, held[0], asked.calls))
        many(self._statements.ADD_TO_MODEL_CALL_MANY, rows.added_call_rows(asked.task_id, asked.calls))

    def _settle(self, statement: str, parameters: rows.Row, task_id: str, token: str) -> None:
        if self._session.execute(statement, parameters).rowcount != 1:
            raise _lease_lost(task_id, token)

    def _write_events(self, write: WriteSet, draft: _Draft) -> None:
        if write.events:
            owners = [draft.owners[event.user] for event in write.events]
            numbers = self._sources | draft.sources if draft.sources else self._sources
            sources: Sequence[tuple[int | None, int | None]] = [
                (numbers[source], offset) for source, offset in write.event_sources
            ] or [(None, None)] * len(write.events)
            self._session.executemany(self._statements.INSERT_EVENT, rows.event_rows(write.events, owners, sources))
            assert write.vectors is not None
            self._session.executemany(
                self._statements.INSERT_VECTOR,
                rows.event_vector_rows(write.events, owners, write.vectors, self._place.log_base),
            )
            draft.next_vector_seq = write.events[-1].seq * EVENT_STEP + 1
        if write.commands:
            self._session.executemany(
                self._statements.INSERT_COMMAND,
                [rows.command_row(draft.owners[command.user], command) for command in write.commands],
            )

    def _write_tasks(self, write: WriteSet, draft: _Draft) -> None:
        if write.tasks:
            self._session.executemany(
                self._statements.INSERT_TASK, [rows.task_row(draft.owners[task.user], task) for task in write.tasks]
            )
        for leased in write.leases:
            parameters = (leased.token, leased.lease_until_us, leased.task.id)
            self._settle(self._statements.LEASE_TASK, parameters, leased.task.id, leased.token)

    def _write_archives(self, write: WriteSet, draft: _Draft, next_seq: int) -> None:
        """Episodes, then topics, then what refers to them: a relation may name a topic of the same write."""
        if not write.closed:
            return
        closed = [(draft.owners[each.episode.user], each) for each in write.closed]
        topics = [(owner, each, each.topic) for owner, each in closed if each.topic is not None]
        many = self._session.executemany
        many(self._statements.INSERT_EPISODE, [rows.episode_row(owner, each) for owner, each in closed])
        archived = [
            (event.episode_id, rows.encode_dates(event.dates), rows.encode_list(event.entities), owner, event.seq)
            for owner, each in closed
            for event in each.events
        ]
        if many(self._statements.ARCHIVE_EVENT_MANY, archived).rowcount != len(archived):
            raise self._fault("an episode names an event that is not stored or lies in another episode")
        many(self._statements.RAISE_OPEN_FROM_MANY, [(next_seq, owner) for owner in {owner for owner, _ in closed}])
        relations = [rows.event_relation_row(owner, edge) for owner, each in closed for edge in each.relations]
        self._insert_event_relations(relations)
        many(self._statements.INSERT_TOPIC, [rows.topic_row(owner, topic) for owner, _, topic in topics])
        edges = [rows.topic_relation_row(owner, edge) for owner, each, _ in topics for edge in each.topic_relations]
        many(self._statements.INSERT_TOPIC_RELATION, edges)
        older = [(topic.id, old, owner) for owner, each, topic in topics for old in each.supersedes]
        if not {row[:2] for row in older} <= {row[1:3] for row in edges}:  # by these readers find it
            raise self._fault("a topic supersedes one that it does not relate to")
        latest = {row[1:]: row for row in older}  # of two that supersede the same one, the later made
        if many(self._statements.SUPERSEDE_TOPIC_MANY, list(latest.values())).rowcount != len(latest):
            raise self._fault("a topic supersedes one that is not stored")
        vectors = []
        for owner, each, topic in topics:
            assert each.topic_vector is not None
            (blob,) = rows.vector_blobs(each.topic_vector.reshape(1, -1))
            vectors.append((self._place.log_base + draft.next_vector_seq, owner, str(Layer.TOPIC), topic.id, 0, blob))
            draft.next_vector_seq += 1
        many(self._statements.INSERT_VECTOR, vectors)

    def _insert_event_relations(self, relations: list[rows.Row]) -> None:
        self._session.executemany(self._statements.INSERT_EVENT_RELATION, relations)

    def _write_links(self, write: WriteSet, draft: _Draft) -> None:
        """Relations of events beside an episode's own; no end of one is another user's, or nobody's."""
        if not write.links:
            return
        links = [rows.event_relation_row(draft.owners[user], relation) for user, relation in write.links]
        ends = {(owner, seq) for owner, source, target, *_ in links for seq in (source, target)}
        named = (rows.encode(sorted(ends)),)
        if {tuple(row) for row in self._session.execute(self._statements.STORED_EVENTS, named).fetchall()} != ends:
            raise self._fault("a relation names an event that its user does not have")
        self._session.executemany(self._statements.INSERT_NEW_EVENT_RELATION, links)

    def _fault(self, what: str) -> RaygamError:
        return RaygamError(
            f"partition {self._place.partition} of {self._place.state}: {what}; nothing was written. "
            "This is a fault in raygam; please report it"
        )

    def _write_users(self, write: WriteSet, draft: _Draft) -> None:
        if not write.users:
            return
        owners: list[rows.Row] = []
        upserts: list[rows.Row] = []
        unknown: list[rows.Row] = []
        dropped: list[rows.Row] = []
        for row in write.users:
            owner = draft.owners[row.user]
            owners.append(rows.owner_row(owner, self._place.partition, row))
            buffers = row.progress.buffers
            present = frozenset(buffers)
            stored = draft.sessions.get(owner)
            if stored is None:
                stored = self._sessions.get(owner)
            if stored is None:
                unknown.append((owner,))
            elif stored != present:
                dropped.extend((owner, session_id) for session_id in stored - present)
            draft.sessions[owner] = present
            upserts.extend(rows.buffer_row(owner, session_id, buffer) for session_id, buffer in buffers.items())
        self._session.executemany(self._statements.UPSERT_OWNER, owners)
        if unknown:
            self._session.executemany(self._statements.DELETE_BUFFERS_MANY, unknown)
        if dropped:
            self._session.executemany(self._statements.DELETE_BUFFER_MANY, dropped)
        self._session.executemany(self._statements.UPSERT_BUFFER, upserts)

    def _write_shadows(self, write: WriteSet, draft: _Draft) -> None:
        if not (write.shadows or write.switched or write.discarded):
            return
        writer = ShadowWriter(self._session, self._statements, self._place, self._dimension)
        for shadow in write.shadows:
            writer.keep(draft.owners[shadow.user], shadow)
        for user in write.switched:
            draft.next_vector_seq = writer.switch(draft.owners[user], user, draft.next_vector_seq)
        for user in write.discarded:
            writer.discard(draft.owners[user])

    def _write_dead_letters(self, write: WriteSet) -> None:
        if write.dead_letters:
            self._session.executemany(
                self._statements.INSERT_DEAD_LETTER,
                [
                    (self._place.partition, letter.source, letter.offset, letter.reason, letter.detail, letter.payload)
                    for letter in write.dead_letters
                ],
            )

    def _write_messages(self, write: WriteSet, draft: _Draft) -> None:
        at = self._place.partition
        for kind, until in write.acknowledged.items():
            self._session.execute(self._statements.FORGET_MESSAGES, (at, str(kind), until))
        if write.messages:
            made = draft.counts.get(_MESSAGES_MADE, 0)
            self._session.executemany(self._statements.INSERT_MESSAGE, message_rows(at, made + 1, write.messages))
            draft.counts[_MESSAGES_MADE] = made + len(write.messages)

    def _write_replays(self, write: WriteSet) -> None:
        at, many = self._place.partition, self._session.executemany
        for begun in write.replays:
            many(self._statements.INSERT_REPLAY, [(at, begun.run, 0)])
            many(self._statements.INSERT_REPLAY_LETTER, [(number, at, begun.run) for number in begun.letters])
        for run in write.replays_done:
            if self._session.execute(self._statements.END_REPLAY, (at, run)).rowcount != 1:
                raise self._fault(f"replay {run} was never begun")

    def _remember(self, draft: _Draft) -> None:
        if len(self._owners) + len(draft.owners) > _MAX_CACHED_OWNERS:
            self._owners.clear()
            self._sessions.clear()
        self._owners.update(draft.owners)
        self._sessions.update(draft.sessions)


def _lease_lost(task_id: str, token: str) -> LeaseLost:
    return LeaseLost(
        f"task {task_id} is not leased under token {token}: its lease expired or it was finished; "
        "nothing was written; drop the proposal and claim again"
    )
