"""The key ``timings``: how long slurm-elasticd waits, and how often it looks."""

from __future__ import annotations

from msgspec import Struct

from slurm_elastic.config.basics.numbers import Count, Seconds, SlurmSeconds, SuspendSeconds


class Timings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All values are seconds, except ``max_boot_failures``."""

    suspend_time: SuspendSeconds = 600.0
    """Change it when jobs come in gaps of another length: a longer time keeps machines for the next
    job, a shorter time saves the price of idle machines.
    """
    resume_timeout: SlurmSeconds = 420.0
    """Change it when machines of your image need longer to boot and register, or a failed boot
    should be noticed sooner.
    """
    suspend_timeout: SlurmSeconds = 60.0
    """Change it when machines need longer to end than a minute, so that a node comes back before
    its old machine is gone.
    """
    reconcile_interval: Seconds = 30.0
    """Change it when calls to a cloud's API are scarce or cost money (longer), or repairs should
    come sooner (shorter).
    """
    capacity_cooldown: Seconds = 180.0
    """Change it when capacity that a cloud refused tends to come back sooner or later than this."""
    quota_cooldown: Seconds = 1800.0
    """Change it when your quota is raised, or freed by others of the account, within minutes."""
    max_cooldown: Seconds = 3600.0
    """Change it when we should ask sooner, or later, for an offer that was refused often."""
    orphan_timeout: Seconds = 120.0
    """Change it when a machine without work should end sooner, or power-ups reach slurmctld late
    because it is very busy.
    """
    max_boot_failures: Count = 10
    """Change it when a broken image should stop a pool sooner, or single hosts of a cloud often
    fail to boot.
    """
    boot_cooldown: Seconds = 3600.0
    """Change it when nobody repairs a pool within the hour, or the cause passes sooner."""
    daemon_timeout: Seconds = 120.0
    """Change it when ckptman should stand in for a dead daemon sooner, or `reconcile_interval` is
    longer than two minutes.
    """
