"""Machines that cost money, serve no node, and that slurm-elastic alone cannot end. Pure. Machines
that we end ourselves are orphans: ``policies/repair/reconcile_rules.py``.

The controller reports them as a health (``controller/strays.py``), and ``status`` shows them.
docs/operating.md says what to do.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.cluster import Instance, Pool
from slurm_elastic.model.memory import Launch, Machine
from slurm_elastic.policies.clock_guard import age

_CODE = "stray"
UNENDING = 900.0
"""Seconds after which a machine whose end was decided should be gone. slurm-elasticd asks its cloud
every round until then. The slowest clouds copy a disk back first and take some minutes.
"""


def code_of(count: int) -> str:
    """Return the code of the health that reports so many machines."""
    return f"{_CODE}:{count}"


def count_of(code: str | None) -> int:
    """Return how many machines the health with this code reports; 0 if it reports other things."""
    name, _, count = (code or "").partition(":")
    # Earlier releases did not write the count.
    return int(count or 1) if name == _CODE else 0


def strays_of(
    machines: Iterable[Machine],
    launches: Iterable[Launch],
    clouds: Container[str],
    pool_of: Mapping[str, Pool],
    now: float,
) -> dict[tuple[str, str], str]:
    """Return why each machine is a stray, by cloud and machine id, or by cloud and generation for
    an open launch that may have made machines.
    """
    stray_machines = {
        (m.instance.cloud, m.instance.id): reason
        for m in machines
        if (reason := stray(m.instance, clouds, pool_of) or unending(m.retired_at, now))
    }
    return stray_machines | {
        (row.cloud, row.generation): reason
        for row in launches
        if (reason := unanswered(row.cloud, len(row.nodes), clouds))
    }


def stray(instance: Instance, clouds: Container[str], pool_of: Mapping[str, Pool]) -> str | None:
    """Why no pool has the machine's node; None if its own cloud has a pool for it."""
    if instance.cloud not in clouds:
        return f"the configuration no longer has cloud {instance.cloud}"
    if not instance.node:
        return "its tags name no node"
    pool = pool_of.get(instance.node)
    if pool is None or pool.cloud != instance.cloud:
        return f"no pool of cloud {instance.cloud} has node {instance.node} now"
    return None


def unending(suspending: float | None, now: float) -> str | None:
    """Why a person should look at a machine whose end was decided at ``suspending`` (Unix s); None
    if its end is not overdue.
    """
    if suspending is None or age(suspending, now) <= UNENDING:
        return None
    return f"its end was decided over {brief(UNENDING)} ago, and its cloud has not confirmed it"


def unanswered(cloud: str, nodes: int, clouds: Container[str]) -> str | None:
    """Why we can never learn what an open launch of so many nodes has made; None if its cloud is
    configured.
    """
    if cloud in clouds:
        return None
    launch = f"its launch of {counted(nodes, 'node')}"
    return f"{launch} has no answer, and the configuration has no {cloud}"
