"""Where a record belongs: its key and its partition, the same for every reader and every producer."""

from __future__ import annotations

from ..memory import identity
from ..memory.model import User
from .records import owner_of

_CACHED_USERS = 65536
_BYTES_OF_UNREADABLE = 4096


class Routing:
    """Maps users, and records that may be wrong, to partitions.

    Args:
        partitions: how many there are.
        partitioner: one of `identity.PARTITIONERS`.
    """

    def __init__(self, partitions: int, partitioner: str) -> None:
        self._partitions = partitions
        self._partitioner = partitioner
        self._known: dict[User, tuple[bytes, int]] = {}

    def of_user(self, user: User) -> tuple[bytes, int]:
        """A user's record key, and the partition that owns the user."""
        found = self._known.get(user)
        if found is None:
            key = identity.record_key(user)
            found = key, identity.partition_of(key, self._partitions, self._partitioner)
            if len(self._known) >= _CACHED_USERS:
                self._known.clear()
            self._known[user] = found
        return found

    def of_record(self, raw: bytes) -> tuple[bytes | None, int]:
        """Key and partition of a record, whatever is wrong with it.

        It goes with the owner that it names. One that names none has no key, and goes where its first bytes
        say: wherever it is read from, it becomes the same partition's dead letter.
        """
        user = owner_of(raw)
        if user is not None:
            return self.of_user(user)
        return None, identity.partition_of(raw[:_BYTES_OF_UNREADABLE], self._partitions, self._partitioner)
