"""What every store promises: messages that leave the engine, and dead letters taken up again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from raygam.memory.errors import Fenced, RaygamError
from raygam.memory.ports import Reader, Store, Writer
from raygam.memory.writes import DeadLetter, OutboxMessage, ReplayRun, StoredLetter, WriteSet
from tests.contract.store_rows import LETTER, UPDATE, Factory, message


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
