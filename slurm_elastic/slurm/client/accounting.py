"""slurmdbd's jobs of a span of time, and the people who look after accounts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.command import utc_text

FIELDS = (
    "JobIDRaw", "User", "Account", "Partition", "Submit", "Eligible", "ElapsedRaw", "TimelimitRaw",
    "ReqCPUS", "AllocCPUS", "ReqMem", "ReqTRES", "State",
)  # fmt: skip
"""The fields of sacct's answer. Free text is not among them, because it may contain the
separator.
"""
Row = Mapping[str, str]


class AccountingCli(SlurmCli):
    """Asks slurmdbd. Its answers may take as long as ``slurm.command_timeout``."""

    def accounted_jobs(self, since: float, until: float) -> Sequence[Row]:
        """All jobs that were queued or ran in that span (Unix time), under sacct's names, with Unix
        times. SlurmError if slurmdbd does not answer.
        """
        chunks: list[bytes] = []
        command = (
            "sacct", "--allusers", "--allocations", "--parsable2", "--noheader",
            f"--starttime={utc_text(since)}", f"--endtime={utc_text(until)}",
            f"--format={','.join(FIELDS)}",
        )  # fmt: skip
        self._hand_on(chunks.append, *command, SLURM_TIME_FORMAT="%s")
        lines = b"".join(chunks).decode(errors="replace").splitlines()
        rows = [line.split("|") for line in lines]
        return [dict(zip(FIELDS, row, strict=True)) for row in rows if len(row) == len(FIELDS)]

    def coordinators(self) -> Mapping[str, tuple[str, ...]]:
        """The coordinators (user names) by account. SlurmError if slurmdbd does not answer."""
        output = self._run(
            "sacctmgr", "--noheader", "--parsable2", "show", "account", "withcoordinator",
            "format=account,coordinators",
        )  # fmt: skip
        by_account = {}
        for line in output.splitlines():
            account, _, names = line.partition("|")
            users = tuple(name for name in names.split(",") if name)
            if account and users:
                by_account[account] = users
        return by_account


def remembered_jobs(jobs: Sequence[SlurmJob]) -> list[Row]:
    """The ended jobs that slurmctld still has, as ``accounted_jobs`` gives them."""
    return [_row(job) for job in jobs if job.has_ended and job.start and job.end > job.start]


def _row(job: SlurmJob) -> Row:
    return {
        "JobIDRaw": str(job.id),
        "User": job.user,
        "Account": job.account,
        "Partition": job.partitions[0] if job.partitions else "",
        "Submit": str(int(job.submit)),
        "Eligible": str(int(job.eligible)) if job.eligible else "Unknown",
        "ElapsedRaw": str(int(job.end - job.start)),
        "TimelimitRaw": "" if job.limit is None else str(-(-job.limit // 60)),
        "ReqCPUS": str(job.cpus),
        "AllocCPUS": "",
        "ReqMem": "",
        "ReqTRES": job.allocated,
        "State": "COMPLETED",
    }


def jobs_between(
    accounting: AccountingCli, slurm: Slurm, since: float, until: float
) -> tuple[Sequence[Row], str]:
    """The jobs of that span, and a note if slurmdbd cannot give them. SlurmError if slurmctld does
    not answer, either.
    """
    try:
        return accounting.accounted_jobs(since, until), ""
    except SlurmError:
        rows = remembered_jobs(slurm.jobs(ended=True))
        return rows, (
            "Slurm keeps no accounting (slurmdbd), so only the jobs count that slurmctld still "
            "remembers (MinJobAge)"
        )
