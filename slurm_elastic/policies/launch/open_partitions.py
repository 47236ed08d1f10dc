"""Whether a cloud is for jobs of a partition of the site (``allow.partitions``). Pure."""

from __future__ import annotations

from collections.abc import Sequence

DEFAULT_PARTITION = "default"
"""The word of ``allow.partitions`` for the site's default partition. No partition has this name,
because ``PartitionName=DEFAULT`` in any case of letters sets defaults (slurm.conf(5)).
"""


def is_open(allowed: Sequence[str], partition: str, *, is_named: bool, is_default: bool) -> bool:
    """Return whether jobs of the site's partition may use a cloud. ``is_named``: the job names it,
    or would have to, because it is not the default one. ``is_default``: it is the site's default
    partition. ``allowed`` empty: the cloud is for jobs that name none. The submit filter has the
    same rule (is_open_to in Lua).
    """
    if not allowed:
        return not is_named
    return partition in allowed or (is_default and DEFAULT_PARTITION in allowed)


def not_open(names: Sequence[str], allowed: Sequence[str], default: str) -> str:
    """Return the first half of the sentence why a job gets no cloud; "" if the cloud is for it.

    ``names``: the job's partitions but for ours. ``allowed``: the partitions whose jobs may
    use the cloud; empty: jobs that name none, which Slurm puts into ``default`` ("": unknown).
    """
    # If the default partition is unknown, nothing is proven.
    if not names or (not default and (not allowed or DEFAULT_PARTITION in allowed)):
        return ""
    is_default = names[0] == default
    if len(names) == 1 and is_open(
        allowed, names[0], is_named=not is_default, is_default=is_default
    ):
        return ""
    allowed = [default if name == DEFAULT_PARTITION else name for name in allowed]
    verb = "is for" if list(names) == [default] else "names"
    admitted = f"name partition {' or '.join(allowed)}" if allowed else "name none"
    # The submit filter leaves a job alone that names several.
    admitted += " alone" if allowed and len(names) > 1 else ""
    return f"the job {verb} partition {','.join(names)}; only jobs that {admitted}"
