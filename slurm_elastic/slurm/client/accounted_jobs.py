"""A user's ended jobs by ``sacct``: slurmctld forgets them after MinJobAge, slurmdbd does not."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from slurm_elastic.base.hostlist import HostlistError, expand
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.command import utc_text

TIMEOUT_S = 4.0
FIELDS = (
    "JobIDRaw", "JobID", "User", "UID", "Account", "Partition", "State", "Submit", "Start", "End",
    "NodeList", "JobName",
)  # fmt: skip
"""The fields of sacct's answer. JobName is the last field, because it may contain the separator."""
_ENDED = "BF,CA,CD,DL,F,NF,OOM,PR,TO"


class EndedJobsCli(SlurmCli):
    """Asks slurmdbd, which may take long, for a person who waits."""

    def __init__(self, settings: SlurmSettings) -> None:
        timeout_s = min(TIMEOUT_S, settings.command_timeout)
        super().__init__(replace(settings, command_timeout=timeout_s))

    def ended_jobs(self, user: str, since: float) -> tuple[SlurmJob, ...]:
        """The jobs of ``user`` (a name or a uid) that ended after ``since`` (Unix time).

        SlurmError if there is no slurmdbd, or if it does not answer.
        """
        chunks: list[bytes] = []
        command = (
            "sacct", "--allocations", "--noheader", "--parsable2", f"--user={user}",
            f"--starttime={utc_text(since)}", "--endtime=now",
            f"--state={_ENDED}", f"--format={','.join(FIELDS)}",
        )  # fmt: skip
        self._hand_on(chunks.append, *command, SLURM_TIME_FORMAT="%s")
        output = b"".join(chunks).decode(errors="replace")
        return tuple(job for job in _jobs(output) if job.end >= since)


def _jobs(output: str) -> Iterator[SlurmJob]:
    for line in output.splitlines():
        row = dict(zip(FIELDS, line.split("|", len(FIELDS) - 1), strict=False))
        if len(row) == len(FIELDS) and row["JobIDRaw"].isdecimal():
            yield _job(row)


def _job(row: dict[str, str]) -> SlurmJob:
    array, _, task = row["JobID"].partition("_")
    is_task = array.isdecimal() and task.isdecimal()
    return SlurmJob(
        id=int(row["JobIDRaw"]),
        states=frozenset(row["State"].split()[:1]),  # "CANCELLED by 1000"
        user=row["User"],
        uid=int(row["UID"]) if row["UID"].isdecimal() else -1,
        account=row["Account"],
        partitions=tuple(name for name in row["Partition"].split(",") if name),
        submit=_unix_time(row["Submit"]),
        start=_unix_time(row["Start"]),
        end=_unix_time(row["End"]),
        nodes=_nodes(row["NodeList"]),
        name=row["JobName"],
        array=int(array) if is_task else 0,
        task=int(task) if is_task else None,
    )


def _nodes(text: str) -> tuple[str, ...]:
    if not text or text == "None assigned":
        return ()
    try:
        return tuple(expand(text))
    except HostlistError:
        return ()


def _unix_time(text: str) -> float:
    """One of sacct's times; 0 for ``Unknown`` and ``None``."""
    return float(text) if text.isdecimal() else 0.0
