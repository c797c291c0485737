"""A real vLLM in replicas on Ray: guided answers for many users at once, a replica killed meanwhile, none left, and back.

The model is far too small for judgement; what is looked at is shape, flow and faults.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest

from raygam import Memory
from raygam.actors.chat_actor import ChatReport
from raygam.memory import prompts
from raygam.memory.chat import ChatRequest, Message, ModelCall, Prompt, Reading
from raygam.memory.errors import BadAnswer, ModelAway, Rejected, TooLong
from raygam.memory.model import Event, User
from raygam.memory.model_output import json_value
from raygam.memory.proposal import Candidate
from raygam.memory.transcript import whole
from raygam.pipeline import runtime
from raygam.pipeline.asking import Asker, AskLimits
from raygam.pipeline.config import read_settings
from raygam.pipeline.metrics import NoMetrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONTEXT_TOKENS = 2048
REPLICAS = 1
START_SECONDS = 300.0

USERS = [User("default", f"user-{at}") for at in range(16)]
TEXTS = (
    "The kiln broke again.",
    "Call the repair shop, then.",
    "Shall we visit Lisbon in May?",
    "いいですね、五月に行きましょう",
)
SHORT = {
    "type": "object",
    "properties": {"topic": {"type": "string", "maxLength": 20}, "sure": {"type": "boolean"}},
    "required": ["topic", "sure"],
    "additionalProperties": False,
}


def request(user: User, schema: Any = SHORT, max_tokens: int = 96, text: str = TEXTS[0]) -> ChatRequest:
    messages = (Message("system", "Answer with one JSON object."), Message("user", text))
    return ChatRequest(messages, schema, "any", max_tokens, user)


def every_prompt(user: User) -> list[Prompt[Any]]:
    """Each question of the slow path, about the same four events."""
    passages = whole(
        [
            Event(user, at + 1, f"m{at}", "s", ("Ana", "Bo")[at % 2], "user", text, 1_700_000_000_000_000 + at)
            for at, text in enumerate(TEXTS)
        ]
    )
    new, old, older = (
        Candidate(name, f"About {name}.", (name,), (), passages[0].event.time_us, passages[-1].event.time_us, 0.5)
        for name in ("travel", "pottery", "repair")
    )
    notes = prompts.summary(user, passages).read({"summary": "The kiln broke.", "keywords": ["kiln"]}).value
    return [
        prompts.boundaries(user, passages),
        prompts.summary(user, passages),
        prompts.segments(user, passages, closes=True),
        prompts.segments(user, passages, closes=False),
        prompts.relations(user, new, [old, older]),
        prompts.links(user, [(new, [old, older])], passages[2:], passages[:2]),
        prompts.joined_parts(user, [notes, notes]),
    ]


def smaller(schema: Any) -> Any:
    """The same shape with shorter texts and lists: a small model fills whatever room it has."""
    if isinstance(schema, list):
        return [smaller(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    bounds = {name: min(schema[name], most) for name, most in (("maxLength", 6), ("maxItems", 1)) if name in schema}
    return {name: smaller(each) for name, each in schema.items()} | bounds


@pytest.fixture(scope="module")
def engine(model_folder: Path, ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An engine on Ray whose replicas have loaded the model."""
    from raygam.actors.cluster import Cluster

    settings = read_settings(
        embedder="stub",
        partitions=2,
        boundaries="embedding",
        consolidation="extractive",
        relations="rules",
        vllm_model=str(model_folder),
        vllm_max_num_seqs=16,
        # A CPU without instructions for bfloat16 takes seven times as long for it.
        vllm_options={"enforce_eager": True, "dtype": "float32", "kv_cache_memory_bytes": 1024**3},
        chat_replicas=REPLICAS,
        chat_context_tokens=CONTEXT_TOKENS,
    )
    folder = tmp_path_factory.mktemp("llm") / "state"
    state = runtime.locate(folder)
    with Memory(folder, embedder="stub", partitions=2, workers=0) as memory:
        memory.add([turn(USERS[0], at) for at in range(len(TEXTS))])
    cluster = Cluster.open(state, settings, shards=1, workers=1)
    try:
        until(lambda: len(cluster.routes.chats()) == REPLICAS, cluster, START_SECONDS)
        yield cluster
    finally:
        cluster.close()


def turn(user: User, at: int) -> dict[str, Any]:
    return {
        **{"user_id": user.user_id, "session_id": "s", "speaker": ("Ana", "Bo")[at % 2], "role": "user"},
        **{"message_id": f"m{at}", "text": TEXTS[at], "timestamp": 1_700_000_000_000 + at},
    }


@pytest.fixture
def chat(engine: Any) -> Iterator[Any]:
    """The replicas as a worker of the engine holds them."""
    from raygam.actors.cluster import remote_chat

    chat = remote_chat(engine.spec.settings, engine.routes)
    yield chat
    chat.close()


