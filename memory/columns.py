"""A growing column of numbers: appended one at a time, read as one array."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_FIRST_SIZE = 64


class Column:
    """An array that grows by doubling. `values` is a view: writing to it changes the column."""

    def __init__(self, dtype: Any) -> None:
        self._held: NDArray[Any] = np.empty(_FIRST_SIZE, dtype=dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def values(self) -> NDArray[Any]:
        """The appended values, `(len(self),)`, without a copy."""
        return self._held[: self._size]

    def append(self, value: Any) -> None:
        if self._size == len(self._held):
            self._held = np.concatenate([self._held, np.empty_like(self._held)])
        self._held[self._size] = value
        self._size += 1
