"""Checks that the pools' sections ``machine`` have only keys that their clouds understand. Pure.
The kinds of clouds check the values.
"""

from __future__ import annotations

from slurm_elastic.config.decode import describe
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.machine_options import NO_OPTIONS, MachineOptions


def check_machine_keys(draft: Draft) -> None:
    """Report each key of a section ``machine`` that the pool's cloud does not have."""
    for i, pool, cloud in draft.pools_with_clouds:
        if cloud.unusable:
            continue
        for key in MachineOptions.__struct_fields__:
            value = getattr(pool.machine, key)
            if value == getattr(NO_OPTIONS, key) or key in cloud.machine_keys:
                continue
            known = ", ".join(sorted(cloud.machine_keys))
            expected = f"one of {known}" if known else "no section machine"
            found = "the key" if isinstance(value, tuple | dict) or key == "root_disk" else ""
            draft.problems.add(
                ("pools", i, "machine", key),
                found or describe(value),
                f"{expected}, because provider {cloud.provider} has nothing else",
            )
