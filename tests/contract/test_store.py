"""What every store promises (`Store`, `Writer`, `Reader` of the ports).

A store joins by a factory in `FACTORIES`; what is peculiar to SQLite's files is in
`test_sqlite_store.py`, to a database server in `test_postgres_store.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import psycopg
import pytest

from benchmarks.postgres_server import GivenServer
from raygam.adapters.postgres_store import PostgresStore
from raygam.adapters.schema import EVENT_STEP, METADATA
from raygam.adapters.sqlite_store import SqliteStore
from raygam.memory.chat import ModelCall
from raygam.memory.errors import Fenced, LeaseLost, Misconfigured, RaygamError, StateLocked
from raygam.memory.model import (
    Episode,
    Event,
    EventRelation,
    Layer,
    Relationship,
    ResolvedDate,
    Topic,
    TopicRelation,
    User,
)
from raygam.memory.ports import Reader, Store, Writer
from raygam.memory.progression import Buffer, Progress
from raygam.memory.shadow import Consolidated, Shadow, Standing
from raygam.memory.writes import (
    ArchivedEvent,
    BufferedEvent,
    ClosedEpisode,
    CommandRow,
    DeadLetter,
    LeasedTask,
    MessageKind,
    ModelUsage,
    OutboxMessage,
    ReplayRun,
    SourcePosition,
    StateFacts,
    StoredLetter,
    TaskCalls,
    TaskFailure,
    TaskRow,
    UserRow,
    WriteSet,
)

FACTS = StateFacts(partitions=2, partitioner="murmur2", embedder="stub", dimension=4, template=1)
ANNA = User("default", "anna")
BEN = User("default", "ben")


@dataclass(frozen=True)
class Factory:
    """How a store is made: both functions open the same state at each call."""

    create_or_open: Callable[[StateFacts], Store]
    open_read_only: Callable[[], Store]
    code: str
    """The same as Python source that binds `store`, for a process that is going to be killed."""


def _sqlite(request: pytest.FixtureRequest) -> Factory:
    directory = request.getfixturevalue("tmp_path") / "state"
    code = (
        "from pathlib import Path; from raygam.adapters.sqlite_store import SqliteStore; "
        f"store = SqliteStore.create_or_open(Path({str(directory)!r}), FACTS)"
    )
    return Factory(
        lambda facts: SqliteStore.create_or_open(directory, facts), lambda: SqliteStore.open_read_only(directory), code
    )


def _postgres(request: pytest.FixtureRequest) -> Factory:
    url: str = request.getfixturevalue("made_database")
    _empty(url)
    code = (
        "from raygam.adapters.postgres_store import PostgresStore; "
        f"store = PostgresStore.create_or_open({url!r}, FACTS)"
    )
    return Factory(
        lambda facts: PostgresStore.create_or_open(url, facts), lambda: PostgresStore.open_read_only(url), code
    )


@pytest.fixture(scope="session")
def made_database(postgres_server: GivenServer) -> str:
    """A database with a state in it, emptied for each test: making one takes longer than most tests."""
    url = postgres_server.database()
    PostgresStore.create_or_open(url, FACTS).close()
    return url


def _empty(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 1000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        for table in reversed(METADATA.sorted_tables):
            connection.execute(f"DELETE FROM raygam.{table.name}")


FACTORIES = {"sqlite": _sqlite, "postgres": _postgres}


@pytest.fixture(params=sorted(FACTORIES))
def factory(request: pytest.FixtureRequest) -> Factory:
    return FACTORIES[request.param](request)


@pytest.fixture
def store(factory: Factory) -> Iterator[Store]:
    store = factory.create_or_open(FACTS)
    yield store
    store.close()


@pytest.fixture
def writer(store: Store) -> Writer:
    return store.writer(0)


@pytest.fixture
def reader(store: Store, writer: Writer) -> Reader:
    return store.reader(0)


def turn(seq: int, user: User = ANNA, **changes: Any) -> Event:
    return Event(user, seq, f"m{seq}", "s", "Anna", "user", f"text {seq}", 1000 * seq, tokens=3)._replace(**changes)


def vector(*values: float) -> Any:
    made = np.array(values, np.float32)
    return made / np.linalg.norm(made)


def vectors(count: int) -> Any:
    return np.stack([vector(1, at, at * at, -1) for at in range(count)]) if count else None


def turns(*events: Event, **more: Any) -> WriteSet:
    return WriteSet(events=list(events), vectors=vectors(len(events)), **more)


def task(name: str, user: User = ANNA, *, seqs: tuple[int, ...] = (1, 2), at: int = 2, **changes: Any) -> TaskRow:
    made = TaskRow(
        name,
        user,
        "s",
        "pause",
        closes_tail=False,
        force=True,
        seqs=seqs,
        position_seq=at,
        ordinal=0,
        archived_until_us=None,
    )
    return replace(made, **changes)


def topic(name: str, episode: str, **changes: Any) -> Topic:
    made = Topic(
        *(name, ANNA, episode, "Sails — 帆", ("boat", "harbour"), ("Maria",)),
        *((ResolvedDate("yesterday", "2023-05-07", "2023-05-07"),), 1000, 2000, 0.9, "extractive/1"),
        label="A boat — 船",
        facts=("Maria sails.", "Łódź has a harbour."),
        relationships=(Relationship("Maria", "owns", "the boat"), Relationship("the boat", "lies in", "Łódź")),
    )
    return replace(made, **changes)


def closed(
    name: str, task_id: str, *seqs: int, ordinal: int = 0, made: Topic | None = None, **more: Any
) -> ClosedEpisode:
    episode = Episode(name, ANNA, "s", seqs, 1000 * seqs[0], 1000 * seqs[-1], "pause", "tiling/1", 0.7, "a gap")
    archived = [
        ArchivedEvent(ANNA, seq, name, (ResolvedDate("today", "2023-05-08", "2023-05-08"),), ("Maria", "Łódź"))
        for seq in seqs
    ]
    relations = tuple(EventRelation(one, other, "temporal", 0.5) for one, other in pairwise(seqs))
    given = None if made is None else vector(0, 1, 0, 0)
    return ClosedEpisode(episode, task_id, ordinal, archived, relations, made, given, **more)


def leased(made: TaskRow, token: str = "t1") -> LeasedTask:
    return LeasedTask(made, token, 5_000_000)


def everything(reader: Reader, *users: User) -> list[object]:
    """All that a reader can see, to compare before and after."""
    seen: list[object] = [reader.partition_info(), list(reader.users()), list(reader.letters()), reader.tasks()]
    seen += [reader.messages(kind, 1000, 1 << 20) for kind in MessageKind]
    seen += [reader.model_usage(), reader.answers([made.id for made in reader.tasks()])]
    for user in users or (ANNA, BEN):
        entries = reader.entries(user)
        seen += [reader.events(user), reader.episodes(user), reader.topics(user), reader.topic_relations(user)]
        seen += [reader.event_relations(user), entries.seqs.tolist(), entries.refs, entries.vectors.tolist()]
    return seen


def archived_state(writer: Writer) -> None:
    """Four turns of Anna; the first two in an episode with a topic."""
    writer.commit(turns(turn(1), turn(2), turn(3), turn(4), tasks=[task("task-1")], users=[UserRow(ANNA, Progress())]))
    writer.commit(WriteSet(leases=[leased(task("task-1"))]))
    made = closed("episode-1", "task-1", 1, 2, made=topic("topic-1", "episode-1"))
    writer.commit(WriteSet(finished=[("task-1", "t1")], closed=[made]))


# Turns.


def test_a_turn_comes_back_as_it_was(writer: Writer, reader: Reader) -> None:
    whole = turn(
        1,
        message_id="m/1 'x' \"y\"",
        text="Ich war\nin Łódź 🙂 昨天",
        utc_offset_minutes=-210,
        kind="action",
        origin="recalled",
        captions=("a boat", "une mer"),
        metadata={"deep": {"list": [1, None, 2.5, "ü"]}},
        role="assistant",
    )
    bare = turn(2, utc_offset_minutes=None, time_us=-5)
    writer.commit(turns(whole, bare, event_sources=[("file:a", 10), ("api", 3)]))
    assert reader.events(ANNA) == [whole, bare]
    assert reader.events(ANNA, after_seq=1) == [bare]
    assert reader.events(ANNA, seqs=[2, 99, 1]) == [bare, whole]
    assert reader.events(ANNA, seqs=[]) == []
    assert reader.events(BEN) == []
    assert reader.version(BEN) is None


def test_odd_ids_are_kept_apart(writer: Writer, reader: Reader) -> None:
    users = [
        User("t1", "a:b"),
        User("t1:a", "b"),
        User("t1", 'a"b'),
        User("t1", "a'; DROP TABLE event; --"),
        User("租户", "用户/一"),
        User("t1", "x" * 256),
        User("t1", "x" * 255),
        User("t1", '["t1","a"]'),
    ]
    ids = ["1", "1/2", '"', "'", "消息", "y" * 256, "a\\u0041", " "]
    events = [
        turn(at * len(ids) + offset + 1, user, message_id=name)
        for at, user in enumerate(users)
        for offset, name in enumerate(ids)
    ]
    assert writer.known_messages([(event.user, event.message_id) for event in events]) == set()
    writer.commit(turns(*events, users=[UserRow(user, Progress(), events=8) for user in users]))
    keys = {(event.user, event.message_id) for event in events}
    strangers = {(user, "2") for user in users} | {(User("t1", "a"), "1"), (User("t1:a:b", ""), "1")}
    assert writer.known_messages([*keys, *strangers]) == keys
    for user in users:
        assert [event.message_id for event in reader.events(user)] == ids
        assert len(reader.entries(user).seqs) == len(ids)
    assert set(writer.load([*users, BEN])) == set(users)


def test_a_message_is_stored_once(writer: Writer, reader: Reader) -> None:
    writer.commit(turns(turn(1)))
    before = everything(reader)
    with pytest.raises(RaygamError, match="message_id"):
        writer.commit(turns(turn(2), turn(3, message_id="m1")))
    assert everything(reader) == before
    writer.commit(turns(turn(2), turn(3, BEN, message_id="m1")))  # another user's is another message


def test_a_number_is_never_given_twice(factory: Factory) -> None:
    store = factory.create_or_open(FACTS)
    first = store.writer(0)
    assert first.counters()["seq"] == 1
    first.commit(turns(turn(1), turn(5), commands=[CommandRow(9, ANNA, "flush", "")]))
    assert first.counters()["seq"] == 10
    with pytest.raises(ValueError, match="from 10 on"):
        first.commit(turns(turn(7)))
    store.close()
    store = factory.create_or_open(FACTS)
    again = store.writer(0)
    assert again.counters()["seq"] == 10
    again.commit(turns(turn(10)))
    store.close()


def test_lists_that_do_not_belong_together_are_refused(writer: Writer, reader: Reader) -> None:
    with pytest.raises(ValueError, match="vectors"):
        writer.commit(WriteSet(events=[turn(1)], vectors=np.zeros((1, 3), np.float32)))
    with pytest.raises(ValueError, match="vectors"):
        writer.commit(WriteSet(events=[turn(1)]))
    with pytest.raises(ValueError, match="sources"):
        writer.commit(turns(turn(1), event_sources=[("a", 1), ("a", 2)]))
    assert reader.events(ANNA) == []


# One transaction.


def test_a_write_that_breaks_off_changes_nothing(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2", seqs=(3, 4), at=4)], leases=[leased(task("task-2"))]))
    before = everything(reader)
    late_fault = WriteSet(
        events=[turn(5), turn(6, BEN)],
        vectors=vectors(2),
        event_sources=[("file:new", 0), ("file:new", 9)],
        positions={"file:new": SourcePosition(20)},
        users=[UserRow(ANNA, Progress(9, 6, 0, {"s": Buffer(1, 2, 3, 4)})), UserRow(BEN, Progress())],
        commands=[CommandRow(7, BEN, "flush", "")],
        tasks=[task("task-3", BEN, seqs=(6,), at=6)],
        finished=[("task-2", "t1")],
        closed=[closed("episode-2", "task-2", 3, 4, made=topic("topic-1", "episode-2"))],  # the id is taken
        dead_letters=[DeadLetter("file:new", 15, "not_json", "", b"")],
        messages=[message("update-1")],
        counts={"duplicates": 1},
    )
    with pytest.raises(RaygamError, match=r"topic\.id"):
        writer.commit(late_fault)
    assert everything(reader) == before
    assert writer.known_messages([(BEN, "m6")]) == set()
    assert writer.load([BEN]) == {}
    assert "file:new" not in writer.positions()
    late_fault.closed = [closed("episode-2", "task-2", 3, 4, made=topic("topic-2", "episode-2"))]
    writer.commit(late_fault)  # and the writer goes on as if it had not been tried
    assert reader.partition_info().counts == {"duplicates": 1, "outbox_messages": 1}
    assert [row.user for row in reader.users()] == [ANNA, BEN]
    assert reader.version(BEN) == (0, 0, 0)
    assert reader.partition_info().positions["file:new"].next_offset == 20


class _Peeking(list[DeadLetter]):
    """Dead letters that call back while the transaction is under way, near its end."""

    def __init__(self, letters: list[DeadLetter], callback: Callable[[], None]) -> None:
        super().__init__(letters)
        self._callback = callback

    def __iter__(self) -> Iterator[DeadLetter]:
        self._callback()
        return super().__iter__()


def test_a_reader_sees_only_what_is_committed(factory: Factory, writer: Writer, reader: Reader) -> None:
    writer.commit(turns(turn(1)))
    before = everything(reader)
    seen: list[list[object]] = []

    def peek() -> None:
        seen.append(everything(reader))
        other = factory.open_read_only()  # one that opens in the middle
        seen.append(everything(other.reader(0)))
        other.close()

    letters = _Peeking([DeadLetter("api", 1, "not_json", "", b"")], peek)
    writer.commit(turns(turn(2), turn(3, BEN), dead_letters=letters))
    assert seen == [before, before]
    assert len(reader.events(ANNA)) == 2


def test_threads_read_at_once(writer: Writer, reader: Reader) -> None:
    writer.commit(turns(*(turn(seq) for seq in range(1, 101))))
    counts: list[int] = []

    def read() -> None:
        counts.extend(len(reader.events(ANNA)) for _ in range(20))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for seq in range(101, 111):
        writer.commit(turns(turn(seq)))
    for thread in threads:
        thread.join()
    assert len(counts) == 80
    assert all(100 <= count <= 110 for count in counts)


# Positions, dead letters, counts.


def test_positions_never_decrease_and_are_per_source(writer: Writer, reader: Reader) -> None:
    far = SourcePosition(100, "a.jsonl", 64, "ab")
    writer.commit(WriteSet(positions={"file:a": far, "api": SourcePosition(3)}))
    writer.commit(WriteSet(positions={"file:a": SourcePosition(40, "a.jsonl", 32, "cd"), "file:b": SourcePosition(0)}))
    assert writer.positions() == {"file:a": far, "api": SourcePosition(3), "file:b": SourcePosition(0)}
    further = SourcePosition(101, "moved.jsonl", 65, "ef")
    writer.commit(WriteSet(positions={"file:a": further}))
    assert writer.positions()["file:a"] == further
    assert reader.partition_info().positions == writer.positions()


def test_dead_letters_keep_their_bytes_and_a_replay_adds_none(writer: Writer, reader: Reader) -> None:
    payload = bytes(range(256)) * 3
    first = DeadLetter("file:a", 7, "not_json", "line 1: …", payload)
    writer.commit(WriteSet(dead_letters=[first, DeadLetter("file:a", 9, "blank", "", b"")]))
    writer.commit(WriteSet(dead_letters=[first, DeadLetter("file:b", 7, "blank", "", b"\0")]))
    assert list(reader.dead_letters()) == [
        first,
        DeadLetter("file:a", 9, "blank", "", b""),
        DeadLetter("file:b", 7, "blank", "", b"\0"),
    ]
    assert reader.partition_info().dead_letters == 3


def test_more_than_a_page_of_users_and_dead_letters(writer: Writer, reader: Reader) -> None:
    users = [User("default", f"user-{at}") for at in range(2001)]
    rows = [UserRow(user, Progress(at, 0, 0, {"s": Buffer(1, at, 0, 0)})) for at, user in enumerate(users)]
    writer.commit(WriteSet(users=rows))
    writer.commit(WriteSet(dead_letters=[DeadLetter("a", at, "blank", "", b"") for at in range(2001)]))
    assert list(reader.users()) == rows
    assert [letter.offset for letter in reader.dead_letters()] == list(range(2001))


# What leaves the engine, and letters taken up again.

UPDATE, LETTER = MessageKind.UPDATE, MessageKind.DEAD_LETTER


def message(name: str, value: bytes = b"{}", **changes: Any) -> OutboxMessage:
    return replace(OutboxMessage(UPDATE, name, b"7:default:anna", (("id", name), ("why", "ü\n")), value), **changes)


def of_letter(name: str, letter: DeadLetter) -> OutboxMessage:
    return OutboxMessage(LETTER, name, None, (("id", name),), letter=(letter.source, letter.offset))


def test_messages_come_back_in_order_until_they_are_acknowledged(writer: Writer, reader: Reader) -> None:
    letter = DeadLetter("kafka:a", 7, "not_json", "detail", bytes(range(256)))
    assert (writer.messages(UPDATE, 10, 1000), writer.unsent()) == ([], {})
    writer.commit(
        WriteSet(dead_letters=[letter], messages=[message("a"), of_letter("b", letter), message("c", b"\0c")])
    )
    writer.commit(WriteSet(messages=[message("d", key=None)]))
    for held in (writer, reader):
        updates = held.messages(UPDATE, 10, 1000)
        assert updates == [
            replace(message("a"), number=1),
            replace(message("c", b"\0c"), number=3),
            replace(message("d", key=None), number=4),
        ]
        assert held.messages(LETTER, 10, 1000) == [replace(of_letter("b", letter), value=letter.payload, number=2)]
        assert held.unsent() == {"update": 3, "dead_letter": 1}
        assert [one.id for one in held.messages(UPDATE, 2, 1000)] == ["a", "c"]
        assert [one.id for one in held.messages(UPDATE, 10, 4)] == ["a", "c"]
        assert [one.id for one in held.messages(UPDATE, 10, 1)] == ["a"]  # one that is larger than all comes alone
    assert reader.partition_info().unsent_messages == 4
    writer.commit(WriteSet(acknowledged={UPDATE: 3}))
    assert [one.id for one in reader.messages(UPDATE, 10, 1000)] == ["d"]
    assert reader.unsent() == {"update": 1, "dead_letter": 1}
    writer.commit(WriteSet(acknowledged={UPDATE: 4, LETTER: 2}))
    assert (reader.unsent(), list(reader.dead_letters())) == ({}, [letter])


def test_no_number_of_a_message_is_given_twice(factory: Factory, store: Store, writer: Writer) -> None:
    """One that was sent would be taken for another that was not."""
    writer.commit(WriteSet(messages=[message("a"), message("b")]))
    writer.commit(WriteSet(acknowledged={UPDATE: 2}, messages=[message("c")]))
    writer.commit(WriteSet(acknowledged={UPDATE: 3}))
    writer.close()
    writer = store.writer(0)
    writer.commit(WriteSet(messages=[message("d")]))
    assert [one.number for one in writer.messages(UPDATE, 10, 1000)] == [4]
    assert store.reader(0).partition_info().counts == {"outbox_messages": 4}


def test_messages_are_of_their_partition(store: Store, writer: Writer) -> None:
    other = store.writer(1)
    letter = DeadLetter("kafka:a", 7, "blank", "", b"other's")
    writer.commit(WriteSet(dead_letters=[replace(letter, payload=b"mine")], messages=[of_letter("mine", letter)]))
    other.commit(WriteSet(dead_letters=[letter], messages=[of_letter("other", letter), message("update")]))
    assert [(one.id, one.value) for one in writer.messages(LETTER, 9, 99)] == [("mine", b"mine")]
    assert [(one.id, one.value) for one in other.messages(LETTER, 9, 99)] == [("other", b"other's")]
    writer.commit(WriteSet(acknowledged={LETTER: 99, UPDATE: 99}))
    assert (writer.unsent(), store.reader(1).unsent()) == ({}, {"dead_letter": 1, "update": 1})


def test_messages_go_with_their_transaction(store: Store, writer: Writer, reader: Reader) -> None:
    writer.commit(WriteSet(messages=[message("a")]))
    strange = WriteSet(
        acknowledged={UPDATE: 1}, messages=[message("b"), of_letter("c", DeadLetter("x", 1, "", "", b""))]
    )
    with pytest.raises(RaygamError):  # there is no such letter
        writer.commit(strange)
    assert [one.id for one in reader.messages(UPDATE, 10, 1000)] == ["a"]
    heir = store.writer(0)
    with pytest.raises(Fenced):
        writer.commit(WriteSet(acknowledged={UPDATE: 1}))
    heir.commit(WriteSet(messages=[message("d")]))
    assert [(one.id, one.number) for one in reader.messages(UPDATE, 10, 1000)] == [("a", 1), ("d", 2)]


def test_a_letter_is_taken_up_once_and_says_so(writer: Writer, reader: Reader) -> None:
    letters = [DeadLetter("a", at, "blank", "", b"%d" % at) for at in range(100)]
    writer.commit(WriteSet(dead_letters=letters))
    numbers = [stored.number for stored in reader.letters()]
    assert list(reader.letters()) == [StoredLetter(number, one) for number, one in zip(numbers, letters, strict=True)]
    assert [stored.number for stored in reader.letters(after=numbers[70])] == numbers[71:]
    writer.commit(WriteSet(replays=[ReplayRun(1, (numbers[3], numbers[90]))]))
    stood = {stored.number: (stored.replay, stored.replayed) for stored in reader.letters()}
    assert [stood[numbers[at]] for at in (2, 3, 90)] == [(None, False), (1, False), (1, False)]
    writer.commit(WriteSet(replays_done=[1], replays=[ReplayRun(2, (numbers[2],))]))
    stood = {stored.number: (stored.replay, stored.replayed) for stored in reader.letters()}
    assert [stood[numbers[at]] for at in (2, 3, 90)] == [(2, False), (1, True), (1, True)]
    with pytest.raises(RaygamError, match="fault in raygam"):
        writer.commit(WriteSet(replays=[ReplayRun(3, (numbers[3],))]))
    with pytest.raises(RaygamError, match="replay 9 was never begun"):
        writer.commit(WriteSet(replays_done=[9]))
    assert list(reader.dead_letters()) == letters


def test_counts_add_up(factory: Factory, writer: Writer, reader: Reader) -> None:
    writer.commit(WriteSet(counts={"duplicates": 2, "unknown_fields": 1}))
    writer.commit(WriteSet(counts={"duplicates": 3}))
    assert reader.partition_info().counts == {"duplicates": 5, "unknown_fields": 1}


# Users.


def test_a_user_is_picked_up_whole(writer: Writer) -> None:
    buffers = {"s": Buffer(2, 6, 2000, 2048, 0), "other / session": Buffer(1, 3, 3000, 2560, 3)}
    row = UserRow(ANNA, Progress(3000, 3, 1, buffers), last_seq=6, events=5, tasks_applied=7, topics=8)
    other = turn(3, session_id="other / session")
    commands = [CommandRow(6, ANNA, "session_end", "s", 77), CommandRow(7, ANNA, "flush", "")]
    counted = CommandRow(2, ANNA, "flush", "")
    writer.commit(turns(turn(1), other, turn(4), users=[row], commands=[counted, *commands]))
    stored = writer.load([BEN, ANNA])
    assert list(stored) == [ANNA]
    assert stored[ANNA].row == row
    assert stored[ANNA].buffered == (
        BufferedEvent(1, "s", "m1", 1000, 3),
        BufferedEvent(3, "other / session", "m3", 3000, 3),
        BufferedEvent(4, "s", "m4", 4000, 3),
    )
    assert stored[ANNA].commands == tuple(commands)


def test_a_dropped_buffer_goes(factory: Factory) -> None:
    def row(*sessions: str) -> UserRow:
        return UserRow(ANNA, Progress(None, 0, 0, {session: Buffer(1, 2, 3, 4) for session in sessions}))

    store = factory.create_or_open(FACTS)
    writer = store.writer(0)
    writer.commit(WriteSet(users=[row("a", "b", "c")]))
    writer.commit(WriteSet(users=[row("b", "d")]))
    assert writer.load([ANNA])[ANNA].row == row("b", "d")
    store.close()
    store = factory.create_or_open(FACTS)
    writer = store.writer(0)  # has not read the user
    writer.commit(WriteSet(users=[row("e")]))
    assert writer.load([ANNA])[ANNA].row == row("e")
    store.close()


def test_who_is_unsettled(writer: Writer) -> None:
    users = {name: User("default", name) for name in ("buffered", "ordered", "tasked", "settled")}
    writer.commit(
        turns(
            turn(1, users["buffered"]),
            users=[UserRow(user, Progress(None, 5)) for user in users.values()],
            commands=[CommandRow(6, users["ordered"], "flush", ""), CommandRow(4, users["settled"], "flush", "")],
            tasks=[task("t", users["tasked"])],
        )
    )
    assert set(writer.unsettled_users()) == {users["buffered"], users["ordered"], users["tasked"]}


def test_archived_turns_leave_the_buffered_ones_open(writer: Writer) -> None:
    writer.commit(turns(*(turn(seq) for seq in range(1, 7)), tasks=[task("task-1"), task("task-2", ordinal=1)]))
    writer.commit(WriteSet(leases=[leased(task("task-1"))]))
    writer.commit(WriteSet(finished=[("task-1", "t1")], closed=[closed("one", "task-1", 2, 4)]))
    assert [event.seq for event in writer.load([ANNA])[ANNA].buffered] == [1, 3, 5, 6]
    writer.commit(WriteSet(leases=[leased(task("task-2"), "t2")]))
    writer.commit(
        turns(
            turn(7),
            finished=[("task-2", "t2")],
            closed=[closed("two", "task-2", 1, 3), closed("three", "task-2", 5, 6, ordinal=1)],
        )
    )
    assert [event.seq for event in writer.load([ANNA])[ANNA].buffered] == [7]
    assert writer.unsettled_users() == [ANNA]


def test_an_event_lies_in_one_episode(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"), "t2")]))
    before = everything(reader)
    for seqs in ((2, 3), (3, 99)):
        with pytest.raises(RaygamError, match="names an event"):
            writer.commit(WriteSet(finished=[("task-2", "t2")], closed=[closed("again", "task-2", *seqs)]))
    assert everything(reader) == before


# Fencing and leases.


def test_a_later_opening_fences_an_earlier_one(store: Store) -> None:
    zombie = store.writer(0)
    heir = store.writer(0)
    other = store.writer(1)
    assert heir.epoch > zombie.epoch
    with pytest.raises(Fenced, match="partition 0"):
        zombie.commit(turns(turn(1)))
    with pytest.raises(Fenced):
        zombie.commit(WriteSet())
    heir.commit(turns(turn(1)))
    other.commit(turns(turn(1, BEN)))
    assert [event.seq for event in store.reader(0).events(ANNA)] == [1]


def test_an_epoch_rises_with_every_opening(factory: Factory) -> None:
    epochs = []
    for _ in range(3):
        store = factory.create_or_open(FACTS)
        epochs.append(store.writer(0).epoch)
        store.close()
    reading = factory.open_read_only()
    assert reading.reader(0).partition_info().epoch == epochs[-1]  # a read-only opening bumps nothing
    reading.close()
    assert epochs == sorted(set(epochs))


def test_a_result_needs_its_lease(writer: Writer, reader: Reader) -> None:
    writer.commit(turns(turn(1), turn(2), tasks=[task("task-1")]))
    result = WriteSet(finished=[("task-1", "t1")], closed=[closed("one", "task-1", 1, 2)])
    for _ in range(2):
        before = everything(reader)
        with pytest.raises(LeaseLost, match="task-1"):
            writer.commit(result)  # not leased yet; then, leased under another token
        assert everything(reader) == before
        writer.commit(WriteSet(leases=[leased(task("task-1"), "other")]))
    writer.commit(WriteSet(leases=[leased(task("task-1"), "t1")]))
    with pytest.raises(LeaseLost):
        writer.commit(WriteSet(failures=[TaskFailure("task-1", "other", "late", parks=True)]))
    writer.commit(result)
    with pytest.raises(LeaseLost):
        writer.commit(result)  # applies once
    with pytest.raises(LeaseLost):
        writer.commit(WriteSet(leases=[leased(task("task-1"))]))  # nothing is left to lease
    assert [episode.id for episode in reader.episodes(ANNA)] == ["one"]
    assert reader.tasks() == []


def test_a_lost_lease_takes_the_rest_of_its_write_along(writer: Writer, reader: Reader) -> None:
    writer.commit(turns(turn(1), tasks=[task("task-1"), task("task-2", BEN)]))
    writer.commit(WriteSet(leases=[leased(task("task-1"), "a"), leased(task("task-2", BEN), "b")]))
    before = everything(reader)
    with pytest.raises(LeaseLost):
        writer.commit(turns(turn(2), finished=[("task-1", "a"), ("task-2", "lost")]))
    assert everything(reader) == before


def test_one_leased_task_of_a_user(writer: Writer, reader: Reader) -> None:
    tasks = [task("first"), task("second", ordinal=1), task("bens", BEN)]
    writer.commit(WriteSet(tasks=tasks))
    with pytest.raises(RaygamError):
        writer.commit(WriteSet(leases=[leased(tasks[0], "a"), leased(tasks[1], "b")]))
    assert {row.status for row in reader.tasks()} == {"open"}
    writer.commit(WriteSet(leases=[leased(tasks[0], "a"), leased(tasks[2], "b")]))
    writer.commit(WriteSet(finished=[("first", "a")], leases=[leased(tasks[1], "c")]))
    assert {row.id: row.status for row in reader.tasks()} == {"second": "leased", "bens": "leased"}


def test_tasks_come_back_in_order_with_what_befell_them(writer: Writer, reader: Reader) -> None:
    late = task("a-late", at=9, archived_until_us=55, closes_tail=True, force=False, trigger="flush")
    tasks = [late, task("c", ordinal=1), task("b", seqs=(5, 4, 2)), task("bens", BEN, at=1)]
    writer.commit(WriteSet(tasks=tasks))
    assert writer.unfinished_tasks() == [tasks[3], tasks[2], tasks[1], late]
    writer.commit(WriteSet(leases=[leased(tasks[2], "x"), leased(tasks[3], "y")]))
    writer.commit(
        WriteSet(failures=[TaskFailure("b", "x", "timeout", parks=False), TaskFailure("bens", "y", "bad", parks=True)])
    )
    assert reader.tasks() == [
        replace(tasks[3], status="parked", attempts=1, error="bad"),
        replace(tasks[2], attempts=1, error="timeout"),
        tasks[1],
        late,
    ]
    info = reader.partition_info()
    assert (info.open_tasks, info.parked_tasks) == (3, 1)
    writer.commit(WriteSet(leases=[leased(tasks[3], "z")]))  # a parked one may be tried again
    assert reader.tasks()[0].attempts == 2


def test_an_attempt_that_does_not_count_is_none(writer: Writer, reader: Reader) -> None:
    made = task("task-1")
    writer.commit(WriteSet(tasks=[made], leases=[leased(made)]))
    writer.commit(WriteSet(failures=[TaskFailure("task-1", "t1", "busy", parks=False, counts=False)]))
    assert reader.tasks() == [replace(made, error="busy")]
    for token in ("t2", "t3"):
        writer.commit(WriteSet(leases=[leased(made, token)]))
        writer.commit(WriteSet(failures=[TaskFailure("task-1", token, "broke", parks=False)]))
    writer.commit(WriteSet(leases=[leased(made, "t4")]))
    writer.commit(WriteSet(failures=[TaskFailure("task-1", "t4", "busy", parks=False, counts=False)]))
    assert reader.tasks() == [replace(made, attempts=2, error="busy")]


def test_tasks_are_parked_and_opened_again(writer: Writer, reader: Reader) -> None:
    tasks = [task("fails", at=1), task("waits", BEN, at=2), task("held", User("t", "anna"), at=3)]
    writer.commit(WriteSet(tasks=tasks, leases=[leased(tasks[0], "a"), leased(tasks[2], "b")]))
    writer.commit(WriteSet(failures=[TaskFailure("fails", "a", "broke", parks=True)]))
    writer.commit(WriteSet(parked=[("waits", "later"), ("held", "not now")]))
    fails = replace(tasks[0], status="parked", attempts=1, error="broke")
    waits = replace(tasks[1], status="parked", error="later", parked_by_person=True)
    held = replace(tasks[2], status="parked", attempts=1, error="not now", parked_by_person=True)
    assert reader.tasks() == writer.unfinished_tasks() == [fails, waits, held]
    with pytest.raises(LeaseLost):  # it was in a worker's hands
        writer.commit(WriteSet(finished=[("held", "b")]))
    writer.commit(WriteSet(parked=[("fails", "by hand")]))
    assert reader.tasks()[0] == replace(fails, error="by hand", parked_by_person=True)
    writer.commit(WriteSet(reopened=["fails", "held"]))
    assert reader.tasks() == [replace(tasks[0], error="by hand"), waits, replace(tasks[2], error="not now")]
    before = everything(reader)
    for wrong in (WriteSet(reopened=["waits", "held"]), WriteSet(reopened=["none"]), WriteSet(parked=[("none", "")])):
        with pytest.raises(RaygamError, match="fault in raygam"):
            writer.commit(wrong)  # one of them is open; there is no such task
        assert everything(reader) == before
    writer.commit(WriteSet(leases=[leased(tasks[0], "c")]))
    writer.commit(WriteSet(finished=[("fails", "c")]))
    with pytest.raises(RaygamError, match="fault in raygam"):
        writer.commit(WriteSet(parked=[("fails", "too late")]))


def call(key: str, calls: int, answer: str | None = None, **changes: Any) -> ModelCall:
    return replace(ModelCall(key, "model", "segments/1", calls, 100 * calls, 10 * calls, answer), **changes)


def test_calls_add_up_and_answers_stay_until_their_task_is_applied(writer: Writer, reader: Reader) -> None:
    mine, bens = task("task-1"), task("task-2", BEN)
    writer.commit(turns(turn(1), turn(2), tasks=[mine, bens], leases=[leased(mine), leased(bens, "t2")]))
    writer.commit(WriteSet(calls=[TaskCalls("task-1", "t1", [call("a", 2), call("b", 1, "{b — 帆}", dropped=3)])]))
    writer.commit(
        WriteSet(
            calls=[
                TaskCalls("task-1", "t1", [call("a", 1, "{a}", dropped=1), call("b", 1)]),  # b: asked in vain
                TaskCalls("task-2", "t2", [call("a", 1, "{bens}", prompt="links/1"), call("c", 1, "")]),
            ]
        )
    )
    assert reader.answers(["task-2", "task-1", "none"]) == {
        "task-1": {"a": "{a}", "b": "{b — 帆}"},
        "task-2": {"a": "{bens}", "c": ""},
    }
    assert reader.answers([]) == {}
    used = [
        ModelUsage(ANNA, "model", "segments/1", 5, 500, 50, 4),
        ModelUsage(BEN, "model", "links/1", 1, 100, 10, 0),
        ModelUsage(BEN, "model", "segments/1", 1, 100, 10, 0),
    ]
    assert reader.model_usage() == used
    writer.commit(WriteSet(failures=[TaskFailure("task-1", "t1", "broke", parks=False)]))
    assert reader.answers(["task-1"]) == {"task-1": {"a": "{a}", "b": "{b — 帆}"}}  # who thinks it again pays once
    writer.commit(WriteSet(leases=[leased(mine, "t3")]))
    writer.commit(WriteSet(calls=[TaskCalls("task-1", "t3", [call("a", 0, "{a}", dropped=1)])]))  # it was known
    writer.commit(WriteSet(finished=[("task-1", "t3")], closed=[closed("one", "task-1", 1, 2)]))
    assert reader.answers(["task-1", "task-2"]) == {"task-2": {"a": "{bens}", "c": ""}}
    assert reader.model_usage() == used


def test_calls_need_their_lease(store: Store, writer: Writer, reader: Reader) -> None:
    made = task("task-1")
    writer.commit(WriteSet(tasks=[made], leases=[leased(made)]))
    before = everything(reader)
    for token, name in (("other", "task-1"), ("t1", "none")):
        with pytest.raises(LeaseLost, match=name):
            writer.commit(WriteSet(calls=[TaskCalls(name, token, [call("a", 1, "{}")])]))
        assert everything(reader) == before
    writer.commit(WriteSet(failures=[TaskFailure("task-1", "t1", "late", parks=True)]))
    before = everything(reader)
    with pytest.raises(LeaseLost):
        writer.commit(WriteSet(calls=[TaskCalls("task-1", "t1", [call("a", 1, "{}")])]))
    store.writer(0)
    for late in (WriteSet(calls=[TaskCalls("task-1", "t1", [call("a", 1)])]), WriteSet(reopened=["task-1"])):
        with pytest.raises(Fenced):
            writer.commit(late)
    assert everything(reader)[1:] == before[1:]


def test_calls_are_of_their_partition(store: Store, writer: Writer, reader: Reader) -> None:
    other, made = store.writer(1), task("task-9", User("default", "cleo"))
    other.commit(WriteSet(tasks=[made], leases=[leased(made)]))
    other.commit(WriteSet(calls=[TaskCalls("task-9", "t1", [call("a", 1, "{}")])]))
    assert (reader.model_usage(), reader.answers(["task-9"])) == ([], {})
    assert (len(store.reader(1).model_usage()), store.reader(1).answers(["task-9"])) == (1, {"task-9": {"a": "{}"}})


def test_a_task_is_made_once(writer: Writer, reader: Reader) -> None:
    writer.commit(WriteSet(tasks=[task("task-1")]))
    with pytest.raises(RaygamError, match=r"task\.id"):
        writer.commit(WriteSet(tasks=[task("task-1")]))
    assert len(reader.tasks()) == 1


# Archives and the topic associative network.


def test_an_archive_does_not_end_where_a_turn_was_set_aside(writer: Writer) -> None:
    archived_state(writer)
    aside = task("task-2", seqs=(4,), trigger="ahead")
    made = closed("episode-2", "task-2", 4)
    made = replace(made, episode=replace(made.episode, trigger="ahead"))
    writer.commit(WriteSet(tasks=[aside], leases=[leased(aside)]))
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[made]))
    assert writer.archived_until_us(ANNA, "s") == 2000


def test_an_episode_and_its_topic_come_back(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(WriteSet(users=[UserRow(ANNA, Progress(), last_seq=4, events=4, tasks_applied=1, topics=1)]))
    assert reader.version(ANNA) == (4, 1, 0)
    assert reader.episodes(ANNA) == [closed("episode-1", "", 1, 2).episode]
    assert reader.topics(ANNA) == [topic("topic-1", "episode-1")]
    assert reader.event_relations(ANNA) == [EventRelation(1, 2, "temporal", 0.5)]
    events = reader.events(ANNA)
    assert [event.episode_id for event in events] == ["episode-1", "episode-1", None, None]
    assert events[0].entities == ("Maria", "Łódź")
    assert events[1].dates == (ResolvedDate("today", "2023-05-08", "2023-05-08"),)
    assert writer.archived_until_us(ANNA, "s") == 2000
    assert writer.archived_until_us(ANNA, "other") is None
    assert writer.archived_until_us(BEN, "s") is None
    assert reader.topics(BEN) == []


def test_relations_and_what_they_supersede(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    edges = (
        TopicRelation("topic-2", "topic-1", "contradict", 0.75),
        TopicRelation("topic-2", "topic-3", "causal", 1.0),
    )
    second = closed(
        *("episode-2", "task-2", 3),
        made=topic("topic-2", "episode-2", first_us=3000),
        topic_relations=edges,  # one of them to a topic of the same write
        supersedes=("topic-1",),
    )
    third = closed("episode-3", "task-2", 4, ordinal=1, made=topic("topic-3", "episode-3", first_us=4000))
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[second, third]))
    assert reader.topic_relations(ANNA) == list(edges)
    assert [(made.id, made.superseded_by) for made in reader.topics(ANNA)] == [
        ("topic-1", "topic-2"),
        ("topic-2", None),
        ("topic-3", None),
    ]


def test_a_topic_supersedes_only_what_it_relates_to(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    made = closed("episode-2", "task-2", 3, made=topic("topic-2", "episode-2"), supersedes=("topic-1",))
    before = everything(reader)
    with pytest.raises(RaygamError, match="does not relate to"):
        writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[made]))
    assert everything(reader) == before


def test_turns_of_many_users_come_with_their_vectors(writer: Writer, reader: Reader) -> None:
    odd = turn(3, captions=("a boat",), metadata={"a": [1]})
    writer.commit(turns(turn(1), turn(2, BEN), odd, turn(4, BEN)))
    found = reader.turns([(BEN, (4, 2)), (ANNA, (1, 3)), (ANNA, ())])
    assert [events for events, _ in found] == [
        reader.events(BEN, seqs=(4, 2)),
        [turn(1), odd],
        [],
    ]
    for (user, seqs), (_, rows) in zip([(BEN, "42"), (ANNA, "13")], found, strict=False):
        assert rows.tolist() == reader.vectors(user, Layer.EVENT, list(seqs)).tolist()
    assert found[2][1].shape == (0, 4)
    with pytest.raises(KeyError):
        reader.turns([(ANNA, (1, 2))])  # 2 is another's


def test_topics_are_read_from_a_place_of_the_log_on(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    first = reader.topics_logged({ANNA: 0, BEN: 0})
    assert list(first) == [ANNA]
    assert first[ANNA].topics == reader.topics(ANNA)
    assert first[ANNA].vectors.tolist() == reader.vectors(ANNA, Layer.TOPIC, ["topic-1"]).tolist()
    assert reader.topics_logged({ANNA: first[ANNA].log_seq}) == {}
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    second = closed(
        *("episode-2", "task-2", 3),
        made=topic("topic-2", "episode-2", first_us=3000),
        topic_relations=(TopicRelation("topic-2", "topic-1", "contradict", 0.75),),
        supersedes=("topic-1",),
    )
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[second]))
    later = reader.topics_logged({ANNA: first[ANNA].log_seq})[ANNA]
    assert [made.id for made in later.topics] == ["topic-2"]
    assert later.superseded == {"topic-1": "topic-2"}
    whole = reader.topics_logged({ANNA: 0})[ANNA]
    assert whole.topics == reader.topics(ANNA)
    assert whole.log_seq == later.log_seq


def test_many_relations_of_events_are_stored(writer: Writer, reader: Reader) -> None:
    """More than go into one statement, and some beside."""
    count = 250
    writer.commit(turns(*(turn(seq) for seq in range(1, count + 1)), tasks=[task("task-1")]))
    writer.commit(WriteSet(leases=[leased(task("task-1"))]))
    made = closed("episode-1", "task-1", *range(1, count + 1))
    writer.commit(WriteSet(finished=[("task-1", "t1")], closed=[made]))
    assert reader.event_relations(ANNA) == list(made.relations)


def test_links_reach_beyond_episodes(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(turns(turn(5, BEN), tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    links = [EventRelation(3, 1, "causal", 0.5), EventRelation(3, 2, "entity", 1.0)]
    twice = [
        *links,
        links[0],
        EventRelation(1, 2, "temporal", 0.75),
    ]  # the last one is of the archive, and stays as it is
    made = closed("episode-2", "task-2", 3, 4)
    write = WriteSet(finished=[("task-2", "t1")], closed=[made], links=[(ANNA, link) for link in twice])
    before = everything(reader)
    for source, target in ((3, 5), (5, 3), (3, 9)):  # 5 is Ben's, 9 nobody's
        wrong = replace(write, links=[*write.links, (ANNA, EventRelation(source, target, "causal", 0.5))])
        with pytest.raises(RaygamError, match="names an event that its user does not have"):
            writer.commit(wrong)
        assert everything(reader) == before
    with pytest.raises(RaygamError, match="fault in raygam"):
        writer.commit(replace(write, links=[(ANNA, EventRelation(3, 1, "unrelated", 0.5))]))
    writer.commit(write)
    assert reader.event_relations(ANNA) == [
        EventRelation(1, 2, "temporal", 0.5),
        links[0],
        links[1],
        EventRelation(3, 4, "temporal", 0.5),
    ]
    assert reader.event_relations(BEN) == []


def test_turns_of_episodes_come_with_their_vectors(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    second = task("task-2")
    writer.commit(WriteSet(tasks=[second], leases=[leased(second)]))
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[closed("episode-2", "task-2", 4, 3)]))
    found = reader.episode_turns(ANNA, ["episode-2", "none", "episode-1", "episode-2"])
    assert list(found) == ["episode-2", "episode-1"]
    for name, seqs in (("episode-1", (1, 2)), ("episode-2", (4, 3))):
        events, rows = found[name]
        assert events == reader.events(ANNA, seqs=seqs)
        assert rows.tolist() == reader.vectors(ANNA, Layer.EVENT, [str(seq) for seq in seqs]).tolist()
    assert reader.episode_turns(BEN, ["episode-1"]) == {}  # Anna's
    assert reader.episode_turns(ANNA, []) == reader.episode_turns(ANNA, ["none"]) == {}


@pytest.mark.parametrize(
    ("fault", "change"),
    [
        ("unrelated", {"topic_relations": (TopicRelation("topic-2", "topic-1", "unrelated", 0.9),)}),
        ("no such topic", {"topic_relations": (TopicRelation("topic-2", "nowhere", "causal", 0.9),)}),
        ("itself", {"topic_relations": (TopicRelation("topic-2", "topic-2", "causal", 0.9),)}),
        ("confidence", {"topic_relations": (TopicRelation("topic-2", "topic-1", "causal", 1.1),)}),
        ("superseded nothing", {"supersedes": ("nowhere",)}),
        ("place taken", {"task_id": "task-1"}),
        ("no such task", {"task_id": "nowhere"}),
        ("archive of another topic", {"topic": topic("topic-2", "episode-1")}),
        ("no archive", {"topic": topic("topic-2", "nowhere")}),
    ],
)
def test_a_graph_that_breaks_a_rule_is_refused(
    writer: Writer, reader: Reader, fault: str, change: dict[str, Any]
) -> None:
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2")], leases=[leased(task("task-2"))]))
    before = everything(reader)
    made = closed("episode-2", "task-2", 3, 4, made=topic("topic-2", "episode-2"))
    with pytest.raises(RaygamError, match="fault in raygam"):
        writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[replace(made, **change)]))
    assert everything(reader) == before
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[made]))


# The vector log.


def test_the_vector_log_is_in_order_and_goes_on_from_anywhere(writer: Writer, reader: Reader) -> None:
    archived_state(writer)
    writer.commit(turns(turn(5, BEN), turn(6), turn(7)))
    whole = reader.entries(ANNA)
    assert whole.refs == ["1", "2", "3", "4", "topic-1", "6", "7"]
    assert whole.layers == [*[Layer.EVENT] * 4, Layer.TOPIC, Layer.EVENT, Layer.EVENT]
    assert whole.removed == [False] * 7
    assert whole.vectors.dtype == np.float32
    given = np.concatenate([vectors(4), [vector(0, 1, 0, 0)], vectors(3)[1:]])
    np.testing.assert_allclose(whole.vectors, given, atol=5e-4)
    assert np.all(np.diff(whole.seqs) > 0)
    assert reader.entries(BEN).refs == ["5"]
    for at, number in enumerate(whole.seqs.tolist()):
        rest = reader.entries(ANNA, after_seq=number)
        assert rest.refs == whole.refs[at + 1 :]
        assert rest.seqs.tolist() == whole.seqs[at + 1 :].tolist()
        assert reader.entries(ANNA, after_seq=number - 1).refs == whole.refs[at:]
    nothing = reader.entries(User("default", "nobody"))
    assert (nothing.vectors.shape, nothing.refs) == ((0, 4), [])


def test_log_numbers_rise_over_writes_of_every_kind(factory: Factory) -> None:
    """A number given later is greater: an index that carried up to N never misses one."""
    seen: list[int] = []
    store = factory.create_or_open(FACTS)
    writer = store.writer(0)
    for at in range(1, 5):
        first = 10 * at
        name = f"task-{at}"
        writer.commit(turns(*(turn(first + step) for step in range(3)), tasks=[task(name)]))
        writer.commit(WriteSet(leases=[leased(task(name))]))
        made = closed(f"e{at}", name, first, made=topic(f"topic-{at}", f"e{at}"))
        also = closed(f"f{at}", name, first + 1, ordinal=1, made=topic(f"topic+{at}", f"f{at}"))
        with_turns = turns(turn(first + 5)) if at % 2 else WriteSet()
        with_turns.finished, with_turns.closed = [(name, "t1")], [made, also]
        writer.commit(with_turns)
        numbers = store.reader(0).entries(ANNA).seqs.tolist()
        assert numbers[: len(seen)] == seen
        assert numbers == sorted(set(numbers))
        assert len(numbers) == len(seen) + 5 + at % 2
        seen = numbers
        if at == 2:
            store.close()
            store = factory.create_or_open(FACTS)
            writer = store.writer(0)
    store.close()


# Opening.


def test_a_state_made_with_other_facts_is_refused_and_left_alone(factory: Factory) -> None:
    store = factory.create_or_open(FACTS)
    store.writer(0).commit(turns(turn(1)))
    store.close()
    others: dict[str, Any] = {
        "partitions": 3,
        "partitioner": "crc32",
        "embedder": "other-model",
        "dimension": 5,
        "template": 2,
    }
    for name, value in others.items():
        with pytest.raises(Misconfigured) as refused:
            factory.create_or_open(replace(FACTS, **{name: value}))
        message = str(refused.value)
        assert name in message
        assert repr(getattr(FACTS, name)) in message
        assert repr(value) in message
        assert "make a new state" in message
    store = factory.create_or_open(FACTS)
    assert store.facts == FACTS
    assert len(store.reader(0).events(ANNA)) == 1
    store.close()


def test_reading_only(factory: Factory, store: Store) -> None:
    store.writer(0).commit(turns(turn(1)))
    reading = factory.open_read_only()  # beside the writer
    assert reading.facts == FACTS
    assert len(reading.reader(0).events(ANNA)) == 1
    assert reading.reader(1).events(ANNA) == []  # a partition that nobody has written to
    assert reading.reader(1).partition_info().epoch == 0
    with pytest.raises(Misconfigured, match="reading only"):
        reading.writer(0)
    for partition in (-1, 2):
        with pytest.raises(Misconfigured, match="partitions are 0 to 1"):
            reading.reader(partition)
    reading.close()


def test_one_engine_writes(factory: Factory, store: Store) -> None:
    with pytest.raises(StateLocked, match=f"pid {os.getpid()}"):
        factory.create_or_open(FACTS)


def test_a_closed_reader_says_so(store: Store, writer: Writer) -> None:
    reader = store.reader(0)
    reader.close()
    reader.close()
    with pytest.raises(Misconfigured, match="closed"):
        reader.events(ANNA)


_KILLED = """
import os, signal, sys
import numpy as np
from raygam.memory.model import Event, User
from raygam.memory.writes import DeadLetter, SourcePosition, StateFacts, WriteSet

