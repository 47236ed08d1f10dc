"""Questions and orders that end-to-end tests have for a sandbox again and again."""

from __future__ import annotations

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.orders.clear import clear
from slurm_elastic.config.configfile import load
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.nodes.node_reasons import HOLD_MARK
from slurm_elastic.policies.nodes.node_state import Phase, is_drained, phase
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import MUNGED, SLURMCTLD, Daemons
from slurm_elastic.sandbox.ec2.cloud import MachineView
from slurm_elastic.state.ledger import Ledger, Machine

PATIENCE = 120.0
PATIENT = """
import sys
from slurm_elastic.cli.main import main
from slurm_elastic.slurm.client import prompt
prompt.COMMAND_TIMEOUT_S = prompt.PING_TIMEOUT_S = 60.0
sys.exit(main())
"""
ELASTIC = (sys.executable, "-c", PATIENT)
"""Our command, for which slurmctld may stand still for longer than for who waits at a screen."""
MULTIFACTOR = (
    "PriorityType=priority/multifactor",
    "PriorityWeightAge=1000",
    "PriorityWeightJobSize=100",
    "SchedulerType=sched/backfill",
)
"""Most sites schedule by these settings."""
AT_ONCE = ("MessageTimeout=10",)
"""For a slurmctld that is away on purpose: Slurm's commands try for so long (s) before they say so."""
SECOND_CLOUD = {
    "name": "backup", "provider": "aws", "location": "public", "region": "us-east-1",
    "image": "ami-12c6146b", "zones": ["us-east-1a"],
    "types": {"r5.large": {"cpus": 2, "memory": 16384, "price": 0.126}},
}  # fmt: skip
SECOND_POOL = {
    "name": "bak", "cloud": "backup", "nodes": "bak[1-2]", "cpus": 2, "memory": 1256,
    "real_memory": 1000, "instance_types": ["r5.large"], "markets": ["on-demand"],
}  # fmt: skip
TWO_PUBLIC_CLOUDS: Mapping[str, Any] = {
    "static_nodes": 1,
    "drop": ("onprem",),
    "slurm_conf": MULTIFACTOR,
    "elastic": {
        "clouds": [SECOND_CLOUD],
        "pools": [{"name": "pub", "nodes": "pub[1-3]", "cloud": "aws"}, SECOND_POOL],
    },
}
"""A sandbox of one static node, a public cloud (``aws``), and a second one after it (``backup``)."""


def set_default_time(site: Sandbox, value: str) -> None:
    """DefaultTime of the site's own partition; ``""``: it has none, which only slurm.conf can say."""
    conf = site.layout.dir / "etc" / "slurm.conf"
    before = conf.read_text()
    setting = f" DefaultTime={value}" if value else ""
    text = re.sub(r"( Default=YES)(?: DefaultTime=\S+)?", rf"\1{setting}", before)
    if text != before:
        conf.write_text(text)
        site.run(["scontrol", "reconfigure"])
        site.wait_for(
            lambda: site.run(["scontrol", "ping"]).returncode == 0, PATIENCE, "it answers"
        )


def waited_out(site: Sandbox) -> int:
    """How often slurmctld gave up a node since its ResumeTimeout was over."""
    return (site.layout.log / "slurmctld.log").read_text().count("by ResumeTimeout")


@contextmanager
def slurmctld_away(site: Sandbox, how: str) -> Iterator[None]:
    """For a while slurmctld is ``stopped``, or ``hanging``: there, and it answers nobody; or munged
    is away (``unauthenticated``), so that nobody may ask.
    """
    if how == "unauthenticated":
        with munged_away(site):
            yield
        return
    if how == "stopped":
        site.slurmctld_stop()
        yield
        site.slurmctld_start()
        return
    process = site.processes.get(SLURMCTLD)
    assert process is not None
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)
    site.wait_for(lambda: site.run(["scontrol", "ping"]).returncode == 0, PATIENCE, "it answers")


@contextmanager
def munged_away(site: Sandbox) -> Iterator[None]:
    """For a while nobody gets a credential, or has one checked."""
    site.processes.stop(MUNGED)
    try:
        yield
    finally:
        Daemons(site.layout, site.processes).munged()
    site.wait_for(lambda: site.run(["scontrol", "ping"]).returncode == 0, PATIENCE, "it answers")


