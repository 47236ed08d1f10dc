"""The VM templates that an account may use, as types of machines.

Their price is what OpenNebula's showback counts: CPU x CPU_COST + MEMORY x MEMORY_COST, an hour
("Showback" of its documentation; memory in MiB); a template without costs has none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slurm_elastic.config.requirements import KnownType
from slurm_elastic.providers.opennebula.errors import translated
from slurm_elastic.providers.opennebula.front_end import FrontEnd
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

ALL = -2
"""The filter for what an account may use."""
_ODD = re.compile(r"[^A-Za-z0-9_.-]+")


def known_types(settings: OpenNebulaCloud) -> tuple[KnownType, ...]:
    """One call. Any ProviderError. If templates have one name, the newest has it."""
    with translated(settings.name):
        records = FrontEnd(settings).call("templatepool.info", ALL, -1, -1).VMTEMPLATE
        found: dict[str, KnownType] = {}
        for record in sorted(records, key=lambda r: int(r.ID)):
            one = _known(str(record.NAME), int(record.ID), record.TEMPLATE or {})
            if one is not None:
                found[one.name] = one
        return tuple(found.values())


def _known(name: str, number: int, template: Mapping[str, Any]) -> KnownType | None:
    """None where it does not say its size in plain numbers."""
    try:
        cpu, memory = float(template["CPU"]), int(template["MEMORY"])
        cpus = int(template.get("VCPU") or 1)
        costs = float(template.get("CPU_COST") or 0), float(template.get("MEMORY_COST") or 0)
    except (KeyError, TypeError, ValueError):
        return None
    price = cpu * costs[0] + memory * costs[1]
    return KnownType(
        name=_ODD.sub("-", name).strip("-."),
        cpus=cpus,
        memory=memory,
        price=round(price, 6) if any(costs) else None,
        own={"template": number},
    )
