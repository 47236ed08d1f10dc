"""Counts the machines of each node after each call of the daemon to the cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Census:
    """The machines seen so far. ``machines`` returns the node of each living machine, including
    hidden ones; "" before a machine has its node. ``made``: all machines ever seen, by node;
    ``doubles``: nodes with two living machines at once.
    """

    def __init__(self, machines: Callable[[], Mapping[str, str]]) -> None:
        self._machines = machines
        self._without_node: set[str] = set()
        self.made: dict[str, set[str]] = {}
        self.doubles: list[str] = []

    @property
    def nobodys(self) -> set[str]:
        """The machines that never had a node."""
        return self._without_node.difference(*self.made.values())

    def count(self) -> None:
        """Count the living machines now."""
        living: dict[str, set[str]] = {}
        for machine, node in self._machines().items():
            if node:
                living.setdefault(node, set()).add(machine)
                self.made.setdefault(node, set()).add(machine)
            else:
                self._without_node.add(machine)
        self.doubles += [
            f"{node}: {sorted(machine_ids)}"
            for node, machine_ids in living.items()
            if len(machine_ids) > 1
        ]