FACTS = StateFacts({facts})
{code}
writer = store.writer(0)

def write(seq, **more):
    anna = User("default", "anna")
    event = Event(anna, seq, f"m{{seq}}", "s", "Anna", "user", "text", 1000 * seq)
    return WriteSet(events=[event], vectors=np.ones((1, 4), np.float32), positions={{"a": SourcePosition(seq)}}, **more)

class Killing(list):
    def __iter__(self):
        os.kill(os.getpid(), signal.SIGKILL)  # in the middle of the transaction
        return super().__iter__()

writer.commit(write(1))
writer.commit(write(2, dead_letters=Killing([DeadLetter("a", 1, "blank", "", b"")])))
"""


def test_a_kill_in_the_middle_of_a_transaction_leaves_the_one_before(factory: Factory) -> None:
    facts = ", ".join(repr(getattr(FACTS, name)) for name in FACTS.__dataclass_fields__)
    source = _KILLED.format(facts=facts, code=factory.code)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    reading = factory.open_read_only()  # before any writer has tidied up
    reader = reading.reader(0)
    assert [event.message_id for event in reader.events(ANNA)] == ["m1"]
    store = factory.create_or_open(FACTS)  # the lock went with the process
    writer = store.writer(0)
    assert writer.positions() == {"a": SourcePosition(1)}
    assert writer.counters()["seq"] == 2
    writer.commit(turns(turn(2)))
    assert [event.seq for event in reader.events(ANNA)] == [1, 2]
    assert reader.entries(ANNA).refs == ["1", "2"]
    assert list(reader.dead_letters()) == []
    reading.close()
    store.close()


# Shadows.


def shadowed(*made: Topic, label: str = "other/1", episodes: int = 1, relations: Any = ()) -> Shadow:
    return Shadow(ANNA, label, episodes, made, vectors(len(made) + 1)[1:], tuple(relations))


def two_topics(writer: Writer) -> None:
    """Anna's four turns in two episodes, the later one's topic superseding the other's."""
    archived_state(writer)
    writer.commit(WriteSet(tasks=[task("task-2", at=4)], leases=[leased(task("task-2"))]))
    second = closed(
        *("episode-2", "task-2", 3, 4),
        made=topic("topic-2", "episode-2", first_us=3000),
        topic_relations=(TopicRelation("topic-2", "topic-1", "contradict", 0.75),),
        supersedes=("topic-1",),
    )
    row = UserRow(ANNA, Progress(), last_seq=4, events=4, tasks_applied=2, topics=2)
    writer.commit(WriteSet(finished=[("task-2", "t1")], closed=[second], users=[row]))


