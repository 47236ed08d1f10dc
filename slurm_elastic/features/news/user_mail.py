"""Mail to a user about the moves of a job of theirs, if the job's own ``--mail-type`` asks for it.

Slurm itself mails that a job was requeued, but not why, where it runs now and what was saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.base.local_time import moment
from slurm_elastic.model.slurm import JobMail
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep
from slurm_elastic.state.ledger.decisions import USER_KEY

MOST_READ = 50
"""The limit of jobs that one look reads."""
# The address is an argument of the mail program, so it must not look like an option.
_ADDRESS = re.compile(r"[\w.%+=~][\w.%+=~-]*(?:@[\w.-]+)?", re.ASCII)
_REQUEUE, _ALL = "REQUEUE", "ALL"
_LOST = frozenset({_ALL, _REQUEUE, "FAIL"})
_MOVED = frozenset({_ALL, _REQUEUE})
_AT_LIMIT = frozenset(
    {_ALL, _REQUEUE, "TIME_LIMIT", "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50"}
)


class UserMail(Struct, frozen=True, kw_only=True):
    """A message to the owner of a job. ``key`` identifies it."""

    key: str
    address: str
    subject: str
    text: str


class UserMails:
    """Finds new messages. It remembers in memory only which moves are settled. The ledger knows
    which messages were sent.
    """

    def __init__(self, read: Callable[[int], JobMail | None], cluster: str) -> None:
        self._read, self._cluster = read, cluster
        self._settled: set[str] = set()

    def find(self, moves: Sequence[Migration]) -> Iterator[UserMail]:
        """Yield the messages about these moves, as far as their jobs want them.

        Slurm is asked for the mail types of each job once. If it does not answer, the next look
        asks again.
        """
        keys = {key_of(move): move for move in moves if move.step is MigrationStep.BACK}
        self._settled &= keys.keys()
        new_keys = [key for key in keys if key not in self._settled][:MOST_READ]
        for key in new_keys:
            move = keys[key]
            try:
                mail = self._read(move.run.job)
            except SlurmError:
                return
            self._settled.add(key)
            if mail is not None and is_wanted(move, mail):
                yield self._message(key, move, mail)

    def _message(self, key: str, move: Migration, mail: JobMail) -> UserMail:
        run = move.run
        if move.was_renewed and move.image is not None:
            event = "was saved at its time limit and continues"
        elif move.image is None:
            event = "lost its work and started over"
        else:
            event = "was moved and continues"
        lines = (
            f"Job {run.label} {event}.",
            "",
            f"{moment(move.began)}: {move.reason}",
            f"{moment(move.changed)}: {move.note or event}",
            "",
            f"slurm-elastic explain {run.label} says more.",
        )
        return UserMail(
            key=key,
            address=mail.address,
            subject=f"slurm-elastic {self._cluster}: job {run.label} {event}",
            text="\n".join(lines) + "\n",
        )


def key_of(move: Migration) -> str:
    """Return the key of the message about a move."""
    # The time makes it unique, because Slurm reuses the numbers of jobs.
    return f"{USER_KEY}{move.run.job}/{move.run.attempt}/{move.began:.0f}"


def is_wanted(move: Migration, mail: JobMail) -> bool:
    """Whether the job asks for mail about such a move, and has a valid address."""
    asking_types = _LOST if move.image is None else _AT_LIMIT if move.was_renewed else _MOVED
    return not asking_types.isdisjoint(mail.types) and _ADDRESS.fullmatch(mail.address) is not None
