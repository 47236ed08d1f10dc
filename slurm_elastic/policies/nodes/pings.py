"""Whether, and how soon, slurmctld finds out by itself that a node does not answer. Pure."""

from __future__ import annotations

PINGED = 1800.0
"""The longest SlurmdTimeout (s) with which it is worth a job's wait that slurmctld finds out."""


def is_pinged(timeout: float) -> bool:
    """Whether slurmctld with that SlurmdTimeout (s) finds out, and soon, who does not answer."""
    return 0 < timeout <= PINGED


def is_lasting(stood: float, timeout: float) -> bool:
    """Whether a doubt that has stood for so long (s) is no loss that slurmctld has yet to notice: a
    node that answered in the third of SlurmdTimeout (s) before a ping round is passed over, and
    asked in the next (src/slurmctld/ping_nodes.c).
    """
    return not is_pinged(timeout) or stood >= 2 / 3 * timeout
