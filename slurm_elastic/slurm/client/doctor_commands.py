"""The commands of Slurm for ``doctor``: accounts in slurmdbd, and sbatch's answer to a job."""

from __future__ import annotations

import re

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.slurm.client.prompt import PromptCli

_PREFIX = re.compile(
    r"^(?:sbatch: )?(?:error: )?(?:Batch job submission failed: |allocation failure: )?"
)
UNSPECIFIED = "Unspecified error"
"""sbatch's text for slurm.ERROR of a job_submit.lua."""
_PARSABLE = ("--noheader", "--parsable2")


class ProbingCli(PromptCli):
    """A client that changes nothing: ``sbatch --test-only`` submits no job."""

    def accounts(self) -> frozenset[str]:
        """All accounts of slurmdbd. SlurmError if slurmdbd does not answer."""
        output = self._run("sacctmgr", *_PARSABLE, "show", "account", "format=account")
        return frozenset(output.lower().split())

    def member(self, account: str) -> str:
        """A user of the account. Empty if it has none."""
        query = ("association", f"account={account}", "format=user")
        return min(self._run("sacctmgr", *_PARSABLE, "show", *query).split(), default="")

    def test_only(self, partition: str, *, account: str = "", qos: str = "", user: str = "") -> str:
        """Where and when a job of one node would start. SlurmError with sbatch's text if sbatch
        refuses it. Only root may ask for another user.
        """
        requested = {"partition": partition, "account": account, "qos": qos, "uid": user}
        options = (f"--{name}={value}" for name, value in requested.items() if value)
        fixed = ("--test-only", "--nodes=1", "--time=1", "--chdir=/", "--output=/dev/null")
        return joined(self._hand_on(lambda _: None, "sbatch", *fixed, *options, "--wrap=true"))


def is_scripts_refusal(error: SlurmError) -> bool:
    """Return whether a job_submit.lua refused the job and gave a reason: a text of its own and
    slurm.ERROR. An error of the connection may also come with UNSPECIFIED.
    """
    text = joined(error.stderr)
    if UNSPECIFIED not in error.stderr or text == UNSPECIFIED:
        return False
    return not SlurmError(error.command, error.code, text).unanswered


def joined(output: str) -> str:
    """Return sbatch's messages in one line, without their prefixes.

    A refusing job_submit.lua has its own text first (slurm.log_user). Then the error that it
    returns says nothing more if it is slurm.ERROR.
    """
    lines = (_PREFIX.sub("", line.strip()) for line in output.splitlines())
    messages = [line for line in dict.fromkeys(lines) if line]
    return "; ".join([line for line in messages if line != UNSPECIFIED] or messages)