ANEW = (
    topic("topic-1", "episode-1", summary="Rope", superseded_by="topic-2", label="rope", facts=("it holds",)),
    topic("topic-2", "episode-2", summary="Sail", first_us=3000, model="other/1"),
)
EDGES = (TopicRelation("topic-2", "topic-1", "causal", 0.875),)


def test_a_shadow_is_read_by_nobody_until_it_is_switched_to(writer: Writer, reader: Reader) -> None:
    two_topics(writer)
    before = everything(reader)
    assert reader.standings() == [Standing(ANNA, 2)]
    assert reader.archives(ANNA) == [
        Consolidated("task-1", (closed("episode-1", "task-1", 1, 2).episode,)),
        Consolidated("task-2", (closed("episode-2", "task-2", 3, 4).episode,)),
    ]
    assert reader.archives(BEN) == []
    writer.commit(WriteSet(shadows=[shadowed(*ANEW[:1], episodes=1)]))
    made = shadowed(*ANEW, episodes=2, relations=EDGES)
    writer.commit(WriteSet(shadows=[made]))
    assert everything(reader) == before
    assert reader.standings() == [Standing(ANNA, 2, "other/1", 2)]
    kept = reader.shadow(ANNA)
    assert kept is not None
    assert (kept.label, kept.topics, kept.relations) == (made.label, made.topics, made.relations)
    assert np.allclose(kept.vectors, made.vectors, atol=1e-3)
    assert reader.shadow(BEN) is None
    met = reader.topics_logged({ANNA: 0})[ANNA]
    last = int(reader.entries(ANNA).seqs[-1])

    writer.commit(WriteSet(switched=[ANNA]))
    assert reader.topics(ANNA) == list(ANEW)
    assert reader.topic_relations(ANNA) == list(EDGES)
    assert reader.version(ANNA) == (4, 2, 1)
    assert [row.topics for row in reader.users()] == [2]
    assert reader.vectors(ANNA, Layer.TOPIC, ["topic-2", "topic-1"]).tolist() == kept.vectors[::-1].tolist()
    since = reader.entries(ANNA, last)
    assert (since.refs, since.removed) == (["topic-1", "topic-2"], [False, False])
    assert since.vectors.tolist() == kept.vectors.tolist()
    assert reader.entries(ANNA).refs == ["1", "2", "3", "4", "topic-1", "topic-2"], "the old vectors are gone"
    logged = reader.topics_logged({ANNA: met.log_seq, BEN: 0})[ANNA]
    assert (logged.topics, logged.log_seq) == (list(ANEW), since.seqs[-1])
    assert reader.topics_logged({ANNA: logged.log_seq}) == {}
    assert reader.topics_logged({ANNA: 0})[ANNA].topics == list(ANEW)
    assert reader.standings() == [Standing(ANNA, 2, "other/1", 2, switched=True)]
    assert reader.shadow(ANNA) is None

    writer.commit(turns(turn(writer.counters()["seq"])))
    assert reader.entries(ANNA, int(since.seqs[-1])).layers == [Layer.EVENT], "numbers go on rising"
    writer.commit(WriteSet(users=[UserRow(ANNA, Progress(), last_seq=5, events=5, tasks_applied=2, topics=2)]))
    assert reader.version(ANNA) == (5, 2, 1), "a user's row does not bring the old count back"


