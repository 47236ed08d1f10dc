"""Triple exponential smoothing with adaptive factors: a level, its slope, the slope's change. Pure.

Source: Niu et al., "Building semi-elastic virtual clusters for cost-effective HPC cloud resource
provisioning" (SC '13, IEEE TPDS 2015), Equations 3 and 4. For the factors the paper only cites
Trigg and Leach (1967): each is |E/M| of its own level's smoothed error and smoothed absolute error.
"""

from __future__ import annotations

from typing import NamedTuple

MEMORY = 0.2
"""Trigg and Leach's phi: the weight of the newest error."""
MIN_FACTOR, MAX_FACTOR = 0.05, 0.95


class Factor(NamedTuple):
    """A smoothing factor that grows while the errors keep one sign."""

    error: float = 0.0
    absolute: float = 0.0

    def after(self, error: float) -> Factor:
        """Return the factor after one more error."""
        return Factor(
            MEMORY * error + (1 - MEMORY) * self.error,
            MEMORY * abs(error) + (1 - MEMORY) * self.absolute,
        )

    @property
    def value(self) -> float:
        """The factor, kept within MIN_FACTOR and MAX_FACTOR."""
        if self.absolute == 0:
            return MIN_FACTOR
        return min(max(abs(self.error / self.absolute), MIN_FACTOR), MAX_FACTOR)


class Smoothed(NamedTuple):
    """The state after some values: level, the highest value so far, slope and its change, and each
    one's factor.
    """

    level: float
    highest: float
    slope: float = 0.0
    change: float = 0.0
    alpha: Factor = Factor()
    beta: Factor = Factor()
    gamma: Factor = Factor()

    def after(self, value: float) -> Smoothed:
        """Return the state after the next value, by Equation 4."""
        expected = self.level + self.slope + self.change / 2
        alpha = self.alpha.after(value - expected)
        level = alpha.value * value + (1 - alpha.value) * expected
        steeper = self.slope + self.change
        beta = self.beta.after(level - self.level - steeper)
        slope = beta.value * (level - self.level) + (1 - beta.value) * steeper
        gamma = self.gamma.after(slope - self.slope - self.change)
        change = gamma.value * (slope - self.slope) + (1 - gamma.value) * self.change
        return Smoothed(level, max(self.highest, value), slope, change, alpha, beta, gamma)

    def ahead(self, steps: int, most: float) -> float:
        """Return the value ``steps`` steps ahead by Equation 3, kept between 0 and ``most`` times
        the highest value so far.
        """
        value = self.level + self.slope * steps + self.change * steps * steps / 2
        # Far ahead a parabola predicts nothing useful: it falls to zero or runs into this bound.
        return min(max(value, 0.0), most * self.highest)
