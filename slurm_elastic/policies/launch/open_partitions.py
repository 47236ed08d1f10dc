"""Whether a cloud is for jobs of a partition of the site (``allow.partitions``). Pure."""

from __future__ import annotations

from collections.abc import Sequence


def not_open(names: Sequence[str], allowed: Sequence[str], default: str) -> str:
    """Return the first half of the sentence why a job gets no cloud; "" if the cloud is for it.

    ``names``: the job's partitions but for ours. ``allowed``: the partitions whose jobs may
    use the cloud; empty: jobs that name none, which Slurm puts into ``default`` ("": unknown).
    """
    open_partitions = allowed or ((default,) if default else ())
    # If the default partition is unknown, nothing is proven.
    if not names or not open_partitions or (len(names) == 1 and names[0] in open_partitions):
        return ""
    verb = "is for" if list(names) == [default] else "names"
    admitted = f"name partition {' or '.join(allowed)}" if allowed else "name none"
    # The submit filter leaves a job alone that names several.
    admitted += " alone" if allowed and len(names) > 1 else ""
    return f"the job {verb} partition {','.join(names)}; only jobs that {admitted}"