def test_turns_are_numbered_behind_what_a_switch_adds_to_the_log(writer: Writer, reader: Reader) -> None:
    """A million topics replaced between two turns leave the first turn's numbers behind."""
    two_topics(writer)
    writer.commit(WriteSet(shadows=[shadowed(*ANEW, episodes=2, relations=EDGES)]))
    last: Any = writer
    last._next_vector_seq = writer.counters()["seq"] * EVENT_STEP - 1
    writer.commit(WriteSet(switched=[ANNA]))
    at = int(reader.entries(ANNA).seqs[-1])
    writer.commit(turns(turn(writer.counters()["seq"])))
    assert reader.entries(ANNA, at).layers == [Layer.EVENT]
    assert sorted(reader.entries(ANNA).seqs) == reader.entries(ANNA).seqs.tolist()


def test_a_switch_gives_a_topic_to_an_episode_that_had_none(writer: Writer, reader: Reader) -> None:
    two_topics(writer)
    writer.commit(WriteSet(tasks=[task("task-3", at=5)], leases=[leased(task("task-3"))]))
    third = turn(writer.counters()["seq"])
    writer.commit(turns(third))
    writer.commit(WriteSet(finished=[("task-3", "t1")], closed=[closed("episode-3", "task-3", third.seq)]))
    added = topic("topic-3", "episode-3", first_us=5000)
    writer.commit(WriteSet(shadows=[shadowed(*ANEW, added, episodes=3, relations=EDGES)]))
    writer.commit(WriteSet(switched=[ANNA]))
    assert reader.topics(ANNA) == [*ANEW, added]


