"""The section ``notify``: whom the daemon tells of what."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from slurm_elastic.config.numbers import Seconds


class Event(StrEnum):
    """What the daemon tells people of."""

    BUDGET = "budget"
    RATE = "rate"
    PAUSED = "paused"
    CREDENTIALS = "credentials"
    STRAY = "stray"
    LOST = "lost"


class Notify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """slurm-elasticd tells people by mail, by a POST to a webhook, and by a command."""

    events: tuple[Event, ...] = tuple(Event)
    """Change it when some of these occasions are told elsewhere already or interest nobody."""
    mail: tuple[str, ...] = ()
    """Change it when somebody should read of budgets, pauses and strays in their mail."""
    mail_program: str | None = None
    """Change it when MailProg of slurm.conf is missing or made for users' mail alone."""
    webhook: str | None = None
    """Change it when a chat or a monitoring system should be told."""
    command: tuple[str, ...] = ()
    """Change it when a program of your own should be told, such as a pager's."""
    again: Seconds = 86400.0
    """Change it when a reminder each day about the same thing is too much, or too rare."""

    @property
    def anybody(self) -> bool:
        """Whether there is somebody to tell."""
        return bool(self.events and (self.mail or self.webhook or self.command))
