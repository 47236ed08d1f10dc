"""Completes the settings that were found of one kind of cloud to a skeleton with to-dos, for ``init
--cloud``.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config.cloud_kinds import CloudTable
from slurm_elastic.config.found import Found
from slurm_elastic.setup.site import SiteFacts


def kinds_with_skeleton(kinds: CloudTable) -> tuple[str, ...]:
    """The kinds that ``init --cloud`` knows. A kind that cannot be imported has none."""
    return tuple(name for name in kinds.names() if _skeleton(kinds, name) is not None)


def completed(kinds: CloudTable, name: str, clouds_found: Sequence[Found]) -> Found:
    """The usable cloud of the kind if there is one. If there is none, the skeleton with the
    settings found for the first cloud. ConfigError if the kind has no skeleton.
    """
    skeleton = _skeleton(kinds, name)
    if skeleton is None:
        expected = ", ".join(kinds_with_skeleton(kinds))
        raise ConfigError(f"--cloud: found {name}, expected one of {expected}")
    of_kind = [cloud for cloud in clouds_found if cloud.provider == name]
    # The hosts of a cloud ``by_node`` are never found, so it always gets a skeleton.
    usable = [cloud for cloud in of_kind if cloud.usable and not cloud.by_node]
    if usable:
        return usable[0]
    source = of_kind[0] if of_kind else skeleton
    keys = {**skeleton.keys, **source.keys}
    todos = {
        key: step
        for key, step in skeleton.todos.items()
        if source is skeleton or key not in source.keys
    }
    return replace(skeleton, name=source.name, what=source.what, keys=keys, todos=todos)


def with_names(cloud: Found, site: SiteFacts) -> Found:
    """The cloud with its own name, SlurmUser and the ports of Slurm in its steps."""
    names = {
        "name": cloud.name, "user": site.user, "slurmctld_port": site.slurmctld_port,
        "slurmd_port": site.slurmd_port,
    }  # fmt: skip
    todos = {key: step.format_map(names) for key, step in cloud.todos.items()}
    return replace(cloud, todos=todos)


def _skeleton(kinds: CloudTable, name: str) -> Found | None:
    try:
        return kinds.kind(name).skeleton if name in kinds.names() else None
    except ConfigError:
        return None
