"""The commands of Slurm for ``doctor``: what slurmdbd knows, and what sbatch would answer."""

from __future__ import annotations

import re

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.slurm.client.prompt import PromptCli

_SPEAKER = re.compile(
    r"^(?:sbatch: )?(?:error: )?(?:Batch job submission failed: |allocation failure: )?"
)
_BARE = ("--noheader", "--parsable2")


class ProbingCli(PromptCli):
    """Changes nothing, as ``sbatch --test-only`` submits nothing."""

    def accounts(self) -> frozenset[str]:
        """All accounts of slurmdbd. SlurmError where it does not answer."""
        said = self._run("sacctmgr", *_BARE, "show", "account", "format=account")
        return frozenset(said.lower().split())

    def member(self, account: str) -> str:
        """A user of the account; empty where it has none."""
        wanted = ("association", f"account={account}", "format=user")
        return min(self._run("sacctmgr", *_BARE, "show", *wanted).split(), default="")

    def test_only(self, partition: str, *, account: str = "", qos: str = "", user: str = "") -> str:
        """Where and when a job of one node would start; SlurmError with sbatch's words where it is
        refused. Only root may ask for another user.
        """
        given = {"partition": partition, "account": account, "qos": qos, "uid": user}
        options = (f"--{name}={value}" for name, value in given.items() if value)
        plain = ("--test-only", "--nodes=1", "--time=1", "--chdir=/", "--output=/dev/null")
        command = ("sbatch", *plain, *options, "--wrap=true")
        try:
            said = self._hand_on(lambda _: None, *command)
        except SlurmError as error:
            if error.command != command:  # slurmctld does not answer
                raise
            raise SlurmError(command, error.code, _words(error.stderr)) from error
        return _words(said)


def _words(said: str) -> str:
    lines = (_SPEAKER.sub("", line.strip()) for line in said.splitlines())
    return "; ".join(dict.fromkeys(line for line in lines if line))
