"""Where a state is: a directory, or a database."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from ..memory.errors import Misconfigured

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")


@dataclass(frozen=True, slots=True)
class StateLocation:
    """A state's place, as everything behind the command line and the library passes it on.

    Printed or logged it is its name. The address alone holds a password, and is not shown.

    Attributes:
        name: for people, without a password.
        identity: the same however the place was spelt, as far as that can be told without opening it.
        directory: the state directory; None for a database.
        address: how a database is reached from any process, for its store; empty for a directory.
        one_node: whether only processes of one machine reach it.
    """

    name: str
    identity: str
    directory: Path | None
    address: str = field(default="", repr=False)
    one_node: bool = True

    @classmethod
    def of_directory(cls, directory: Path) -> Self:
        """A state directory.

        Raises:
            Misconfigured: the path was an address.
        """
        scheme = _SCHEME.match(str(directory))
        if scheme is not None:
            raise Misconfigured(
                f"the state {scheme[1]}:/… is neither a directory nor a database: write postgresql://USER@HOST:PORT/DATABASE, "
                "as text and not as a path; a directory of such a name is given by its absolute path"
            )
        return cls(str(directory), str(directory.expanduser().resolve()), directory)

    def absolute(self) -> Self:
        """The same place, whatever a process' working directory is; named in full."""
        return self if self.directory is None else replace(self, name=self.identity, directory=Path(self.identity))

    def __str__(self) -> str:
        return self.name


AnyState = StateLocation | Path
"""A path stands for the state directory there."""


def located(state: AnyState) -> StateLocation:
    """The location of a state that may be given as a directory's path.

    Raises:
        Misconfigured: the path was an address.
    """
    return state if isinstance(state, StateLocation) else StateLocation.of_directory(state)
