"""Machines that are paid, but serve nobody, and that we alone cannot end. Pure. Those that we end
ourselves are orphans: ``policies/repair/reconcile_rules.py``.

They are told as a health (``controller/strays.py``) and in ``status`` (``watch/view``, what follows
for a machine); docs/operating.md says what to do.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from slurm_elastic.base.units import counted
from slurm_elastic.model.cluster import Instance, Pool
from slurm_elastic.model.memory import Launch, Machine
from slurm_elastic.policies.clock_guard import age

CODE = "stray"
"""The name under which the health of such machines is kept."""
UNENDING = 900.0
"""Seconds after which a machine whose end was decided should be gone; its cloud is asked each round
meanwhile. The slowest that we know, which copy a disk back first, take some minutes.
"""


def strays_of(
    machines: Iterable[Machine],
    launches: Iterable[Launch],
    clouds: Container[str],
    pool_of: Mapping[str, Pool],
    now: float,
) -> dict[tuple[str, str], str]:
    """By cloud and machine (or generation of a launch that may have made some), why."""
    found = {
        (m.instance.cloud, m.instance.id): why
        for m in machines
        if (why := stray(m.instance, clouds, pool_of) or unending(m.retired_at, now))
    }
    return found | {
        (row.cloud, row.generation): why
        for row in launches
        if (why := unanswered(row.cloud, len(row.nodes), clouds))
    }


def stray(instance: Instance, clouds: Container[str], pool_of: Mapping[str, Pool]) -> str | None:
    """Why nobody serves the machine; None where its cloud has its node."""
    if instance.cloud not in clouds:
        return f"the configuration has no cloud {instance.cloud} any more"
    if not instance.node:
        return "its tags name no node"
    pool = pool_of.get(instance.node)
    if pool is None or pool.cloud != instance.cloud:
        return f"no pool of cloud {instance.cloud} has node {instance.node} any more"
    return None


def unending(suspending: float | None, now: float) -> str | None:
    """Why somebody should look at a machine whose end was decided at ``suspending`` (Unix s)."""
    if suspending is None or age(suspending, now) <= UNENDING:
        return None
    return "its cloud was asked again and again to end it, and still has it"


def unanswered(cloud: str, nodes: int, clouds: Container[str]) -> str | None:
    """Why nobody will ever know what an open launch of so many nodes has made."""
    if cloud in clouds:
        return None
    launch = f"its launch of {counted(nodes, 'node')}"
    return f"{launch} has no answer, and the configuration has no {cloud}"
