"""Questions about partitions, each answered by one command."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TypeVar

from slurm_elastic.slurm.client import answers

T = TypeVar("T")
_PARTITIONS = ("scontrol", "--all", "--oneliner", "show", "partition")


class PartitionCommands(ABC):
    """The part of ``model.protocols.Slurm`` that asks about partitions."""

    @abstractmethod
    def _table(self, read: Callable[[str], T], *command: str) -> T:
        """The value of ``read(answer)`` of the command."""

    def default_times(self) -> Mapping[str, float | None]:
        """DefaultTime by partition (s)."""
        return self._table(answers.default_times, *_PARTITIONS)

    def max_times(self) -> Mapping[str, float | None]:
        """MaxTime by partition (s)."""
        return self._table(answers.max_times, *_PARTITIONS)

    def partition_states(self) -> Mapping[str, str]:
        """The state by partition."""
        return self._table(answers.partition_states, *_PARTITIONS)

    def default_partition(self) -> str:
        """The partition of jobs that name none."""
        return self._table(answers.default_partition, *_PARTITIONS)
