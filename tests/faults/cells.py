"""What a cell of the fault matrix is: one provider, one kind of call, one fault; and the table."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurm_elastic.policies.node_state import Phase, phase
from tests.faults.bench import Bench
from tests.faults.strikes import FOR_GOOD, KINDS

PROVIDERS = ("fake", "local", "aws", "aws fleet", "opennebula", "openstack", "docker")
CALLS = ("launch", "list", "terminate")
HIDDEN = "hidden for 60 s"
LOST = "reset after, and hidden"
FAULTS = (*KINDS, HIDDEN, LOST)
HIDE = 60.0
BY_LOOKUP = ("opennebula", "openstack")
"""Their APIs take no token with a launch: nothing but lists tells of one without an answer."""
ENDED_WHEN_LISTED = ("openstack",)
"""An order is answered with one id at most: what its lists hide cannot be ended."""
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
REWRITTEN = "SLURM_ELASTIC_FAULT_TABLE"
NO_SUCH = "-"
OPEN = "?"

Cell = tuple[str, str, str]


def compared(cell: Cell, outcome: str) -> str:
    """The outcome, which must be the one that the page tells of; unless the table is written anew."""
    if REWRITTEN not in os.environ:
        assert outcome == published()[cell], "docs/faults.md tells it otherwise"
    return outcome


@functools.cache
def published() -> Mapping[Cell, str]:
    """The cells of the page's table."""
    lines = PAGE.read_text().splitlines()
    first = lines.index(table({}).splitlines()[0])
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines[first:])
    return told("\n".join(rows))


def outcome_of(bench: Bench, call: str, fault: str) -> str:
    """How it came out; AssertionError where a machine is left, doubled or nobody's."""
    if fault == HIDDEN:
        known_late = bench.bed.name in ENDED_WHEN_LISTED
        bench.cloud.hide(HIDE, view=known_late and call == "terminate")
    outcome = {"launch": launching, "list": listing, "terminate": ending}[call](bench, fault)
    if outcome is not NO_SUCH:
        nothing_left(bench)
        assert bench.census.doubles == [], "no node has two machines"
        made = {node: len(machines) for node, machines in bench.census.made.items()}
        assert made == dict.fromkeys(bench.nodes, 1), "nor had one after the other"
        assert bench.census.nobodys == set(), "no machine was for nothing"
        if bench.bed.name in BY_LOOKUP and fault not in FOR_GOOD:
            assert bench.bed.made() == len(bench.nodes), "nor inside of a call"
    return outcome


@contextmanager
def noted() -> Iterator[dict[Cell, str]]:
    """The outcomes of a module: printed in the end, and put into the file's table."""
    found: dict[Cell, str] = {}
    yield found
    print(f"\n{table(found, [p for p in PROVIDERS if any(p == cell[0] for cell in found)])}")
    if file := os.environ.get(REWRITTEN):
        path = Path(file)
        before = told(path.read_text()) if path.exists() else {}
        path.write_text(table(before | found) + "\n")


def strikes(bench: Bench, fault: str, call: str) -> bool:
    """Have it go wrong from now on, unless the cloud has no such answer to that call."""
    if fault == HIDDEN:
        return True
    if fault == LOST and (call != "launch" or not bench.cloud.hide(HIDE)):
        return False
    possible = bench.bed.strike("reset after" if fault == LOST else fault, call)
    bench.before = bench.bed.standing()
    return possible


def healed(bench: Bench, fault: str, call: str) -> None:
    """It must have struck: a fault that stands for ever shows in what came of it."""
    if fault in (HIDDEN, LOST):
        assert call in bench.cloud.struck, "no machine was hidden when it mattered"
    if fault not in (HIDDEN, *FOR_GOOD):
        assert bench.bed.standing() != bench.before, "the fault never struck"
    bench.bed.heal()


def launching(bench: Bench, fault: str) -> str:
    """A two-node job while launches go wrong; then they do not any more."""
    if not strikes(bench, fault, "launch"):
        return NO_SUCH
    bench.slurm.submit(1, bench.nodes, len(bench.nodes))
    bench.advance(40)
    healed(bench, fault, "launch")
    bench.until(lambda: bench.running() and bench.settled(), "a machine for each node")
    assert len(bench.bed.alive()) == len(bench.nodes)
    kinds = bench.kinds()
    if fault == LOST and bench.bed.name in BY_LOOKUP:
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
    """Why the nodes waited can be read, and no job noticed."""
    reasons = [d.reason for node in bench.nodes for d in bench.ledger.decisions(node)]
    assert any("lists may lack them yet" in reason for reason in reasons)
    assert [j.restarts for j in bench.slurm.queue().values()] == [0]


def listing(bench: Bench, fault: str) -> str:
    """The cloud cannot be read while a job runs: nothing is deleted for it."""
    bench.slurm.submit(1, bench.nodes, len(bench.nodes))
    bench.until(bench.running, "the job")
    before = bench.bed.alive()
    if not strikes(bench, fault, "list"):
        bench.slurm.finish(1)
        return NO_SUCH
    bench.advance(120)
    healed(bench, fault, "list")
    bench.until(bench.settled, "agreement")
    assert bench.bed.alive() == before, "machines that run are the same as before"
    assert bench.running()
    assert [j.restarts for j in bench.slurm.queue().values()] == [0]
    return "machines kept"


def ending(bench: Bench, fault: str) -> str:
    """Machines are to end while that goes wrong."""
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
    """And in the end there is nothing: no machine, no open launch, no request, no held node."""
    for job in list(bench.slurm.queue()):
        bench.slurm.finish(job)
    off = [Phase.POWERED_DOWN] * len(bench.nodes)
    bench.until(
        lambda: (
            not bench.bed.alive()
            and bench.settled()
            and [phase(bench.slurm.node(n)) for n in bench.nodes] == off
            and not bench.ledger.holds()
            and bench.spool.count() == 0
        ),
        "nothing",
    )
    assert not any("DOWN" in bench.slurm.node(n).states for n in bench.nodes)


def table(outcomes: Mapping[Cell, str], providers: Sequence[str] = PROVIDERS) -> str:
    """Markdown: a row a call and fault, a column a provider."""
    lines = [
        f"| call | fault | {' | '.join(providers)} |",
        f"|---|---|{'---|' * len(providers)}",
    ]
    for call in CALLS:
        for fault in FAULTS:
            cells = [outcomes.get((provider, call, fault), OPEN) for provider in providers]
            lines.append(f"| {call} | {fault} | {' | '.join(cells)} |")
    return "\n".join(lines)


def told(text: str) -> dict[Cell, str]:
    """The cells of such a table, those left out that are open yet."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    _, _, *providers = rows[0]
    return {
        (provider, call, fault): outcome
        for call, fault, *outcomes in rows[2:]
        for provider, outcome in zip(providers, outcomes, strict=True)
        if outcome != OPEN
    }
