"""The sections ``allow`` and ``users``: who may use a cloud, and whose questions are answered."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from slurm_elastic.config.basics.numbers import SlurmTime


class Share(StrEnum):
    """The jobs that may run on a node at a time: jobs of one user, or one job."""

    USER = "user"
    EXCLUSIVE = "exclusive"


class Who(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may run jobs in a cloud, and for how long. Empty lists close a paid cloud to all."""

    accounts: tuple[str, ...] = ()
    """Change it when other Slurm accounts may spend money, or no longer may."""
    groups: tuple[str, ...] = ()
    """Change it when people are allowed by Unix groups rather than by accounts."""
    qos: tuple[str, ...] = ()
    """Change it when bursting is bound to a QOS, such as one with limits of its own."""
    max_time: SlurmTime | None = None
    """Change it when jobs on cloud nodes should be shorter than elsewhere, so that a machine is
    not paid for weeks.
    """
    default_time: SlurmTime | None = None
    """Change it when users forget `--time`, and their jobs count as very long."""

    licenses: tuple[str, ...] = ()
    """Change it when a licence is of use on cloud nodes, too: jobs that ask for another one get no
    cloud unless they name its partition.
    """
    no_requeue_on_spot: tuple[str, ...] = ()
    """Change it when workflow tools write `--no-requeue` and submit a lost job again by themselves:
    such jobs of these accounts may then use spot machines. `all` is every account.
    """
    partitions: tuple[str, ...] = ()
    """Change it when jobs that name a partition of the site should burst, too, or when a cloud is
    for jobs of some partitions only. Without it a cloud is for jobs that name no partition.
    `default` is the default partition, also for jobs that name it, as workflow tools do.
    """

    @property
    def anybody(self) -> bool:
        """Whether some allow list is set."""
        return bool(self.accounts or self.groups or self.qos)


class PageProxy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The web server that may name the visitors of the page."""

    user: str
    """Change it when the site's web server runs as another Unix user than, say, www-data."""
    header: str
    """Change it when the web server names the person in another header than, say, X-Remote-User. It
    must remove such a header that a visitor sends.
    """


class Users(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose ``status`` and ``explain`` slurm-elasticd answers in full, and who may give orders."""

    operators: tuple[str, ...] = ()
    """Change it when others than root and SlurmUser may pause, limit, drain, replace, migrate."""
    viewers: tuple[str, ...] = ()
    """Change it when people should see all jobs, machines and costs and change nothing."""
    socket: str | None = None
    """Change it when users cannot reach /run/slurm-elasticd, such as from containers that have
    another directory of the head.
    """
    page_proxy: PageProxy | None = None
    """Change it when people open the page through the site's web server and should act there."""


def effective_who(own_who: Who | None, everywhere: Who) -> Who:
    """A cloud's own allow list, or the cluster's if the cloud has none. Each time limit and the
    licences are chosen in the same way, and so are the other lists.
    """
    own_who = own_who or Who()
    # A cloud that sets only its own ``max_time`` therefore admits nobody else.
    allowed = own_who if own_who.anybody else everywhere
    return Who(
        accounts=allowed.accounts,
        groups=allowed.groups,
        qos=allowed.qos,
        max_time=everywhere.max_time if own_who.max_time is None else own_who.max_time,
        default_time=everywhere.default_time
        if own_who.default_time is None
        else own_who.default_time,
        licenses=own_who.licenses or everywhere.licenses,
        no_requeue_on_spot=own_who.no_requeue_on_spot or everywhere.no_requeue_on_spot,
        partitions=own_who.partitions or everywhere.partitions,
    )
