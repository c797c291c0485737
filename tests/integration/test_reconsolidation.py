"""Topics made anew: what would change is shown, then all of it is switched to, or none."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from raygam.memory.chat import ModelCall
from raygam.memory.errors import BadAnswer, Misconfigured, ModelAway, Rejected, Retryable, StateLocked
from raygam.memory.model import Event, Layer, User
from raygam.memory.ports import Vectors
from raygam.memory.proposal import SegmentNotes
from raygam.memory.retrieval import MODES
from raygam.memory.writes import WriteSet
from raygam.pipeline import cli_reconsolidate, cli_run, runtime
from raygam.pipeline.config import Settings, read_settings
from raygam.pipeline.projector import Projector
from raygam.pipeline.reconsolidation import Anew, Reconsolidation

State = dict[str, Any]
StateOf = Callable[[Path], State]

TEXTS = [
    ("I love the greyhound that we adopted from the shelter.", "What is the greyhound's name?"),
    ("The greyhound is called Fen, and Fen hates the rain.", "Rain in Porto is no joke."),
    ("I love the rain in Porto.", "Really, in the winter too?"),
    ("The greyhound ate my shoes, and Fen hates the rain.", "Fen ate your shoes? Because of the rain?"),
    ("I hate the rain in Porto now.", "That was quick."),
]
FIRST_WORDS = {" ".join(one.split()[:4]) for one, _ in TEXTS}
LONG = [f"The tomato seeds number {at} grow in the greenhouse beside the tomato beds." for at in range(8)] + [
    f"My train ticket number {at} to the ferry port was late at the platform." for at in range(8)
]


def settings(**given: Any) -> Settings:
    return read_settings(**{"embedder": "stub", "partitions": 2, "workers": 0} | given)


def session(user: str, at: int, texts: Sequence[str]) -> list[str]:
    """The turns of a session, one a day, and its end."""
    fields = {"user_id": user, "session_id": f"s{at}"}
    begins = 1_700_000_000_000 + at * 86_400_000
    made = [
        fields
        | {"message_id": f"m{at}-{place}", "speaker": ("Ana", "Ben")[place % 2], "role": "user", "text": text}
        | {"timestamp": begins + place * 60_000}
        for place, text in enumerate(texts)
    ]
    end = fields | {"type": "session_end", "timestamp": begins + len(texts) * 60_000}
    return [json.dumps(record) for record in (*made, end)]


def lines(user: str, texts: Sequence[tuple[str, str]] = TEXTS, *, first: int = 0, late: bool = False) -> list[str]:
    """Each pair of turns is a session of its own, so an episode of its own; the last one comes first where it is late."""
    sessions = [session(user, at, pair) for at, pair in enumerate(texts, first)]
    return [record for each in (sessions[::-1] if late else sessions) for record in each]


def stream(state: Path, *records: str, name: str = "a") -> None:
    source = state.with_name(f"{name}.jsonl")
    source.write_text("\n".join(records) + "\n", encoding="utf-8")
    cli_run.run(source, state, settings(), quiet=True)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Two users with five episodes each; Ben's sessions come in the wrong order."""
    stream(tmp_path / "state", *lines("ana"), *lines("ben", late=True))
    return tmp_path / "state"


class Other:
    """A summarizer of the first words; what it cannot read and whom it stops is set by the test."""

    name = "first words/1"

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.obstacle: Callable[[Sequence[Event]], None] = lambda events: None

    def notes(self, events: Sequence[Event], vectors: Vectors) -> SegmentNotes:
        assert vectors.shape == (len(events), 384)
        assert not any(event.entities or event.dates or event.episode_id for event in events)
        self.obstacle(events)
        self.asked.append(events[0].message_id)
        words = events[0].text.split()[:4]
        nothing = tuple(() for _ in events)
        return SegmentNotes(" ".join(words), tuple(words[:2]), (), (), nothing, nothing, 0.9, label="first words")


@contextmanager
def opened(state: Path, user: str | None = None) -> Any:
    store, models = runtime.open_made(state), runtime.make_models(runtime.make_embedder("stub", settings()))
    try:
        yield Reconsolidation(store, None if user is None else User("default", user)), models
    finally:
        store.close()


def build(state: Path, other: Other, *, user: str | None = None, stop: Callable[[], bool] = lambda: False) -> Any:
    with opened(state, user) as (work, models):
        anew = Anew(other.name, models.embedder, lambda who, answers, on_call: (other, models.scorer))
        return work.build(anew, stop)


def switch(state: Path, user: str | None = None) -> tuple[str, int]:
    with opened(state, user) as (work, _):
        found: tuple[str, int] = work.switch()
        return found


def summaries(document: State, user: str) -> set[str]:
    return {topic["summary"] for topic in document["users"][f"default/{user}"]["topics"].values()}


