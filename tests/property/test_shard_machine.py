"""A shard over a real ledger against a reference model, whatever happens in between.

The reference applies every task at once, in one plain loop, and knows nothing of
leases, gates or crashes. After every history the shard must hold the same events in
the same episodes: nothing lost, nothing doubled, however slow or mortal its workers.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psycopg
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from raygam.adapters.postgres_store import PostgresStore
from raygam.adapters.schema import METADATA
from raygam.adapters.sqlite_store import SqliteStore
from raygam.adapters.stub_embedder import StubEmbedder
from raygam.memory.chat import ModelCall
from raygam.memory.errors import Fenced, LeaseLost, Retryable
from raygam.memory.identity import letter_id
from raygam.memory.model import Cut, Event, User
from raygam.memory.ports import Store, Vectors
from raygam.memory.progression import Limits
from raygam.memory.proposal import Candidate, Proposal, ScoredRelation, SegmentNotes
from raygam.memory.writes import DeadLetter, LeasedTask, MessageKind, SourcePosition, StateFacts, TaskChange
from raygam.pipeline.batches import TurnBatch, to_record_batch
from raygam.pipeline.outbox import OutboxRules
from raygam.pipeline.records import EndOfSession, Turn
from raygam.pipeline.shard import Shard, ShardSettings
from raygam.pipeline.worker import Models, Worker

MINUTE = 60_000_000
LIMITS = Limits(max_buffer_tokens=40, max_time_jump_us=200 * MINUTE)
TOLD = OutboxRules(dead_letters=True, updates=True)
SETTINGS = ShardSettings(limits=LIMITS, lease_seconds=60, max_attempts=1000, max_resident_users=2, outbox=TOLD)
EMBEDDER = StubEmbedder(8)
FACTS = StateFacts(1, "murmur2", EMBEDDER.name, EMBEDDER.dimension, 1)
NEW_TOPIC = "new"


class WordDetector:
    """Cuts before every turn that begins with "new"; forced, at the middle if there is none."""

    name = "word"

    def boundaries(self, events: Sequence[Event], vectors: Vectors, *, force: bool) -> list[Cut]:
        cuts = [Cut(at, 1.0, "new") for at, event in enumerate(events) if at and event.text.startswith(NEW_TOPIC)]
        if force and not cuts and len(events) > 1:
            cuts = [Cut(len(events) // 2, 0.5, "forced")]
        return cuts


class PlainSummarizer:
    """Names the first event."""

    name = "plain"

    def notes(self, events: Sequence[Event], vectors: Vectors) -> SegmentNotes:
        none: tuple[tuple[()], ...] = ((),) * len(events)
        return SegmentNotes(events[0].text, (), (), (), none, none, 0.5)


class NoRelations:
    """Relates nothing."""

    name = "none"

    def relations(self, topic: Candidate, candidates: Sequence[Candidate]) -> list[ScoredRelation]:
        return []


MODELS = Models(EMBEDDER, WordDetector(), PlainSummarizer(), NoRelations())


@dataclass
class Told:
    """A turn as the reference keeps it."""

    message_id: str
    time_us: int
    order: int
    tokens: int
    new_topic: bool


@dataclass
class ReferenceUser:
    """Sessions and episodes of one user, by the rules of the design and nothing else."""

    watermark: int | None = None
    jumped: tuple[str, Told] | None = None
    live: dict[str, list[Told]] = field(default_factory=dict)
    check_at: dict[str, int] = field(default_factory=dict)
    archived_until: dict[str, int] = field(default_factory=dict)
    episodes: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)

    def turn(self, session: str, told: Told) -> None:
        self.settle(told)
        if self.watermark is None or told.time_us - self.watermark > LIMITS.max_time_jump_us:
            self.jumped = (session, told)
        else:
            self.count(session, told, advances=told.time_us >= self.watermark)

    def command(self) -> None:
        self.settle(None)

    def settle(self, following: Told | None) -> None:
        """The turn that jumped is borne out by the next one, or an episode of its own."""
        if self.jumped is None:
            return
        session, told = self.jumped
        self.jumped = None
        if following and following.time_us >= told.time_us - LIMITS.max_time_jump_us:
            self.count(session, told, advances=True)
        elif following is None and self.watermark is None:
            self.count(session, told, advances=False)
        else:
            self.episodes.append((session, (told.message_id,)))
            if session in self.live:
                self.look_later(session)

    def count(self, session: str, told: Told, *, advances: bool) -> None:
        if advances:
            for name in sorted(self.live):
                if told.time_us - max(held.time_us for held in self.live[name]) > LIMITS.session_gap_us:
                    self.look(name, closes_tail=True)
            self.watermark = told.time_us
        held = self.live.get(session)
        if held and told.time_us - max(one.time_us for one in held) > LIMITS.pause_us:
            self.look(session)
        self.live.setdefault(session, []).append(told)
        tokens = sum(one.tokens for one in self.live[session])
        if tokens > self.check_at.get(session, LIMITS.max_buffer_tokens):
            self.look(session, force=tokens > LIMITS.force_tokens)

    def look(self, session: str, *, closes_tail: bool = False, force: bool = False) -> None:
        held = sorted(self.live.pop(session, []), key=lambda one: (one.time_us, one.order))
        until = self.archived_until.get(session, -1)
        late = [one for one in held if one.time_us < until]
        rest = [one for one in held if one.time_us >= until]
        closed = self.split(late, force=False)
        parts = self.split(rest, force=force)
        if parts and not closes_tail:
            self.live[session] = parts.pop()
            self.look_later(session)
        else:
            self.check_at.pop(session, None)
        for part in closed + parts:
            self.episodes.append((session, tuple(one.message_id for one in part)))
            end = max(one.time_us for one in part)
            self.archived_until[session] = max(end, self.archived_until.get(session, -1))

    def look_later(self, session: str) -> None:
        tokens = sum(one.tokens for one in self.live[session])
        limit = LIMITS.max_buffer_tokens
        self.check_at[session] = limit if tokens <= limit else tokens + LIMITS.recheck_tokens

    @staticmethod
    def split(held: list[Told], *, force: bool) -> list[list[Told]]:
        parts: list[list[Told]] = []
        for one in held:
            if not parts or one.new_topic:
                parts.append([])
            parts[-1].append(one)
        if force and len(parts) == 1 and len(held) > 1:
            parts = [held[: len(held) // 2], held[len(held) // 2 :]]
        return parts


class ShardMachine(RuleBasedStateMachine):
    """Ingest, claim, submit, fail, park, release, remember, retry, expire, crash and fence, in any order."""

    @initialize()
    def open(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="raygam-machine-"))
        self.store = self.make_store()
        self.now = 1_000_000_000
        self.reader = self.store.reader(0)
        self.worker = Worker(MODELS, group=3)
        self.shards: list[Shard] = []
        self.reopen()
        self.users: dict[User, ReferenceUser] = {}
        self.seen: set[tuple[User, str]] = set()
        self.order = 0
        self.sent: dict[str, list[TurnBatch]] = {"kafka:a": [], "kafka:b": []}
        self.offsets = {"kafka:a": 0, "kafka:b": 0}
        self.letters: list[str] = []
        self.told: dict[str, int] = {}
        self.leases: list[LeasedTask] = []
        self.said: dict[str, dict[str, str]] = {}
        self.asked: Counter[User] = Counter()
        self.clock = 0

    def make_store(self) -> Store:
        return SqliteStore.create_or_open(self.folder / "state", FACTS)

    def reopen(self) -> None:
        self.shards.append(Shard(self.store.writer(0), SETTINGS, lambda: self.now))

    @property
    def shard(self) -> Shard:
        return self.shards[-1]

    @rule(
        source=st.sampled_from(["kafka:a", "kafka:b", "api"]),
        turns=st.lists(
            st.tuples(
                st.sampled_from(["u", "v", "w"]),
                st.sampled_from(["s", "t"]),
                st.sampled_from([0, 1, 5, 15, 45, -20, -100, 300]),
                st.booleans(),
                st.integers(0, 60),
                st.sampled_from(["turn", "turn", "turn", "turn", "end", "bad", "wrong clock"]),
            ),
            min_size=1,
            max_size=6,
        ),
    )
    def ingest(self, source: str, turns: list[tuple[str, str, int, bool, int, str]]) -> None:
        rows: list[tuple[int, Turn | EndOfSession]] = []
        letters: list[DeadLetter] = []
        accepted = 0
        offset = self.offsets.get(source, 0)
        for name, session, minutes, new_topic, number, kind in turns:
            offset += 1 + number % 3  # logs have gaps
            user = User("t", name)
            if kind == "end":
                rows.append((offset, EndOfSession(user, session, 0)))
                reference = self.users.setdefault(user, ReferenceUser())
                reference.command()
                if session in reference.live:
                    reference.look(session, closes_tail=True)
                continue
            if kind == "bad" and source != "api":
                letters.append(DeadLetter(source, offset, "not_json", "detail", b"\xff"))
                continue
            self.clock = max(0, self.clock + max(0, minutes))
            time_us = max(0, self.clock + min(0, minutes)) * MINUTE
            if kind == "wrong clock":
                time_us += 1000 * MINUTE
            text = f"{NEW_TOPIC if new_topic else 'and'} {' '.join(['word'] * (number % 9))}".strip()
            message_id = f"m{number}"
            rows.append((offset, Turn(message_id, user, session, "Ana", "user", text, time_us, 0)))
            if (user, message_id) not in self.seen:
                self.seen.add((user, message_id))
                self.order += 1
                accepted += 1
                tokens = len(text.split())
                told = Told(message_id, time_us, self.order, tokens, new_topic)
                self.users.setdefault(user, ReferenceUser()).turn(session, told)
        records = to_record_batch(rows)
        vectors = np.zeros((len(rows), EMBEDDER.dimension), dtype=np.float32)
        vectors[:, 0] = 1.0
        position = None if source == "api" else SourcePosition(offset + 1, source)
        batch = TurnBatch(0, source, position, records, vectors, tuple(letters))
        receipt = self.shard.ingest(batch)
        assert (receipt.accepted, receipt.dead_letters) == (accepted, len(letters))
        self.letters += [letter_id(source, 0, letter.offset) for letter in letters]
        if source != "api":
            self.offsets[source] = offset + 1
            self.sent[source].append(batch)

    @rule(source=st.sampled_from(["kafka:a", "kafka:b"]), back=st.integers(0, 5))
    def send_again(self, source: str, back: int) -> None:
        if back < len(self.sent[source]):
            receipt = self.shard.ingest(self.sent[source][-1 - back])
            assert (receipt.accepted, receipt.dead_letters) == (0, 0)

    @rule()
    def flush(self) -> None:
        self.shard.flush()
        for reference in self.users.values():
            reference.command()
            for session in sorted(reference.live):
                reference.look(session, closes_tail=True)

    @rule(kind=st.sampled_from(MessageKind), limit=st.integers(1, 4), dies=st.booleans())
    def send(self, kind: MessageKind, limit: int, dies: bool) -> None:
        """Whoever sends may end before the ledger hears of it; then the same comes again."""
        messages = self.shard.messages(kind, limit, 1 << 20)
        for message in messages:
            assert self.told.setdefault(message.id, message.number) == message.number
        if messages and not dies:
            self.shard.acknowledge(kind, messages[-1].number, len(messages))

    @invariant()
    def what_is_unsent_is_counted(self) -> None:
        if hasattr(self, "users"):
            assert self.shard.unsent() == self.reader.unsent()

    @rule()
    def work(self) -> None:
        self.worker.work(self.shard, self.reader)

    @rule()
    def claim_and_die(self) -> None:
        self.leases.extend(self.shard.claim(2))

    @precondition(lambda self: self.leases)
    @rule(how=st.sampled_from(["submits", "fails", "parks", "releases", "remembers"]))
    def late_submit(self, how: str) -> None:
        """A worker that held a lease comes back; whether it still counts is the shard's to say."""
        lease = self.leases.pop(0)
        held = (lease.task.id, lease.token)
        if how in ("fails", "parks"):
            with contextlib.suppress(LeaseLost):
                self.shard.fail(*held, "worker broke", parks=how == "parks")
        elif how == "releases":
            with contextlib.suppress(LeaseLost):
                self.shard.release(*held, "the model is away")
                assert lease.lease_until_us > self.now
        elif how == "remembers":
            with contextlib.suppress(LeaseLost):
                self.shard.remember(*held, [ModelCall("key", "model", "prompt/1", 1, 0, 0, f"{self.now}")])
                assert lease.lease_until_us > self.now
                self.asked[lease.task.user] += 1
                self.said[lease.task.id] = {"key": f"{self.now}"}
                self.leases.append(lease)
        elif lease.lease_until_us <= self.now:
            (outcome,) = self.shard.submit([Proposal(lease.task.id, lease.token, ())])
            assert isinstance(outcome, LeaseLost)

    @invariant()
    def what_a_model_said_is_there_while_it_may_be_needed(self) -> None:
        if hasattr(self, "users"):
            unfinished = {task.id for task in self.reader.tasks()}
            said = {task: answers for task, answers in self.said.items() if task in unfinished}
            assert self.reader.answers(list(self.said)) == said
            assert {used.user: used.calls for used in self.reader.model_usage()} == self.asked

    @rule(at=st.integers(0, 3), parks=st.booleans())
    def a_person_parks_or_retries(self, at: int, parks: bool) -> None:
        unfinished = self.reader.tasks()[at : at + 1]
        ids = tuple(task.id for task in unfinished)
        assert self.shard.change_tasks(TaskChange(ids, "looked into" if parks else None)) == list(ids)
        for task in self.reader.tasks():
            if task.id in ids:
                assert (task.status == "parked", task.parked_by_person) == (parks, parks)

    @rule()
    def time_passes(self) -> None:
        self.now += 61_000_000

    @rule()
    def crash(self) -> None:
        """The shard is gone without a word; a new one opens the partition."""
        self.reopen()

    @precondition(lambda self: len(self.shards) > 1)
    @rule()
    def zombie_writes(self) -> None:
        turn = Turn("zombie", User("t", "u"), "s", "Ana", "user", "x", 0, 0)
        batch = TurnBatch(0, "zombie", SourcePosition(10, "z"), to_record_batch([(1, turn)]), EMBEDDER.embed(["x"]))
        with pytest.raises(Fenced):
            self.shards[-2].ingest(batch)

    @invariant()
    def every_event_is_stored_once(self) -> None:
        if not hasattr(self, "users"):
            return
        for user in self.users:
            stored = [event.message_id for event in self.reader.events(user)]
            assert sorted(stored) == sorted(name for owner, name in self.seen if owner == user)

    @invariant()
    def positions_are_the_furthest_sent(self) -> None:
        if not hasattr(self, "users"):
            return
        positions = self.shard.positions()
        for source, offset in self.offsets.items():
            if offset:
                assert positions[source].next_offset == offset

    def teardown(self) -> None:
        if not hasattr(self, "users"):
            return
        try:
            self.now += 61_000_000
            self.shard.change_tasks(TaskChange(tuple(task.id for task in self.reader.tasks())))
            while self.worker.work(self.shard, self.reader).applied:
                pass
            assert self.shard.task_counts() == (0, 0)
            for user, reference in self.users.items():
                names = {event.seq: event.message_id for event in self.reader.events(user)}
                episodes = [
                    (episode.session_id, tuple(names[seq] for seq in episode.seqs))
                    for episode in self.reader.episodes(user)
                ]
                assert sorted(episodes) == sorted(reference.episodes)
                assert len(self.reader.topics(user)) == len(episodes)
            assert len(list(self.reader.dead_letters())) == len(self.letters)
            for kind in MessageKind:
                while self.shard.unsent().get(kind):
                    self.send(kind, 4, False)
            ids = [one.id for user in self.users for one in self.reader.episodes(user)]
            assert sorted(self.told) == sorted([*self.letters, *ids])
        finally:
            self.reader.close()
            for shard in self.shards:
                shard.close()
            self.store.close()
            shutil.rmtree(self.folder)


class PostgresMachine(ShardMachine):
    """The same over a database, whose connections break as well."""

    url: str

    def make_store(self) -> Store:
        with psycopg.connect(self.url) as connection:
            for table in reversed(METADATA.sorted_tables):
                connection.execute(f"DELETE FROM raygam.{table.name}".encode())
        return PostgresStore.create_or_open(self.url, FACTS)

    @rule()
    def connections_break(self) -> None:
        """As when the server starts again; the shard is told once at most, then reads back and goes on."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        for shard in self.shards[-2:]:  # a zombie is told the same, and after that that it is fenced
            with contextlib.suppress(Retryable, Fenced):
                shard.flush([User("t", "nobody")])


@pytest.mark.long
def test_the_shard_over_a_database(postgres_url: str) -> None:
    PostgresStore.create_or_open(postgres_url, FACTS).close()
    PostgresMachine.url = postgres_url
    run_state_machine_as_test(
        PostgresMachine,
        settings=settings(max_examples=12, stateful_step_count=20, deadline=None, phases=[Phase.generate]),
    )


TestShardMachine = ShardMachine.TestCase
TestShardMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
