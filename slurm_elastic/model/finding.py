"""What ``doctor`` found of one thing."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

SLURMCTLD = "systemctl status slurmctld; its log says why it stopped or hangs"


def try_pool(pool: str) -> str:
    """What to do about a pool whose machines do not register. A paused pool starts none."""
    return (
        f"slurm-elastic clear {pool}; slurm-elastic try {pool} (it starts one machine and shows "
        "its console and the cause)"
    )


class Level(StrEnum):
    """How good a finding is. ``note``: nothing is wrong, but somebody may want to know."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that ``doctor`` looked at: what was found of it, what was expected where that
    differs, and what to do then. ``cause`` names what is at fault, where others may tell of the
    same (``watch.causes``).
    """

    what: str
    level: Level
    found: str
    expected: str = ""
    advice: str = ""
    cause: str = ""

    @staticmethod
    def ok(what: str, found: str) -> Finding:
        """As it should be."""
        return Finding(what=what, level=Level.OK, found=found)

    @staticmethod
    def note(
        what: str, found: str, expected: str = "", advice: str = "", cause: str = ""
    ) -> Finding:
        """Worth a look."""
        return Finding(
            what=what, level=Level.NOTE, found=found, expected=expected, advice=advice, cause=cause
        )

    @staticmethod
    def wrong(
        what: str, found: str, expected: str = "", advice: str = "", cause: str = ""
    ) -> Finding:
        """To be put right."""
        return Finding(
            what=what, level=Level.WRONG, found=found, expected=expected, advice=advice, cause=cause
        )