def test_a_shadow_that_is_dropped_leaves_nothing(writer: Writer, reader: Reader) -> None:
    two_topics(writer)
    before = everything(reader)
    writer.commit(WriteSet(shadows=[shadowed(*ANEW, episodes=2, relations=EDGES)]))
    writer.commit(WriteSet(discarded=[ANNA]))
    assert reader.standings() == [Standing(ANNA, 2)]
    assert everything(reader) == before


def test_a_switch_is_refused_where_it_would_lose_an_episode(writer: Writer, reader: Reader) -> None:
    two_topics(writer)
    before = everything(reader)
    with pytest.raises(RaygamError, match="there is none"):
        writer.commit(WriteSet(switched=[ANNA]))
    writer.commit(WriteSet(shadows=[shadowed(ANEW[1], episodes=1)]))
    with pytest.raises(RaygamError, match="1 of 2 episodes"):
        writer.commit(WriteSet(switched=[ANNA]))
    writer.commit(WriteSet(shadows=[shadowed(ANEW[1], episodes=2)]))
    with pytest.raises(RaygamError, match="lacks the topics topic-1"):
        writer.commit(WriteSet(switched=[ANNA]))
    with pytest.raises(ValueError, match="shadow"):
        writer.commit(WriteSet(shadows=[replace(shadowed(*ANEW), vectors=vectors(1))]))
    assert everything(reader) == before


def test_calls_for_a_task_that_is_done_are_kept_until_its_topics_are_switched_to(
    writer: Writer, reader: Reader
) -> None:
    two_topics(writer)
    call = ModelCall("key", "model", "summary/1", 2, 30, 5, "said")
    writer.commit(WriteSet(calls=[TaskCalls("task-1", None, [call])]))
    assert reader.answers(["task-1", "task-2"]) == {"task-1": {"key": "said"}}
    writer.commit(WriteSet(tasks=[task("task-3")]))
    with pytest.raises(RaygamError, match="task-3, which is not done"):
        writer.commit(WriteSet(calls=[TaskCalls("task-3", None, [call])]))
    writer.commit(WriteSet(leases=[leased(task("task-3"))]))
    writer.commit(WriteSet(calls=[TaskCalls("task-3", "t1", [call])]))
    writer.commit(WriteSet(shadows=[shadowed(*ANEW, episodes=2, relations=EDGES)]))
    writer.commit(WriteSet(switched=[ANNA]))
    assert reader.answers(["task-1", "task-3"]) == {"task-3": {"key": "said"}}, "a task in work keeps its own"
    (usage,) = reader.model_usage()
    assert (usage.calls, usage.prompt_tokens) == (4, 60)