def topic_vectors(reader: Any, user: User) -> dict[str, list[float]]:
    """What the ledger holds, by topic."""
    ids = [topic.id for topic in reader.topics(user)]
    return dict(zip(ids, reader.vectors(user, Layer.TOPIC, ids).tolist(), strict=True))


def indexed_vectors(reading: Any, user: User) -> dict[str, list[float]]:
    """What the index holds, by topic."""
    ids = list(reading._index._users[user].layers[Layer.TOPIC].refs)
    return dict(zip(ids, reading._index.vectors(user, Layer.TOPIC, ids).tolist(), strict=True))


def test_the_same_rules_make_the_same_network(state: Path, state_of: StateOf) -> None:
    """Also where a task closed several episodes, an episode is of recalled turns alone, and sessions came late."""
    recalled = [json.loads(record) for record in session("ana", 6, ["I love the greyhound.", "I love Fen."])]
    stream(
        state, *session("ana", 5, LONG), *(json.dumps(one | {"origin": "recalled"}) for one in recalled[:2]), name="b"
    )
    before = state_of(state)
    with opened(state, "ana") as (work, _):
        ((at, held),) = work.standings()
        assert max(len(each.episodes) for each in work._reader(at).archives(held.user)) > 1
    report = cli_reconsolidate.built(state, settings(), None)
    assert (report["users"], report["built"], report["episodes"]) == (2, 2, held.episodes + 5)
    topics = sum(len(user["topics"]) for user in before["users"].values())
    assert topics == held.episodes + 5 - 1
    assert report["topics"] == {"before": topics, "after": topics, "added": 0, "gone": 0, "changed": 0}
    relations = report["relations"]
    assert relations["before"] == relations["after"] > 0
    assert (relations["added"], relations["gone"], relations["changed"]) == (0, 0, 0)
    assert state_of(state) == before, "nothing of a shadow is read"
    for user in before["users"].values():
        assert any(topic["superseded_by"] for topic in user["topics"].values())
    assert cli_reconsolidate.switched(state, None)["switched"] == 2
    assert state_of(state) == before
    with opened(state, "ana") as (work, _):
        ((at, held),) = work.standings()
        assert held.switched
        assert work._reader(at).version(held.user)[2] == 1


def test_another_summarizer_is_shown_switched_to_and_found(state: Path, state_of: StateOf) -> None:
    before = state_of(state)
    reading = runtime.open_reading(state, settings())
    try:
        ana = User("default", "ana")
        asked = {mode: reading.search(ana, "Which shoes did the greyhound eat?", mode=mode) for mode in MODES}
        old = indexed_vectors(reading, ana)
        assert build(state, Other()).built == 2
        with opened(state, "ana") as (work, _):
            ((_, found),) = work.differences()
        assert found is not None
        assert [change.fields[:3] for change in found.topics] == [("label", "summary", "keywords")] * 5
        assert all("confidence" in change.fields for change in found.topics)
        for mode in MODES:
            again = reading.search(ana, "Which shoes did the greyhound eat?", mode=mode)
            assert again.memories == asked[mode].memories, "a shadow moves nothing"
        assert switch(state) == ("first words/1", 2)
        now = {mode: reading.search(ana, "Which shoes did the greyhound eat?", mode=mode) for mode in MODES}
        view = reading._view(ana)
        assert {topic.summary for topic in view.topics} == FIRST_WORDS
        found = indexed_vectors(reading, ana)
        assert found == topic_vectors(reading._readers[reading._partition(ana)], ana)
        assert found.keys() == old.keys() == view.topic_ordinals.keys()
        assert all(found[id_] != old[id_] for id_ in old)
    finally:
        reading.close()
    fresh = runtime.open_reading(state, settings())
    try:
        for mode in MODES:
            found = fresh.search(ana, "Which shoes did the greyhound eat?", mode=mode)
            assert found.memories
            assert found.memories == now[mode].memories, "who has met the old topics knows nothing of them"
        assert now["gam"].memories != asked["gam"].memories
    finally:
        fresh.close()
    after = state_of(state)
    assert summaries(after, "ana") == FIRST_WORDS
    for name, user in after["users"].items():
        archived = {part: user[part] for part in ("events", "episodes", "event_relations", "counts", "watermark")}
        assert archived == {part: before["users"][name][part] for part in archived}


