"""Asking a chat model on behalf of tasks: repeats, reads, counts, remembers answers.

One `Asker` per process and model. What takes time happens here and in the gate before it; what a
question is and what its answer means is the domain's (`memory.chat.Prompt`).
"""

from __future__ import annotations

import random as machine_random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from ..memory.chat import ChatAnswer, ChatRequest, Message, ModelCall, Prompt, Reading
from ..memory.errors import BadAnswer, Misconfigured, ModelAway, Refused, Rejected, TooLong, Unanswerable
from ..memory.model import User
from ..memory.model_output import json_value
from ..memory.ports import Ask, ChatModel
from .breaker import Breaker, Permit, pause_after
from .budgets import TokenBudgets
from .chat_gate import ChatGate, Clock, MonotonicClock
from .metrics import Metrics, NoMetrics
from .suspects import Suspects

T = TypeVar("T")
_FULL = 0.95
"""Of what a call may take: one that had so much had its time."""
_SHOWN = 500
"""Characters of a bad answer that are shown to the model again: enough to see the fault, and never a second input."""


@dataclass(frozen=True, slots=True)
class AskLimits:
    """How a model is asked.

    Attributes:
        concurrency: calls under way at most.
        call_seconds: what one call may take.
        tries: how often a prompt is put to the model whose answers do not fit.
        failures_to_open: calls in a row without an answer after which nobody calls, but a probe by and by.
    """

    concurrency: int = 32
    call_seconds: float = 120.0
    tries: int = 3
    failures_to_open: int = 5

    def __post_init__(self) -> None:
        if min(self.concurrency, self.tries, self.failures_to_open) < 1 or not self.call_seconds > 0:
            raise Misconfigured(
                "chat_concurrency, chat_tries and the failures that open the breaker are 1 at least, and "
                f"chat_timeout_seconds is more than 0; they are {self}"
            )


