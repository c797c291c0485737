"""The supervisor: who has which partition, who lives, who is replaced.

It decides from what the actors report, every time anew, so that one that was killed and
started again goes on. Two of them do no harm: a shard obeys the higher term, and
whatever any of them does, the ledger's epoch decides who writes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..memory.errors import Rejected, Retryable
from ..pipeline.config import Settings
from ..pipeline.jobs import Job
from ..pipeline.metrics import Metrics
from . import calls, logs, placement
from .fleet import ActorKind, Fleet
from .process import Process, this_process
from .progress import Progress, merged
from .routes import RouteTable
from .shard_actor import ShardReport, Superseded
from .spec import ActorName, ClusterSpec
from .watch import Watch

log = logging.getLogger("raygam.supervisor")
KINDS = ("embedder", "shard", "worker", "chat")
_COMMAND_SECONDS = 30.0
_LAST_REPORT_SECONDS = 2.0
_JUST_OPENED = 2**62
"""Stands for the epoch of an opening that was commanded and not reported yet: above every other."""


class Busy(Retryable):
    """The engine reads another source."""


class Supervisor:
    """Watches one engine's actors; see the module.

    Args:
        spec: the engine.
        kinds: how its actors are made.
        make_metrics: builds what figures go to, in this process.
    """

    def __init__(self, spec: ClusterSpec, kinds: dict[str, ActorKind], make_metrics: Callable[[], Metrics]) -> None:
        logs.configure("supervisor")
        settings = spec.settings
        self._spec = spec
        self._fleet = Fleet(spec, kinds)
        start_seconds = {"chat": max(settings.chat_start_seconds, settings.ray_start_seconds)}
        self._watch = Watch(self._fleet, settings.ray_stuck_seconds, settings.ray_start_seconds, start_seconds)
        self._metrics = make_metrics()
        self._term = time.time_ns() // 1000
        self._counts = dict(zip(KINDS, (spec.embedders, spec.shards, spec.workers, spec.chats), strict=True))
        self._wanted: dict[int, str] = {}
        self._has: dict[str, dict[int, int]] = {}  # per shard's place: partition -> epoch
        self._job: Job | None = None
        self._job_asked = False
        self._standing_by = False
        self._down_since: dict[str, float] = {}
        self._incarnations: dict[tuple[str, int], int] = {}
        self._replaced: dict[str, int] = {}
        self._evening = False  # partitions go to shards that came; where a person moved them, they stay
        self._failures: list[str] = []
        self._trouble = ""
        self._lock = threading.RLock()  # one tick or command at a time
        self._stopping = threading.Event()
        self._ticks = 0
        self._thread = threading.Thread(target=self._run, name="raygam-supervisor", daemon=True)
        self._thread.start()

    # What others ask

    def process(self) -> Process:
        """The process; who gets no answer kills it."""
        return this_process()

    def routes(self) -> RouteTable:
        """Who has which partition now."""
        names = {name.place: self._fleet.full(name) for name in self._watch.of_kind("shard", "well", "silent")}
        owners = {partition: names[place] for partition, place in self._owners().items() if place in names}
        embedders, chats = self._watch.of_kind("embedder", "well", "silent"), self._watch.ready_chats()
        return RouteTable(owners, tuple(map(self._fleet.full, embedders)), tuple(map(self._fleet.full, chats)))

    def settings(self) -> Settings:
        """What the engine was started with."""
        return self._spec.settings

    def progress(self) -> Progress:
        """How far the job is, and what stands in its way."""
        reports = [one.report for name, one in list(self._watch.actors.items()) if name.kind == "shard" and one.report]
        obstacles = [*([self._trouble] if self._trouble else []), *self._watch.obstacles()]
        return merged(
            self._spec.facts.partitions,
            self._job,
            [report.status for report in reports],
            obstacles,
            dict(self._replaced),
            {name.place: one.process.pid for name, one in list(self._watch.actors.items()) if one.process},
            self._ticks,
        )

    # What others command

    def start_job(self, job: Job) -> None:
        """Read a source; the same job again changes nothing, the same source for another run is read on.

        Raises:
            Busy: another source is being read.
        """
        with self._lock:
            progress = self.progress()
            over = progress.finished or progress.failure
            if progress.job is not None and progress.job.source_id != job.source_id and not over:
                raise Busy(
                    f"the engine over {self._spec.state} reads {progress.job.name} for another run; wait until it "
                    "is done, or stop it: that run by Ctrl-C, the engine by `raygam engine stop`"
                )
            self._job, self._job_asked = job, True
            self._tell_shards("read", job)

    def stop_job(self, source_id: str) -> None:
        """Read the source no more, if it is read; returns when every shard that answers is at a batch's edge."""
        with self._lock:
            if self._job is not None and self._job.source_id == source_id:
                self._job, self._job_asked = None, True
                self._tell_shards("stop_reading")

    def move(self, partition: int, shard: int) -> float:
        """Move a partition: drain, close, bump the epoch, open, seek. Returns the seconds it answered nobody.

        Raises:
            Rejected: there is no such partition or shard.
            Retryable: the target could not open it; it is tried again.
        """
        if not 0 <= partition < self._spec.facts.partitions:
            raise Rejected(f"there is no partition {partition}; they are 0 to {self._spec.facts.partitions - 1}")
        if not 0 <= shard < self._counts["shard"]:
            raise Rejected(f"there is no shard {shard}; they are 0 to {self._counts['shard'] - 1}")
        target = f"shard-{shard}"
        with self._lock:
            self._wanted[partition] = target
            owners = [place for place, held in self._has.items() if partition in held and place != target]
            started = time.monotonic()
            for place in owners:
                with contextlib.suppress(Retryable):  # dead or stopped: the epoch tells it
                    self._command(
                        place, "give_up", partition, self._spec.settings.ray_drain_seconds,
                        seconds=self._spec.settings.ray_drain_seconds + self._spec.settings.ray_stuck_seconds,
                    )  # fmt: skip
                self._has[place].pop(partition, None)
            self._command(target, "open", [partition], self._job)
            self._has.setdefault(target, {})[partition] = _JUST_OPENED
            seconds = time.monotonic() - started
        self._metrics.count("raygam_moves_total")
        log.info("partition moved", extra={"partition": partition, "to": target, "seconds": round(seconds, 3)})
        return seconds

    def resize(self, kind: str, count: int) -> None:
        """Have this many actors of a kind; partitions move to new shards one at a time.

        Raises:
            Rejected: there is no such kind; or fewer shards than now: their partitions are moved away first.
        """
        if kind not in KINDS:
            raise Rejected(f"there are no actors of kind {kind!r:.32}; the kinds are {', '.join(KINDS)}")
        with self._lock:
            if kind == "shard" and count < self._counts["shard"]:
                raise Rejected(f"there are {self._counts['shard']} shards; their number only grows while they run")
            for name in self._watch.of_kind(kind, "well", "silent", "starting"):
                if name.slot >= count:
                    self._wait([(name, self._fleet.control(name, "close"))])
                    self._fleet.end(name, None)
            self._counts[kind] = count
            self._evening = self._evening or kind == "shard"

    def close(self) -> None:
        """End the engine: reading stops at a batch's edge, workers after their group, shards close their partitions."""
        with self._lock:
            self._stopping.set()
            self._watch.ask(self._fleet.living(), self._term, _LAST_REPORT_SECONDS)
            shards, workers = self._watch.answering("shard"), self._watch.answering("worker")
            self._wait([(name, self._fleet.control(name, "stop_reading", self._term)) for name in shards])
            for names in (workers, shards, self._watch.answering("chat")):
                self._wait([(name, self._fleet.control(name, "close")) for name in names])
            for name in self._fleet.living():
                watched = self._watch.actors.get(name)
                # By force only what does not answer: Ray reports a killed process as an accident.
                silent = watched is not None and (watched.verdict != "well" or watched.pending is not None)
                self._fleet.end(name, watched.process if watched and silent else None)

    def _wait(self, closing: list[tuple[ActorName, Any]]) -> None:
        deadline = time.monotonic() + _COMMAND_SECONDS
        for name, reference in closing:
            try:
                calls.result(reference, max(deadline - time.monotonic(), 0.0), f"closing {name.place}")
            except Exception as error:  # noqa: BLE001 - it is ended anyway, and nothing durable depends on it
                log.warning("an actor did not close", extra={"name_of": name.place, "error": str(error)})

    # The loop

    def _run(self) -> None:
        while not self._stopping.is_set():
            started = time.monotonic()
            try:
                with self._lock:
                    if not self._stopping.is_set():
                        self._failures = []
                        self._tick()
                self._trouble = "; ".join(self._failures)
            except Superseded:
                self._standing_by = True
            except Exception as error:  # the top of the supervisor's thread: told, logged, tried again
                self._trouble = f"supervisor: {error}"
                log.exception("a tick failed")
            self._ticks += 1
            left = self._spec.settings.ray_heartbeat_seconds - (time.monotonic() - started)
            self._stopping.wait(max(left, 0.02))

    def _tick(self) -> None:
        living = self._fleet.living()
        for name in living:
            key = (name.kind, name.slot)
            self._incarnations[key] = max(self._incarnations.get(key, 0), name.incarnation)
        self._watch.ask(living, self._term, 0.3)
        if self._superseded():
            return
        for kind in KINDS:
            for slot in range(self._counts[kind]):
                self._keep(kind, slot, living)
        self._take_reports()
        self._place()
        self._release_leases()

    def _superseded(self) -> bool:
        """Whether another supervisor rules; after it has been silent for long, this one takes over."""
        reports: list[ShardReport] = [
            one.report for name, one in self._watch.actors.items() if name.kind == "shard" and one.report is not None
        ]
        highest = max((report.term for report in reports), default=0)
        if highest > self._term:
            age = min(report.term_age for report in reports if report.term == highest)
            if age < 2 * self._spec.settings.ray_stuck_seconds:
                if not self._standing_by:
                    log.warning("another supervisor rules; standing by", extra={"term": highest})
                self._standing_by = True
                return True
            self._term = max(highest + 1, time.time_ns() // 1000)
        self._standing_by = False
        return False

    def _keep(self, kind: str, slot: int, living: list[ActorName]) -> None:
        """Start what is missing, replace what is dead or stuck."""
        mine = [name for name in living if (name.kind, name.slot) == (kind, slot)]
        cause = "missing"
        for name in mine:
            watched = self._watch.actors[name]
            outdated = name is not mine[-1]
            if watched.verdict in ("dead", "stuck", "failed") or outdated:
                cause = "outdated" if outdated else watched.verdict
                log.warning("replacing", extra={"name_of": self._fleet.full(name), "cause": cause})
                self._fleet.end(name, watched.process)
                self._watch.actors.pop(name, None)
                if kind == "shard":
                    self._has.pop(name.place, None)
            else:
                return
        place = f"{kind}-{slot}"
        last = self._incarnations.get((kind, slot), 0)
        if kind == "shard":
            self._has.pop(place, None)
        if last:
            self._replaced[place] = self._replaced.get(place, 0) + 1
            self._metrics.count("raygam_replacements_total", kind=kind, cause=cause)
        self._incarnations[(kind, slot)] = last + 1
        self._fleet.start(ActorName(kind, slot, last + 1))

    def _take_reports(self) -> None:
        now = time.monotonic()
        for name in self._watch.of_kind("shard", "well", "silent", "starting", "stuck", "dead"):
            one = self._watch.actors[name]
            if one.verdict == "well":
                down = now - self._down_since.pop(name.place, now)
                self._evening = self._evening or down > self._spec.settings.ray_start_seconds
                status = one.report.status
                self._has[name.place] = {at: held.epoch for at, held in status.partitions.items()}
                if not self._job_asked and status.job is not None:
                    self._job = status.job  # an earlier supervisor was told
            else:
                self._down_since.setdefault(name.place, now)

    def _place(self) -> None:
        """Open what nobody has; even out, one move at a time."""
        settings = self._spec.settings
        now = time.monotonic()
        places = [
            f"shard-{slot}"
            for slot in range(self._counts["shard"])
            if now - self._down_since.get(f"shard-{slot}", now) <= settings.ray_start_seconds
        ]
        held = self._owners()
        self._wanted = placement.assign(self._spec.facts.partitions, places, self._wanted, held)
        well = {name.place: self._watch.actors[name].report.status for name in self._watch.answering("shard")}
        for place, status in sorted(well.items()):
            for partition in [at for at in self._has.get(place, {}) if held.get(at) != place]:
                self._try(place, "give_up", partition, 0.0)  # a newer epoch has it, and it has not noticed yet
                self._has[place].pop(partition, None)
            missing = [at for at, wanted in self._wanted.items() if wanted == place and held.get(at) != place]
            if missing and self._try(place, "open", missing, self._job):
                self._has.setdefault(place, {}).update(dict.fromkeys(missing, _JUST_OPENED))
            if status.job != self._job:
                self._try(place, *(("read", self._job) if self._job is not None else ("stop_reading",)))
        if self._evening and len(well) == len(places) == self._counts["shard"] and len(held) == len(self._wanted):
            move = placement.next_move(sorted(well), held)
            if move is None:
                self._evening = False
            else:
                self.move(move[0], int(move[1].rpartition("-")[2]))

    def _owners(self) -> dict[int, str]:
        """Partition to shard; of two that claim one, the newer epoch."""
        best: dict[int, tuple[int, str]] = {}
        for place, partitions in list(self._has.items()):
            for partition, epoch in list(partitions.items()):
                best[partition] = max(best.get(partition, (-1, "")), (epoch, place))
        return {partition: place for partition, (_, place) in best.items()}

    def _release_leases(self) -> None:
        """Open the tasks of workers that are gone."""
        living = {f"{name.place}:{name.incarnation}" for name in self._watch.actors if name.kind == "worker"}
        for name in self._watch.answering("shard"):
            for holder in self._watch.actors[name].report.status.holders:
                if holder not in living:
                    self._try(name.place, "abandon", holder)

    def _try(self, place: str, method: str, *arguments: Any) -> bool:
        """Call a shard; one that fails is told of, and asked again in a later round.

        Nobody else is watched meanwhile, so none is waited for any longer than until it counts as stuck.
        """
        try:
            self._command(place, method, *arguments, seconds=self._spec.settings.ray_stuck_seconds)
        except Superseded:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one shard holds up no other
            self._failures.append(f"{place}: {error}")
            log.warning("a command failed", extra={"name_of": place, "command": method, "error": str(error)})
            return False
        return True

    def _command(self, place: str, method: str, *arguments: Any, seconds: float = _COMMAND_SECONDS) -> Any:
        """Call a shard with this supervisor's term.

        What it said of itself before is outdated by it.
        """
        if self._standing_by:
            raise Superseded("another supervisor rules; ask that one")
        for name in self._watch.of_kind("shard", "well", "silent", "starting"):
            if name.place == place:
                return self._answer(name, self._fleet.control(name, method, self._term, *arguments), seconds, method)
        raise calls.Dead(f"there is no {place} at the moment")

    def _tell_shards(self, method: str, *arguments: Any) -> None:
        """Command every shard at once; who does not answer is told again by the next rounds.

        Raises:
            Superseded: another supervisor rules.
        """
        if self._standing_by:
            raise Superseded("another supervisor rules; ask that one")
        told = []
        for name in self._watch.of_kind("shard", "well", "silent"):
            with contextlib.suppress(calls.Dead):
                told.append((name, self._fleet.control(name, method, self._term, *arguments)))
        deadline = time.monotonic() + self._spec.settings.ray_stuck_seconds
        for name, reference in told:
            try:
                self._answer(name, reference, max(deadline - time.monotonic(), 0.0), method)
            except Superseded:
                raise
            except Retryable as error:
                log.warning("a command failed", extra={"name_of": name.place, "command": method, "error": str(error)})

    def _answer(self, name: ActorName, reference: Any, seconds: float, method: str) -> Any:
        one = self._watch.actors[name]
        one.owed = reference
        try:
            return calls.result(reference, seconds, f"{name.place}.{method}")
        finally:
            one.pending = None
