"""Slurm's commands for a person at a screen: they report a hanging slurmctld within seconds.

If slurmctld is stopped, each of Slurm's commands tries for 9 to 18 s. If it hangs, they try for
MessageTimeout or longer (measured on 22.05). ``scontrol ping`` reports the first case at once, and
a time limit ends the second.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client import answers
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.command import CallTimeout

COMMAND_TIMEOUT_S = 5.0  # of one command, unless `slurm.command_timeout` is less
PING_TIMEOUT_S = 2.0  # slurmctld answers a ping without waiting for a lock of its own
UP_TTL_S = 1.0  # a slurmctld that was up is not pinged again for this time
_PING = ("scontrol", "ping")


class PromptCli(SlurmCli):
    """``model.protocols.Slurm`` for our own commands. The services use longer time limits.

    ``excluded``: whether to ask 22.05 also for the nodes that jobs avoid, which takes another
    reading of the queue.
    """

    def __init__(self, settings: SlurmSettings, *, excluded: bool = True) -> None:
        timeout_s = min(COMMAND_TIMEOUT_S, settings.command_timeout)
        super().__init__(replace(settings, command_timeout=timeout_s))
        self._ping_timeout = CallTimeout(min(PING_TIMEOUT_S, timeout_s))
        self._excluded = excluded
        self._up_until = float("-inf")

    def _hand_on(self, take: Callable[[bytes], object], *command: str, **environment: str) -> str:
        if command != _PING and "--version" not in command:  # the version needs no slurmctld
            self._ping()
        return super()._hand_on(take, *command, **environment)

    def _timeout_of(self, command: tuple[str, ...]) -> CallTimeout:
        return self._ping_timeout if command == _PING else self._timeout

    def _queue_text(self, *which: str) -> tuple[SlurmJob, ...]:
        """The queue with the nodes that jobs avoid, if Slurm answers. ``--Format`` lacks them."""
        jobs = super()._queue_text(*which)
        if not self._excluded:
            return jobs
        try:
            avoided = answers.excluded_nodes(self._rows("%x", *which))
        except SlurmError as error:
            if error.unanswered:
                raise
            return jobs
        return tuple(replace(job, excluded=avoided.get(job.id, ())) for job in jobs)

    def _ping(self) -> None:
        """SlurmError if no slurmctld is up."""
        if time.monotonic() < self._up_until:
            return
        code = 0
        try:
            answer = self._run(*_PING)
        except SlurmError as error:
            if error.code is None:
                raise
            answer, code = error.stderr, error.code
        # One line with "is UP" is enough, of the primary or of a backup.
        if " is UP" not in answer:
            first_line = next((line.strip() for line in answer.splitlines() if line.strip()), "")
            raise SlurmError(_PING, code, first_line or "answered nothing")
        self._up_until = time.monotonic() + UP_TTL_S
