"""Topics made anew beside those that are read, switched to whole, or dropped.

A user's shadow is one transaction, and so is switching to it. Thinking is outside of both; what a chat model
says meanwhile is kept with the task that it is about, so that a run that was broken off pays once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from types import TracebackType
from typing import Self

from ..memory import identity
from ..memory.chat import ModelCall
from ..memory.consolidation import Draft, Segment, comparisons, draft, topic_text, topics_of
from ..memory.errors import BadAnswer, Misconfigured, RaygamError, Rejected, TokensSpent
from ..memory.model import Cut, Episode, Event, User
from ..memory.ports import Embedder, Reader, RelationScorer, Store, Summarizer, Vectors, Writer
from ..memory.reconsolidation import Difference, Network, as_heard, difference
from ..memory.shadow import Consolidated, Shadow, Standing
from ..memory.writes import StateFacts, TaskCalls, WriteSet
from .archiving import topic_of
from .whereabouts import this_process

_TASKS_TOGETHER = 64
"""Read and embedded together: their turns are in memory at once."""

Ports = tuple[Summarizer, RelationScorer]
OnCall = Callable[[ModelCall], None]


@dataclass(frozen=True, slots=True)
class Anew:
    """What thinks anew.

    Attributes:
        label: what a shadow is known by that it made.
        embedder: the state's.
        ports: what thinks about one task of a user, from what chat models said to it before (by `Prompt.key`),
            and who is told what they are asked.
        at_once: users, and episodes of all of them, that are thought about at a time.
        close: ends what it holds, once.
    """

    label: str
    embedder: Embedder
    ports: Callable[[User, Mapping[str, str], OnCall], Ports]
    at_once: int = 1
    close: Callable[[], None] = lambda: None


@dataclass(slots=True)
class BuildReport:
    """What making shadows did.

    Attributes:
        users: with episodes, that were asked for.
        built: shadows made.
        kept: users whose shadow by the same models was there already, or switched to.
        episodes: gone through.
        of_episodes: to go through.
        failed: users whose episodes a model could not read, or whose tenant has no tokens left for now, and why.
        interrupted: it was stopped before the end; the next run goes on.
    """

    users: int = 0
    built: int = 0
    kept: int = 0
    episodes: int = 0
    of_episodes: int = 0
    failed: list[tuple[User, str]] = field(default_factory=list)
    interrupted: bool = False


class Reconsolidation:
    """Makes, shows, switches and drops the shadows of an opened store; closing the store closes what this opens.

    Args:
        store: opened for writing: no engine runs.
        user: the only one that it is about; None for all.
    """

    def __init__(self, store: Store, user: User | None = None) -> None:
        self._store = store
        self._user = user
        self._lock = threading.Lock()
        self._readers: dict[int, Reader] = {}
        self._writers: dict[int, Writer] = {}

    @property
    def facts(self) -> StateFacts:
        """What the state was made with."""
        return self._store.facts

    def standings(self) -> list[tuple[int, Standing]]:
        """Users with episodes, each with its partition.

        Raises:
            Rejected: the only user was never seen.
        """
        facts = self._store.facts
        if self._user is None:
            return [(at, held) for at in range(facts.partitions) for held in self._reader(at).standings()]
        at = identity.partition_of(identity.record_key(self._user), facts.partitions, facts.partitioner)
        if self._reader(at).version(self._user) is None:
            raise Rejected(f"nothing is known of user {self._user}; check the id, and the tenant (--tenant)")
        return [(at, held) for held in self._reader(at).standings() if held.user == self._user]

    def build(
        self, anew: Anew, stop: Callable[[], bool], on_progress: Callable[[BuildReport], None] = lambda report: None
    ) -> BuildReport:
        """Make the shadows that are not there yet, or not of these models, or not of all episodes.

        Args:
            anew: what thinks.
            stop: asked between tasks; what is done of whole users stays.
            on_progress: told after each group of tasks, from any thread.

        Raises:
            Retryable: a chat model, or the store, is away; the next run goes on.
        """
        wanted = self.standings()
        todo = [(at, held) for at, held in wanted if not held.is_of(anew.label)]
        report = BuildReport(len(wanted), 0, len(wanted) - len(todo), 0, sum(held.episodes for _, held in todo))
        on_progress(report)
        with _Run(anew, stop, report, on_progress, self._lock) as run:
            for (at, held), outcome in run.each(todo, lambda each: self._made(run, *each)):
                if isinstance(outcome, Shadow):
                    with self._lock:
                        self._writer(at).commit(WriteSet(shadows=[outcome]))
                    report.built += 1
                elif outcome is not None:
                    report.failed.append((held.user, str(outcome)))
                on_progress(report)
        report.interrupted = report.built + len(report.failed) < len(todo)
        return report

    def differences(self) -> Iterator[tuple[Standing, Difference | None]]:
        """What each user's shadow would change; None for a user without one."""
        for at, held in self.standings():
            reader = self._reader(at)
            shadow = None if held.switched else reader.shadow(held.user)
            if shadow is None:
                yield held, None
            else:
                topics, relations = reader.topics(held.user), reader.topic_relations(held.user)
                yield held, difference(reader.episodes(held.user), topics, relations, shadow)

    def switch(self, on_progress: Callable[[int, int], None] = lambda done, total: None) -> tuple[str, int]:
        """Let the shadows take their places, user by user; one that was broken off is finished by the next.

        Returns:
            What made them, and how many users were switched now.

        Raises:
            Misconfigured: there is none, they are of several models, or one is missing or not made from all of
                its user's episodes; nothing was switched.
        """
        wanted = self.standings()
        built = [(at, held) for at, held in wanted if held.label is not None and not held.switched]
        label = _the_only_label(wanted, built)
        missing = [held.user for _, held in wanted if not held.is_of(label)]
        if missing:
            raise Misconfigured(
                f"{len(missing):,} of {len(wanted):,} users have no shadow by {label} that was made from all of their "
                f"episodes (one is {missing[0]}); nothing was switched: run the command again without --switch, and "
                "with the same model, then switch"
            )
        for done, (at, held) in enumerate(built):
            on_progress(done, len(built))
            self._writer(at).commit(WriteSet(switched=[held.user]))
        return label, len(built)

    def discard(self) -> int:
        """Drop the shadows; return how many there were. What is read stays as it is."""
        found = [(at, held) for at, held in self.standings() if held.label is not None]
        for at, held in found:
            self._writer(at).commit(WriteSet(discarded=[held.user]))
        return sum(not held.switched for _, held in found)

    def _made(self, run: _Run, at: int, held: Standing) -> Shadow | None:
        """A user's shadow; None if it was stopped."""
        anew, reader, user = run.anew, self._reader(at), held.user
        archives = reader.archives(user)
        network = Network(user, anew.embedder.dimension)
        for start in range(0, len(archives), _TASKS_TOGETHER):
            group = archives[start : start + _TASKS_TOGETHER]
            answers = reader.answers([each.task_id for each in group])
            ports = [
                anew.ports(user, answers.get(each.task_id, {}), self._rememberer(at, each.task_id)) for each in group
            ]
            drafts = self._drafts(run, reader, user, group, ports)
            if drafts is None:
                return None
            texts = [topic_text(made.notes) for of_task in drafts for made in of_task if made is not None]
            vectors = anew.embedder.embed(texts)
            taken = 0
            for each, of_task, (_, scorer) in zip(group, drafts, ports, strict=True):
                if run.stop():
                    return None
                count = sum(made is not None for made in of_task)
                own, known = vectors[taken : taken + count], network.known()
                taken += count
                compared = comparisons(each.task_id, of_task, own, known)
                judged = [scorer.relations(one.topic, one.candidates) for one in compared]
                topics = topics_of(of_task, known, zip(compared, judged, own, strict=True))
                network.add(
                    [
                        (topic_of(episode, identity.topic_id(each.task_id, ordinal), topic), topic)
                        for ordinal, (episode, topic) in enumerate(zip(each.episodes, topics, strict=True))
                        if topic is not None
                    ]
                )
                run.went_through(len(each.episodes))
        return network.shadow(anew.label, held.episodes)

    def _drafts(
        self, run: _Run, reader: Reader, user: User, group: Sequence[Consolidated], ports: Sequence[Ports]
    ) -> list[list[Draft | None]] | None:
        """Per task the notes of its episodes; None if it was stopped."""
        episodes = [(episode, ports[at][0]) for at, each in enumerate(group) for episode in each.episodes]
        turns = reader.turns([(user, episode.seqs) for episode, _ in episodes])

        def drafted(at: int) -> Draft | None:
            if run.stop():
                raise _Stopped
            (episode, summarizer), (events, vectors) = episodes[at], turns[at]
            return draft(_segment(episode, events, vectors), summarizer)

        try:
            found = iter(run.map(drafted, range(len(episodes))))
        except _Stopped:
            return None
        return [list(islice(found, len(each.episodes))) for each in group]

    def _rememberer(self, at: int, task_id: str) -> OnCall:
        """Records calls of a chat model, and the answers that were taken, with a task that is done."""

        def remember(call: ModelCall) -> None:
            with self._lock:
                self._writer(at).commit(WriteSet(calls=[TaskCalls(task_id, None, [call])]))

        return remember

    def _reader(self, at: int) -> Reader:
        if at not in self._readers:
            self._readers[at] = self._store.reader(at)
        return self._readers[at]

    def _writer(self, at: int) -> Writer:
        if at not in self._writers:
            self._writers[at] = self._store.writer(at, this_process())
        return self._writers[at]


