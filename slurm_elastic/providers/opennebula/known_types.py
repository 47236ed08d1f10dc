"""The VM templates that an account may use, as machine types.

The hourly price follows OpenNebula's showback: CPU x CPU_COST + MEMORY x MEMORY_COST ("Showback" of
its documentation; memory in MiB). A template without costs has no price.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slurm_elastic.config.sections.requirements import KnownType
from slurm_elastic.providers.opennebula.errors import translated
from slurm_elastic.providers.opennebula.front_end import FrontEnd
from slurm_elastic.providers.opennebula.settings import OpenNebulaCloud

ALL = -2
"""The filter for everything that an account may use."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.-]+")


def known_types(settings: OpenNebulaCloud) -> tuple[KnownType, ...]:
    """All types. Takes one call and may raise any ProviderError. If several templates share a name,
    the newest gets it.
    """
    with translated(settings.name):
        records = FrontEnd(settings).call("templatepool.info", ALL, -1, -1).VMTEMPLATE
        type_by_name: dict[str, KnownType] = {}
        for record in sorted(records, key=lambda r: int(r.ID)):
            known_type = _known_type(str(record.NAME), int(record.ID), record.TEMPLATE or {})
            if known_type is not None:
                type_by_name[known_type.name] = known_type
        return tuple(type_by_name.values())


def _known_type(name: str, number: int, template: Mapping[str, Any]) -> KnownType | None:
    """The template as a type; None if it does not give its size in plain numbers."""
    try:
        cpu, memory = float(template["CPU"]), int(template["MEMORY"])
        cpus = int(template.get("VCPU") or 1)
        costs = float(template.get("CPU_COST") or 0), float(template.get("MEMORY_COST") or 0)
    except (KeyError, TypeError, ValueError):
        return None
    price = cpu * costs[0] + memory * costs[1]
    return KnownType(
        name=_NOT_IN_NAMES.sub("-", name).strip("-."),
        cpus=cpus,
        memory=memory,
        price=round(price, 6) if any(costs) else None,
        own={"template": number},
    )
