"""Every file of the state directory, with what a second head has of it (``ha.directory``).

Each file needs a row here. Without a row the other head may lack the file after a takeover.
``heads.link`` shares what the table shares.
"""

from __future__ import annotations

from enum import StrEnum
from fnmatch import fnmatchcase

from msgspec import Struct


class Keeper(StrEnum):
    """Who has a file. SHARED: both heads, in the shared directory. DERIVED: each head makes it
    again from shared files or the configuration. OWN: it concerns one host or one process.
    """

    SHARED = "shared"
    DERIVED = "derived"
    OWN = "own"


class StateFile(Struct, frozen=True):
    """``name``: the name in the state directory, or a pattern (fnmatch). ``reason``: why it has
    this keeper. The name of a shared file is a link: write it in place or at its ``resolve()``d
    path, because a rename would replace the link.
    """

    name: str
    keeper: Keeper
    reason: str
    is_directory: bool = False


_SHARED, _DERIVED, _OWN = Keeper.SHARED, Keeper.DERIVED, Keeper.OWN
STATE_FILES = (
    StateFile("journal", _SHARED, "the memory of both services", is_directory=True),
    StateFile("requests", _SHARED, "slurmctld asks once, on the head that dies", is_directory=True),
    StateFile("notices", _SHARED, "an order is given once", is_directory=True),
    StateFile("catalogue", _SHARED, "both heads must buy at the same prices", is_directory=True),
    StateFile("claims", _SHARED, "which hosts we have switched on; hosts have no tags", True),
    StateFile("signal-saves", _SHARED, "which runs have saved", is_directory=True),
    StateFile("blcr-images", _SHARED, "which images are whole", is_directory=True),
    StateFile("known_hosts", _SHARED, "a machine prints its host keys once"),
    StateFile("enrolment.secret", _SHARED, "machines that boot have words derived from it"),
    StateFile("policy-choice.json", _SHARED, "the policy that was chosen stays in a takeover"),
    StateFile("ledger.db*", _DERIVED, "the view of the journal"),
    StateFile("checkpoints.db*", _DERIVED, "the view of the journal"),
    StateFile("*.applied", _DERIVED, "the last line of the shared journal that this view has"),
    StateFile("pool-order", _DERIVED, "the acting head publishes it every round"),
    StateFile("image_known_hosts", _DERIVED, "from join.ssh.host_key"),
    StateFile("copy_key*", _OWN, "each head brings its own key to a machine before it copies"),
    StateFile("last-epoch", _OWN, "the epoch that this host has seen: it proves an older copy"),
    StateFile("*.beat", _OWN, "a sign of life of a process here"),
    StateFile("*.lock", _OWN, "one process on this host"),
    StateFile("*.sock", _OWN, "a process here listens"),
    StateFile("programs.log", _OWN, "errors of slurmctld's programs on this host"),
)


def declared(name: str) -> StateFile | None:
    """Return the declaration of a name in the state directory; None if there is none."""
    return next((file for file in STATE_FILES if fnmatchcase(name, file.name)), None)


def shared_names(*, directories: bool) -> tuple[str, ...]:
    """The names of the shared directories, or of the other shared files."""
    return tuple(
        file.name
        for file in STATE_FILES
        if file.keeper is Keeper.SHARED and file.is_directory is directories
    )
