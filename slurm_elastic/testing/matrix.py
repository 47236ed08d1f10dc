"""The fault matrix: each fault of each kind of call to a cloud. After any fault, no machine is left
without an owner, no node gets a second machine, and no node waits for ever.

A cloud's tests inherit ``FaultMatrix`` and define the fixture ``new_bed``, which makes a
``bench.BenchBed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol, runtime_checkable

import pytest

from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.testing.bench import Bench, BenchBed, open_bench

CALLS = ("launch", "list", "terminate")
FOR_GOOD = ("capacity", "quota")
"""Refusals of a launch that last until ``heal``."""
STRUCK = (
    *FOR_GOOD, "throttle", "auth", "internal", "reset before", "reset after", "time-out",
    "slow answer", "wrong data",
)  # fmt: skip
"""The faults that a bed's ``strike`` must support. With ``reset after`` and ``time-out`` the cloud
carries out the call. ``wrong data``: the answer cannot be parsed.
"""
HIDDEN = "hidden for 60 s"
LOST = "reset after, and hidden"
FAULTS = (*STRUCK, HIDDEN, LOST)
HIDE_S = 60.0
NO_SUCH = "-"
SHORT = {"throttle": 3, "internal": 3, "auth": 2}
OF_LISTS = {
    "throttle": 6,
    "internal": 6,
    "auth": 6,
    "reset before": 6,
    "reset after": 6,
    "wrong data": 6,
}


def times(fault: str, call: str) -> int:
    """Return how many calls a fault strikes. It strikes lists more often than a machine may be
    missing from them before it counts as lost.
    """
    return (OF_LISTS if call == "list" else SHORT).get(fault, 1)


@runtime_checkable
class Counting(Protocol):
    """A bed of a cloud without client tokens: only its lists show whether a launch without an
    answer took place. The bed counts all machines ever made.
    """

    def made(self) -> int:
        """Return the number of machines ever made, including ended machines."""
        ...


class FaultMatrix:
    """Each fault of each call, with one daemon, the cloud and a Slurm in memory."""

    @pytest.fixture
    def bench(self, new_bed: Callable[[Path], BenchBed]) -> Iterator[Bench]:
        """Yield a bench. ``new_bed`` makes a cloud without machines, which may use the
        directory.
        """
        with open_bench(new_bed) as new_bench:
            yield new_bench

    @pytest.mark.parametrize("fault", FAULTS)
    @pytest.mark.parametrize("call", CALLS)
    def test_no_orphan_no_double_and_a_defined_state(
        self, bench: Bench, call: str, fault: str
    ) -> None:
        outcome_of(bench, call, fault)


def outcome_of(bench: Bench, call: str, fault: str) -> str:
    """Return the outcome of a fault. Raises AssertionError if a machine is left over, has no node,
    or is the second of its node.
    """
    if fault == HIDDEN:
        is_view_only = getattr(bench.bed, "ended_when_listed", False)
        bench.cloud.hide(HIDE_S, view=is_view_only and call == "terminate")
    outcome = {"launch": launching, "list": listing, "terminate": ending}[call](bench, fault)
    if outcome is not NO_SUCH:
        nothing_left(bench)
        assert bench.census.doubles == [], "no node has two machines"
        machines_made = {node: len(machines) for node, machines in bench.census.made.items()}
        assert machines_made == dict.fromkeys(bench.nodes, 1), "nor had one after the other"
        assert bench.census.nobodys == set(), "no machine was for nothing"
        if isinstance(bench.bed, Counting) and fault not in FOR_GOOD:
            assert bench.bed.made() == len(bench.nodes), "nor inside of a call"
    return outcome


def strikes(bench: Bench, fault: str, call: str) -> bool:
    """Activate a fault. Returns False if the cloud has no such failure of that call."""
    if fault == HIDDEN:
        return True
    if fault == LOST and (call != "launch" or not bench.cloud.hide(HIDE_S)):
        return False
    possible = bench.bed.strike("reset after" if fault == LOST else fault, call)
    bench.before = bench.bed.standing()
    return possible


def healed(bench: Bench, fault: str, call: str) -> None:
    """Check that the fault has struck, and remove it. A permanent fault does not change when it
    strikes, so the caller checks its consequences.
    """
    if fault in (HIDDEN, LOST):
        assert call in bench.cloud.struck, "no machine was hidden when it mattered"
    if fault not in (HIDDEN, *FOR_GOOD):
        assert bench.bed.standing() != bench.before, "the fault never struck"
    bench.bed.heal()


def launching(bench: Bench, fault: str) -> str:
    """Submit a job on two nodes while launches fail, and heal the cloud after that."""
    if not strikes(bench, fault, "launch"):
        return NO_SUCH
    bench.slurm.submit(1, bench.nodes, len(bench.nodes))
    bench.advance(40)
    healed(bench, fault, "launch")
    bench.until(lambda: bench.running() and bench.settled(), "a machine for each node")
    assert len(bench.bed.alive()) == len(bench.nodes)
    kinds = bench.kinds()
    if fault == LOST and isinstance(bench.bed, Counting):
        explained(bench)
    if fault in FOR_GOOD:
        assert "refused" in kinds
    if "refused" in kinds:
        return "job moves on, pool held"
    if "launch-in-doubt" in kinds:
        return "same call again"
    if fault == HIDDEN:
        return "not taken for lost"
    return "served" if fault == "slow answer" else "retried"


def explained(bench: Bench) -> None:
    """Check that the decisions explain why the nodes waited, and that no job was requeued."""
    reasons = [str(d.reason) for node in bench.nodes for d in bench.ledger.decisions.about(node)]
    assert any("lists may lack them yet" in reason for reason in reasons)
    assert [j.restarts for j in bench.slurm.queue().values()] == [0]


def listing(bench: Bench, fault: str) -> str:
    """Make lists fail while a job runs. No machine may be ended because of that."""
    bench.slurm.submit(1, bench.nodes, len(bench.nodes))
    bench.until(bench.running, "the job")
    ids_before = bench.bed.alive()
    if not strikes(bench, fault, "list"):
        bench.slurm.finish(1)
        return NO_SUCH
    bench.advance(120)
    healed(bench, fault, "list")
    bench.until(bench.settled, "agreement")
    assert bench.bed.alive() == ids_before, "machines that run are the same as before"
    assert bench.running()
    assert [j.restarts for j in bench.slurm.queue().values()] == [0]
    return "machines kept"


def ending(bench: Bench, fault: str) -> str:
    """Make terminations fail while machines must end."""
    bench.slurm.submit(1, bench.nodes, len(bench.nodes))
    bench.until(bench.running, "the job")
    if not strikes(bench, fault, "terminate"):
        bench.slurm.finish(1)
        return NO_SUCH
    bench.slurm.finish(1)
    bench.advance(100)
    healed(bench, fault, "terminate")
    bench.until(lambda: bench.settled() and not bench.bed.alive(), "the end of all machines")
    return "asked again until gone" if "terminate-failed" in bench.kinds() else "gone"


def nothing_left(bench: Bench) -> None:
    """Check that in the end no machine, open launch, request or held node is left."""
    for job in list(bench.slurm.queue()):
        bench.slurm.finish(job)
    off = [Phase.POWERED_DOWN] * len(bench.nodes)
    bench.until(
        lambda: (
            not bench.bed.alive()
            and bench.settled()
            and [phase(bench.slurm.node(n)) for n in bench.nodes] == off
            and not bench.ledger.exclusions.holds()
            and bench.spool.count() == 0
        ),
        "nothing",
    )
    assert not any("DOWN" in bench.slurm.node(n).states for n in bench.nodes)
