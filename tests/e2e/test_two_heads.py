"""Two real slurmctld on one directory, our services on each host: one dies, the other goes on."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from e2e.conftest import why_not
from e2e.crash import FULL, assert_one_machine_a_node, steps
from e2e.heads import HEADS, SERVICES, Pair, up
from e2e.takeover import assert_no_more_than_asked, bought, jobs_go_on
from e2e.world import Until, back_to_zero, running_nodes

from slurm_elastic.sandbox.daemons import AGENT, ELASTICD, SLURMCTLD
from slurm_elastic.state.heads import Epochs


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    if reason := why_not():
        pytest.skip(reason)
    yield from up()


def settled(pair: Pair) -> tuple[str, str]:
    """Wait until both heads run and the first one acts; it, and the other one."""
    pair.given_back()
    return HEADS


def takes_over(pair: Pair, head: str) -> None:
    pair.sandbox.wait_for(lambda: pair.acting() == head, 90.0, f"{head} acts")


def test_jobs_go_on_at_the_other_head_and_its_memory_is_the_same(pair: Pair) -> None:
    jobs_go_on(pair)


@pytest.mark.parametrize(
    ("point", "partition"), steps("launch", ("launch.after-call", "aws"))
)  # fmt: skip
def test_a_launch_in_which_the_head_dies_is_made_once(
    pair: Pair, point: str, partition: str
) -> None:
    site = pair.sandbox
    first, other = settled(pair)
    before, until = bought(site), Until(site)
    once = str(pair.shared / f"died-{point}-{partition}")
    fault = {"SLURM_ELASTIC_FAULT": point, "SLURM_ELASTIC_FAULT_ONCE": once}
    pair.strike(first, [ELASTICD], signal.SIGTERM)
    site.wait_for(lambda: not pair.lives(first, ELASTICD), 30.0, "its daemon ended")
    pair.daemons.begin(first, ELASTICD, fault)
    job = site.submit(until.script, FULL, f"--partition={partition}")
    site.wait_for(lambda: Path(once).exists(), 90.0, f"the daemon dies at {point}")
    pair.strike(first)
    takes_over(pair, other)
    running_nodes(site, [job])
    assert_one_machine_a_node(site)
    until.go()
    assert site.wait_job(job)["JobState"] == "COMPLETED"
    settled(pair)
    back_to_zero(site)
    assert_one_machine_a_node(site)
    assert_no_more_than_asked(site, before)


@pytest.mark.release
def test_a_head_that_stood_still_does_nothing_when_it_wakes(pair: Pair) -> None:
    site, until = pair.sandbox, Until(pair.sandbox)
    first, other = settled(pair)
    pair.strike(first, [SLURMCTLD])
    pair.strike(first, SERVICES, signal.SIGSTOP)
    takes_over(pair, other)
    job = site.submit(until.script, FULL, "--partition=aws")
    running_nodes(site, [job])
    here = len(pair.log(first))
    written = _lines_of(pair, 0)
    pair.strike(first, SERVICES, signal.SIGCONT)
    for name in SERVICES:
        site.wait_for(lambda name=name: "no longer acts" in pair.log(first, name), 30.0, name)
    site.wait_for(lambda: "standing by" in pair.log(first)[here:], 30.0, "it stands by")
    last = Epochs(pair.shared).newest()
    assert last is not None
    assert last.host == other
    assert _lines_of(pair, last.number - 1) == [n for n in written if n == last.number - 1]
    until.go()
    assert site.wait_job(job)["JobState"] == "COMPLETED"
    settled(pair)
    back_to_zero(site)
    assert_one_machine_a_node(site)


@pytest.mark.release
@pytest.mark.parametrize(
    ("words", "partition"), [("Action=RunInstances", "aws"), ('"op":"launch"', "onprem")]
)
def test_a_launch_that_a_head_yet_sends_when_the_other_one_acts_makes_no_second_machine(
    pair: Pair, words: str, partition: str
) -> None:
    site, until = pair.sandbox, Until(pair.sandbox)
    first, other = settled(pair)
    before, once = bought(site), slips(pair, first, words)
    job = site.submit(until.script, FULL, f"--partition={partition}")
    site.wait_for(once.exists, 90.0, "it stands still before it sends the call")
    pair.strike(first, [SLURMCTLD])
    takes_over(pair, other)
    running_nodes(site, [job])
    wakes(pair, first, _launches_asked)
    assert_one_machine_a_node(site)
    until.go()
    assert site.wait_job(job)["JobState"] == "COMPLETED"
    settled(pair)
    back_to_zero(site)
    assert_no_more_than_asked(site, before)


@pytest.mark.release
def test_an_end_that_a_head_yet_sends_when_the_other_one_acts_ends_no_later_machine(
    pair: Pair,
) -> None:
    site, until = pair.sandbox, Until(pair.sandbox)
    first, other = settled(pair)
    once = slips(pair, first, "Action=TerminateInstances")
    site.submit("true", FULL, "--partition=aws")
    site.wait_for(once.exists, 150.0, "it stands still before it sends the call")
    pair.strike(first, [SLURMCTLD])
    takes_over(pair, other)
    back_to_zero(site)
    job = site.submit(until.script, FULL, "--partition=aws")
    running_nodes(site, [job])
    wakes(pair, first, lambda site: int(site.ec2.state().calls["TerminateInstances"]))
    until.go()
    done = site.wait_job(job)
    assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "0")
    settled(pair)
    back_to_zero(site)


def slips(pair: Pair, head: str, words: str) -> Path:
    """Have its daemon stand still, once, before it sends these; the file that is there then."""
    once = pair.shared / f"slipped-{time.time_ns()}"
    pair.strike(head, [ELASTICD], signal.SIGTERM)
    pair.sandbox.wait_for(lambda: not pair.lives(head, ELASTICD), 30.0, "its daemon ended")
    here = pair.sandbox.layout.dir  # which SlurmUser may read, unlike these files
    shutil.copy(Path(__file__).with_name("slips.py"), here)
    env = {"SLIPS": words, "SLIPS_ONCE": str(once), "PYTHONPATH": str(here)}
    pair.daemons.begin(head, ELASTICD, env, "slips")
    return once


def wakes(pair: Pair, head: str, asked: Callable[[Any], int]) -> None:
    """Let the daemon send what it stood still before, and find out that it no longer acts."""
    site, here = pair.sandbox, len(pair.log(head))
    before = asked(site)
    pair.strike(head, [ELASTICD], signal.SIGCONT)
    site.wait_for(lambda: asked(site) > before, 30.0, "the cloud has the call, too")
    site.wait_for(lambda: "standing by" in pair.log(head)[here:], 60.0, "it stands by")


def _launches_asked(site: Any) -> int:
    """How often a cloud was."""
    there = site.processes.log(AGENT).read_text(errors="replace").count("launch generation=")
    return there + int(site.ec2.state().calls.get("RunInstances", 0))


def _lines_of(pair: Pair, epoch: int) -> list[int]:
    """The epoch of each line of the newest journals, or of that epoch alone."""
    found: list[int] = []
    for name in ("ledger", "checkpoints"):
        newest = max((pair.shared / "journal").glob(f"{name}-*.jsonl"))
        lines: list[Any] = [msgspec.json.decode(one) for one in newest.read_bytes().splitlines()]
        found += [one.get("epoch", 0) for one in lines if "facts" in one and "epoch" in one]
    return [one for one in found if epoch in (0, one)]
