"""On real Slurm: a slurmctld that is stopped, hangs or has just come back makes nobody say what is
not so, and ends, forgets and buys nothing.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import ELASTICD
from tests.e2e.crash import FULL
from tests.e2e.world import (
    AT_ONCE,
    Until,
    back_to_zero,
    live_ec2,
    machines,
    running_nodes,
    slurmctld_away,
)
from tests.slurm.contract import AWAY

pytestmark = [pytest.mark.e2e, pytest.mark.release]
_IDLE_OFF, _ALLOCATED_OFF = (struct.pack(">I", state) for state in (0x1082, 0x1083))
"""IDLE and ALLOCATED with CLOUD and POWERED_DOWN, as slurmctld writes them (22.05 to 25.11)."""
_OFF = {"IDLE", "CLOUD", "POWERED_DOWN"}
ELASTIC = (sys.executable, "-P", "-m", "slurm_elastic.cli.main")


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    return sandbox(
        static_nodes=1,
        drop=("onprem",),
        slurm_conf=AT_ONCE,
        elastic={"timings": {"orphan_timeout": 2.0}, "policies": {"poll_interval": 2.0}},
    )


def elastic(site: Sandbox, *words: str) -> str:
    """The output of one of our commands. It ends long before a hanging slurmctld would answer."""
    command = [*ELASTIC, "--config", str(site.layout.config), *words]
    done = site.run(command, check=False, timeout=45)
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout + done.stderr


OTHERS = (
    ("cost",), ("metrics",), ("ckpt", "list"), ("explain", "aws"), ("status", "--all"),
    ("pause", "aws", "--dry-run"), ("limit", "cluster", "nodes", "5", "--dry-run"),
    ("drain", "aws", "--dry-run"),
)  # fmt: skip
"""Other commands that ask Slurm, or say something of nodes and jobs, and change nothing."""


def each_in_its_own_words(site: Sandbox) -> None:
    """All at once, as a hanging slurmctld costs each some seconds."""
    with ThreadPoolExecutor(4) as threads:
        for words, told in zip(
            OTHERS, threads.map(lambda words: elastic(site, *words), OTHERS), strict=True
        ):
            said = f"{words}: {told}"
            assert "orphan" not in told, said
            assert "does not list" not in told, said
            assert "is forgotten" not in told, said
            assert told, said


def rounds(site: Sandbox) -> int:
    """How often the daemon found that Slurm cannot be read."""
    return site.processes.log(ELASTICD).read_text().count("slurm cannot be read")


@pytest.mark.parametrize("how", AWAY)
def test_while_slurmctld_is_away_nothing_is_called_an_orphan_ended_or_forgotten(
    site: Sandbox, how: str
) -> None:
    until = Until(site)
    job = site.submit(until.script, "--partition=aws")
    (node,) = running_nodes(site, [job])[job]
    alive = {m.instance.id for m in machines(site)}
    before = rounds(site)
    with slurmctld_away(site, how):
        status = elastic(site, "status")
        assert "Slurm does not answer: scontrol ping" in status
        assert "orphan" not in status
        assert node in status
        assert '"next":"unknown: Slurm does not answer"' in elastic(site, "status", "--json")
        doctor = elastic(site, "doctor", "--quick")
        assert "slurmctld: does not answer" in " ".join(doctor.split())
        assert "conf install" not in doctor
        assert "does not list" not in doctor
        assert "Slurm does not answer" in " ".join(elastic(site, "explain", node).split())
        assert "scontrol ping" in elastic(site, "offers", "--job", str(job))
        each_in_its_own_words(site)
        site.wait_for(lambda: rounds(site) > before, 90, "the daemon has looked, too")
        assert {m.instance.id for m in machines(site)} == alive
        assert live_ec2(site) == [node]
    after = elastic(site, "status")
    assert "orphan" not in after
    assert "Slurm does not answer" not in after
    assert "does not list" not in elastic(site, "doctor", "--quick")
    until.go()
    assert site.wait_job(job, timeout=180)["Restarts"] == "0"
    assert {m.instance.id for m in machines(site)} <= alive
    back_to_zero(site)


def test_an_idle_machine_is_not_in_use_by_the_job_that_has_ended(site: Sandbox) -> None:
    """Slurm keeps ended jobs for MinJobAge, 300 s, in its list."""
    job = site.submit("true", "--partition=aws")
    site.wait_job(job)
    assert job not in {j.id for j in site.slurm.jobs()}
    assert job in {j.id for j in site.slurm.jobs(ended=True)}
    assert "in use" not in elastic(site, "status", "--json")
    back_to_zero(site)


def test_a_node_that_was_held_has_jobs_after_slurmctld_has_started_anew(site: Sandbox) -> None:
    elastic(site, "pause", "aws", "--reason", "a test")
    site.wait_for(lambda: all("DRAIN" in s for s in _pub(site)), 60, "all are held")
    elastic(site, "resume", "aws")
    site.wait_for(lambda: not any("DRAIN" in s for s in _pub(site)), 60, "none is held")
    assert not any("NOT_RESPONDING" in states for states in _pub(site))
    with slurmctld_away(site, "stopped"):
        pass
    job = site.submit("true", FULL, "--partition=aws")
    assert site.wait_job(job)["JobState"] == "COMPLETED"
    back_to_zero(site)


def test_a_node_that_a_person_has_resumed_has_jobs_after_slurmctld_has_started_anew(
    site: Sandbox,
) -> None:
    """``state=resume`` leaves a powered-down node NOT_RESPONDING; so may a takeover."""
    nodes = [name for name in site.nodes() if name.startswith("pub")]
    for state in (("state=drain", "reason=a person's"), ("state=resume",)):
        site.run(["scontrol", "update", f"nodename={','.join(nodes)}", *state])
    site.wait_for(lambda: all(s == _OFF for s in _pub(site)), 60, "all are as they were")
    assert "NOT_RESPONDING" in " ".join(elastic(site, "explain", nodes[0]).split())
    with slurmctld_away(site, "stopped"):
        pass
    job = site.submit("true", FULL, "--partition=aws")
    assert site.wait_job(job)["JobState"] == "COMPLETED"
    back_to_zero(site)


def _pub(site: Sandbox) -> list[frozenset[str]]:
    return [node.states for name, node in site.nodes().items() if name.startswith("pub")]


def test_a_node_allocated_to_no_job_comes_to_rest(site: Sandbox) -> None:
    """As slurmctld leaves it that takes over with half of the old state, and then for ever."""
    state = site.layout.dir / "slurmctld" / "node_state"
    back_to_zero(site)
    with slurmctld_away(site, "stopped"):
        off = state.read_bytes()
    until = Until(site)
    job = site.submit(until.script, FULL, "--partition=aws")
    (node,) = running_nodes(site, [job])[job]
    until.go()
    site.wait_job(job)
    with slurmctld_away(site, "stopped"):
        state.write_bytes(_allocated(off, node))
    assert {"ALLOCATED", "POWERED_DOWN"} <= site.nodes()[node].states
    assert live_ec2(site) == [node]
    back_to_zero(site)
    assert not site.nodes()[node].states & {"ALLOCATED", "DOWN"}
    assert "no job has it" in " ".join(elastic(site, "explain", node).split())


def _allocated(states: bytes, node: str) -> bytes:
    """The file with that node, which is idle and powered down, allocated."""
    begin = states.index(f"{node}\0".encode())
    at = states.index(_IDLE_OFF, begin)
    return states[:at] + _ALLOCATED_OFF + states[at + len(_IDLE_OFF) :]
