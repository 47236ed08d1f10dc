"""Machines that boot but never register, on real Slurm: their jobs run elsewhere, none is lost."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial

import pytest
from patience import undisturbed
from rich.console import Console

from slurm_elastic.cli.jobs.explain import show
from slurm_elastic.cli.orders.clear import clear
from slurm_elastic.config import Config
from slurm_elastic.config.configfile import load
from slurm_elastic.model.exclusion import Exclusion
from slurm_elastic.policies.launch.boots import given_up_after
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import ELASTICD
from slurm_elastic.state.ledger import Ledger, Machine
from tests.e2e.world import ELASTIC, back_to_zero, ledger, live_ec2, machines, submit_many

pytestmark = pytest.mark.e2e
POOL = {f"pub{n}" for n in range(1, 7)}
FULL = "--cpus-per-task=2"
RESUME = 40.0
STILL = RESUME - given_up_after(RESUME)
"""Seconds: when a machine goes on that stood still for as long, slurmctld finds ResumeTimeout over
at once, and is the first to give a node up, whatever slurm-elasticd does.
"""
CAUSE = "did not register within 30s (ResumeTimeout is 40s)"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """A cloud whose machines all stay dead, and the site's own nodes."""
    return sandbox(
        static_nodes=2,
        drop=("onprem",),
        never_boot="pub[1-6]",
        resume_timeout=RESUME,
        elastic={
            "timings": {"max_boot_failures": 5, "boot_cooldown": 600.0, "capacity_cooldown": 120.0}
        },
    )


@pytest.fixture(scope="module")
def config(site: Sandbox) -> Config:
    return load(site.layout.config)


def told(site: Sandbox, config: Config, subject: str) -> str:
    text = io.StringIO()
    show(config, site.slurm, subject, console=Console(file=text, width=400, markup=False))
    return text.getvalue()


def breakers(site: Sandbox) -> tuple[Exclusion, ...]:
    with contextlib.closing(ledger(site)) as book:
        return book.exclusions.breakers()


def given_up_by_slurm(site: Sandbox) -> int:
    """How often slurmctld itself has failed a node, at ResumeTimeout."""
    return (site.layout.log / "slurmctld.log").read_text().count("not resumed by ResumeTimeout")


def away(site: Sandbox) -> list[str]:
    """Nodes that are kept from Slurm."""
    return [name for name, node in site.nodes().items() if "DRAIN" in node.states]


@pytest.fixture
def renew(site: Sandbox, config: Config) -> Callable[[], None]:
    return partial(clear_away, site, config)


@pytest.fixture(autouse=True)
def _as_new(renew: Callable[[], None]) -> Iterator[None]:
    yield
    renew()


def clear_away(site: Sandbox, config: Config) -> None:
    """After an attempt that failed while slurm-elasticd was away, too."""
    if not site.status()[ELASTICD]:
        site.daemon_start()
    for job in site.jobs():
        site.run(["scancel", str(job.id)])
    back_to_zero(site)
    with contextlib.closing(Ledger(config.state / "ledger.db")) as book:
        clear(config, book, None, time.time(), "root")
    site.wait_for(lambda: not away(site), 150, "all holds are over")


def test_jobs_of_machines_that_never_register_run_elsewhere(
    site: Sandbox, config: Config, renew: Callable[[], None]
) -> None:
    """Also one that forbids requeueing, which slurmctld would end as NODE_FAIL, and a whole one of
    two nodes; without the 121 s for which slurmctld itself keeps a requeued job.
    """
    undisturbed(partial(run_elsewhere, site, config), STILL, renew)


def run_elsewhere(site: Sandbox, config: Config) -> None:
    before, earlier = given_up_by_slurm(site), {m.instance.id for m in machines(site, ended=True)}

    def bought() -> list[Machine]:
        return [m for m in machines(site, ended=True) if m.instance.id not in earlier]

    (plain,) = submit_many(site, 1, "sleep 1", FULL, "--partition=aws,batch")
    (once,) = submit_many(site, 1, "sleep 1", FULL, "--no-requeue", "--partition=aws,batch")
    (wide,) = submit_many(site, 1, "sleep 1", FULL, "-N2", "--partition=aws,batch")
    site.wait_for(lambda: len(bought()) == 4, 60, "all four nodes have a machine")
    for job in (plain, once, wide):
        fields = site.wait_job(job, "COMPLETED", "NODE_FAIL")
        assert (fields["JobState"], fields["Partition"]) == ("COMPLETED", "batch")
        assert fields["Restarts"] == "1"
        text = told(site, config, str(job))
        assert CAUSE in text
        assert "pool pub cools down until" in text
    assert site.job(once)["Requeue"] == "0", "its own setting is kept"
    assert given_up_by_slurm(site) == before
    back_to_zero(site)
    assert {str(m.cause_text) for m in bought()} == {"it did not register in time"}
    assert "boot-failed" in told(site, config, "pub")


@pytest.mark.release
def test_a_pool_with_too_many_in_a_row_is_paused_until_it_is_cleared(
    site: Sandbox, config: Config, renew: Callable[[], None]
) -> None:
    undisturbed(partial(paused_and_cleared, site, config), STILL, renew)


def paused_and_cleared(site: Sandbox, config: Config) -> None:
    before = given_up_by_slurm(site)
    jobs = submit_many(site, 5, "true", FULL, "--partition=aws")
    site.wait_for(lambda: [b for b in breakers(site) if b.until], 120, "the pool is paused")
    site.wait_for(lambda: set(away(site)) >= POOL, 60, "its nodes are held")
    status = site.run([*ELASTIC, "--config", str(site.layout.config), "status"]).stdout
    assert "Pool pub IS PAUSED: 5 machines in a row booted but never registered" in status
    about = told(site, config, "pub")
    assert "breaker-open" in about
    # Until when it is paused stands in between.
    assert ": 5 machines in a row booted but never registered" in about, about
    back_to_zero(site)
    assert {j.id for j in site.jobs() if "PENDING" in j.states} == set(jobs), "none is lost"
    assert given_up_by_slurm(site) == before
    site.run([*ELASTIC, "--config", str(site.layout.config), "clear", "pub"])
    assert breakers(site) == ()
    site.wait_for(lambda: live_ec2(site), 120, "the pool is used again")
    assert "cleared" in told(site, config, "pub")


@pytest.mark.release
def test_where_slurm_is_first_its_jobs_do_not_wait_out_their_hold(
    site: Sandbox, config: Config, renew: Callable[[], None]
) -> None:
    """The daemon is away at ResumeTimeout: ResumeFailProgram has left it a request. It has to go
    before it gives the node up itself.
    """
    undisturbed(partial(slurm_is_first, site, config), STILL, renew)


def slurm_is_first(site: Sandbox, config: Config) -> None:
    before = given_up_by_slurm(site)
    (job,) = submit_many(site, 1, "sleep 1", FULL, "--partition=aws,batch")
    site.wait_for(lambda: machines(site), 60, "its node has a machine")
    site.daemon_stop()
    site.wait_for(lambda: given_up_by_slurm(site) > before, 120, "slurmctld gives the node up")
    site.wait_for(lambda: site.job(job)["JobState"] == "PENDING", 60, "the job is requeued")
    held = next(j.begin for j in site.jobs() if j.id == job)
    site.daemon_start()
    fields = site.wait_job(job)
    assert (fields["Partition"], fields["Restarts"]) == ("batch", "1")
    began = datetime.fromisoformat(fields["StartTime"]).timestamp()
    assert began < held, "its hold was lifted"
    assert "boot-failed" in told(site, config, str(job))
