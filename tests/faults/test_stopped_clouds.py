"""Stopped machines on the emulated clouds: what becomes of them when their cloud refuses the start,
and when price, image or age change meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from libvirt_hosts import Daemon, running_libvirtd
from msgspec.structs import replace

from slurm_elastic.providers.aws import images as aws_images
from slurm_elastic.providers.opennebula import images as one_images
from slurm_elastic.providers.openstack import catalog as openstack_images
from slurm_elastic.testing.bench import Bench, open_bench
from tests.faults.keeping_beds import CHEAP, DEAR, DISK, KeepingLibvirt, keeping_beds

CLOUDS = ("aws", "openstack", "opennebula", "libvirt")
Beds = dict[str, Callable[[Path], Any]]


@pytest.fixture(scope="module")
def beds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beds]:
    with keeping_beds(tmp_path_factory.mktemp("clouds")) as made:
        yield made


@pytest.fixture(scope="module")
def libvirtd() -> Iterator[Daemon]:
    with running_libvirtd() as running:
        yield running


@pytest.fixture(
    params=[
        cloud if cloud == "aws" else pytest.param(cloud, marks=pytest.mark.release)
        for cloud in CLOUDS
    ]
)
def bench(
    request: pytest.FixtureRequest, beds: Beds, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Bench]:
    for module in (aws_images, one_images, openstack_images):
        monkeypatch.setattr(module, "LOOKUP_TTL_S", -1.0)  # else a new image is seen minutes later
    made_by = beds.get(request.param)
    if made_by is None:  # a libvirtd is not everywhere
        daemon = request.getfixturevalue("libvirtd")
        made_by = lambda place: KeepingLibvirt(daemon, place)  # noqa: E731
    with open_bench(made_by) as made:
        yield made
        assert made.census.doubles == []
        assert made.census.nobodys == set()


def run(bench: Bench, number: int) -> None:
    """A job for all nodes, until it runs."""
    bench.slurm.submit(number, bench.nodes, len(bench.nodes))
    bench.until(lambda: bool(bench.running() and bench.settled()), f"job {number}")


def idle(bench: Bench, number: int) -> None:
    """The end of the job, until none of its machines runs."""
    bench.slurm.finish(number)
    bench.until(lambda: bench.settled() and not bench.bed.alive(), f"the end of job {number}")


def kept(bench: Bench) -> dict[str, str]:
    """The stopped machines, as ledger and cloud have them: both agree."""
    booked = {m.instance.id: m.instance.node for m in bench.ledger.stops.machines()}
    assert booked == bench.bed.off()
    return booked


def stopped_once(bench: Bench) -> dict[str, str]:
    """The machines of a first job, which are stopped now."""
    run(bench, 1)
    idle(bench, 1)
    machines = kept(bench)
    assert sorted(machines.values()) == sorted(bench.nodes)
    return machines


def reprice(bench: Bench, first: float, second: float) -> None:
    """Other prices stand in the configuration, and the daemon is started anew."""
    bench.bed.prices = dict(zip(bench.bed.prices, (first, second), strict=True))
    bench.restart()


def new_image(bench: Bench) -> None:
    """There is a newer image; on hosts the settings have to name it."""
    bench.bed.new_image("worker-2")
    if isinstance(bench.bed, KeepingLibvirt):
        bench.restart()


def told(bench: Bench, kind: str) -> list[str]:
    """The reasons of the decisions of this kind."""
    rows = {d for n in bench.nodes for d in bench.ledger.decisions.about(n) if d.kind == kind}
    return [str(d.reason) for d in rows]


def test_the_next_job_has_the_machines_of_the_last(bench: Bench) -> None:
    machines = stopped_once(bench)
    run(bench, 2)
    assert bench.bed.alive() == set(machines)
    assert kept(bench) == {}


def test_a_refused_start_gives_the_node_a_fresh_machine_and_ends_the_refused_one(
    bench: Bench,
) -> None:
    machines = stopped_once(bench)
    bench.bed.refuse_start()
    run(bench, 2)
    (refused,) = told(bench, "start-refused")
    (lost,) = [m for m in machines if m in refused]
    bench.until(lambda: not bench.bed.off(), "the end of the refused one")
    alive = bench.bed.alive()
    assert alive & machines.keys() == machines.keys() - {lost}
    assert len(alive) == len(bench.nodes)
    rows = bench.ledger.machines.live(ended_since=0, stopped=True)
    assert [m.instance.price for m in rows if m.instance.id == lost] == [DISK], "it never ran"


def test_a_start_that_the_cloud_takes_and_does_not_carry_out_ends_the_machine(
    bench: Bench,
) -> None:
    machines = stopped_once(bench)
    broken = min(machines)
    bench.slurm.submit(2, bench.nodes, len(bench.nodes))

    def served() -> bool:
        if broken in bench.bed.alive():
            bench.bed.break_down(broken)
        return bool(bench.running() and bench.settled())

    bench.until(served, "a machine for each node")
    assert broken not in bench.bed.there()
    assert len(bench.bed.alive()) == len(bench.nodes)


def test_what_has_become_dearer_is_started_all_the_same_at_its_price_of_now(
    bench: Bench,
) -> None:
    machines = stopped_once(bench)
    reprice(bench, 3 * DEAR, DEAR)
    run(bench, 2)
    assert bench.bed.alive() == set(machines)
    rows = bench.ledger.machines.live()
    assert {m.instance.id: m.instance.price for m in rows} == dict.fromkeys(machines, 3 * DEAR)
    assert {m.worst_price for m in rows} == {3 * DEAR}


def test_what_has_become_too_dear_for_a_limit_stays_stopped_beside_a_fresh_machine(
    bench: Bench,
) -> None:
    machines = stopped_once(bench)
    reprice(bench, 1000.0, DEAR)
    run(bench, 2)
    fresh = bench.bed.alive()
    assert fresh.isdisjoint(machines)
    assert kept(bench) == machines
    idle(bench, 2)
    assert kept(bench) == machines, "a node keeps one"
    reprice(bench, CHEAP, DEAR)
    run(bench, 3)
    assert bench.bed.alive() == set(machines)


def test_another_image_ends_what_is_stopped(bench: Bench) -> None:
    machines = stopped_once(bench)
    new_image(bench)
    bench.until(lambda: not bench.bed.off(), "the end of those of the old image")
    assert [why for why in told(bench, "terminated") if "another image" in why]
    run(bench, 2)
    assert bench.bed.alive().isdisjoint(machines)
    idle(bench, 2)
    assert len(kept(bench)) == len(bench.nodes), "those of the new image are kept"


def test_a_job_that_comes_with_another_image_gets_machines_of_that(bench: Bench) -> None:
    machines = stopped_once(bench)
    new_image(bench)
    run(bench, 2)
    assert bench.bed.alive().isdisjoint(machines)
    assert told(bench, "started") == []
    bench.until(lambda: not bench.bed.off(), "the end of those of the old image")


def test_at_its_maximum_age_it_ends_though_it_was_started_since(bench: Bench) -> None:
    bench.bed.pool = replace(bench.bed.pool, max_age=3600.0)
    bench.restart()
    machines = stopped_once(bench)
    bench.advance(2400, 60.0)
    run(bench, 2)
    assert bench.bed.alive() == set(machines)
    idle(bench, 2)
    assert kept(bench) == machines
    bench.advance(1300, 60.0)
    assert bench.bed.off() == {}
    run(bench, 3)
    assert bench.bed.alive().isdisjoint(machines)


def test_our_own_stop_is_no_notice_and_no_loss(bench: Bench) -> None:
    """Nothing that watches for machines being taken away takes it for that."""
    run(bench, 1)
    bench.slurm.finish(1)
    heard = []

    def stopped() -> bool:
        heard.extend(bench.cloud.notices())
        return bench.settled() and not bench.bed.alive()

    bench.until(stopped, "the stop")
    bench.advance(300)
    run(bench, 2)
    heard.extend(bench.cloud.notices())
    assert heard == []
    kinds = set(bench.kinds())
    assert {"stopped", "started"} <= kinds
    assert kinds.isdisjoint({"gone", "terminated", "adopted", "stop-refused"})
    assert bench.ledger.exclusions.cool_downs(bench.now) == ()
