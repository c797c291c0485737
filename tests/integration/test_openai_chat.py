"""The adapter over real HTTP: what every shape of success and failure becomes."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from benchmarks.scripted_judgement import count_tokens
from benchmarks.scripted_model import ScriptedModel, Step
from raygam.adapters.openai_chat import DEFAULT_CONTEXT_TOKENS, OpenAIChat, Served
from raygam.memory.chat import ChatAnswer, ChatRequest, Message
from raygam.memory.errors import Misconfigured, ModelAway, RaygamError, Refused, Rejected, TooLong
from raygam.memory.model import User
from raygam.pipeline.asking import Asker, AskLimits

SCHEMA = {"type": "object", "properties": {"boundaries": {"type": "array"}}, "required": ["boundaries"]}
MESSAGES = (Message("system", "Find boundaries."), Message("user", '<<<EVENTS\n0 "Ana": "Grüße, 你好"\nEVENTS>>>'))
REQUEST = ChatRequest(MESSAGES, SCHEMA, "boundaries", 64, User("default", "ana"))
KEY = "sk-zinc-foil-hat"


@pytest.fixture(scope="module")
def served() -> Iterator[ScriptedModel]:
    with ScriptedModel(key=KEY) as server:
        yield server


@pytest.fixture
def model(served: ScriptedModel) -> Iterator[ScriptedModel]:
    served.asked.clear()
    served.most_at_once = 0
    yield served
    assert served.waiting_steps == 0, "a step was never met"


@pytest.fixture
def make(served: ScriptedModel) -> Iterator[Callable[..., OpenAIChat]]:
    made = []

    def chat(**options: Any) -> OpenAIChat:
        found = OpenAIChat(
            options.pop("url", served.url),
            options.pop("model", served.name),
            **{"api_key": SecretStr(KEY)} | options,
        )
        made.append(found)
        return found

    yield chat
    for each in made:
        each.close()


def test_a_request_says_all_and_an_answer_is_taken_as_it_is(
    model: ScriptedModel, make: Callable[..., OpenAIChat]
) -> None:
    chat = make(seed=7)
    assert chat.complete(REQUEST, 10) == ChatAnswer('{"boundaries": []}', 30, 8)
    (asked,) = model.asked
    assert asked.document == {
        "model": "scripted",
        "messages": [{"role": message.role, "content": message.text} for message in MESSAGES],
        "max_tokens": 64,
        "temperature": 0.0,
        "seed": 7,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "boundaries", "schema": SCHEMA, "strict": True},
        },
    }
    model.script(Step("half a sen", cut_off=True), Step("no counts", usage=False))
    assert chat.complete(REQUEST, 10).cut_off
    uncounted = chat.complete(REQUEST, 10)
    assert uncounted.completion_tokens == 2
    assert uncounted.prompt_tokens == sum(count_tokens(message.text) for message in MESSAGES)
    assert repr(chat) == f"OpenAIChat('{model.url}', 'scripted')"


def test_what_a_server_does_not_know_is_left_out(model: ScriptedModel, make: Callable[..., OpenAIChat]) -> None:
    model.script(Step("{}"))
    make(guided=False, temperature=None).complete(REQUEST, 10)
    assert not {"response_format", "temperature", "seed"} & model.asked[0].document.keys()


def test_the_only_model_of_a_server_needs_no_name(model: ScriptedModel, make: Callable[..., OpenAIChat]) -> None:
    chat = make(model=None)
    chat.complete(REQUEST, 10)
    assert chat.name == model.asked[0].document["model"] == "scripted"
    assert chat.context_tokens == 8192
    with (
        ScriptedModel(names=["one", "two"]) as server,
        pytest.raises(Refused, match=r"lists 2 models .one, two.; name"),
    ):
        make(url=server.url, model=None).complete(REQUEST, 10)
    with ScriptedModel(names=[]) as server, pytest.raises(Refused, match=r"lists 0 models .none."):
        assert make(url=server.url, model=None).name


BUSY = {"Retry-After": "7"}
COMPLETION: dict[str, Any] = {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    ("step", "error", "said"),
    [
        (Step("slow down", 429, BUSY), ModelAway, "has too much to do; .*says 429: slow down"),
        (Step("starting", 503, BUSY), ModelAway, "has too much to do; .*says 503: starting"),
        (Step("boom", 500), ModelAway, "fails; .*says 500: boom"),
        (Step(status=502, body=b"<html>Bad Gateway</html>"), ModelAway, "502: <html>Bad Gateway</html>"),
        (Step(status=504, body=b""), ModelAway, "504: no reason"),
        (Step("later", 408), ModelAway, "408: later"),
        (Step(sent_share=0.5), ModelAway, "ended the connection before its answer was whole"),
        (Step(sent_share=0), ModelAway, "ended the connection before its answer was whole"),
        (Step(body=b"<html>Welcome</html>"), ModelAway, "something else than a model's words .<html>Welcome</html>"),
        (Step(body=b""), ModelAway, "something else than a model's words .nothing"),
        (Step(body=b"[1]"), ModelAway, "something else"),
        (Step(body=b'{"choices": []}'), ModelAway, "something else"),
        (Step(body=b'{"choices": [{"text": "of the older API"}]}'), ModelAway, "something else"),
        (Step(body=b'{"error": {"code": 429, "message": "upstream"}}'), ModelAway, "429: upstream"),
        (Step(body=b'{"error": "out of memory"}'), ModelAway, "500: out of memory"),
        (Step("no", 403), Refused, "403: no.*check chat_key"),
        (Step(status=404, body=b'{"detail": "Not Found"}'), Refused, "404: Not Found.*no model 'scripted' .chat_model.*chat_url"),
        (Step(status=301, headers={"Location": "https://new.example/v1"}), Refused, "it is at https://new.example/v1 now"),
        (Step("This model's maximum context length is 10 tokens", 400), TooLong, "does not fit the model's context"),
        (Step(status=400, body=b'{"error": {"message": "no", "code": "context_length_exceeded"}}'), TooLong, "400: no"),
        (Step(status=413, body=b"Payload Too Large"), TooLong, "413: Payload Too Large"),
        (Step("'temperature' does not support 0", 400), Rejected, "400.*set chat_temperature"),
        (Step(status=422, body=b'{"detail": [{"loc": ["x"], "msg": "bad"}]}'), Rejected, '422: .*"msg": "bad"'),
    ],
)  # fmt: skip
def test_what_a_failure_becomes(
    model: ScriptedModel, make: Callable[..., OpenAIChat], step: Step, error: type[RaygamError], said: str
) -> None:
    model.script(step)
    with pytest.raises(RaygamError, match=said) as met:
        make().complete(REQUEST, 10)
    assert type(met.value) is error
    if isinstance(met.value, ModelAway):
        assert met.value.retry_after_seconds == (7 if step.headers is BUSY else None)


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("0.5", 0.5),
        ("-3", 0),
        (formatdate(1_700_000_030, usegmt=True), 30),
        (formatdate(1_600_000_000, usegmt=True), 0),
        ("1e9", 86400),
        ("nan", None),
        ("soon", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(
    model: ScriptedModel, make: Callable[..., OpenAIChat], said: str, seconds: float | None
) -> None:
    model.script(Step("busy", 429, {"Retry-After": said}))
    with pytest.raises(ModelAway) as met:
        make(now=lambda: 1_700_000_000).complete(REQUEST, 10)
    assert met.value.retry_after_seconds == seconds


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"content": None, "refusal": "I will not."}, "I will not."),
        ({"content": [{"type": "text", "text": "in "}, {"type": "text", "text": "parts"}]}, "in parts"),
        ({"content": None, "reasoning_content": "hm"}, ""),
        ({"content": "ok", "tool_calls": []}, "ok"),
    ],
)
def test_a_model_s_words_come_in_several_forms(
    model: ScriptedModel, make: Callable[..., OpenAIChat], message: dict[str, Any], text: str
) -> None:
    body = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": {"prompt_tokens": 3}}
    model.script(Step(body=json.dumps(body).encode()))
    answer = make().complete(REQUEST, 10)
    assert (answer.text, answer.prompt_tokens) == (text, 3)


def test_a_wrong_key_or_model_is_refused_and_no_key_is_shown(
    model: ScriptedModel, make: Callable[..., OpenAIChat]
) -> None:
    wrong = make(api_key=SecretStr("sk-wrong-one"))
    for asked in (lambda: wrong.complete(REQUEST, 10), lambda: wrong.context_tokens, wrong.served):
        with pytest.raises(Refused, match="check chat_key") as met:
            asked()
        assert "sk-wrong-one" not in str(met.value)
        assert "***" in str(met.value)
    assert "sk-wrong-one" not in repr(vars(wrong)) + repr(vars(wrong._http))
    with pytest.raises(Refused, match="chat_model"):
        make(model="another").complete(REQUEST, 10)
    assert model.asked == []


def test_a_server_that_wants_another_name_for_the_limit_is_asked_so_from_then_on(
    model: ScriptedModel, make: Callable[..., OpenAIChat]
) -> None:
    chat = make()
    model.script(
        Step("Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.", 400), Step("a"), Step("b")
    )
    assert [chat.complete(REQUEST, 10).text for _ in range(2)] == ["a", "b"]
    assert [asked.document.get("max_tokens") for asked in model.asked] == [64, None, None]
    assert [asked.document.get("max_completion_tokens") for asked in model.asked] == [None, 64, 64]


def test_a_slow_answer_ends_with_the_call_s_time(model: ScriptedModel, make: Callable[..., OpenAIChat]) -> None:
    held = threading.Event()
    model.script(Step(held=held))
    began = time.monotonic()
    with pytest.raises(ModelAway, match="gave no whole answer within"):
        make().complete(REQUEST, 0.2)
    assert 0.2 <= time.monotonic() - began < 5
    held.set()


def test_a_server_that_is_not_there(make: Callable[..., OpenAIChat]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        chat = make(url=url)
        for asked in (lambda: chat.complete(REQUEST, 5), lambda: chat.context_tokens, lambda: chat.count_tokens("x")):
            with pytest.raises(ModelAway, match=rf"no chat model answers at {url} .Connect.*is it running"):
                asked()


def test_a_port_without_tls_is_named(served: ScriptedModel, make: Callable[..., OpenAIChat]) -> None:
    with pytest.raises(Refused, match=r"does not answer to TLS .*write http://"):
        make(url=served.url.replace("http", "https")).complete(REQUEST, 5)


def test_closing_ends_all_calls_at_once(model: ScriptedModel, make: Callable[..., OpenAIChat]) -> None:
    chat, held = make(), threading.Event()
    model.script(*[Step(held=held)] * 5)
    with ThreadPoolExecutor() as callers:
        waiting = [callers.submit(chat.complete, REQUEST, 60) for _ in range(5)]
        model.wait_for_calls(5)
        began = time.monotonic()
        chat.close()
        for each in waiting:
            with pytest.raises(ModelAway, match="ended here"):
                each.result(5)
        assert time.monotonic() - began < 5
    held.set()
    with pytest.raises(ModelAway, match="ended here"):
        chat.complete(REQUEST, 60)
    chat.close()
    assert not any(thread.name == "raygam-chat" for thread in threading.enumerate())


def test_context_and_tokens_as_the_server_says_them(model: ScriptedModel, make: Callable[..., OpenAIChat]) -> None:
    chat, before = make(), model.tokenized
    assert chat.context_tokens == 8192
    assert [chat.count_tokens(text) for text in ("one two, three", "你好", "one two, three", "")] == [4, 2, 4, 0]
    assert model.tokenized - before == 1 + 3, "one look, and each text once"
    assert chat.served() == Served(("scripted",), 8192, f"the server's tokenizer ({model.url[:-3]}/tokenize)")
    with pytest.raises(TooLong, match="maximum context length is 8192"):
        chat.complete(ChatRequest((Message("user", "word " * 8150),), SCHEMA, "x", 64, REQUEST.user), 10)


def test_without_a_word_from_the_server_bytes_are_the_upper_bound(make: Callable[..., OpenAIChat]) -> None:
    with ScriptedModel(tokenizes=False, says_context=False) as bare:
        chat = make(url=bare.url + "/", context_tokens=None)
        assert chat.context_tokens == DEFAULT_CONTEXT_TOKENS
        assert [chat.count_tokens(text) for text in ("abc", "你好", "\ud800")] == [3, 6, 3]
        assert chat.served() == Served(("scripted",), None, "UTF-8 bytes, an upper bound")
        assert make(url=bare.url, context_tokens=500).context_tokens == 500


def test_tokens_by_a_tokenizer_s_file(make: Callable[..., OpenAIChat], tmp_path: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "the": 1}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.enable_truncation(2)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for path in (tmp_path, tmp_path / "tokenizer.json"):
        assert make(url="http://127.0.0.1:9/v1", tokenizer=path).count_tokens("the kiln broke, again") == 5
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(Misconfigured, match="chat_tokenizer"):
        make(tokenizer=tmp_path)
    with pytest.raises(Misconfigured, match="chat_tokenizer"):
        make(tokenizer=tmp_path / "missing")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is empty"),
        ("localhost:8000", "http://HOST:PORT/v1"),
        ("http://:80/v1", "is no address"),
        ("http://host:port/v1", "is no address"),
        ("http://me:hush@host/v1", "holds a user"),
        ("http://host/v1?key=hush", "holds a user"),
    ],
)
def test_an_address_that_is_none(url: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=said) as met:
        OpenAIChat(url, "m")
    assert "hush" not in str(met.value)


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="chat_model is empty"):
        OpenAIChat("http://127.0.0.1:9/v1", "")
    (tmp_path / "ca.pem").write_text("no certificate")
    for file in ("ca.pem", "missing.pem"):
        with pytest.raises(Misconfigured, match="chat_ca_file"):
            OpenAIChat("https://127.0.0.1:9/v1", "m", ca_file=tmp_path / file)


def test_a_storm_of_429s_nobody_calls_in_the_pause_and_all_are_answered(
    model: ScriptedModel, make: Callable[..., OpenAIChat]
) -> None:
    asker = Asker(make(), AskLimits(concurrency=20, call_seconds=30), random=lambda: 0.0)
    storm = threading.Event()
    model.script(*[Step("slow down", 429, {"Retry-After": "1"}, held=storm)] * 20)
    with ThreadPoolExecutor(20) as callers:
        futures = [callers.submit(asker.call, REQUEST, "boundaries/1", asker.clock.now() + 60) for _ in range(20)]
        model.wait_for_calls(20)
        broke_out = time.monotonic()
        storm.set()
        assert [each.result(60).text for each in futures] == ['{"boundaries": []}'] * 20
    asker.close()
    times = sorted(asked.began for asked in model.asked)
    assert len(times) == 40, "each caller was told once to wait"
    assert times[20] - broke_out >= 1, "somebody called while the server had asked to wait"


def test_the_cap_is_never_exceeded(model: ScriptedModel, make: Callable[..., OpenAIChat]) -> None:
    asker = Asker(make(), AskLimits(concurrency=3))
    held = threading.Event()
    model.script(*[Step(held=held)] * 3)
    with ThreadPoolExecutor(12) as callers:
        futures = [callers.submit(asker.call, REQUEST, "x/1", asker.clock.now() + 60) for _ in range(24)]
        model.wait_for_calls(3)
        assert asker.room() == 0
        held.set()
        for future in futures:
            future.result(60)
    assert asker.room() == 3
    asker.close()
    assert model.most_at_once == 3
    assert len(model.asked) == 24


def test_a_model_that_goes_and_comes_back_is_found_again(make: Callable[..., OpenAIChat]) -> None:
    with ScriptedModel() as server:
        asker = Asker(make(url=server.url), AskLimits(concurrency=4, failures_to_open=2), random=lambda: 0.0)
        assert asker.call(REQUEST, "boundaries/1", asker.clock.now() + 30).text
        server.kill()
        with ThreadPoolExecutor(4) as callers:
            waiting = [callers.submit(asker.call, REQUEST, "boundaries/1", asker.clock.now() + 60) for _ in range(8)]
            _until(lambda: "is away (no chat model answers" in asker.obstacle())
            assert asker.room() == 0
            server.start()
            assert all(each.result(60).text == '{"boundaries": []}' for each in waiting)
        assert asker.obstacle() == ""
        asker.close()


def test_closing_an_asker_ends_who_calls_and_who_waits(model: ScriptedModel, make: Callable[..., OpenAIChat]) -> None:
    asker, held = Asker(make(), AskLimits(concurrency=2)), threading.Event()
    model.script(*[Step(held=held)] * 2)
    with ThreadPoolExecutor(6) as callers:
        futures = [callers.submit(asker.call, REQUEST, "x/1", asker.clock.now() + 600) for _ in range(6)]
        model.wait_for_calls(2)
        asker.close()
        for future in futures:
            with pytest.raises(ModelAway, match="ended"):
                future.result(10)
    held.set()


def _until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not met():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)
