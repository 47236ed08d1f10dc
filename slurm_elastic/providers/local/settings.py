"""The settings of a cloud on this host as frozen values."""

from __future__ import annotations

from slurm_elastic.base.processes import service_remedies
from slurm_elastic.config.basics.numbers import Count
from slurm_elastic.config.clouds import CloudSettings

LOCAL_AGENT = "slurm-elastic-local"
LOCAL_ZONE = "local"


class LocalCloud(CloudSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="local"):
    """slurmd processes on this host. The root-owned agent ``slurm-elastic-local``, which listens on
    the unix ``socket``, starts them. ``price``: dollars per machine and hour (power, depreciation).
    """

    socket: str = "/run/slurm-elastic/local.sock"
    """Change it when there are several such clouds: each has its service and socket."""
    capacity: Count | None = None
    """Change it when the host can carry only so many machines."""
    price: float = 0.0
    """Change it when a machine's power or depreciation should count in rankings and costs."""

    @property
    def reach_advice(self) -> str:
        """How to start the agent."""
        return service_remedies.enable_or_log(LOCAL_AGENT)

    @property
    def flat_price(self) -> float | None:
        """The price: all machines of one host cost the same."""
        return self.price

    @property
    def known_zones(self) -> tuple[str, ...]:
        """One zone: the host."""
        return (LOCAL_ZONE,)

    @property
    def room(self) -> int | None:
        """The configured ``capacity``; None: as many machines as there are nodes."""
        return self.capacity
