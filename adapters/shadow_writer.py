"""Keeping shadows and switching to them, inside the ledger writer's transaction."""

from __future__ import annotations

from dataclasses import replace

from ..memory.errors import RaygamError
from ..memory.model import Layer, User
from ..memory.shadow import Shadow
from . import rows
from .place import Place
from .session import Session
from .shadow_rows import shadow_row, switched_row, to_shadow
from .statements import Statements


class ShadowWriter:
    """Writes the shadows of one transaction.

    Args:
        session: in the transaction.
        statements: in its SQL.
        place: the partition's place.
        dimension: of the vectors.
    """

    def __init__(self, session: Session, statements: Statements, place: Place, dimension: int) -> None:
        self._session = session
        self._statements = statements
        self._place = place
        self._dimension = dimension

    def keep(self, owner: int, shadow: Shadow) -> None:
        """Keep a shadow instead of the user's earlier one."""
        self._session.executemany(self._statements.shadows.KEEP, [shadow_row(owner, shadow)])

    def discard(self, owner: int) -> None:
        """Forget a user's shadow, and what chat models said for it; what they were asked stays counted."""
        self._session.execute(self._statements.shadows.DROP, (owner,))
        self._forget_answers(owner)

    def switch(self, owner: int, user: User, next_number: int) -> int:
        """Put a user's shadow in the place of the topics that are there.

        Args:
            owner: the user's number.
            user: the user.
            next_number: the vector log's next number in this partition.

        Returns:
            The next number after it: the log has the new vectors in the place of the old ones, behind all others.

        Raises:
            RaygamError: there is no shadow, or an episode would lose its topic.
        """
        shadows, run = self._statements.shadows, self._session.execute
        held = run(shadows.HELD, (owner,)).fetchone()
        archived = run(shadows.COUNT_EPISODES, (owner,)).fetchone()[0]
        if held is None or held[1] != archived:
            made_from = "there is none" if held is None else f"it was made from {held[1]} of {archived} episodes"
            raise RaygamError(
                f"partition {self._place.partition} of {self._place.state}: the shadow of user {user} cannot be switched "
                f"to: {made_from}; nothing was written: make it again (`raygam reconsolidate`)"
            )
        shadow = to_shadow(user, held, self._dimension)
        lost = {id_ for (id_,) in run(shadows.TOPIC_IDS, (owner,)).fetchall()} - {topic.id for topic in shadow.topics}
        if lost:
            raise RaygamError(
                f"partition {self._place.partition} of {self._place.state}: the shadow of user {user} lacks the topics "
                f"{', '.join(sorted(lost)[:3])}; nothing was written. This is a fault in raygam; please report it"
            )
        self._replace(owner, shadow)
        run(shadows.COUNT_REBUILD, (len(shadow.topics), owner))
        self._session.executemany(shadows.KEEP, [switched_row(owner, shadow.label, shadow.episodes)])
        self._forget_answers(owner)
        first, blobs = self._place.log_base + next_number, rows.vector_blobs(shadow.vectors)
        vectors: list[rows.Row] = [
            (first + at, owner, str(Layer.TOPIC), topic.id, 0, blob)
            for at, (topic, blob) in enumerate(zip(shadow.topics, blobs, strict=True))
        ]
        self._session.executemany(self._statements.INSERT_VECTOR, vectors)
        return next_number + len(vectors)

    def _replace(self, owner: int, shadow: Shadow) -> None:
        """Topics keep their ids, and what says something of two of them comes anew.

        No row of a topic is deleted: for each, the database would look through all relations of the partition.
        """
        shadows, many = self._statements.shadows, self._session.executemany
        self._session.execute(shadows.FORGET_RELATIONS, (owner,))
        self._session.execute(shadows.FORGET_VECTORS, (owner,))
        made = [rows.topic_row(owner, replace(topic, superseded_by=None)) for topic in shadow.topics]
        many(shadows.REPLACE_TOPIC, made)
        edges = [rows.topic_relation_row(owner, relation) for relation in shadow.relations]
        many(self._statements.INSERT_TOPIC_RELATION, edges)
        older = [(topic.superseded_by, topic.id, owner) for topic in shadow.topics if topic.superseded_by is not None]
        many(self._statements.SUPERSEDE_TOPIC_MANY, older)

    def _forget_answers(self, owner: int) -> None:
        self._session.execute(self._statements.shadows.FORGET_ANSWERS, (owner, owner))
