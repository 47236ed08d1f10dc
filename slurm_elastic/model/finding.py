"""The findings of ``doctor``."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field


def try_pool(pool: str) -> str:
    """The advice for a pool whose machines do not register. It begins with ``clear``, because a
    paused pool starts no machine.
    """
    return (
        f"slurm-elastic clear {pool}; slurm-elastic try {pool} (it starts one machine and shows "
        "its console and the cause)"
    )


class FindingLevel(StrEnum):
    """The severity of a finding. NOTE: nothing is wrong, but an admin may want to know it."""

    OK = "ok"
    NOTE = "note"
    WRONG = "wrong"


class Finding(Struct, frozen=True, kw_only=True):
    """One check of ``doctor``. ``subject``: the checked thing. ``observed``: its state.
    ``expected``: the expected state if it differs. ``advice``: the remedy. ``cause``: the key of
    the fault, by which ``watch.causes`` joins findings with the same fault.
    """

    subject: str = field(name="check")
    level: FindingLevel
    observed: str = field(name="found")
    expected: str = ""
    advice: str = ""
    cause: str = ""

    @staticmethod
    def ok(subject: str, observed: str) -> Finding:
        """A finding of a thing that is as it should be."""
        return Finding(subject=subject, level=FindingLevel.OK, observed=observed)

    @staticmethod
    def note(
        subject: str, observed: str, expected: str = "", advice: str = "", cause: str = ""
    ) -> Finding:
        """A finding that is worth knowing."""
        return Finding(
            subject=subject,
            level=FindingLevel.NOTE,
            observed=observed,
            expected=expected,
            advice=advice,
            cause=cause,
        )

    @staticmethod
    def wrong(
        subject: str, observed: str, expected: str = "", advice: str = "", cause: str = ""
    ) -> Finding:
        """A finding that must be corrected."""
        return Finding(
            subject=subject,
            level=FindingLevel.WRONG,
            observed=observed,
            expected=expected,
            advice=advice,
            cause=cause,
        )
