"""Liveness by progress: an actor that answers nothing, or stands still, counts as stuck."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import ray

from . import calls
from .fleet import Fleet
from .process import Process
from .spec import ActorName

Verdict = Literal["well", "starting", "silent", "dead", "stuck", "failed"]
"""An actor has failed if it says of itself that it is to be replaced."""

_PLACED_SECONDS = 30.0
"""After it, an actor that has said nothing probably waits for resources."""


@dataclass(slots=True)
class Watched:
    """What is known of one actor.

    Attributes:
        started: when it was first asked.
        answered: when it last answered, None before the first time.
        process: its process, once it told.
        report: its last report.
        beats: its feeds' counters, and since when they are these.
        verdict: what follows.
        error: what its report failed with, empty if it did not.
        owed: a command that did not end in time, None once it has.
    """

    started: float = field(default_factory=time.monotonic)
    answered: float | None = None
    process: Process | None = None
    report: Any = None
    verdict: Verdict = "starting"
    error: str = ""
    pending: Any = None
    pending_process: Any = None
    owed: Any = None


class Watch:
    """Asks all actors for reports, at most one question under way to each.

    Args:
        fleet: the actors.
        stuck_seconds: without an answer it counts as stuck.
        start_seconds: the same for one that has never answered.
        start_seconds_of: that of kinds which differ: what needs a GPU may wait for one.
    """

    def __init__(
        self,
        fleet: Fleet,
        stuck_seconds: float,
        start_seconds: float,
        start_seconds_of: Mapping[str, float] | None = None,
    ) -> None:
        self._fleet = fleet
        self._stuck_seconds = stuck_seconds
        self._start_seconds = start_seconds
        self._start_seconds_of = start_seconds_of or {}
        self.actors: dict[ActorName, Watched] = {}

    def ask(self, names: list[ActorName], term: int, seconds: float) -> None:
        """Ask for reports, and judge by what has come within `seconds`."""
        self.actors = {name: self.actors.get(name) or Watched() for name in names}
        for name, one in self.actors.items():
            if one.verdict == "dead":
                continue
            try:
                if one.pending is None:
                    one.pending = self._fleet.control(name, "report", *([term] if name.kind == "shard" else []))
                if one.process is None and one.pending_process is None:
                    one.pending_process = self._fleet.control(name, "process")
            except calls.Dead:
                one.verdict = "dead"
        waiting = [one.pending for one in self.actors.values() if one.pending is not None]
        waiting += [one.pending_process for one in self.actors.values() if one.pending_process is not None]
        done: set[Any] = set()
        if waiting:
            done = set(ray.wait(waiting, num_returns=len(waiting), timeout=seconds)[0])
        for name, one in self.actors.items():
            if one.verdict != "dead":
                self._judge(one, done, self._start_seconds_of.get(name.kind, self._start_seconds))

    def of_kind(self, kind: str, *verdicts: Verdict) -> list[ActorName]:
        """The actors of a kind with these verdicts, the newest incarnation of a slot only."""
        newest: dict[int, tuple[ActorName, Watched]] = {}
        for name, one in sorted(self.actors.copy().items(), key=lambda item: item[0]):  # others ask beside the rounds
            if name.kind == kind:
                newest[name.slot] = (name, one)
        return [name for name, one in newest.values() if one.verdict in verdicts]

    def answering(self, kind: str) -> list[ActorName]:
        """Those that are well and owe no answer: a command to another would hold up whoever waits for it."""
        found = []
        for name in self.of_kind(kind, "well"):
            one = self.actors[name]
            if one.owed is not None and ray.wait([one.owed], timeout=0)[0]:
                one.owed = None
            if one.pending is None and one.owed is None:
                found.append(name)
        return found

    def ready_chats(self) -> list[ActorName]:
        """The replicas of the chat model that have loaded it."""
        names = self.of_kind("chat", "well", "silent")
        return [name for name in names if (report := self.actors[name].report) is not None and report.ready]

    def obstacles(self) -> list[str]:
        """What stands in the way, by who says so."""
        found = []
        for name, one in list(self.actors.items()):
            if one.error:
                found.append(f"{name.place}: {one.error}")
            elif name.kind == "worker" and one.report and one.report.obstacle:
                found.append(f"{name.place}: {one.report.obstacle}")
            elif name.kind == "chat" and one.report is None and time.monotonic() - one.started > _PLACED_SECONDS:
                found.append(f"{name.place}: Ray has not started it yet; is a GPU free, as setting chat_gpus asks for?")
        return found

    def _judge(self, one: Watched, done: set[Any], start_seconds: float) -> None:
        now = time.monotonic()
        if one.pending_process in done:
            try:
                one.process = calls.result(one.pending_process, 1, "asking for the process")
            except Exception as error:  # noqa: BLE001 - the report's call says the same
                one.error = str(error)
            one.pending_process = None
        if one.pending in done:
            reference, one.pending = one.pending, None
            try:
                one.report = calls.result(reference, 1, "asking for a report")
                one.answered, one.verdict, one.error = now, "well", getattr(one.report, "failure", "")
                if getattr(one.report, "over", False):
                    one.verdict = "failed"
            except calls.Dead:
                one.verdict = "dead"
            except calls.Unreachable:
                one.verdict = "silent"
            except Exception as error:  # noqa: BLE001 - it answers, but cannot be what it should be
                one.error = str(error)
                one.answered, one.verdict = now, "silent"
            return
        since = one.answered if one.answered is not None else one.started
        limit = self._stuck_seconds if one.answered is not None else start_seconds
        if now - since > limit:
            one.verdict = "stuck"
