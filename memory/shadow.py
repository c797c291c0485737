"""A user's topics as another model makes them, beside those that are read: the values.

A shadow is made from the archives, compared with what is there, and takes its place whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .model import Episode, Topic, TopicRelation, User


@dataclass(frozen=True, slots=True)
class Shadow:
    """A topic associative network that nobody reads yet.

    Attributes:
        user: whose it is.
        label: what made it, for people and to be known again ("extractive/1, rules/1").
        episodes: how many of the user's episodes it was made from: all that there were.
        topics: its nodes, at most one per episode.
        vectors: theirs, `(len(topics), dimension)` float32.
        relations: between them.
    """

    user: User
    label: str
    episodes: int
    topics: tuple[Topic, ...]
    vectors: NDArray[np.float32]
    relations: tuple[TopicRelation, ...]


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a user with episodes has been made anew.

    Attributes:
        user: the user.
        episodes: archived by now.
        label: what made the latest shadow; None where there is none.
        made_from: episodes that it was made from.
        switched: it has taken its place, and is a shadow no more.
    """

    user: User
    episodes: int
    label: str | None = None
    made_from: int = 0
    switched: bool = False

    def is_of(self, label: str) -> bool:
        """Whether all of the user's episodes have been made anew by this."""
        return self.label == label and self.made_from == self.episodes


@dataclass(frozen=True, slots=True)
class Consolidated:
    """The episodes that one task closed, in order.

    Attributes:
        task_id: the task.
        episodes: by their place in it.
    """

    task_id: str
    episodes: tuple[Episode, ...]