def until(holds: Callable[[], bool], cluster: Any, seconds: float) -> None:
    """Wait; what stands in the engine's way is said if it does not come."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, cluster.ask("progress").obstacles
        time.sleep(0.05)


def test_limits_and_refusals_come_out_as_the_port_says(chat: Any, model_folder: Path) -> None:
    user = USERS[0]
    answer = chat.complete(request(user), 60)
    assert set(json.loads(answer.text)) == {"topic", "sure"}
    assert not answer.cut_off
    told = sum(chat.count_tokens(message.text) for message in request(user).messages)
    assert told < answer.prompt_tokens < told + 32, "the template's own tokens are few"
    assert answer.completion_tokens > chat.count_tokens(answer.text), "all of the answer, and its end"
    assert chat.complete(request(user, max_tokens=3), 60).cut_off
    with pytest.raises(TooLong, match="must be split"):
        chat.complete(request(user, max_tokens=CONTEXT_TOKENS), 60)
    with pytest.raises(TooLong):
        chat.complete(request(user, text="kiln " * CONTEXT_TOKENS), 60)
    with pytest.raises(Rejected, match="does not take"):
        chat.complete(request(user, {"type": "no such type"}), 60)
    with pytest.raises(ModelAway, match=r"in time|within"):
        chat.complete(request(user, {"type": "array", "items": {"type": "string"}}, max_tokens=1024), 0.2)


def test_every_question_of_sixteen_users_gets_an_answer_of_its_shape(engine: Any, chat: Any) -> None:
    asked = [(user, prompt) for at, user in enumerate(USERS) for prompt in every_prompt(user)[at % 7 : at % 7 + 1]]
    (replica,) = engine.routes.chats().values()
    before = report(replica).figures

    def ask(user: User, prompt: Prompt[Any]) -> tuple[Prompt[Any], str, bool]:
        schema = smaller(prompt.schema)
        answer = chat.complete(ChatRequest(prompt.messages, schema, prompt.name, 512, user), START_SECONDS)
        return prompt, answer.text, answer.cut_off

    with ThreadPoolExecutor(len(USERS)) as threads:
        answers = list(threads.map(lambda each: ask(*each), asked))
    names = set()
    for prompt, text, cut_off in answers:
        assert not cut_off, (prompt.name, text)
        value = json_value(text, prompt.schema)
        jsonschema.validate(value, smaller(prompt.schema))
        with suppress(BadAnswer):  # of the right shape, and nonsense: the model's judgement
            assert isinstance(prompt.read(value), Reading)
        names.add(prompt.name)
    assert names == set(prompts.VERSIONS)
    after = report(replica).figures
    together = (after.running_sum - before.running_sum) / (after.steps - before.steps)
    assert together > 2, "requests of different users are computed together"


def test_another_process_has_the_replicas_answer_a_question(engine: Any) -> None:
    """Of the answer's form there is no doubt; whether the model finds anything in the memories is its judgement."""
    import ray

    address = ray.get_runtime_context().gcs_address
    command = [sys.executable, "-m", "raygam", "answer", USERS[0].user_id, "What broke?", "--json", "-k", "2"]
    place = ["--state", str(engine.spec.state), "--address", address]
    done = subprocess.run([*command, *place], capture_output=True, text=True, timeout=START_SECONDS)
    if done.returncode == 0:
        answer = json.loads(done.stdout)
        assert answer["model"] == Path(engine.spec.settings.vllm_model).name
        assert answer["memories_shown"] == 2
        assert bool(answer["citations"]) == answer["in_memory"]
        assert {cited["message_id"] for cited in answer["citations"]} <= {f"m{at}" for at in range(len(TEXTS))}
    else:
        assert "gave no answer that fits answer/1 in 3 tries" in done.stderr


def test_a_replica_killed_in_the_middle_comes_back_and_all_are_answered(engine: Any, chat: Any) -> None:
    """The only one, so that all are gone meanwhile; what it had started ends with it."""
    progress = engine.ask("progress")
    actor = psutil.Process(progress.pids["chat-0"])
    processes = [actor, *(one for one in actor.children(recursive=True) if one.name() != "sh")]
    assert len(processes) > 1, "the engine computes in processes of its own"
    first = set(engine.routes.chats())

    outcomes = Outcomes()
    asker = Asker(chat, AskLimits(concurrency=len(USERS), call_seconds=START_SECONDS), metrics=outcomes)
    made: list[ModelCall] = []

    def ask(user: User) -> dict[str, Any]:
        said = request(user, max_tokens=200).messages
        prompt = Prompt("any", 1, user, said, SHORT, 200, Reading)
        return asker.for_task(user, {}, made.append, asker.clock.now() + START_SECONDS)(prompt)

    with ThreadPoolExecutor(len(USERS)) as threads:
        answers = [threads.submit(ask, user) for user in USERS]
        (replica,) = engine.routes.chats().values()
        until(lambda: report(replica).under_way == len(USERS), engine, 60)
        actor.kill()
        until(lambda: not any(alive(one) for one in processes), engine, 20)
        with pytest.raises(ModelAway, match="no replica"):
            chat.complete(request(USERS[0]), START_SECONDS)
        assert all(set(answer.result(START_SECONDS)) == {"topic", "sure"} for answer in answers)
    assert [call.calls for call in made] == [1] * len(USERS)
    assert outcomes.counted["answered"] == len(USERS)
    assert outcomes.counted["away"] >= len(USERS), "it was not killed in the middle"
    assert set(engine.routes.chats()).isdisjoint(first)
    assert engine.ask("progress").replaced["chat-0"] == 1


class Outcomes(NoMetrics):
    """How calls ended."""

    def __init__(self) -> None:
        self.counted: Counter[str] = Counter()

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        if name == "raygam_chat_calls_total":
            self.counted[labels["outcome"]] += int(amount)


def report(replica: Any) -> ChatReport:
    from raygam.actors import calls

    found: ChatReport = calls.result(replica.report.remote(), 10, "report")
    return found


def alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
