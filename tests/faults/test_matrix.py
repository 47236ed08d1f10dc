"""Each provider x each fault x each call: no orphan, no double, a defined state; a table of how.

``docs/faults.md`` has the table; SLURM_ELASTIC_FAULT_TABLE=FILE writes it anew.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.policies.phase import Phase, phase
from tests.faults.beds import FOR_GOOD, KINDS, Docker, all_beds
from tests.faults.bench import Bench

PROVIDERS = ("fake", "local", "aws", "aws fleet", "opennebula", "openstack", "docker")
CALLS = ("launch", "list", "terminate")
HIDDEN = "hidden for 60 s"
FAULTS = (*KINDS, HIDDEN)
NO_SUCH = "-"
PAGE = Path(__file__).parents[2] / "docs" / "faults.md"

Cell = tuple[str, str, str]
Beds = dict[str, Callable[[Path], Any]]


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beds]:
    with all_beds(tmp_path_factory.mktemp("clouds")) as made:
        yield made


@pytest.fixture(scope="module")
def outcomes() -> Iterator[dict[Cell, str]]:
    found: dict[Cell, str] = {}
    yield found
    text = table(found)
    print(f"\n{text}")
    if file := os.environ.get("SLURM_ELASTIC_FAULT_TABLE"):
        Path(file).write_text(text + "\n")


@pytest.fixture
def bench(request: pytest.FixtureRequest, beds: Beds) -> Iterator[Bench]:
    # The local agent's socket and its slurmd's want a short path that others may enter.
    with tempfile.TemporaryDirectory(prefix="se-faults-", dir="/tmp") as place:
        Path(place).chmod(0o755)
        bed = _bed(request, beds, Path(place))
        made = Bench(bed, Path(place))
        yield made
        bed.heal()
        made.close()
        if hasattr(bed, "close"):
            bed.close()


def _bed(request: pytest.FixtureRequest, beds: Beds, place: Path) -> Any:
    """An engine is started when the first test wants it, and skips those where there can be none."""
    provider = request.getfixturevalue("provider")
    if provider != Docker.name:
        return beds[provider](place)
    engine = request.getfixturevalue("docker_engine")
    return Docker(engine, request.getfixturevalue("trixie"), place)


@pytest.mark.timeout(1800)  # the first time the engine's image is built
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_no_orphan_no_double_and_a_defined_state(
    bench: Bench, outcomes: dict[Cell, str], provider: str, call: str, fault: str
) -> None:
    if fault == HIDDEN:
        bench.cloud.hidden_for = 60.0
    outcome = {"launch": launching, "list": listing, "terminate": ending}[call](bench, fault)
    outcomes[provider, call, fault] = outcome
    if outcome is not NO_SUCH:
        assert bench.most <= len(bench.nodes), "no node has two machines"
        nothing_left(bench)


def strikes(bench: Bench, fault: str, call: str) -> bool:
    """Have it go wrong from now on, unless the cloud has no such answer to that call."""
    if fault == HIDDEN:
        return True
    possible = bench.bed.strike(fault, call)
    bench.before = bench.bed.standing()
    return possible


def healed(bench: Bench, fault: str) -> None:
    """It must have struck: a fault that stands for ever shows in what came of it."""
    if fault not in (HIDDEN, *FOR_GOOD):
        assert bench.bed.standing() != bench.before, "the fault never struck"
    bench.bed.heal()


def launching(bench: Bench, fault: str) -> str:
    """A two-node job while launches go wrong; then they do not any more."""
    if not strikes(bench, fault, "launch"):
        return NO_SUCH
    bench.slurm.submit(1, bench.nodes, len(bench.nodes))
    bench.advance(40)
    healed(bench, fault)
    bench.until(lambda: bench.running() and bench.settled(), "a machine for each node")
    assert len(bench.bed.alive()) == len(bench.nodes)
    kinds = bench.kinds()
    if fault in FOR_GOOD:
        assert "refused" in kinds
    if "refused" in kinds:
        return "job moves on, pool held"
    if "launch-in-doubt" in kinds:
        return "same call again"
    if fault == HIDDEN:
        return "not taken for lost"
    return "served" if fault == "slow answer" else "retried"


def listing(bench: Bench, fault: str) -> str:
    """The cloud cannot be read while a job runs: nothing is deleted for it."""
    bench.slurm.submit(1, bench.nodes, len(bench.nodes))
    bench.until(bench.running, "the job")
    before = bench.bed.alive()
    if not strikes(bench, fault, "list"):
        bench.slurm.finish(1)
        return NO_SUCH
    bench.advance(120)
    healed(bench, fault)
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
    healed(bench, fault)
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


def table(outcomes: dict[Cell, str]) -> str:
    """Markdown: a row a call and fault, a column a provider."""
    lines = [
        f"| call | fault | {' | '.join(PROVIDERS)} |",
        f"|---|---|{'---|' * len(PROVIDERS)}",
    ]
    for call in CALLS:
        for fault in FAULTS:
            cells = [outcomes.get((provider, call, fault), "?") for provider in PROVIDERS]
            lines.append(f"| {call} | {fault} | {' | '.join(cells)} |")
    return "\n".join(lines)


def test_the_page_has_the_whole_table() -> None:
    lines = PAGE.read_text().splitlines()
    header, _, *rows = table({}).splitlines()
    assert header in lines
    for row in rows:
        start = row.split("?")[0]
        (found,) = [line for line in lines if line.startswith(start)]
        assert "?" not in found
