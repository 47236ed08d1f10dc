"""How many more machines nova's limits allow a project. Pure.

nova shows a project nothing about hosts, so only the scheduler's answer shows that they are full.
"""

from __future__ import annotations

from collections.abc import Mapping

LIMITS = (
    ("instances", "maxTotalInstances", "totalInstancesUsed"),
    ("cores", "maxTotalCores", "totalCoresUsed"),
    ("ram", "maxTotalRAMSize", "totalRAMUsed"),
)
"""The absolute limits: the quota's name for people, the key of the limit, and the key of the amount
in use.
"""


def room(absolute: Mapping[str, object], vcpus: int, ram: int) -> tuple[int | None, str]:
    """How many servers with so many vcpus and MiB the quota still allows, and which quota limits
    them. None if no quota limits them.

    ``absolute`` is from ``GET /limits``, where -1 means no limit.
    """
    needs = {"instances": 1, "cores": vcpus, "ram": ram}
    allowed = []
    for name, limit_key, used_key in LIMITS:
        limit, used = absolute.get(limit_key, -1), absolute.get(used_key, 0)
        # A cloud may leave out limits, or answer with something else. Such a quota shows when a
        # launch meets it.
        if isinstance(limit, int) and isinstance(used, int) and limit >= 0 and needs[name]:
            reason = f"the project's quota of {name} is {limit} and {used} are used"
            allowed.append((max(limit - used, 0) // needs[name], reason))
    return min(allowed, default=(None, ""))
