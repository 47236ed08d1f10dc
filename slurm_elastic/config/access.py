"""Who may use a cloud, and for how long: the sections ``who``, as frozen values."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.config.numbers import SlurmTime


class Who(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may burst, and for how long (Slurm partition limits). Empty everywhere: nobody, to a
    cloud that costs money.
    """

    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    max_time: SlurmTime | None = None
    default_time: SlurmTime | None = None

    @property
    def anybody(self) -> bool:
        """Whether some allow list is set."""
        return bool(self.accounts or self.groups or self.qos)


class Users(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom slurm-elasticd answers what ``status`` and ``explain`` ask: members of the Unix groups
    ``operators`` see everything and may act (pause, limit, drain and so on), those of ``viewers``
    see everything and change nothing, others see what slurm.conf's PrivateData lets them.
    ``socket`` is where they ask.
    """

    operators: tuple[str, ...] = ()
    viewers: tuple[str, ...] = ()
    socket: str | None = None


def effective_who(own: Who | None, everywhere: Who) -> Who:
    """A cloud's own allow list if it has one, else the cluster's; each time limit by the same rule.

    So a cloud that only sets its own ``max_time`` lets nobody else in.
    """
    own = own or Who()
    allowed = own if own.anybody else everywhere
    return Who(
        accounts=allowed.accounts,
        groups=allowed.groups,
        qos=allowed.qos,
        max_time=everywhere.max_time if own.max_time is None else own.max_time,
        default_time=everywhere.default_time if own.default_time is None else own.default_time,
    )
