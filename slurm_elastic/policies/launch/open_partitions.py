"""Whether a cloud is for jobs of a partition of the site (``allow.partitions``). Pure."""

from __future__ import annotations

from collections.abc import Sequence


def is_open(allowed: Sequence[str], partition: str, *, is_named: bool) -> bool:
    """Return whether jobs of the site's partition may use a cloud. ``is_named``: the job names it,
    or would have to, because it is not the default one. ``allowed`` empty: the cloud is for
    jobs that name none. The submit filter has the same rule (is_open_to in Lua).
    """
    return partition in allowed if allowed else not is_named


def not_open(names: Sequence[str], allowed: Sequence[str], default: str) -> str:
    """Return the first half of the sentence why a job gets no cloud; "" if the cloud is for it.

    ``names``: the job's partitions but for ours. ``allowed``: the partitions whose jobs may
    use the cloud; empty: jobs that name none, which Slurm puts into ``default`` ("": unknown).
    """
    # If the default partition is unknown, nothing is proven.
    if not names or not (allowed or default):
        return ""
    if len(names) == 1 and is_open(allowed, names[0], is_named=names[0] != default):
        return ""
    verb = "is for" if list(names) == [default] else "names"
    admitted = f"name partition {' or '.join(allowed)}" if allowed else "name none"
    # The submit filter leaves a job alone that names several.
    admitted += " alone" if allowed and len(names) > 1 else ""
    return f"the job {verb} partition {','.join(names)}; only jobs that {admitted}"
