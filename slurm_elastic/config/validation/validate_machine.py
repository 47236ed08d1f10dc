"""Checks that pools ask for no more than their clouds can do for machines: the keys of ``machine``,
and ``replace``. Pure. The kinds of clouds check the values.
"""

from __future__ import annotations

from slurm_elastic.config.decode import describe
from slurm_elastic.config.document import shown
from slurm_elastic.config.partial import Draft
from slurm_elastic.model.boot_image import Replacement
from slurm_elastic.model.machine_options import NO_OPTIONS, Disk, MachineOptions


def check_replacement(draft: Draft) -> None:
    """Report ``replace: when_changed`` where the cloud does not say what machines started from."""
    for i, pool, cloud in draft.pools_with_clouds:
        usable = cloud.names_images or cloud.unusable
        if pool.replace is Replacement.WHEN_CHANGED and not usable:
            expected = (
                f"{Replacement.BY_HAND}: provider {cloud.provider} does not say from which image a "
                "machine started"
            )
            draft.problems.add(("pools", i, "replace"), shown(pool.replace), expected)


def check_machine_keys(draft: Draft) -> None:
    """Report each key of a section ``machine`` that the pool's cloud does not have."""
    for i, pool, cloud in draft.pools_with_clouds:
        if cloud.unusable:
            continue
        for key in MachineOptions.__struct_fields__:
            value = getattr(pool.machine, key)
            if value == getattr(NO_OPTIONS, key) or key in cloud.machine_keys:
                continue
            cloud_keys = ", ".join(sorted(cloud.machine_keys))
            expected = f"one of {cloud_keys}" if cloud_keys else "no section machine"
            is_section = isinstance(value, tuple | dict | Disk)
            draft.problems.add(
                ("pools", i, "machine", key),
                "the key" if is_section else describe(value),
                f"{expected}, because provider {cloud.provider} has nothing else",
            )
