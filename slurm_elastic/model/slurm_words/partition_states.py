"""Every state of a partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slurm_elastic.model.slurm_words.rows import PartitionStateRow

PARTITION_STATES = (
    PartitionStateRow(name="UP", meaning="it takes jobs and starts them"),
    PartitionStateRow(
        name="DOWN", meaning="it takes jobs but starts none", keeps_jobs=True
    ),
    PartitionStateRow(
        name="DRAIN", meaning="it takes no new jobs; those in its queue start", refuses=True
    ),
    PartitionStateRow(
        name="INACTIVE", meaning="it takes no new jobs and starts none", keeps_jobs=True,
        refuses=True,
    ),
)  # fmt: skip


def row_of(state: str) -> PartitionStateRow | None:
    """The row of a state; None for a word of a later release."""
    return next((row for row in PARTITION_STATES if row.name == state.upper()), None)


def closed(states: Mapping[str, str]) -> frozenset[str]:
    """The partitions of ``states`` that start no job."""
    rows = ((name, row_of(state)) for name, state in states.items())
    return frozenset(name for name, row in rows if row is not None and row.keeps_jobs)
