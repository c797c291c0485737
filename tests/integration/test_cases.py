"""Small inputs on which other memory systems were seen to fail, each with the right result.

Every test carries the id of its case; all go through the library on a real state.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from raygam import Memory, Misconfigured, Rejected, User
from raygam.memory.retrieval import RetrievalResult
from raygam.pipeline.library import AddResult

Turn = dict[str, Any]


def turn(message_id: str, text: str, timestamp: str | int, **more: Any) -> Turn:
    base = {"user_id": "u1", "session_id": "s1", "speaker": "Ana", "role": "user"}
    return base | {"message_id": message_id, "text": text, "timestamp": timestamp} | more


def ids(result: RetrievalResult) -> list[str]:
    return [found.event.message_id for found in result.memories]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Memory]:
    with Memory(tmp_path / "state", embedder="stub", partitions=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Memory]]:
    """Memories with the real embedder, loaded once."""
    from raygam.adapters.minilm_embedder import MiniLMEmbedder, find_weights

    if find_weights() is None:
        pytest.skip("no weights of all-MiniLM-L6-v2 are installed")
    loaded = MiniLMEmbedder()
    opened: list[Memory] = []
    patch = pytest.MonkeyPatch()
    patch.setattr("raygam.pipeline.runtime.MiniLMEmbedder", lambda *_: loaded)

    def make() -> Memory:
        opened.append(Memory(tmp_path_factory.mktemp("real") / "state", embedder="minilm", partitions=1))
        return opened[-1]

    yield make
    for each in opened:
        each.close()
    patch.undo()


@pytest.mark.usefixtures("minilm_weights")
def test_backfill_keeps_event_time(real: Callable[[], Memory]) -> None:
    memory = real()
    memory.add([turn("m1", "I adopted a cat yesterday.", "2023-05-08T13:56:00Z")])
    for _ in range(2):  # while it is live, and once it is archived
        (found,) = memory.search("u1", "When did Ana adopt a cat?").memories
        assert found.event.time_us == 1_683_554_160_000_000
        assert [(date.start, date.end) for date in found.dates] == [("2023-05-07", "2023-05-07")]
        memory.flush()
    assert "2026" not in json.dumps(memory.show("u1"))


def test_naive_and_aware_times(memory: Memory) -> None:
    memory.add(
        [
            turn("m3", "Thanks.", 1736495400000),
            turn("m1", "Standup is at nine.", "2025-01-10T09:00:00+02:00"),
            turn("m2", "And the review at ten.", "2025-01-10T07:30:00"),
        ]
    )
    memory.flush()
    # 50 minutes lie between the first and the last, but all came late or in one go: one run by time.
    order = [name for episode in memory.show("u1")["episodes"] for name in episode["events"]]
    assert order == ["m1", "m2", "m3"]
    found = {one.event.message_id: one.event for one in memory.search("u1", "standup review thanks").memories}
    assert [found[name].time_us for name in ("m1", "m2", "m3")] == [
        1736492400000000,
        1736494200000000,
        1736495400000000,
    ]
    assert found["m2"].utc_offset_minutes is None
    assert found["m1"].utc_offset_minutes == 120


def test_same_message_twice(memory: Memory) -> None:
    said = turn("m1", "My sister is called Ines.", "2025-03-01T08:00:00Z")
    assert memory.add([said, said]) == AddResult(1, 1, {_partition(memory): 1})
    assert memory.add([said]).duplicates == 1
    assert ids(memory.search("u1", "sister")) == ["m1"]


def _partition(memory: Memory) -> int:
    return memory._engine.intake.partition_of(User("default", "u1"))


def test_same_text_different_messages(memory: Memory) -> None:
    memory.add([turn("m1", "Yes.", "2025-03-01T08:00:00Z"), turn("m2", "Yes.", "2025-03-01T08:05:00Z")])
    memory.flush()
    assert sorted(ids(memory.search("u1", "yes"))) == ["m1", "m2"]


def test_recalled_text_is_not_new_memory(memory: Memory) -> None:
    memory.add(
        [
            turn("m1", "I am allergic to walnuts.", "2025-03-01T08:00:00Z"),
            turn(
                "m2",
                "From memory: Ana is allergic to walnuts.",
                "2025-03-02T08:00:00Z",
                speaker="assistant",
                role="assistant",
                origin="recalled",
            ),
        ]
    )
    memory.flush()
    shown = memory.show("u1")
    assert sorted(name for episode in shown["episodes"] for name in episode["events"]) == ["m1", "m2"]
    assert len(shown["topics"]) == 1
    assert "From memory" not in json.dumps(shown["topics"])
    assert ids(memory.search("u1", "walnuts"))[0] == "m1"
    assert "m2" in ids(memory.search("u1", "walnuts"))


def test_speaker_is_kept(memory: Memory) -> None:
    memory.add(
        [
            turn("m1", "My colleague Bo is vegan.", "2025-03-01T08:00:00Z"),
            turn(
                "m2",
                "I would pick the steak, it is my favourite.",
                "2025-03-01T08:01:00Z",
                speaker="assistant",
                role="assistant",
            ),
        ]
    )
    memory.flush()
    found = memory.search("u1", "What did the assistant say about food?").memories
    assert (found[0].event.message_id, found[0].event.speaker) == ("m2", "assistant")
    stored = json.dumps(memory.show("u1")).lower()
    assert "ana is vegan" not in stored
    assert "ana: i would" not in stored
    assert "ana likes steak" not in stored


def test_interleaved_tenants(memory: Memory) -> None:
    users = [("t1", "a"), ("t2", "a"), ("t1", "a/b"), ("t1/a", "b")]
    with pytest.raises(Rejected, match="user_id is empty"):
        memory.add([turn("m", "x", 0, tenant="t1/a", user_id="")])

    def write(number: int) -> None:
        tenant, user = users[number]
        for start in range(0, 1000, 100):
            memory.add(
                [
                    turn(f"m{at}", f"word{at % 10} secret{number}", at * 1000, tenant=tenant, user_id=user)
                    for at in range(start, start + 100)
                ]
            )

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(users))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    memory.flush()
    for number, (tenant, user) in enumerate(users):
        shown = json.dumps(memory.show(user, tenant=tenant))
        found = memory.search(user, "secret0 secret1 secret2 secret3", k=1000, tenant=tenant)
        assert {one.event.text.split()[1] for one in found.memories} == {f"secret{number}"}
        assert not any(f"secret{other}" in shown for other in range(4) if other != number)
        flat = memory.search(user, "secret0 secret1 secret2 secret3", k=1000, mode="flat", tenant=tenant)
        assert len(flat.memories) == 1000


def test_small_user_in_a_big_index(tmp_path: Path) -> None:
    locker = turn("m1", "The locker code is on the blue card.", "2025-03-01T08:00:00Z", user_id="small")
    with Memory(tmp_path / "alone", embedder="stub", partitions=1) as alone:
        alone.add([locker])
        wanted = alone.search("small", "locker code").memories
    with Memory(tmp_path / "crowd", embedder="stub", partitions=1, workers=0) as crowd:
        for start in range(0, 100_000, 10_000):
            crowd.add(
                [
                    turn(f"m{at}", "the locker code of somebody else", at * 1000, user_id=f"other{at % 100}")
                    for at in range(start, start + 10_000)
                ]
            )
        crowd.add([locker])
        found = crowd.search("small", "locker code").memories
    assert [(one.event.message_id, one.score) for one in found] == [(one.event.message_id, one.score) for one in wanted]
    assert [one.event.message_id for one in found] == ["m1"]


@pytest.mark.parametrize(
    "user_id",
    ["a", "550e8400-e29b-41d4-a716-446655440000", "team/one two", "名前", "o'hara;--", "x" * 256],
    ids=["one-letter", "uuid", "slash", "Chinese", "quote", "256"],
)
def test_any_id_is_an_id(memory: Memory, user_id: str) -> None:
    memory.add([turn("m1", "The kettle is blue.", 0, user_id=user_id)])
    assert ids(memory.search(user_id, "kettle")) == ["m1"]
    memory.flush()
    assert ids(memory.search(user_id, "kettle")) == ["m1"]
    assert len(memory.show(user_id)["topics"]) == 1


@pytest.mark.parametrize("user_id", ["", "x" * 257])
def test_ids_that_are_none(memory: Memory, user_id: str) -> None:
    with pytest.raises(Rejected, match="user_id"):
        memory.add([turn("m1", "x", 0, user_id=user_id)])
    with pytest.raises(Rejected, match="user_id"):
        memory.search(user_id, "kettle")


def test_other_embedding_model(tmp_path: Path) -> None:
    from raygam.adapters.sqlite_store import SqliteStore
    from raygam.memory.writes import StateFacts

    made = StateFacts(1, "murmur2", "model-a", 384, 1)
    SqliteStore.create_or_open(tmp_path / "state", made).close()
    before = (tmp_path / "state" / "state.db").read_bytes()
    with pytest.raises(Misconfigured, match=r"model-a.*model-b"):
        SqliteStore.create_or_open(tmp_path / "state", StateFacts(1, "murmur2", "model-b", 768, 1))
    with pytest.raises(Misconfigured, match=r"model-a"):
        Memory(tmp_path / "state", embedder="stub")
    assert (tmp_path / "state" / "state.db").read_bytes() == before


@pytest.mark.usefixtures("minilm_weights")
def test_language_is_kept(real: Callable[[], Memory]) -> None:
    memory = real()
    memory.add(
        [
            turn("m1", "我下周去东京，大概待五天。", "2025-03-01T08:00:00Z", speaker="小林"),
            turn("m2", "主要想去秋叶原。", "2025-03-01T08:01:00Z", speaker="小林"),
        ]
    )
    memory.flush()
    assert "m2" in ids(memory.search("u1", "小林去东京想去哪里？"))[:3]
    assert ids(memory.search("u1", "秋叶原"))[0] == "m2"
    for topic in memory.show("u1")["topics"]:
        assert not any("a" <= letter.lower() <= "z" for letter in topic["summary"] + "".join(topic["keywords"]))
        assert any("\u4e00" <= letter <= "\u9fff" for letter in topic["summary"])
        assert topic["keywords"]


@pytest.mark.usefixtures("minilm_weights")
def test_question_and_answer_stay_together(real: Callable[[], Memory]) -> None:
    memory = real()
    memory.add(
        [
            turn("m1", "We talked enough about the budget.", "2025-03-01T08:00:00Z"),
            turn(
                "m2",
                "Which airport do you fly from?",
                "2025-03-01T08:01:00Z",
                speaker="assistant",
                role="assistant",
            ),
            turn("m3", "Lisbon.", "2025-03-01T08:01:20Z"),
        ]
    )
    memory.flush()
    assert any({"m2", "m3"} <= set(episode["events"]) for episode in memory.show("u1")["episodes"])
    assert "m3" in ids(memory.search("u1", "Which airport does Ana fly from?"))[:2]


def test_summary_keeps_its_dates(memory: Memory) -> None:
    memory.add(
        [
            turn("m1", "Started learning the cello.", "2024-01-05T10:00:00Z"),
            turn("m2", "First cello recital tonight!", "2024-12-05T18:00:00Z", session_id="s9"),
        ]
    )
    memory.flush()
    spans = sorted((topic["first"], topic["last"]) for topic in memory.show("u1")["topics"])
    assert spans == [
        ("2024-01-05T10:00:00Z", "2024-01-05T10:00:00Z"),
        ("2024-12-05T18:00:00Z", "2024-12-05T18:00:00Z"),
    ]


def test_caption_is_evidence(memory: Memory) -> None:
    memory.add(
        [
            turn(
                "m1",
                "Look at this from Sunday!",
                "2025-05-04T18:00:00Z",
                attachments=[{"type": "image", "caption": "two children flying a red kite on a beach"}],
            ),
            turn("m2", "So lovely, what a day.", "2025-05-04T18:01:00Z", speaker="Bo"),
            turn("m3", "I also repaired the kitchen tap.", "2025-05-04T18:02:00Z"),
        ]
    )
    for _ in range(2):
        result = memory.search("u1", "How many kids were flying a kite?")
        assert ids(result)[0] == "m1"
        assert result.memories[0].event.captions == ("two children flying a red kite on a beach",)
        assert "(caption of an attachment: two children" in memory.context(result)
        memory.flush()


def test_no_topic_without_its_archive(tmp_path: Path) -> None:
    """Four rounds with an abrupt end between each; every event stays reachable by its own text."""
    spoken: dict[str, str] = {}
    for around in range(4):
        with Memory(tmp_path / "state", embedder="stub", partitions=1) as memory:
            turns = []
            for at in range(50):
                number = around * 50 + at
                text = f"subject{number // 17} detail{number} about thing{number % 7}"
                spoken[f"m{number}"] = text
                turns.append(turn(f"m{number}", text, number * 60_000, session_id=f"s{number // 17}"))
            memory.add(turns)
            if around % 2:
                memory.flush()
    with Memory(tmp_path / "state") as memory:
        memory.flush()
        shown = memory.show("u1")
        archived = [name for episode in shown["episodes"] for name in episode["events"]]
        assert sorted(archived) == sorted(spoken)
        assert shown["buffers"] == []
        episodes = {episode["id"] for episode in shown["episodes"]}
        assert {topic["episode"] for topic in shown["topics"]} == episodes
        for name, text in spoken.items():
            assert name in ids(memory.search("u1", text, k=3)), f"{name} is not found by its own text"