class _Stopped(Exception):
    """Leaves the threads that think."""


class _Run:
    """One run's threads and its report."""

    def __init__(
        self,
        anew: Anew,
        stop: Callable[[], bool],
        report: BuildReport,
        on_progress: Callable[[BuildReport], None],
        lock: threading.Lock,
    ) -> None:
        self.anew = anew
        self._stop = stop
        self._ended = False
        self._report = report
        self._on_progress = on_progress
        self._lock = lock
        self._users = ThreadPoolExecutor(anew.at_once, thread_name_prefix="raygam-users")
        self._episodes = ThreadPoolExecutor(anew.at_once, thread_name_prefix="raygam-episodes")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True  # after an error what others have begun is of no use
        for pool in (self._users, self._episodes):
            pool.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> bool:
        """Whether to begin nothing more."""
        return self._ended or self._stop()

    def went_through(self, episodes: int) -> None:
        """Count episodes."""
        with self._lock:
            self._report.episodes += episodes
        self._on_progress(self._report)

    def map(self, work: Callable[[int], Draft | None], items: Sequence[int]) -> list[Draft | None]:
        """The results in order; as many at a time as there may be."""
        futures = [self._episodes.submit(work, item) for item in items]
        try:
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()

    def each(
        self,
        todo: Sequence[tuple[int, Standing]],
        work: Callable[[tuple[int, Standing]], Shadow | None],
    ) -> Iterator[tuple[tuple[int, Standing], Shadow | RaygamError | None]]:
        """Users with what came of them, as it comes; an error that is one user's alone stops nobody else."""
        left = iter(todo)
        under_way: dict[Future[Shadow | None], tuple[int, Standing]] = {}
        while True:
            room = 0 if self.stop() else self.anew.at_once - len(under_way)
            under_way |= {self._users.submit(work, each): each for each in islice(left, room)}
            if not under_way:
                return
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                yield under_way.pop(future), _outcome(future)


def _outcome(future: Future[Shadow | None]) -> Shadow | RaygamError | None:
    try:
        return future.result()
    except (BadAnswer, Rejected, TokensSpent) as error:
        return error


def _segment(episode: Episode, events: Sequence[Event], vectors: Vectors) -> Segment:
    """An archived episode as it was when it was closed."""
    cut = Cut(len(events), episode.confidence, episode.reason)
    return Segment([as_heard(event) for event in events], vectors, cut, episode.trigger, episode.detector)


def _the_only_label(wanted: Sequence[tuple[int, Standing]], built: Sequence[tuple[int, Standing]]) -> str:
    """What made the shadows that wait, or, if none does, those that were switched to."""
    labels = sorted({held.label for _, held in built or wanted if held.label is not None})
    if not labels:
        raise Misconfigured(
            "there is nothing to switch to: run the command without --switch first; it makes the topics anew and shows "
            "what would change"
        )
    if len(labels) > 1:
        raise Misconfigured(
            f"the shadows are of {len(labels)} models ({'; '.join(labels)}); nothing was switched: run the command again "
            "without --switch, with the model that you want, and it makes the others anew"
        )
    return labels[0]
