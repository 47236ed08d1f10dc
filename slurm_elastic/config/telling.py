"""Who is told what: the section ``notify``, as frozen values."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from slurm_elastic.config.numbers import Seconds


class Event(StrEnum):
    """An occasion on which somebody is told."""

    BUDGET = "budget"
    RATE = "rate"
    PAUSED = "paused"
    CREDENTIALS = "credentials"
    STRAY = "stray"
    LOST = "lost"


class Notify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom slurm-elasticd tells of ``events``: by mail to ``mail`` (``mail_program``: None is
    Slurm's MailProg), by POST to ``webhook`` (an address, or the path of a file of SlurmUser's with
    it), by running ``command``. One thing is told again after ``again`` seconds at the earliest.
    """

    events: tuple[Event, ...] = tuple(Event)
    mail: tuple[str, ...] = ()
    mail_program: str | None = None
    webhook: str | None = None
    command: tuple[str, ...] = ()
    again: Seconds = 86400.0

    @property
    def anybody(self) -> bool:
        """Whether there is somebody to tell."""
        return bool(self.events and (self.mail or self.webhook or self.command))