class Asker:
    """One model's callers in this process. Thread-safe.

    Args:
        model: the model; closed with this.
        limits: how it is asked.
        budgets: of the tenants; nobody else's from now on.
        metrics: where figures go.
        label: what it is called in messages; its name may not be known before it answers.
        clock: what `deadline`s are measured by.
        random: draws from 0 to 1.
    """

    def __init__(
        self,
        model: ChatModel,
        limits: AskLimits | None = None,
        *,
        budgets: TokenBudgets | None = None,
        metrics: Metrics | None = None,
        label: str = "the chat model",
        clock: Clock | None = None,
        random: Callable[[], float] = machine_random.random,
    ) -> None:
        self.model = model
        self.label = label  # what it is called in messages
        self.limits = limits or AskLimits()
        self.metrics: Metrics = metrics or NoMetrics()
        self.clock: Clock = clock or MonotonicClock()
        self._random = random
        breaker = Breaker(self.limits.failures_to_open, random)
        self._suspects = Suspects()
        self._gate = ChatGate(label, self.limits.concurrency, breaker, budgets or TokenBudgets(), self.clock)

    def for_task(
        self,
        user: User,
        answers: Mapping[str, str],
        on_call: Callable[[ModelCall], None],
        deadline: float,
    ) -> Ask:
        """The model as one task asks it.

        Args:
            user: whose task it is: the calls are on its tenant's budget.
            answers: texts that were taken before, by `Prompt.key`; they are not asked for again.
            on_call: told once per prompt what it cost, also where it failed; what it raises ends the question.
            deadline: on the asker's clock; no call begins after it or ends long after it.
        """
        return _TaskAsk(self, user, answers, on_call, lambda: deadline)

    def for_questions(
        self,
        user: User,
        answers: Mapping[str, str],
        on_call: Callable[[ModelCall], None],
        seconds: float,
        patience_seconds: float,
    ) -> Ask:
        """The same where nobody holds a lease, and somebody waits.

        Args:
            user: as `for_task`.
            answers: likewise.
            on_call: likewise.
            seconds: each question may take so long, however many there are.
            patience_seconds: and so long while the model is away.
        """
        return _TaskAsk(self, user, answers, on_call, lambda: self.clock.now() + seconds, patience_seconds)

    def barred(self) -> frozenset[str]:
        """Tenants whose tokens are used up for now: their tasks are to be passed over."""
        return self._gate.barred()

    def room(self) -> int:
        """How many calls could begin at once: 0 while the model is away, 1 when a probe is due."""
        return self._gate.room()

    def obstacle(self) -> str:
        """What stands in the way of calls, for people; empty if nothing does."""
        return self._gate.obstacle()

    @property
    def setbacks(self) -> int:
        """How often in a row the model was asked again for nothing, once it counted as away."""
        return self._gate.setbacks

    def exhausted(self) -> str:
        """Which tenants wait for tokens, for people; empty if none does."""
        return self._gate.exhausted()

    def wait_until_open(self, seconds: float) -> bool:
        """Wait until calls may begin, a probe included, at most so long; return whether they may."""
        return self._gate.wait_until_open(seconds)

    def close(self) -> None:
        """End; who waits and whose call is under way gets `ModelAway` at once."""
        self._gate.close()
        self.model.close()

    def name(self, deadline: float) -> str:
        """The model's name; a server that has one model only may have to be asked for it.

        Raises:
            ModelAway, Refused: as `reach`.
        """
        return self.reach(lambda: self.model.name, deadline)

    def reach(self, read: Callable[[], T], deadline: float) -> T:
        """Read something of the model for which its server may have to be asked, beside the calls under way.

        Args:
            read: gets it; often known here, so it takes no place among the calls.
            deadline: on the asker's clock; until then a server that is away is asked again.

        Raises:
            ModelAway: it stayed away.
            Refused: it answers, and not to our settings.
        """
        failures = 0
        while True:
            try:
                return read()
            except (ModelAway, Refused) as error:
                self._gate.report(error)
                failures += 1
                again = isinstance(error, ModelAway)
                if not (again and self._gate.pause(pause_after(failures, self._random), deadline)):
                    raise

    def call(
        self, request: ChatRequest, prompt: str, deadline: float, patient_until: float | None = None
    ) -> ChatAnswer:
        """Get one answer; a model that is away is asked again until the deadline.

        Args:
            request: what to ask.
            prompt: its label in metrics.
            deadline: on the asker's clock.
            patient_until: when to give up on a model that is away; default: the deadline.

        Raises:
            ModelAway: it stayed away, the tenant's tokens are used up, or this was closed.
            Unanswerable: it broke down at this request `tries` times, in this call and earlier ones, and did well at
                others in between.
            TooLong, Rejected, Refused: as `ChatModel.complete`.
        """
        patient_until = deadline if patient_until is None else patient_until
        model, failures, broke_down = self.name(patient_until), 0, 0
        suspicion = self._suspects.of(request, self._gate.record)
        while True:
            permit = self._gate.enter(request.user.tenant, request.max_tokens, deadline, patient_until)
            try:
                answer = self._admitted(request, model, prompt, deadline, permit)
                self._suspects.clear(suspicion)
                return answer
            except ModelAway as error:
                failures += 1
                broke_down += error.at_work
                if error.at_work and self._suspects.blamed(suspicion, self._gate.record, self.limits.tries):
                    raise Unanswerable(
                        f"{model} broke down {self.limits.tries} times at a request ({prompt}), and answered others each "
                        f"time in between; the last time: {error}"
                    ) from None
                if broke_down >= self.limits.tries:
                    raise  # others shall have their turn: by what becomes of them it is seen whose fault it is
                # The gate keeps everyone out for as long as the server asks; this is for a failure of one's own.
                if not self._gate.pause(pause_after(failures, self._random), patient_until):
                    raise error from None

    def _admitted(self, request: ChatRequest, model: str, prompt: str, deadline: float, permit: Permit) -> ChatAnswer:
        tenant = request.user.tenant
        started = self.clock.now()
        seconds = min(self.limits.call_seconds, deadline - started)
        self.metrics.gauge("raygam_chat_under_way", self._gate.under_way, model=model)
        try:
            answer = self.model.complete(request, seconds)
        except (ModelAway, Refused) as error:
            # A call that had less time than a call may take says nothing about the model by running out of it.
            short = seconds < _FULL * self.limits.call_seconds and self.clock.now() - started >= seconds
            self._gate.leave_away(permit, tenant, request.max_tokens, error, counts=not short)
            self._counted(model, prompt, "away" if isinstance(error, ModelAway) else "refused", started)
            raise
        except Rejected:
            self._gate.leave(permit, tenant, -request.max_tokens)
            self._counted(model, prompt, "rejected", started)
            raise
        except BaseException as error:
            self._gate.leave_away(permit, tenant, request.max_tokens, Exception(repr(error)), counts=False)
            raise
        self._gate.leave(permit, tenant, answer.prompt_tokens + answer.completion_tokens - request.max_tokens)
        self._counted(model, prompt, "answered", started)
        self.metrics.count("raygam_chat_tokens_total", answer.prompt_tokens, model=model, kind="prompt")
        self.metrics.count("raygam_chat_tokens_total", answer.completion_tokens, model=model, kind="completion")
        return answer

    def _counted(self, model: str, prompt: str, outcome: str, started: float) -> None:
        self.metrics.count("raygam_chat_calls_total", model=model, prompt=prompt, outcome=outcome)
        self.metrics.observe("raygam_chat_seconds", self.clock.now() - started, model=model)
        self.metrics.gauge("raygam_chat_under_way", self._gate.under_way, model=model)
        self.metrics.gauge("raygam_chat_away", float(self._gate.is_away), model=model)


