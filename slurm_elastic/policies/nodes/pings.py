"""Whether, and how soon, slurmctld itself notices that a node does not answer. Pure."""

from __future__ import annotations

MAX_PINGED_TIMEOUT_S = 1800.0
"""With a longer SlurmdTimeout (s) a job should not wait until slurmctld notices."""


def is_pinged(timeout: float) -> bool:
    """Whether slurmctld with this SlurmdTimeout (s) notices soon that a node does not answer."""
    return 0 < timeout <= MAX_PINGED_TIMEOUT_S


def is_lasting(stood: float, timeout: float) -> bool:
    """Whether slurmctld would have noticed a lost node after ``stood`` seconds of doubt. slurmctld
    skips a node that answered in the third of SlurmdTimeout (s) before a round of pings, and asks
    it in the next round (src/slurmctld/ping_nodes.c).
    """
    return not is_pinged(timeout) or stood >= 2 / 3 * timeout
