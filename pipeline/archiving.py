"""From a proposed episode to the rows that archive it."""

from __future__ import annotations

from collections.abc import Mapping

from ..memory import identity
from ..memory.model import Episode, EventRelation, Topic, User
from ..memory.proposal import Proposal, ProposedEpisode, ProposedTopic
from ..memory.writes import ArchivedEvent, BufferedEvent, ClosedEpisode, TaskRow


def closed_episode(
    task: TaskRow, ordinal: int, proposed: ProposedEpisode, held: Mapping[int, BufferedEvent]
) -> ClosedEpisode:
    """The episode with its archived events, relations, topic and cross-layer edge; ids follow from the task.

    Args:
        task: the task that closed it.
        ordinal: its place among the task's episodes.
        proposed: what the worker made of it.
        held: the buffer that it is taken from, by `seq`.
    """
    times = [held[seq].time_us for seq in proposed.seqs]
    episode = Episode(
        id=identity.episode_id(task.id, ordinal),
        user=task.user,
        session_id=task.session_id,
        seqs=proposed.seqs,
        first_us=min(times),
        last_us=max(times),
        trigger=proposed.trigger,
        detector=proposed.detector,
        confidence=proposed.cut.confidence,
        reason=proposed.cut.reason,
    )
    events = [
        ArchivedEvent(task.user, seq, episode.id, dates, entities)
        for seq, dates, entities in zip(proposed.seqs, proposed.event_dates, proposed.event_entities, strict=True)
    ]
    if proposed.topic is None:
        return ClosedEpisode(episode, task.id, ordinal, events, proposed.relations)
    topic = topic_of(episode, identity.topic_id(task.id, ordinal), proposed.topic)
    made = proposed.topic
    return ClosedEpisode(
        episode, task.id, ordinal, events, proposed.relations, topic, made.vector, made.relations, made.supersedes
    )


def topic_of(episode: Episode, topic_id: str, made: ProposedTopic) -> Topic:
    """The node that leads to an episode."""
    return Topic(
        id=topic_id,
        user=episode.user,
        episode_id=episode.id,
        summary=made.summary,
        keywords=made.keywords,
        entities=made.entities,
        dates=made.dates,
        first_us=episode.first_us,
        last_us=episode.last_us,
        confidence=made.confidence,
        model=made.model,
        superseded_by=made.superseded_by,
        label=made.label,
        facts=made.facts,
        relationships=made.relationships,
    )


def links_of(task: TaskRow, proposal: Proposal) -> list[tuple[User, EventRelation]]:
    """The proposal's relations that reach beyond an episode, with whose they are.

    Raises:
        ValueError: one has no new event at either end: what is archived does not change by itself.
    """
    new = {seq for episode in proposal.episodes for seq in episode.seqs}
    for link in proposal.links:
        if not new & {link.source_seq, link.target_seq} or link.source_seq == link.target_seq:
            raise ValueError(
                f"task {task.id} links event {link.source_seq} with {link.target_seq}; one of the two must be an "
                "event that it archives, and they must differ"
            )
    return [(task.user, link) for link in proposal.links]
