"""Commands about Slurm's own reservations of nodes, which keep jobs off nodes at a later time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar

from slurm_elastic.base.hostlist import compress
from slurm_elastic.model.slurm import Reservation
from slurm_elastic.slurm.client import answers
from slurm_elastic.slurm.client.command import utc_text

T = TypeVar("T")

FLAGS = frozenset({"IGNORE_JOBS", "OVERLAP"})
"""The flags of our reservations. Without OVERLAP slurmctld refuses the whole request if another
reservation has any of its nodes at that time.
"""


class ReservationCommands(ABC):
    """The part of ``model.protocols.Slurm`` that deals with reservations."""

    @abstractmethod
    def _run(self, *command: str) -> str:
        """The output of the command. SlurmError if it fails."""

    @abstractmethod
    def _table(self, read: Callable[[str], T], *command: str) -> T:
        """The value of ``read(answer)`` of the command."""

    def reservations(self) -> Sequence[Reservation]:
        """``scontrol show reservations``, as text, because 22.05 has no JSON for it."""
        return self._table(answers.reservations, "scontrol", "--oneliner", "show", "reservations")

    def reserve(self, name: str, nodes: Sequence[str], start: float, end: float) -> None:
        """``scontrol create reservation``, for root alone."""
        minutes = max(-(-round(end - start) // 60), 1)
        self._run(
            "scontrol", "create", f"reservationname={name}", f"nodes={compress(nodes)}",
            f"starttime={utc_text(start)}", f"duration={minutes}", "users=root", _flags(),
        )  # fmt: skip

    def reserve_other_nodes(self, name: str, nodes: Sequence[str]) -> None:
        """``scontrol update reservationname=NAME nodes=... flags=...``."""
        # A reservation that an earlier version has made lacks OVERLAP, so the update sets it.
        self._run(
            "scontrol", "update", f"reservationname={name}", f"nodes={compress(nodes)}", _flags()
        )

    def unreserve(self, name: str) -> None:
        """``scontrol delete reservationname=NAME``."""
        self._run("scontrol", "delete", f"reservationname={name}")


def _flags() -> str:
    return f"flags={','.join(sorted(FLAGS)).lower()}"
