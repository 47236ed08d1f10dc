"""Slurm's commands for who waits at a screen: a slurmctld that hangs is told of in seconds.

With slurmctld stopped each of Slurm's commands tries for 9 to 18 s, with one that hangs for
MessageTimeout or longer (measured on 22.05). ``scontrol ping`` tells of the first at once, and a
time limit ends the second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.command import Patience

PATIENCE = 5.0  # seconds for one command, unless `slurm.command_timeout` is less
ANSWER = 2.0  # seconds for slurmctld's word that it is up, which waits for no lock of its own
UP_FOR = 1.0  # seconds for which a slurmctld that was up is not asked again whether it is
_PING = ("scontrol", "ping")


class PromptCli(SlurmCli):
    """``model.protocols.Slurm`` for our own commands; the services take their time.
    ``excluded``: whether 22.05 is asked for the nodes that jobs avoid, too, which takes another
    reading of the queue.
    """

    def __init__(self, settings: SlurmSettings, *, excluded: bool = True) -> None:
        patience = min(PATIENCE, settings.command_timeout)
        super().__init__(replace(settings, command_timeout=patience))
        self._ping_patience = Patience(min(ANSWER, patience))
        self._excluded = excluded
        self._up_until = float("-inf")

    def _hand_on(self, take: Callable[[bytes], object], *command: str, **environment: str) -> str:
        if command != _PING and "--version" not in command:  # which nobody has to be asked for
            self._ping()
        return super()._hand_on(take, *command, **environment)

    def _patience_of(self, command: tuple[str, ...]) -> Patience:
        return self._ping_patience if command == _PING else self._patience

    def _queue_text(self) -> tuple[SlurmJob, ...]:
        """With the nodes that a job avoids, which 22.05's ``--Format`` lacks, if Slurm says so."""
        found = super()._queue_text()
        if not self._excluded:
            return found
        try:
            avoided = dict(_avoided(self._run("squeue", "--all", "--noheader", "--format=%A|%x")))
        except SlurmError as error:
            if error.unanswered:
                raise
            return found
        return tuple(replace(job, excluded=avoided.get(job.id, ())) for job in found)

    def _ping(self) -> None:
        """SlurmError where no slurmctld is up."""
        if time.monotonic() < self._up_until:
            return
        code = 0
        try:
            said = self._run(*_PING)
        except SlurmError as error:
            if error.code is None:
                raise
            said, code = error.stderr, error.code
        # One that is up is enough, whether it is the primary or a backup.
        if " is UP" not in said:
            first = next((line.strip() for line in said.splitlines() if line.strip()), "")
            raise SlurmError(_PING, code, first or "answered nothing")
        self._up_until = time.monotonic() + UP_FOR


def _avoided(text: str) -> Iterator[tuple[int, tuple[str, ...]]]:
    """By job, the nodes after ``--exclude``."""
    for line in text.splitlines():
        number, _, nodes = line.partition("|")
        if number.isdecimal() and nodes not in ("", "(null)"):
            yield int(number), tuple(expand(nodes))
