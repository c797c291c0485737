"""The multi-factor score of a memory (GAM, §3.3), and why a memory got it.

    score = P_sem x time x confidence x role x superseded x origin

`P_sem` lies in (0, 1] and every factor but the last two is at least one, so a boost can
only raise. Each factor looks at the memory that it multiplies, never at the query alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
FactorColumn = NDArray[np.float64]

TIME_BOOST = 1.4
CONFIDENCE_BOOST = 1.2
ROLE_BOOST = 1.4
CONFIDENT_ABOVE = 0.8
SUPERSEDED_FACTOR = 0.5
"""On a memory whose topic a newer one contradicts, unless the query asks about the past."""
RECALLED_FACTOR = 0.5
"""On a memory that was read back aloud: it ranks behind what was said with the same content."""
TEMPERATURE = 0.19
"""How far evidence spreads `P_sem`: one unit of evidence less makes it e^-0.19 of what it was."""


@dataclass(frozen=True, slots=True)
class Factors:
    """What multiplies to a memory's score; 1.0 is a factor that did not fire."""

    semantic: float
    time: float = 1.0
    confidence: float = 1.0
    role: float = 1.0
    superseded: float = 1.0
    origin: float = 1.0

    @property
    def score(self) -> float:
        """The product of all."""
        return self.semantic * self.time * self.confidence * self.role * self.superseded * self.origin


@dataclass(frozen=True, slots=True)
class FactorArrays:
    """The factors of all candidates, each `(candidates,)`."""

    semantic: FactorColumn
    time: FactorColumn
    confidence: FactorColumn
    role: FactorColumn
    superseded: FactorColumn
    origin: FactorColumn

    def scores(self) -> FactorColumn:
        product: FactorColumn = self.semantic * self.time * self.confidence * self.role * self.superseded * self.origin
        return product

    def at(self, position: int) -> Factors:
        """The factors of one candidate."""
        return Factors(
            float(self.semantic[position]),
            float(self.time[position]),
            float(self.confidence[position]),
            float(self.role[position]),
            float(self.superseded[position]),
            float(self.origin[position]),
        )


def semantic_probability(evidence: Floats) -> FactorColumn:
    """`P_sem` in (0, 1] of candidates from their evidence; the best candidate has 1.

    A tempered softmax, scaled so that its largest value is one: the distribution over the
    candidates that the evidence gives, at a temperature at which a factor of 1.4 weighs as
    much as it was measured to.
    """
    if not len(evidence):
        return evidence.astype(np.float64)
    spread = np.maximum(TEMPERATURE * (evidence.astype(np.float64) - evidence.max()), -80.0)
    probability: FactorColumn = np.exp(spread)
    return probability


def boost(fires: NDArray[np.bool_], factor: float) -> FactorColumn:
    """`factor` where a condition fires, 1 elsewhere."""
    chosen: FactorColumn = np.where(fires, factor, 1.0)
    return chosen
