"""Reasons of unused paid time, the normal amount at this site, and the keys that lower it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from slurm_elastic.base.units import brief
from slurm_elastic.config import Config, PoolSettings
from slurm_elastic.config.pool_rules import longest_increment, rules_of
from slurm_elastic.features.money.books import Costs
from slurm_elastic.model.cluster import Location
from slurm_elastic.policies.growth.release import Delayed, Idle, OwnRelease
from slurm_elastic.policies.money.cost_split import Unused


class UnusedShare(Struct, frozen=True, kw_only=True):
    """The part of the paid time that was unused for one ``reason``. ``keys``: the keys of the
    configuration that lower it. ``advice``: a sentence about them.
    """

    reason: str
    micro_dollars: int
    keys: tuple[str, ...]
    advice: str


class NormalUnused(Struct, frozen=True, kw_only=True):
    """The unused time that these settings always cost, in micro-dollars: each machine boots, waits
    ``wait_s`` seconds for another job, and ends.
    """

    micro_dollars: int
    wait_s: float


def unused_shares(config: Config, costs: Costs) -> tuple[UnusedShare, ...]:
    """Return the reasons, most expensive first. ``costs`` must be summed by a key of jobs."""
    return tuple(
        UnusedShare(
            reason=line.key,
            micro_dollars=line.micro,
            keys=(advised := _advice(config, Unused(line.key)))[0],
            advice=advised[1],
        )
        for line in costs.lines
        if line.unused
    )


def normal_unused(config: Config, costs: Costs) -> NormalUnused:
    """Return the normal unused time of the machines of ``costs``, which must be summed by a key of
    jobs.

    All boot time counts, except of machines that never became nodes. The time to end a machine
    counts if the cloud bills by the second. Of the idle time one wait of each machine counts.
    """
    by_reason = {
        line.key: max(line.micro - costs.never_registered.get(line.key, 0), 0)
        for line in costs.lines
        if line.unused
    }
    wait_s = max((_wait_s(config, pool) for pool in _bought_pools(config)), default=0.0)
    # Machines of the site itself cost nothing. Their many hours would hide the price of the others.
    rate = costs.micro / costs.paid_hours if costs.paid_hours else 0.0  # micro-dollars per hour
    waits = round(costs.paid_machines * wait_s / 3600 * rate)
    ending = 0 if _longest_lease(config) > 1 else by_reason.get(Unused.ENDING, 0)
    boot, idle = by_reason.get(Unused.BOOT, 0), by_reason.get(Unused.IDLE, 0)
    return NormalUnused(micro_dollars=boot + ending + min(idle, waits), wait_s=wait_s)


def _bought_pools(config: Config) -> Sequence[PoolSettings]:
    public = [p for p in config.pools if config.cloud(p.cloud).location is Location.PUBLIC]
    return public or config.pools


def _wait_s(config: Config, pool: PoolSettings) -> float:
    """Seconds that an idle machine of the pool waits for another job."""
    rules = rules_of(config, pool)
    if rules.release is None:
        return config.suspend_time(config.cloud(pool.cloud))
    if isinstance(rules.release, Idle):
        return float(rules.release.seconds)
    if isinstance(rules.release, Delayed):
        # It waits for the end of its paid lease, on average half of one.
        return rules.lease / 2 if rules.lease > 1 else float(rules.release.on_premises)
    if isinstance(rules.release, OwnRelease):
        return float(rules.release.longest)
    return 0.0


def _longest_lease(config: Config) -> int:
    return longest_increment(config)


def _advice(config: Config, reason: Unused) -> tuple[tuple[str, ...], str]:
    """The keys that lower the unused time of that reason, and a sentence about them."""
    if reason is Unused.IDLE:
        return _idle_advice(config)
    if reason is Unused.BOOT:
        return ("max_stopped",), (
            "machines were starting. A smaller image boots sooner, and max_stopped of a pool keeps "
            "stopped machines, which start sooner than new ones."
        )
    if reason is Unused.ENDING and (lease_s := _longest_lease(config)) > 1:
        return ("policies.release",), (
            f"machines ended before their paid {brief(lease_s)} was over. With policies.release: "
            "delayed(before_end=60) they serve other jobs until then."
        )
    return _OTHER_ADVICE[reason]


_OTHER_ADVICE = {
    Unused.ENDING: (
        (),
        "clouds bill a machine until it is off, and a minute at least. No key lowers this part.",
    ),
    Unused.DRAIN: (
        ("slurm.replace_reasons",),
        "nodes took no jobs. Resume them; slurm.replace_reasons gives drained nodes new machines.",
    ),
    Unused.STOPPED: (
        ("max_stopped", "max_age"),
        "disks of stopped machines. A smaller max_stopped or max_age of a pool lowers this part.",
    ),
    Unused.RESERVED: (
        ("reservations",),
        "reservations that no machine used. `slurm-elastic plan reserve` says how many to hold.",
    ),
}


def _idle_advice(config: Config) -> tuple[tuple[str, ...], str]:
    pools = _bought_pools(config)
    kept = sum(rules_of(config, pool).min_idle for pool in pools)
    if kept:
        return ("min_idle_machines",), (
            f"{kept} machines are kept idle on purpose. A smaller min_idle_machines lowers this "
            "part, but jobs then wait for a boot."
        )
    if any(rules_of(config, pool).release is not None for pool in pools):
        return ("policies.release",), (
            "machines waited for another job. A shorter idle time in policies.release lowers this "
            "part, but more jobs then wait for a boot."
        )
    longest = max(pools, key=lambda pool: _wait_s(config, pool), default=None)
    key, of_cloud = "timings.suspend_time", ""
    wait_s = config.timings.suspend_time
    if longest is not None:
        cloud, wait_s = config.cloud(longest.cloud), _wait_s(config, longest)
        if cloud.suspend_time is not None:  # timings.suspend_time has no effect there
            key, of_cloud = "suspend_time", f" of cloud {cloud.name}"
    return (key,), (
        f"machines waited for another job. A shorter {key}{of_cloud} (now {brief(wait_s)}) "
        "lowers this part, but more jobs then wait for a boot."
    )
