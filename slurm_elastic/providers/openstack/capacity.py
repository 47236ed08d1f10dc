"""How many more machines a project may have: nova's own limits. Pure.

Hosts are not shown to a project: that they are full is only known when the scheduler says so.
"""

from __future__ import annotations

from collections.abc import Mapping

LIMITS = (
    ("instances", "maxTotalInstances", "totalInstancesUsed"),
    ("cores", "maxTotalCores", "totalCoresUsed"),
    ("ram", "maxTotalRAMSize", "totalRAMUsed"),
)
"""One of the absolute limits: the quota's name for people, its key, and that of what is used."""


def room(absolute: Mapping[str, object], vcpus: int, ram: int) -> tuple[int | None, str]:
    """For how many servers of so many vcpus and MiB the quota has room, and which it is that
    bounds them; None where nothing does. ``absolute`` is of ``GET /limits``, -1 is no limit.
    """
    needs = {"instances": 1, "cores": vcpus, "ram": ram}
    bounds = []
    for name, limit_key, used_key in LIMITS:
        limit, used = absolute.get(limit_key, -1), absolute.get(used_key, 0)
        if isinstance(limit, int) and isinstance(used, int) and limit >= 0 and needs[name]:
            words = f"the project's quota of {name} is {limit} and {used} are used"
            bounds.append((max(limit - used, 0) // needs[name], words))
    return min(bounds, default=(None, ""))
