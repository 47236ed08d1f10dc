"""A second program for sites that hold reservations: who gets a machine on a reservation, and what a
whole history costs. It shares nothing with the simulator or with ``policies.money.reservations``.

It only knows sites with machines of one type, jobs that take one machine each, and machines that end
with their job. Then a machine lasts from the submission of its job until boot and run are over, and
the bill is a sum over clock hours, without any machine by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

HOUR = 3600


@dataclass(frozen=True)
class Contract:
    """``count`` machines (or, of a savings plan, ``commit`` dollars an hour at ``discount``) from
    ``begin`` to ``end`` (Unix seconds). ``hourly`` is due for each of the machines at all times if
    ``always``, else for the machines in use.
    """

    begin: int
    end: int
    count: int = 0
    upfront: float = 0.0
    hourly: float = 0.0
    always: bool = True
    commit: float = 0.0
    discount: float = 0.0

    def fixed(self) -> float:
        """Dollars in an hour, used or not."""
        spread = self.upfront / ((self.end - self.begin) / HOUR)
        return spread + (self.count * self.hourly if self.always else 0.0) + self.commit

    def within(self, begin: int, end: int) -> int:
        """Its seconds between these two."""
        return max(min(self.end, end) - max(self.begin, begin), 0)


def lives(jobs: list[tuple[int, int]], boot: int) -> list[tuple[int, int]]:
    """From (submission, run) of each job the begin and end of its machine."""
    return [(submit, submit + boot + run) for submit, run in jobs]


def on_contract(machines: list[tuple[int, int]], contract: Contract, origin: int) -> int:
    """How many machines are started on the contract: all for which there is room at their start."""
    ends: list[int] = []
    started = 0
    for begin, end in sorted(machines):
        ends = [other for other in ends if other > begin]
        if contract.begin <= begin + origin < contract.end and len(ends) < contract.count:
            ends.append(end)
            started += 1
    return started


def bill(
    machines: list[tuple[int, int]], price: float, contracts: list[Contract], origin: int
) -> float:
    """The dollars for machines (seconds of the history, second 0 is ``origin``) that cost ``price`` an
    hour on demand. Contracts with a count come before savings plans.
    """
    first, last = min(b for b, _ in machines) + origin, max(e for _, e in machines) + origin
    total = 0.0
    for begin in range(first // HOUR * HOUR, last, HOUR):
        end = begin + HOUR
        left = used(machines, origin, begin, end)
        for contract in sorted(contracts, key=lambda one: one.commit > 0):
            seconds = contract.within(max(begin, first), min(end, last))
            total += contract.fixed() * seconds / HOUR
            if not seconds:
                continue
            window = max(contract.begin, begin), min(contract.end, end)
            there = min(used(machines, origin, *window), left)
            if contract.commit:
                rate = price * (1 - contract.discount)
                covered = min(there, contract.commit * seconds / rate)
            else:
                covered = min(there, contract.count * seconds)
                total += 0.0 if contract.always else covered * contract.hourly / HOUR
            left -= covered
        total += left * price / HOUR
    return total


def used(machines: list[tuple[int, int]], origin: int, begin: int, end: int) -> float:
    """Machine-seconds between two seconds of Unix time."""
    return sum(max(min(e + origin, end) - max(b + origin, begin), 0) for b, e in machines)
