"""The commands of Slurm for ``doctor``: accounts in slurmdbd, and sbatch's answer to a job."""

from __future__ import annotations

from slurm_elastic.slurm.client.commands.sbatch_test_only import joined
from slurm_elastic.slurm.client.prompt import PromptCli

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
