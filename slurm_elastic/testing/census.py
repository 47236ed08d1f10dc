"""Which machines each node has and ever had, counted whenever the daemon has called the cloud."""

from __future__ import annotations

from collections.abc import Callable, Mapping


class Census:
    """``machines`` tells the node of each living machine, hidden ones too; empty while it is not given
    one yet. ``made`` are all that were ever seen, by node; ``doubles`` says of which node two
    lived at once.
    """

    def __init__(self, machines: Callable[[], Mapping[str, str]]) -> None:
        self._machines = machines
        self._without: set[str] = set()
        self.made: dict[str, set[str]] = {}
        self.doubles: list[str] = []

    @property
    def nobodys(self) -> set[str]:
        """Machines that never had a node."""
        return self._without.difference(*self.made.values())

    def count(self) -> None:
        """Look once more."""
        living: dict[str, set[str]] = {}
        for machine, node in self._machines().items():
            if node:
                living.setdefault(node, set()).add(machine)
                self.made.setdefault(node, set()).add(machine)
            else:
                self._without.add(machine)
        self.doubles += [f"{node}: {sorted(of)}" for node, of in living.items() if len(of) > 1]