class _TaskAsk:
    """`Ask` of one task; its thread's alone."""

    def __init__(
        self,
        asker: Asker,
        user: User,
        answers: Mapping[str, str],
        on_call: Callable[[ModelCall], None],
        until: Callable[[], float],
        patience_seconds: float = float("inf"),
    ) -> None:
        self._asker = asker
        self._user = user
        self._answers = dict(answers)
        self._on_call = on_call
        self._until = until
        self._patience = patience_seconds

    @property
    def model(self) -> str:
        """The model's name."""
        return self._asker.name(self._patient_until())

    @property
    def context_tokens(self) -> int:
        """Of the model."""
        return self._asker.reach(lambda: self._asker.model.context_tokens, self._patient_until())

    def count_tokens(self, text: str) -> int:
        """By the model's tokenizer."""
        return self._asker.reach(lambda: self._asker.model.count_tokens(text), self._patient_until())

    def __call__(self, prompt: Prompt[T]) -> T:
        """Return what the model says, read by the prompt.

        Raises:
            BadAnswer: none of its answers fits.
            ModelAway, TooLong, Rejected, Refused: as `Asker.call`.
        """
        deadline = self._until()
        key = prompt.key(self.model)
        known = self._answers.get(key)
        if known is not None:
            try:
                value = self._read(prompt, known, cut_off=False).value
            except BadAnswer:
                del self._answers[key]  # it was taken by another release; what it says now, the model must say
            else:
                self._count(prompt, "known")
                self._on_call(ModelCall(key, self.model, prompt.label, 0, 0, 0, known))
                return value
        call = ModelCall(key, self.model, prompt.label, 0, 0, 0)
        messages = prompt.messages
        wrong = BadAnswer("it was not asked")
        try:
            for _ in range(self._asker.limits.tries):
                answer = self._answer(prompt, messages, deadline)
                call = replace(
                    call,
                    calls=call.calls + 1,
                    prompt_tokens=call.prompt_tokens + answer.prompt_tokens,
                    completion_tokens=call.completion_tokens + answer.completion_tokens,
                )
                try:
                    reading = self._read(prompt, answer.text, answer.cut_off)
                except BadAnswer as error:
                    wrong = error
                    self._count(prompt, "bad")
                    messages = _corrected(prompt, answer, error)
                    continue
                call = replace(call, answer=answer.text, dropped=reading.dropped)
                self._answers[key] = answer.text
                self._count(prompt, "taken")
                if reading.dropped:
                    self._asker.metrics.count(
                        "raygam_chat_dropped_items_total", reading.dropped, model=self.model, prompt=prompt.label
                    )
                return reading.value
        finally:
            if call.calls:
                self._on_call(call)
        raise BadAnswer(
            f"{self.model} gave no answer that fits {prompt.label} in {call.calls} tries; the last time: {wrong}"
        )

    def _answer(self, prompt: Prompt[T], messages: tuple[Message, ...], deadline: float) -> ChatAnswer:
        def request(said: tuple[Message, ...]) -> ChatRequest:
            return ChatRequest(said, prompt.schema, prompt.name, prompt.max_tokens, self._user)

        try:
            return self._asker.call(request(messages), prompt.label, deadline, self._patient_until())
        except TooLong:
            if messages is prompt.messages:
                raise
            # The prompt filled the context; what was wrong with the last answer finds no room in it.
            return self._asker.call(request(prompt.messages), prompt.label, deadline, self._patient_until())

    def _patient_until(self) -> float:
        return min(self._until(), self._asker.clock.now() + self._patience)

    def _read(self, prompt: Prompt[T], text: str, cut_off: bool) -> Reading[T]:
        return prompt.read(json_value(text, prompt.schema, cut_off))

    def _count(self, prompt: Prompt[T], outcome: str) -> None:
        self._asker.metrics.count("raygam_chat_answers_total", model=self.model, prompt=prompt.label, outcome=outcome)


def _corrected(prompt: Prompt[T], answer: ChatAnswer, wrong: BadAnswer) -> tuple[Message, ...]:
    """The prompt, the answer that did not fit, and what was wrong with it; some models want roles to alternate."""
    said = answer.text.strip() or "(nothing)"
    shown = said if len(said) <= _SHOWN else f"{said[:_SHOWN]} …"
    again = (
        f"Your answer cannot be used: {wrong}. "
        "Answer the question above again, from the beginning, with one JSON object that fits its schema and nothing else."
    )
    return (*prompt.messages, Message("assistant", shown), Message("user", again))
