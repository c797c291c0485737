"""A real vLLM in replicas on Ray: guided answers for many users at once, a replica killed meanwhile, none left, and back.

The model is far too small for judgement; what is looked at is shape, flow and faults.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from raygam.memory.chat import ChatAnswer, ChatRequest, Message
from raygam.memory.errors import ModelAway, Rejected, TooLong
from raygam.memory.model import User
from raygam.pipeline import runtime
from raygam.pipeline.config import read_settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONTEXT_TOKENS = 2048
REPLICAS = 1
START_SECONDS = 300.0

USERS = [User("default", f"user-{at}") for at in range(16)]
DIALOGUE = "\n".join(
    f'{at} "{speaker}": "{text}"'
    for at, (speaker, text) in enumerate(
        [("Ana", "The kiln broke again."), ("Bo", "Call the repair shop."), ("Ana", "Shall we visit Lisbon in May?")]
        * 4
    )
)


def request(user: User, schema: dict[str, Any], max_tokens: int = 96, text: str = DIALOGUE) -> ChatRequest:
    messages = (Message("system", "Answer with one JSON object."), Message("user", text))
    return ChatRequest(messages, schema, "any", max_tokens, user)


SHORT = {
    "type": "object",
    "properties": {"topic": {"type": "string", "maxLength": 20}, "confidence": {"type": "number"}},
    "required": ["topic", "confidence"],
    "additionalProperties": False,
}


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
        vllm_options={"enforce_eager": True, "dtype": "bfloat16", "kv_cache_memory_bytes": 1024**3},
        chat_replicas=REPLICAS,
        chat_context_tokens=CONTEXT_TOKENS,
    )
    state = runtime.locate(tmp_path_factory.mktemp("llm") / "state")
    cluster = Cluster.open(state, settings, shards=1, workers=1)
    try:
        until(lambda: len(cluster.routes.chats()) == REPLICAS, cluster, START_SECONDS)
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def chat(engine: Any) -> Iterator[Any]:
    """The replicas as a worker of the engine holds them."""
    from raygam.actors.cluster import remote_chat

    chat = remote_chat(engine.spec, engine.routes)
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
    answer = chat.complete(request(user, SHORT), 60)
    assert set(json.loads(answer.text)) == {"topic", "confidence"}
    assert not answer.cut_off
    told = sum(chat.count_tokens(message.text) for message in request(user, SHORT).messages)
    assert told < answer.prompt_tokens < told + 32, "the template's own tokens are few"
    assert answer.completion_tokens > chat.count_tokens(answer.text), "all of the answer, and its end"
    assert chat.complete(request(user, SHORT, max_tokens=3), 60).cut_off
    with pytest.raises(TooLong, match="must be split"):
        chat.complete(request(user, SHORT, max_tokens=CONTEXT_TOKENS), 60)
    with pytest.raises(TooLong):
        chat.complete(request(user, SHORT, text="kiln " * CONTEXT_TOKENS), 60)
    with pytest.raises(Rejected, match="does not take"):
        chat.complete(request(user, {"type": "no such type"}), 60)
    with pytest.raises(ModelAway, match=r"in time|within"):
        chat.complete(request(user, {"type": "array", "items": {"type": "string"}}, max_tokens=1024), 0.2)


def test_a_replica_killed_in_the_middle_comes_back_and_all_are_answered(engine: Any, chat: Any) -> None:
    """The only one, so that all are gone meanwhile; what it had started ends with it."""
    progress = engine.ask("progress")
    actor = psutil.Process(progress.pids["chat-0"])
    processes = [actor, *(one for one in actor.children(recursive=True) if one.name() != "sh")]
    assert len(processes) > 1, "the engine computes in processes of its own"
    first = set(engine.routes.chats())

    def ask(user: User) -> tuple[ChatAnswer, int]:
        """As a worker does: a model that is away is asked again."""
        away = 0
        while True:
            try:
                return chat.complete(request(user, SHORT, max_tokens=200), START_SECONDS), away
            except ModelAway:
                away += 1
                time.sleep(0.5)

    with ThreadPoolExecutor(len(USERS)) as threads:
        answers = [threads.submit(ask, user) for user in USERS]
        (replica,) = engine.routes.chats().values()
        until(lambda: under_way(replica) == len(USERS), engine, 60)
        actor.kill()
        until(lambda: not any(alive(one) for one in processes), engine, 20)
        found = [answer.result(START_SECONDS) for answer in answers]
    assert all(set(json.loads(answer.text)) == {"topic", "confidence"} for answer, _ in found)
    assert all(away for _, away in found), "an answer came from a replica that was killed"
    assert set(engine.routes.chats()).isdisjoint(first)
    assert engine.ask("progress").replaced["chat-0"] == 1


def under_way(replica: Any) -> int:
    from raygam.actors import calls

    count: int = calls.result(replica.report.remote(), 10, "report").under_way
    return count


def alive(process: psutil.Process) -> bool:
    return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