class Until:
    """``script`` runs until the test says ``go``, on a machine however slow; a job that sleeps may be
    over before anybody has seen it run.
    """

    def __init__(self, site: Sandbox) -> None:
        self._file = site.work / f"go-{secrets.token_hex(4)}"
        self.script = f"until [ -e {self._file} ]; do sleep 0.5; done"

    def go(self) -> None:
        """Let the jobs end, those that start later at once."""
        self._file.touch()


def submit_many(site: Sandbox, count: int, script: str, *options: str) -> list[int]:
    return [site.submit(script, *options) for _ in range(count)]


def running_nodes(site: Sandbox, jobs: Sequence[int]) -> Mapping[int, list[str]]:
    """Wait until all of these run at the same time; their nodes."""

    def all_run() -> dict[int, list[str]]:
        queue = {j.id: j for j in site.jobs() if runs(j)}
        running = {j: list(queue[j].nodes) for j in jobs if j in queue}
        return running if len(running) == len(jobs) else {}

    return site.wait_for(all_run, PATIENCE, f"jobs {jobs} all run")


def runs(job: SlurmJob) -> bool:
    """Newer Slurms show a job whose nodes boot as RUNNING and CONFIGURING."""
    return "RUNNING" in job.states and "CONFIGURING" not in job.states


def queued(site: Sandbox, job: int) -> SlurmJob | None:
    return next((j for j in site.jobs() if j.id == job), None)


def partition_of(site: Sandbox, job: int) -> set[str]:
    """The partitions of all nodes of a job."""
    nodes = expand(site.job(job)["NodeList"])
    return {p for n in site.slurm.nodes(nodes).values() for p in n.partitions}


def cloud_nodes(site: Sandbox) -> list[str]:
    return [name for name, node in site.nodes().items() if "CLOUD" in node.states]


def ledger(site: Sandbox) -> Ledger:
    return Ledger(site.layout.dir / "state" / "ledger.db", read_only=True)


def machines(site: Sandbox, *, ended: bool = False) -> tuple[Machine, ...]:
    book = ledger(site)
    try:
        return book.machines.live(ended_since=0.0 if ended else None)
    finally:
        book.close()


def live_machines(site: Sandbox) -> list[MachineView]:
    """EC2's machines that are not terminated."""
    gone = ("terminated", "shutting-down")
    return [m for m in site.ec2.state().machines if m.state not in gone]


def live_ec2(site: Sandbox) -> list[str]:
    """Their nodes, one entry a machine."""
    return [m.node for m in live_machines(site)]


def held(site: Sandbox) -> set[str]:
    """Nodes that we keep from Slurm, or are about to. From 24.11 on the reason outlives the hold."""
    nodes = site.nodes().values()
    marked = {n.name for n in nodes if is_drained(n) and n.reason.startswith(HOLD_MARK)}
    book = ledger(site)
    try:
        return marked | {row.scope for row in book.exclusions.holds()}
    finally:
        book.close()


def back_to_zero(site: Sandbox) -> None:
    """Wait until every cloud node is powered down, no machine is left and no intent is open."""
    site.wait_for(lambda: _zero(site), PATIENCE, "all cloud nodes powered down, no machine left")
    book = ledger(site)
    try:
        assert book.launches.open() == ()
    finally:
        book.close()


def _zero(site: Sandbox) -> bool:
    if live_ec2(site) or machines(site):
        return False  # without asking Slurm, which takes a command
    off = [n for n in site.nodes().values() if "CLOUD" in n.states]
    return all(phase(node) is Phase.POWERED_DOWN for node in off)


def cleared(site: Sandbox) -> None:
    """No job is left, and no machine: what is up is powered down before Slurm's idle time is over."""
    for job in site.jobs():
        site.run(["scancel", str(job.id)])

    def none_is_up() -> bool:
        nodes = site.nodes()
        up = [n for n, node in nodes.items() if "CLOUD" in node.states and phase(node) is Phase.UP]
        for name in up:
            site.run(["scontrol", "update", f"nodename={name}", "state=power_down"], check=False)
        return not up

    site.wait_for(none_is_up, PATIENCE, "every cloud node is told to power down", 1.0)
    back_to_zero(site)


def forget_cool_downs(site: Sandbox) -> None:
    """Else the next test would begin with offers that are cooling, for longer each time.

    As the operator's command does: nodes that are held for them are looked at anew at once.
    """
    config = load(site.layout.config)
    with closing(Ledger(config.state / "ledger.db")) as book:
        clear(config, book, None, time.time(), "root")
