"""The HTTP API over a real engine and a real Serve: the library's answers, clear refusals, faults that pass."""

from __future__ import annotations

import http.client
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from raygam.memory import identity
from raygam.memory.model import User
from raygam.memory.presentation import as_document
from raygam.pipeline.config import read_settings
from raygam.pipeline.library import Memory

# Importing Ray Serve warns of its own use of pydantic.
pytestmark = pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`")

EXAMPLES = Path(__file__).parents[2] / "examples"
MAX_BODY = 64 * 1024
WAIT_SECONDS = 90.0
QUERIES = ("When is the interview at the botanic garden?", "What about the greyhound?", "nothing of the kind")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: Any

    @property
    def error(self) -> dict[str, Any]:
        assert set(self.body) == {"error"}, self.body
        found: dict[str, Any] = self.body["error"]
        return found


class Api:
    """A client, and the engine behind."""

    def __init__(self, host: str, port: int, cluster: Any, expected: dict[str, dict[str, Any]]) -> None:
        self.address = (host, port)
        self.cluster = cluster
        self.expected = expected

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Send one request; `body` is bytes as they are, or a document."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            connection.request(method, path, raw, {"Content-Type": "application/json"} | headers)
            response = connection.getresponse()
            found = json.loads(response.read())
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, found)
        finally:
            connection.close()

    def search(self, user: str, query: str, **options: Any) -> Answer:
        return self.ask("POST", f"/v1/users/{user}/search", {"query": query} | options)

    def add(self, user: str, *turns: Any) -> Answer:
        return self.ask("POST", f"/v1/users/{user}/turns", {"turns": list(turns)})

    def kill(self, place: str) -> None:
        """Kill an actor's process, for real."""
        os.kill(self.cluster.ask("progress").pids[place], signal.SIGKILL)

    def shard_of(self, user: str) -> str:
        facts = self.cluster.spec.facts
        key = identity.record_key(User("default", user))
        found: str = self.cluster.ask("progress").owned[identity.partition_of(key, facts.partitions, facts.partitioner)]
        return found

    def until(self, status: int, method: str, path: str, body: Any = None) -> Answer:
        """Ask until the status is as wanted."""
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            answer = self.ask(method, path, body)
            if answer.status == status:
                return answer
            assert time.monotonic() < deadline, answer


@pytest.fixture(scope="module")
def api(ray_session: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    from raygam.actors.cluster import Cluster
    from raygam.serving import deployment

    state = tmp_path_factory.mktemp("serving") / "state"
    turns = [json.loads(line) for line in (EXAMPLES / "dialogues.jsonl").read_text(encoding="utf-8").splitlines()]
    with Memory(state, embedder="stub", partitions=4) as memory:
        memory.add(turns)
        memory.flush()
        expected = {}
        for query in QUERIES:
            found = memory.search("maya", query, k=5)
            expected[query] = as_document(found, memory.context(found))
    settings = read_settings(shards=2, workers=1, serve_max_body_bytes=MAX_BODY, serve_deadline_seconds=30)
    port = deployment.free_port("127.0.0.1", 0)
    cluster = Cluster.open(state, settings)
    try:
        endpoint = deployment.start(cluster.spec, "127.0.0.1", port)
        try:
            yield Api(endpoint.host, endpoint.port, cluster, expected)
        finally:
            deployment.stop(endpoint)
    finally:
        cluster.close()


def turn(number: int, text: str = "I keep bees on the roof.", **fields: Any) -> dict[str, Any]:
    return {
        "message_id": f"m{number}",
        "session_id": "s1",
        "speaker": "Ana",
        "role": "user",
        "text": text,
        "timestamp": f"2025-03-04T09:{number:02}:00Z",
    } | fields


def test_answers_are_those_of_the_library(api: Api) -> None:
    for query in QUERIES:
        answer = api.search("maya", query, k=5)
        assert answer.status == 200
        assert answer.headers["content-type"] == "application/json"
        head = {"tenant": "default", "user_id": "maya", "query": query, "known_user": True}
        assert answer.body == json.loads(json.dumps(head | api.expected[query]))
    assert api.search("nobody", "anything?").body["known_user"] is False


def test_many_clients_get_their_own_answers(api: Api) -> None:
    with ThreadPoolExecutor(16) as pool:
        asked = [QUERIES[at % len(QUERIES)] for at in range(96)]
        answers = list(pool.map(lambda query: api.search("maya", query, k=5), asked))
    for query, answer in zip(asked, answers, strict=True):
        assert answer.status == 200
        assert answer.body["query"] == query
        assert answer.body["context"] == api.expected[query]["context"]


def test_turns_are_found_as_soon_as_they_are_acknowledged(api: Api) -> None:
    for number in range(5):
        text = f"My bicycle number {number} is green."
        added = api.add("ben", turn(number, text, speaker="Ben"))
        assert added.status == 200
        assert set(added.body) == {"accepted", "duplicates", "position", "partition"}
        assert (added.body["accepted"], added.body["duplicates"]) == (1, 0)
        found = api.search("ben", text, k=1, min_position=added.body["position"])
        assert found.status == 200
        assert found.body["memories"][0]["text"] == text
    end = {"type": "session_end", "session_id": "s1", "timestamp": "2025-03-04T10:00:00Z"}
    ended = api.add("ben", end)
    assert (ended.body["accepted"], ended.body["duplicates"]) == (0, 0)


def test_a_position_that_is_not_reached_is_told_with_the_one_that_is(api: Api) -> None:
    position = api.add("cleo", turn(1)).body["position"]
    answer = api.search("cleo", "bees", min_position=position + 1000)
    assert answer.status == 409
    assert answer.error["type"] == "stale"
    assert answer.error["position"] == position


def test_a_repeat_after_a_lost_answer_changes_nothing(api: Api) -> None:
    turns = [turn(number, f"Hive {number} gave honey.") for number in range(3)]
    body = json.dumps({"turns": turns}).encode()
    head = (
        f"POST /v1/users/dora/turns HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(api.address) as connection:
        connection.sendall(head.encode() + body)
        assert select.select([connection], [], [], WAIT_SECONDS)[0], "no answer was on its way"
    again = api.add("dora", *turns)
    assert again.status == 200
    assert (again.body["accepted"], again.body["duplicates"]) == (0, 3)
    assert api.add("dora", *turns).body == again.body
    found = api.search("dora", "honey", mode="flat", min_position=again.body["position"]).body["memories"]
    assert sorted(memory["message_id"] for memory in found) == ["m0", "m1", "m2"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"query": "  "}, "the query is blank"),
        ({"query": "x", "k": 0}, "k: "),
        ({"query": "x", "k": "3"}, "k: "),
        ({"query": "x", "mode": "clever"}, "it is one of gam, flat"),
        ({"query": "x", "as_of": "soon"}, "as_of: "),
        ({"query": "x", "min_position": -1}, "min_position: "),
        ({"query": "x", "deadline_ms": 0}, "deadline_ms: "),
        ({"query": "x", "limit": 3}, "limit: "),
        ({"query": "x" * 40_000}, "the limit is 32768"),
        ({}, "query: Field required"),
        ([1], "send one, with Content-Type: application/json"),
        (b'{"query": "x"', "the body is not JSON at character"),
        (b'{"query": "\\ud800"}', "lone surrogate"),
        (b"\xff\xfe", "body"),
        (b"[" * 50_000, "body"),
        (b"", "the body"),
    ],
)
def test_a_wrong_query_is_refused_and_says_why(api: Api, body: Any, said: str) -> None:
    answer = api.ask("POST", "/v1/users/maya/search", body)
    assert answer.status == 400, answer
    assert answer.error["type"] == "rejected"
    assert said in answer.error["message"]


def test_one_wrong_turn_refuses_all(api: Api) -> None:
    answer = api.add("eve", turn(1), turn(2, user_id="bob"), turn(3, text=" "))
    assert answer.status == 400
    assert "nothing was stored; turn 1: bad_id" in answer.error["message"]
    assert "turn 2: blank" in answer.error["message"]
    assert api.search("eve", "bees").body["known_user"] is False
    assert api.add("eve").status == 400
    assert api.ask("POST", "/v1/users/eve/turns", {"turns": "m1"}).status == 400


def test_users_are_named_by_any_text(api: Api) -> None:
    for path, user in (("a%2Fb", "a/b"), ("search", "search"), ("%C3%A9l%C3%A9a%20x", "éléa x")):
        assert api.add(path, turn(1)).body["accepted"] == 1
        assert api.search(path, "bees").body["user_id"] == user
    assert api.search("a", "bees").body["known_user"] is False
    assert api.search("x" * 300, "bees").status == 400
    assert api.ask("POST", "/v1/users//search", {"query": "x"}).error["message"] == "bad_id: user_id is empty"


def test_a_body_that_is_too_large_is_refused(api: Api) -> None:
    answer = api.add("fay", *(turn(number % 60, "x" * 3000) for number in range(30)))
    assert answer.status == 413
    assert answer.error["type"] == "too_large"
    assert str(MAX_BODY) in answer.error["message"]


def test_other_paths_and_methods_are_refused_in_the_same_form(api: Api) -> None:
    assert api.ask("GET", "/v1/users/maya/search").error["type"] == "method_not_allowed"
    assert api.ask("POST", "/v2", {}).error["type"] == "not_found"
    assert api.ask("GET", "/healthz").status == 200


def test_a_killed_shard_is_told_as_unavailable_and_then_answers_again(api: Api) -> None:
    assert api.until(200, "GET", "/readyz").body == {"status": "ready", "partitions": 4}
    query = QUERIES[0]
    api.kill(api.shard_of("maya"))
    refused = api.search("maya", query, k=5, deadline_ms=150)
    assert refused.status == 503
    assert refused.error["type"] == "unavailable"
    assert int(refused.headers["retry-after"]) >= 1
    unready = api.ask("GET", "/readyz")
    assert unready.status == 503
    assert unready.error["missing"]
    patient = api.search("maya", query, k=5, deadline_ms=60_000)  # waits for the partition inside its deadline
    assert patient.status == 200
    assert patient.body["context"] == api.expected[query]["context"]
    api.until(200, "GET", "/readyz")


def test_turns_are_stored_while_their_shard_is_replaced(api: Api) -> None:
    assert api.add("gil", turn(1)).body["accepted"] == 1
    api.kill(api.shard_of("gil"))
    added = api.add("gil", turn(1), turn(2, "The wax is yellow."))
    assert added.status == 200
    assert added.body["accepted"] + added.body["duplicates"] == 2
    found = api.search("gil", "wax", mode="flat", min_position=added.body["position"]).body["memories"]
    assert sorted(memory["message_id"] for memory in found) == ["m1", "m2"]
    api.until(200, "GET", "/readyz")


def test_a_moved_partition_answers_from_its_new_shard(api: Api) -> None:
    query = QUERIES[1]
    before = api.shard_of("maya")
    facts = api.cluster.spec.facts
    key = identity.record_key(User("default", "maya"))
    partition = identity.partition_of(key, facts.partitions, facts.partitioner)
    api.cluster.move(partition, 1 - int(before.rpartition("-")[2]))
    answer = api.search("maya", query, k=5)
    assert answer.status == 200
    assert answer.body["context"] == api.expected[query]["context"]


def test_a_killed_embedder_delays_answers_only(api: Api) -> None:
    api.kill("embedder-0")
    answer = api.search("maya", QUERIES[0], k=5, deadline_ms=60_000)
    assert answer.status == 200
    api.until(200, "GET", "/readyz")
