"""What every store promises: turns, their users, and transactions that are whole or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from raygam.memory.errors import RaygamError
from raygam.memory.model import User
from raygam.memory.ports import Reader, Writer
from raygam.memory.progression import Buffer, Progress
from raygam.memory.writes import BufferedEvent, CommandRow, DeadLetter, SourcePosition, UserRow, WriteSet
from tests.contract.store_rows import (
    ANNA,
    BEN,
    FACTS,
    Factory,
    archived_state,
    closed,
    everything,
    leased,
    message,
    task,
    topic,
    turn,
    turns,
    vectors,
)

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
