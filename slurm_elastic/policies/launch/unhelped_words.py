"""The sentences about jobs that growth policies no longer count. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.base.hostlist import compress
from slurm_elastic.base.units import brief, counted
from slurm_elastic.model.memory import UnhelpedJob

MAX_NAMED = 5


def unhelped_sentence(rows: Sequence[UnhelpedJob]) -> tuple[str, str]:
    """Return what happened to these jobs, and the command that helps."""
    names = [str(row.job) for row in rows[:MAX_NAMED]]
    unnamed = len(rows) - len(names)
    listed = ", ".join(names) + (f" and {counted(unnamed, 'other')}" if unnamed else "")
    jobs = "Job" if len(rows) == 1 else "Jobs"
    text = (
        f"{jobs} {listed}: machines came up and no job used them, so the growth policy buys nothing"
        " more for them for a time"
    )
    first_job = rows[0].job
    return text, f"slurm-elastic explain {first_job}; then slurm-elastic clear job:{first_job}"


def unhelped_reason(row: UnhelpedJob, now: float) -> str:
    """Return why this job waits. ``now`` (Unix s)."""
    return (
        f"{compress(row.nodes) or 'machines'} came up for it and no job used {_them(row)}"
        f" ({brief(max(now - row.since, 1.0))} ago, Slurm's reason: {row.reason or 'None'});"
        f" the growth policy starts nothing more for it for {brief(max(row.until - now, 1.0))},"
        " or until what it asks for changes;"
        f" do: slurm-elastic clear job:{row.job}"
    )


def _them(row: UnhelpedJob) -> str:
    return "it" if len(row.nodes) == 1 else "them"
