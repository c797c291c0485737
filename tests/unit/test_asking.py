"""What a task gets from a model that is wrong, slow, busy or gone: on a clock of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from raygam.memory.chat import ChatAnswer, ChatRequest, Message, ModelCall, Prompt, Reading
from raygam.memory.errors import (
    BadAnswer,
    LeaseLost,
    Misconfigured,
    ModelAway,
    Refused,
    Rejected,
    TooLong,
    Unanswerable,
)
from raygam.memory.model import User
from raygam.pipeline.asking import Asker, AskLimits
from raygam.pipeline.breaker import PAUSES
from raygam.pipeline.budgets import TokenBudgets
from raygam.pipeline.metrics import METRICS

ANA, BEN = User("acme", "ana"), User("zoo", "ben")
SCHEMA = {"type": "object", "properties": {"n": {"type": "array"}}, "required": ["n"]}


class Clock:
    """Time passes by waiting, for the one thread that waits."""

    def __init__(self) -> None:
        self.seconds = 100.0
        self.waits: list[float] = []

    def now(self) -> float:
        return self.seconds

    def wait(self, changed: threading.Condition, seconds: float) -> None:
        self.waits.append(seconds)
        self.seconds += seconds


Step = str | ChatAnswer | BaseException | tuple[float, str | Exception]


class Replayed:
    """A model whose answers and failures are given; a pair takes that many seconds first."""

    name = "replayed"
    context_tokens = 4096

    def __init__(self, clock: Clock, steps: Iterable[Step]) -> None:
        self._clock = clock
        self._steps = list(steps)
        self.asked: list[ChatRequest] = []
        self.times: list[float] = []
        self.seconds: list[float] = []
        self.closed = False

    def count_tokens(self, text: str) -> int:
        return len(text.split())

    def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        self.asked.append(request)
        self.times.append(self._clock.now())
        self.seconds.append(seconds)
        step = self._steps.pop(0)
        if isinstance(step, tuple):
            self._clock.seconds += step[0]
            step = step[1]
        if isinstance(step, BaseException):
            raise step
        return step if isinstance(step, ChatAnswer) else ChatAnswer(step, 100, 10)

    def close(self) -> None:
        self.closed = True


class Figures:
    def __init__(self) -> None:
        self.found: dict[tuple[str, ...], float] = {}

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        key = self._key(name, labels)
        self.found[key] = self.found.get(key, 0) + amount

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self.found[self._key(name, labels)] = value

    def observe(self, name: str, value: float, **labels: str) -> None:
        self.count(name, value, **labels)

    @staticmethod
    def _key(name: str, labels: dict[str, str]) -> tuple[str, ...]:
        assert tuple(sorted(labels)) == tuple(sorted(METRICS[name].labels))
        return (name, *(labels[label] for label in METRICS[name].labels))


def read(value: Any) -> Reading[list[int]]:
    if not isinstance(value, dict) or "n" not in value:
        raise BadAnswer("the key n is missing")
    kept = [number for number in value["n"] if number < 10]
    return Reading(kept, len(value["n"]) - len(kept))


PROMPT = Prompt("numbers", 1, ANA, (Message("system", "Say numbers."), Message("user", "[]")), SCHEMA, 50, read)


class Bench:
    """An asker over given steps."""

    def __init__(self, *steps: Step, budgets: TokenBudgets | None = None, **limits: Any) -> None:
        self.clock = Clock()
        self.model = Replayed(self.clock, steps)
        self.figures = Figures()
        self.calls: list[ModelCall] = []
        self.asker = Asker(
            self.model,
            AskLimits(**limits),
            budgets=budgets,
            metrics=self.figures,
            clock=self.clock,
            label="replayed",
            random=lambda: 0.5,
        )

    def ask(
        self,
        prompt: Prompt[list[int]] = PROMPT,
        *,
        seconds: float = 1000,
        answers: dict[str, str] | None = None,
        on_call: Callable[[ModelCall], None] | None = None,
    ) -> list[int]:
        deadline = self.clock.now() + seconds
        return self.asker.for_task(prompt.user, answers or {}, on_call or self.calls.append, deadline)(prompt)


def test_an_answer_is_read_counted_and_reported() -> None:
    bench = Bench('{"n": [1, 99, 2]}')
    assert bench.ask() == [1, 2]
    key = PROMPT.key("replayed")
    assert bench.calls == [ModelCall(key, "replayed", "numbers/1", 1, 100, 10, '{"n": [1, 99, 2]}', 1)]
    (request,) = bench.model.asked
    assert request == ChatRequest(PROMPT.messages, SCHEMA, "numbers", 50, ANA)
    found = bench.figures.found
    assert found["raygam_chat_calls_total", "replayed", "numbers/1", "answered"] == 1
    assert found["raygam_chat_answers_total", "replayed", "numbers/1", "taken"] == 1
    assert found["raygam_chat_tokens_total", "replayed", "prompt"] == 100
    assert found["raygam_chat_tokens_total", "replayed", "completion"] == 10
    assert found["raygam_chat_dropped_items_total", "replayed", "numbers/1"] == 1
    assert found["raygam_chat_under_way", "replayed"] == found["raygam_chat_away", "replayed"] == 0


def test_what_was_wrong_is_said_to_the_model_once_and_the_calls_are_summed() -> None:
    cut = ChatAnswer('{"n": [1', 100, 50, cut_off=True)
    bench = Bench("no JSON " * 100, cut, '{"m": []}', '{"n": []}', tries=4)
    assert bench.ask() == []
    (call,) = bench.calls
    assert (call.calls, call.prompt_tokens, call.completion_tokens) == (4, 400, 80)
    first, second, third, fourth = (request.messages for request in bench.model.asked)
    assert first == PROMPT.messages
    for said in (second, third, fourth):
        assert said[:2] == PROMPT.messages
        assert [message.role for message in said[2:]] == ["assistant", "user"]
    assert len(second[2].text) < 510
    assert "holds no JSON value" in second[3].text
    assert third[2].text == '{"n": [1'
    assert "cut off" in third[3].text
    assert "the key n is missing" in fourth[3].text
    assert bench.figures.found["raygam_chat_answers_total", "replayed", "numbers/1", "bad"] == 3


def test_answers_that_never_fit_end_in_an_error_that_says_why_and_are_paid_for() -> None:
    bench = Bench("", "{}", '{"m": 1}')
    with pytest.raises(
        BadAnswer, match=r"replayed gave no answer that fits numbers/1 in 3 tries; .*the key n is missing"
    ):
        bench.ask()
    assert [(call.calls, call.prompt_tokens, call.answer) for call in bench.calls] == [(3, 300, None)]
    assert bench.model.asked[1].messages[2].text == "(nothing)"


def test_a_known_answer_costs_nothing_and_one_that_reads_no_more_is_asked_again() -> None:
    key = PROMPT.key("replayed")
    bench = Bench('{"n": [5]}')
    assert bench.ask(answers={key: '{"n": [4]}'}) == [4]
    assert bench.model.asked == []
    assert bench.calls == [ModelCall(key, "replayed", "numbers/1", 0, 0, 0, '{"n": [4]}')]
    assert bench.ask(answers={key: '{"old": 1}'}) == [5]
    assert bench.calls[1].calls == 1
    assert bench.figures.found["raygam_chat_answers_total", "replayed", "numbers/1", "known"] == 1
    other = replace(PROMPT, version=2)
    assert other.key("replayed") != key


def test_a_task_that_asks_the_same_again_is_told_what_it_was_told() -> None:
    bench = Bench('{"n": [5]}')
    ask = bench.asker.for_task(ANA, {}, bench.calls.append, 1000)
    assert ask(PROMPT) == ask(PROMPT) == [5]
    assert [call.calls for call in bench.calls] == [1, 0]
    assert (ask.model, ask.context_tokens, ask.count_tokens("a b c")) == ("replayed", 4096, 3)


def test_a_prompt_that_fills_the_context_is_asked_again_without_what_was_wrong() -> None:
    bench = Bench("{}", TooLong("4100 of 4096"), '{"n": [1]}')
    assert bench.ask() == [1]
    assert [len(request.messages) for request in bench.model.asked] == [2, 4, 2]
    assert bench.calls[0].calls == 2
    bench = Bench(TooLong("5000 of 4096"))
    with pytest.raises(TooLong, match="5000"):
        bench.ask()
    assert bench.calls == []


def test_a_model_that_is_away_is_asked_again_with_growing_pauses_until_it_answers() -> None:
    bench = Bench(ModelAway("gone"), ModelAway("gone"), '{"n": [1]}')
    assert bench.ask() == [1]
    assert bench.model.times == pytest.approx([100, 100 + PAUSES[0], 100 + PAUSES[0] + PAUSES[1]])
    assert bench.calls[0].calls == 1, "a call without an answer is no call that is paid"
    assert bench.figures.found["raygam_chat_calls_total", "replayed", "numbers/1", "away"] == 2


def test_retry_after_is_kept_to_and_lengthened() -> None:
    bench = Bench(ModelAway("busy", 8), '{"n": [1]}')
    assert bench.ask() == [1]
    assert bench.model.times == pytest.approx([100, 109])


def test_a_wait_beyond_the_deadline_is_not_waited() -> None:
    bench = Bench(ModelAway("busy", 60))
    with pytest.raises(ModelAway, match="busy") as away:
        bench.ask(seconds=10)
    assert away.value.retry_after_seconds == 60
    with pytest.raises(ModelAway, match=r"replayed asked to wait .busy.; it is asked again in") as away:
        bench.ask(seconds=10)
    assert away.value.retry_after_seconds == 67.5
    assert bench.clock.now() == 100
    assert bench.asker.obstacle().startswith("replayed asked to wait (busy)")
    assert bench.asker.room() == 0
    assert not bench.asker.wait_until_open(1)
    assert bench.asker.wait_until_open(100)
    assert bench.asker.obstacle() == ""


def test_the_breaker_opens_says_so_lets_one_probe_and_closes() -> None:
    bench = Bench(*[ModelAway("connection refused")] * 4, '{"n": [1]}', failures_to_open=3, concurrency=8)
    assert bench.asker.room() == 8
    with pytest.raises(ModelAway):
        bench.ask(seconds=1.7)  # attempts at 0, 0.5 and 1.5 s
    assert len(bench.model.asked) == 3
    assert bench.figures.found["raygam_chat_away", "replayed"] == 1
    assert bench.asker.obstacle() == "replayed is away (connection refused); it is asked again in 0.5 s"
    assert bench.asker.room() == 0
    assert bench.asker.wait_until_open(10)
    assert bench.asker.room() == 1, "a probe is due"
    assert bench.asker.obstacle() == "replayed is away (connection refused); it is being asked again"
    assert bench.ask() == [1]  # the probe fails, the next one is answered
    assert bench.asker.room() == 8
    assert bench.asker.obstacle() == ""
    assert bench.figures.found["raygam_chat_away", "replayed"] == 0


def test_a_server_that_refuses_our_settings_is_told_at_once_and_not_hammered() -> None:
    bench = Bench(*[Refused("wrong key")] * 2, failures_to_open=2)
    for _ in range(2):
        with pytest.raises(Refused, match="wrong key"):
            bench.ask()
    assert "wrong key" in bench.asker.obstacle()
    assert bench.asker.room() == 0
    assert bench.figures.found["raygam_chat_calls_total", "replayed", "numbers/1", "refused"] == 2


def test_a_rejected_request_is_no_sign_of_absence() -> None:
    bench = Bench(*[Rejected("no such thing")] * 3, failures_to_open=1)
    for _ in range(3):
        with pytest.raises(Rejected):
            bench.ask()
    assert bench.asker.obstacle() == ""
    assert bench.asker.room() == 32


class Breaking(Replayed):
    """Breaks down at Ben's requests; before each failure it answers, or fails, as many of Ana's."""

    def __init__(self, clock: Clock, others: Iterable[str], failure: ModelAway) -> None:
        super().__init__(clock, ())
        self._others = list(others)
        self._failure = failure
        self.asker: Asker | None = None
        self.broke_down = 0

    def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
        if request.user == ANA:
            if self._others.pop(0) == "answers":
                return ChatAnswer('{"n": [1]}', 1, 1)
            raise ModelAway("overloaded")
        assert self.asker is not None
        self.broke_down += 1
        for _ in range(len(self._others) and 2):
            with suppress(ModelAway):
                self.asker.call(replace(request, user=ANA), "numbers/1", self._clock.now() + 0.1)
        raise self._failure


AT_WORK = ModelAway("says 500", at_work=True)


@pytest.mark.parametrize(
    ("others", "failure", "ends"),
    [
        (["answers"] * 20, AT_WORK, "broke down 3 times at a request .numbers/1., and answered others"),
        (["fails"] * 20, AT_WORK, "says 500"),  # it does not do well: it may be away for all
        ([], AT_WORK, "says 500"),  # nobody else asks, so nobody knows
        (["answers"] * 20, ModelAway("says 503"), "says 503"),
        (["answers"] * 20, ModelAway("no answer within 120 s"), "no answer within"),
    ],
)
def test_a_request_at_which_the_model_breaks_down_is_told_from_a_model_that_is_away(
    others: list[str], failure: ModelAway, ends: str
) -> None:
    clock = Clock()
    model = Breaking(clock, others, failure)
    model.asker = asker = Asker(model, AskLimits(failures_to_open=50), clock=clock, random=lambda: 0.5)
    with pytest.raises(Unanswerable if "broke down" in ends else ModelAway, match=ends):
        asker.for_task(BEN, {}, lambda call: None, clock.now() + 10)(replace(PROMPT, user=BEN))
    assert model.broke_down == 3 if failure.at_work else model.broke_down > 3


def test_an_answer_can_be_stored_whatever_it_is() -> None:
    assert ChatAnswer("a\x00b\ud83d \U0001f600ü\n", 1, 1).text == "a\ufffdb\ufffd \U0001f600ü\n"


def test_what_a_request_did_is_remembered_over_leases() -> None:
    """A replica takes longer to come back than a lease lasts; and where one calls at a time, others come in between."""
    bench = Bench(AT_WORK, '{"n": [1]}', AT_WORK, '{"n": [1]}', AT_WORK, '{"n": [1]}', AT_WORK)
    for ends in (ModelAway, ModelAway, ModelAway, Unanswerable):
        with pytest.raises(ends):
            bench.ask(replace(PROMPT, user=BEN), seconds=0.1)
        if ends is ModelAway:
            assert bench.ask() == [1]
        bench.clock.seconds += 60
    assert len(bench.model.asked) == 7


def test_calls_that_fail_together_have_failed_once() -> None:
    bench = Bench(*[AT_WORK] * 4, *['{"n": [1]}'] * 2, AT_WORK, failures_to_open=50)
    for user in (ANA, ANA, ANA, BEN):  # a replica dies with all that it had in hand
        with pytest.raises(ModelAway):
            bench.ask(replace(PROMPT, user=user), seconds=0.1)
    bench.ask()
    bench.ask()
    with pytest.raises(ModelAway):
        bench.ask(replace(PROMPT, user=BEN), seconds=0.1)
    assert bench.asker._gate.record == (2, 2)


def test_somebody_who_waits_has_less_patience_than_a_task() -> None:
    bench = Bench(*[ModelAway("gone")] * 9)
    with pytest.raises(ModelAway):
        bench.asker.for_questions(ANA, {}, bench.calls.append, 1000, 3)(PROMPT)
    assert bench.clock.now() < 104


def test_a_call_gets_the_time_that_is_left_and_says_nothing_by_running_out_of_less_than_a_call_may_take() -> None:
    late = ModelAway("no answer in time")
    bench = Bench((5, late), call_seconds=60, failures_to_open=1)
    with pytest.raises(ModelAway):
        bench.ask(seconds=5)
    assert bench.model.seconds == [5]
    assert bench.asker.obstacle() == "", "the model had less time than it may take"
    bench = Bench((60, late), call_seconds=60, failures_to_open=1)
    with pytest.raises(ModelAway):
        bench.ask(seconds=60.1)
    assert bench.model.seconds == [60]
    assert "no answer in time" in bench.asker.obstacle()


def test_no_call_begins_after_the_deadline() -> None:
    bench = Bench()
    with pytest.raises(ModelAway, match="time is over"):
        bench.ask(seconds=0)
    assert bench.model.asked == []


def test_a_tenant_without_tokens_is_barred_and_the_others_go_on() -> None:
    bench = Bench('{"n": [1]}', '{"n": [2]}', '{"n": [3]}', budgets=TokenBudgets(None, {"acme": 60}))
    assert bench.ask() == [1]  # 110 tokens of 60
    assert bench.asker.barred() == {"acme"}
    with pytest.raises(ModelAway, match=r"tenant acme .* used up") as away:
        bench.ask()
    assert away.value.retry_after_seconds == pytest.approx(51)
    assert bench.asker.obstacle() == ""
    assert bench.asker.exhausted() == "1 tenant(s) have used up their tokens for replayed: acme; all go on within 51 s"
    assert bench.ask(replace(PROMPT, user=BEN)) == [2]
    assert bench.asker.room() > 0
    bench.clock.seconds += 51
    assert bench.asker.barred() == frozenset()
    assert bench.ask() == [3]


def test_tokens_are_held_while_a_call_is_under_way_and_given_back_when_nobody_answers() -> None:
    budgets = TokenBudgets(60)
    seen: list[float] = []
    calls: list[ModelCall] = []

    class Looking(Replayed):
        def complete(self, request: ChatRequest, seconds: float) -> ChatAnswer:
            seen.append(budgets.wait_seconds("acme", self._clock.now()))
            return super().complete(request, seconds)

    clock = Clock()
    model = Looking(clock, [Rejected("no"), ModelAway("gone", 5), KeyboardInterrupt()])
    asker = Asker(model, budgets=budgets, clock=clock, random=lambda: 0.5)
    large = replace(PROMPT, max_tokens=80)
    for error, seconds in ((Rejected, 1), (ModelAway, 1), (KeyboardInterrupt, 100)):
        with pytest.raises(error):
            asker.for_task(ANA, {}, calls.append, clock.now() + seconds)(large)
        assert asker.barred() == frozenset()
    assert seen == pytest.approx([21, 21, 21])
    assert asker.room() == 32


def test_a_lease_that_was_lost_ends_the_question() -> None:
    bench = Bench('{"n": [1]}')

    def lost(call: ModelCall) -> None:
        raise LeaseLost("another worker has it")

    with pytest.raises(LeaseLost):
        bench.ask(on_call=lost)


def test_closing_ends_who_waits_and_the_model() -> None:
    bench = Bench(*[ModelAway("gone")] * 5, failures_to_open=1)
    with pytest.raises(ModelAway):
        bench.ask(seconds=0.1)
    bench.asker.close()
    assert bench.model.closed
    with pytest.raises(ModelAway, match="ended with their process"):
        bench.ask()
    assert (bench.asker.room(), bench.asker.wait_until_open(5)) == (0, False)
    assert bench.asker.obstacle()


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"tries": 0}, {"call_seconds": 0}, {"failures_to_open": 0}])
def test_limits_that_let_nothing_through_are_a_mistake(wrong: dict[str, Any]) -> None:
    with pytest.raises(Misconfigured, match="chat_"):
        AskLimits(**wrong)
