"""Thinking about one task with chat models, rules, or both: from its turns to a proposal.

One chat model for all ports takes two calls for a task (`memory/joint.py`); otherwise each port is
asked on its own. What a call costs and says is recorded before the next step is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..memory import consolidation
from ..memory.chat import ModelCall
from ..memory.consolidation import Draft, KnownTopics, Segment
from ..memory.joint import JointJudge
from ..memory.judges import ChatDetector, ChatScorer, ChatSummarizer
from ..memory.model import Event, User
from ..memory.ports import Ask, Vectors
from ..memory.proposal import Proposal
from ..memory.writes import LeasedTask
from .asking import Asker
from .chat_config import PORTS
from .worker import Models

Turns = Mapping[str, tuple[Sequence[Event], Vectors]]


@dataclass(frozen=True, slots=True)
class Minds:
    """What thinks, port by port.

    Attributes:
        rules: serve what no chat model serves, and embed.
        askers: the chat model of each port that one serves (`chat_config.PORTS`).
        off_tenants: tenants whose tasks rules alone think about.
    """

    rules: Models
    askers: Mapping[str, Asker]
    off_tenants: frozenset[str] = frozenset()

    @property
    def distinct(self) -> list[Asker]:
        """Each chat model once."""
        return list(dict.fromkeys(self.askers.values()))

    @property
    def joint(self) -> bool:
        """Whether one chat model serves all ports, in two calls."""
        return len(self.askers) == len(PORTS) and len(self.distinct) == 1


@dataclass(frozen=True, slots=True)
class Matter:
    """A task and all that was read for it.

    Attributes:
        lease: the task, and the token under which its proposal is handed in.
        events: its events, in event order.
        vectors: theirs, `(len(events), dimension)`.
        known: the user's topics.
        answers: what chat models have said to it before, by `Prompt.key`.
    """

    lease: LeasedTask
    events: Sequence[Event]
    vectors: Vectors
    known: KnownTopics
    answers: Mapping[str, str]


def think(
    minds: Minds,
    matter: Matter,
    episode_turns: Callable[[User, Sequence[str]], Turns],
    on_call: Callable[[ModelCall], None],
    deadline: float,
) -> Proposal:
    """Return the proposal of a task.

    Args:
        minds: what thinks.
        matter: the task.
        episode_turns: reads archived episodes of a user: events and vectors by episode id.
        on_call: records what a chat model was asked and said.
        deadline: when to give up, on the clock of `time.monotonic`.

    Raises:
        ModelAway, Refused: a chat model does not answer, or not to us.
        BadAnswer: what it says does not fit.
        TooLong, Rejected: it takes no such request.
    """
    task = matter.lease.task
    if not minds.askers or task.user.tenant in minds.off_tenants:
        return _port_by_port(minds.rules, {}, matter)
    asks: dict[str, Ask] = {
        port: asker.for_task(task.user, matter.answers, on_call, deadline) for port, asker in minds.askers.items()
    }
    if not minds.joint:
        return _port_by_port(minds.rules, asks, matter)
    judge = JointJudge(asks["boundaries"], minds.rules.detector)
    segments, drafts = judge.segments(task, matter.events, matter.vectors)
    vectors = _topic_vectors(minds.rules, drafts)
    wanted = judge.wanted_episodes(drafts, vectors, matter.known)
    neighbours = episode_turns(task.user, wanted) if wanted else {}
    return judge.proposal(task, matter.lease.token, segments, drafts, vectors, matter.known, neighbours)


def _port_by_port(rules: Models, asks: Mapping[str, Ask], matter: Matter) -> Proposal:
    detector = ChatDetector(asks["boundaries"], rules.detector) if "boundaries" in asks else rules.detector
    summarizer = ChatSummarizer(asks["consolidation"]) if "consolidation" in asks else rules.summarizer
    scorer = ChatScorer(asks["relations"], matter.lease.task.user) if "relations" in asks else rules.scorer
    lease = matter.lease
    segments: list[Segment] = consolidation.split(lease.task, matter.events, matter.vectors, detector)
    drafts = [consolidation.draft(segment, summarizer) for segment in segments]
    vectors = _topic_vectors(rules, drafts)
    return consolidation.propose(lease.task, lease.token, segments, drafts, vectors, matter.known, scorer)


def _topic_vectors(rules: Models, drafts: Sequence[Draft | None]) -> Vectors:
    return rules.embedder.embed([consolidation.topic_text(draft.notes) for draft in drafts if draft is not None])