def test_an_answer_mixes_no_two_networks(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A switch between the reading of the graphs and that of the vectors is met by the next answer."""
    build(state, Other(), user="ana")
    ana = User("default", "ana")
    real = Projector.catch_up
    with opened(state, "ana") as (work, _):
        ((at, _),) = work.standings()
        work._writer(at)
        before = topic_vectors(work._reader(at), ana)
        reading = runtime.open_reading(state, settings())
        left = [work]

        def late(self: Projector, user: User) -> None:
            if left:
                left.pop().switch()
            real(self, user)

        monkeypatch.setattr(Projector, "catch_up", late)
        try:
            for label in ("", "first words"):
                reading.search(ana, "Which shoes did the greyhound eat?")
                assert {topic.label for topic in reading._view(ana).topics} == {label}
                held = topic_vectors(work._reader(at), ana) if label else before
                assert indexed_vectors(reading, ana) == held
        finally:
            reading.close()


def test_what_is_dropped_leaves_everything_as_it_was(state: Path, state_of: StateOf) -> None:
    before = state_of(state)
    build(state, Other())
    assert cli_reconsolidate.discarded(state, None)["discarded"] == 2
    assert state_of(state) == before
    with pytest.raises(Misconfigured, match="nothing to switch to"):
        switch(state)
    assert state_of(state) == before


def test_consolidation_goes_on_after_a_switch(state: Path, state_of: StateOf) -> None:
    """New topics relate to those made anew, and all of them can be made anew again."""
    build(state, Other())
    switch(state)
    made = state_of(state)["users"]["default/ana"]["topics"].keys()
    stream(state, *lines("ana", TEXTS[:2], first=9), name="b")
    user = state_of(state)["users"]["default/ana"]
    assert (len(user["topics"]), user["counts"]["topics"]) == (7, 7)
    new = user["topics"].keys() - made
    assert {user["topics"][id_]["model"] for id_ in new} == {"extractive/1"}
    assert any(
        old in relation and id_ in relation for relation in user["topic_relations"] for old in made for id_ in new
    )
    other = Other()
    assert build(state, other).built == 1, "Ben's is as it should be"
    assert switch(state) == (other.name, 1)
    after = state_of(state)["users"]["default/ana"]
    assert after["topics"].keys() == user["topics"].keys()
    assert {topic["label"] for topic in after["topics"].values()} == {"first words"}


def test_new_episodes_refuse_the_switch_until_they_are_in_it(state: Path, state_of: StateOf) -> None:
    other = Other()
    build(state, other)
    stream(state, *lines("ben", TEXTS[:1], first=7), name="b")
    before = state_of(state)
    with pytest.raises(Misconfigured, match=r"1 of 2 users have no shadow.*ben.*run the command again"):
        switch(state)
    assert state_of(state) == before
    assert (build(state, other).kept, other.asked.count("m7-0")) == (1, 1)
    assert switch(state) == (other.name, 2)
    assert len(summaries(state_of(state), "ben")) == 5


def test_it_stops_between_users_and_goes_on(state: Path, state_of: StateOf) -> None:
    other = Other()
    report = build(state, other, stop=lambda: len(other.asked) >= 7)
    assert (report.built, report.interrupted) == (1, True)
    with pytest.raises(Misconfigured, match="1 of 2 users have no shadow"):
        switch(state)
    before = len(other.asked)
    report = build(state, other)
    assert (report.built, report.kept, report.interrupted) == (1, 1, False)
    assert len(other.asked) == before + 5, "a whole user is not made again"
    assert build(state, other).kept == 2
    another = Other()
    another.name = "first words/2"
    assert build(state, another).built == 2, "another model begins anew"
    build(state, other, user="ana")
    with pytest.raises(Misconfigured, match="of 2 models"):
        switch(state)


def test_one_user_whose_episodes_cannot_be_read_stops_nobody_else(state: Path) -> None:
    other = Other()

    def refuse(events: Sequence[Event]) -> None:
        if events[0].user.user_id == "ana":
            raise BadAnswer("it writes verse")

    other.obstacle = refuse
    report = build(state, other)
    assert (report.built, report.failed, report.interrupted) == (
        1,
        [(User("default", "ana"), "it writes verse")],
        False,
    )


def test_a_model_that_is_away_ends_the_run_and_what_it_said_is_kept(state: Path) -> None:
    """What was asked is recorded with the task that is done; the next run finds the answers there."""
    asked: list[str] = []

    def ports(models: Any, *, away: bool) -> Callable[..., Any]:
        def bound(user: User, answers: Any, on_call: Callable[[ModelCall], None]) -> Any:
            other = Other()

            def ask(events: Sequence[Event]) -> None:
                key = events[0].message_id
                if key not in answers:
                    if away and len(asked) >= 3:
                        raise ModelAway("it rests")
                    asked.append(key)
                    on_call(ModelCall(key, "m", "summary/1", 1, 10, 5, answer=f"notes of {key}"))

            other.obstacle = ask
            return other, models.scorer

        return bound

    with opened(state, "ana") as (work, models), pytest.raises(ModelAway):
        work.build(Anew("m", models.embedder, ports(models, away=True)), lambda: False)
    with opened(state, "ana") as (work, models):
        assert work.build(Anew("m", models.embedder, ports(models, away=False)), lambda: False).built == 1
    assert len(asked) == len(set(asked)) == 5
    with opened(state, "ana") as (work, _):
        reader = work._reader(work.standings()[0][0])
        tasks = [each.task_id for each in reader.archives(User("default", "ana"))]
        assert len(reader.answers(tasks)) == 5
        assert sum(used.calls for used in reader.model_usage()) == 5
        work.switch()
        assert reader.answers(tasks) == {}
        assert sum(used.calls for used in reader.model_usage()) == 5, "what was paid stays counted"


@pytest.mark.parametrize("statement", ["REPLACE_TOPIC", "KEEP", "FORGET_ANSWERS"])
def test_a_switch_that_breaks_off_is_whole_before_or_whole_after(
    state: Path, state_of: StateOf, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    before = state_of(state)
    build(state, Other())
    with opened(state) as (work, _):
        at, held = work.standings()[1]
        writer: Any = work._writer(at)
        real = writer._session

        class Failing:
            """The session, until the statement comes."""

            def __getattr__(self, name: str) -> Any:
                def run(given: str, *arguments: Any) -> Any:
                    if given == getattr(writer._statements.shadows, statement):
                        raise Retryable("the disk is full")
                    return getattr(real, name)(given, *arguments)

                return run

        writer._session = Failing()
        with pytest.raises(Retryable):
            work.switch()
    document = state_of(state)
    first = {f"default/{name}" for name in ("ana", "ben")} - {f"default/{held.user.user_id}"}
    assert document["users"][f"default/{held.user.user_id}"] == before["users"][f"default/{held.user.user_id}"]
    assert summaries(document, first.pop().removeprefix("default/")) == FIRST_WORDS
    assert switch(state) == ("first words/1", 1), "the rest"
    assert summaries(state_of(state), held.user.user_id) == FIRST_WORDS
    assert switch(state) == ("first words/1", 0)


def test_a_switch_needs_all_of_the_users_episodes_also_in_the_ledger(state: Path) -> None:
    """Else an episode that was closed meanwhile would lose its topic."""
    build(state, Other())
    with opened(state, "ana") as (work, _):
        ((at, held),) = work.standings()
        reader, writer = work._reader(at), work._writer(at)
        shadow = reader.shadow(held.user)
        assert shadow is not None
        writer.commit(WriteSet(shadows=[replace(shadow, episodes=4)]))
        with pytest.raises(Exception, match="made from 4 of 5 episodes"):
            writer.commit(WriteSet(switched=[held.user]))
        assert len(reader.topics(held.user)) == 5


def test_commands_that_contradict_themselves_are_refused(state: Path) -> None:
    from raygam.pipeline.cli_commands import app

    for arguments, told in (
        ([], "name a user, or give --all"),
        (["ana", "--all"], "name a user, or give --all"),
        (["--all", "--tenant", "t"], "--tenant goes with a user"),
        (["ana", "--switch", "--discard"], "give one of them"),
        (["ana", "--switch", "--model", "m"], "--chat-model says by what"),
        (["ana", "--consolidation", "llm"], "asks for a chat model"),
        (["ana", "--consolidation", "verse"], "consolidation"),
    ):
        with pytest.raises(Misconfigured, match=told):
            CliRunner().invoke(
                app, ["reconsolidate", *arguments, "--state", str(state)], catch_exceptions=False, standalone_mode=False
            )
    with pytest.raises(Rejected, match="nothing is known of user zoe"):
        cli_reconsolidate.built(state, settings(), User("default", "zoe"))
    engine = runtime.open_engine(state, settings())
    try:
        with pytest.raises(StateLocked, match="where no engine runs"):
            cli_reconsolidate.built(state, settings(), None)
    finally:
        engine.close()


def test_the_command_shows_what_would_change(state: Path) -> None:
    from raygam.pipeline.cli_commands import app

    def run(*arguments: str) -> str:
        found = CliRunner().invoke(app, ["reconsolidate", *arguments, "--state", str(state)], catch_exceptions=False)
        assert found.exit_code == 0, found.output
        return found.output

    build(state, Other())
    switch(state)
    shown = run("ana")
    assert "users made anew by extractive/1, rules/1: 1, and 0 that were so already" in shown
    assert "topics: 5 → 5 (0 added, 0 gone, 5 changed)" in shown
    document = json.loads(run("ana", "--json"))
    assert (document["kept"], document["topics"]["changed"]) == (1, 5)
    (user,) = document["differences"]
    assert user["changes"]["topics"][0]["before"]["label"] == "first words"
    assert "switched to the topics of extractive/1, rules/1: 1 users" in run("ana", "--switch")
    assert json.loads(run("ana", "--json"))["differences"][0]["switched"]
    assert "of 0 users" in run("--all", "--discard"), "what was switched to is no shadow"
