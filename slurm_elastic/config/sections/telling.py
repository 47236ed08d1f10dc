"""The section ``notify``: whom the daemon notifies, and about which events."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct, field

from slurm_elastic.config.basics.numbers import Seconds


class NotifyEvent(StrEnum):
    """The events about which the daemon notifies people."""

    BUDGET = "budget"
    RATE = "rate"
    PAUSED = "paused"
    BOOT = "boot"
    CREDENTIALS = "credentials"
    STRAY = "stray"
    LOST = "lost"
    OTHER_HEAD = "other-head"
    SLURM = "slurm"
    RECORDS = "records"


class Notify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """slurm-elasticd notifies people by mail, by a POST to a webhook, and by a command."""

    events: tuple[NotifyEvent, ...] = tuple(NotifyEvent)
    """Change it when some of these events are reported elsewhere or interest nobody."""
    mail: tuple[str, ...] = ()
    """Change it when somebody should get budgets, pauses and stray machines by mail."""
    mail_program: str | None = None
    """Change it when MailProg of slurm.conf is missing or made for users' mail alone."""
    webhook: str | None = None
    """Change it when a chat or a monitoring system should be notified."""
    command: tuple[str, ...] = ()
    """Change it when a program of your own should be called, such as a pager's."""
    users: bool = False
    """Change it when users should get mail about moves of their jobs, by their own --mail-type."""
    repeat_interval: Seconds = 86400.0
    """Change it when a reminder each day about the same thing is too much, or too rare."""
    accounts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Change it when the owners of Slurm accounts should get a mail with the costs of each month:
    the addresses by account.
    """
    coordinators: bool = False
    """Change it when these mails should also go to each account's coordinators in sacctmgr, of all
    accounts.
    """

    @property
    def administrators(self) -> bool:
        """Whether anybody is notified about the events."""
        return bool(self.events and (self.mail or self.webhook or self.command))

    @property
    def anybody(self) -> bool:
        """Whether there is anybody to notify."""
        return self.administrators or self.users
