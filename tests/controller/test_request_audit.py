"""The records of a request grow with the causes, not with offers times rounds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.base.errors import CapacityError
from slurm_elastic.cli.jobs import explain
from slurm_elastic.cli.operate.console import Output
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.model.cluster import LaunchSpec, Limits, Location, Market
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.state.ledger.retention import FAILED_LAUNCHES_KEPT
from tests.controller.world import World

KEPT = ("decisions", "decision_subjects", "exclusions where kind = 'capacity'", "launches")
ZONES = ("eu-west-1a", "eu-west-1b", "eu-west-1c")


def no_capacity(spec: LaunchSpec) -> None:
    kind, zone = spec.offer.instance_type, spec.offer.zone
    message = (
        f"We currently do not have sufficient {kind} capacity in the Availability Zone you"
        f" requested ({zone}). Our system will be working on provisioning additional capacity."
    )
    raise CapacityError("pub", message, "InsufficientInstanceCapacity")


def build(directory: Path, offers: int) -> World:
    """One public cloud with so many offers for eight nodes, all of them out of capacity."""
    types = {
        f"c{number}.large": InstanceType(cpus=2, memory=4096, price=0.1 + number / 1000)
        for number in range(offers // (2 * len(ZONES)))
    }
    cloud = FakeCloud(
        name="pub", location=Location.PUBLIC, types=types, zones=ZONES,
        limits=Limits(dollars_per_hour=9.0),
    )  # fmt: skip
    pool = PoolSettings(
        name="many", cloud="pub", nodes="m[1-8]", cpus=2, memory=4096,
        markets=(Market.SPOT, Market.ON_DEMAND),
    )  # fmt: skip
    world = World(directory, clouds=(cloud,), pools=(pool,), limits=Limits())
    world.clouds["pub"].launch = no_capacity  # type: ignore[assignment,method-assign]
    return world


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[World]:
    world = build(tmp_path, 240)
    yield world
    world.close()


def kept(world: World) -> int:
    """Bytes of all that the ledger keeps of requests."""
    with sqlite3.connect(world.dir / "ledger.db") as db:
        rows = [row for table in KEPT for row in db.execute(f"select * from {table}")]
    return sum(len(str(value).encode()) for row in rows for value in row)


def explained(world: World, subject: str, **options: Any) -> str:
    file = StringIO()
    console = Output(file=file, width=100, markup=False, emoji=False, highlight=False)
    explain.show(world.config, world.slurm, subject, console=console, **options)
    return file.getvalue()


def test_a_request_that_240_offers_refuse_takes_less_than_20_kb(empty: World) -> None:
    before = kept(empty)
    empty.slurm.submit(1, ("m1",))
    empty.advance(60)
    (told,) = [d for d in empty.ledger.decisions.about("job:1") if d.kind == "launch-refused"]
    assert told.detail is not None
    (row,) = told.detail["refused"]  # type: ignore[misc]
    assert row[1] == 240, "all for one cause, though each names its own type and zone"
    assert "240 offers: " in str(told.reason)
    # Late machines of the refused launches may be listed for some time, which needs their rows.
    empty.ledger.compact(empty.now + FAILED_LAUNCHES_KEPT + 1)
    assert empty.ledger.decisions.about("job:1")
    assert kept(empty) - before < 20_000


def test_what_is_kept_does_not_grow_with_the_square_of_the_offers(tmp_path: Path) -> None:
    sizes = []
    for offers in (60, 240):
        (tmp_path / str(offers)).mkdir()
        world = build(tmp_path / str(offers), offers)
        before = kept(world)
        world.slurm.submit(1, ("m1",))
        world.advance(60)
        sizes.append(kept(world) - before)
        world.close()
    assert sizes[1] < 4 * sizes[0]


def test_every_offer_that_refused_can_still_be_found(empty: World) -> None:
    empty.slurm.submit(1, ("m1",))
    empty.advance(60)
    text = explained(empty, "1", whole=True)
    for number in range(40):
        assert f"c{number}.large" in text
    for zone in ZONES:
        assert zone in text
    words = " ".join(text.split())
    assert "(spot, on-demand)" in words or "(on-demand, spot)" in words


def test_explain_tells_a_job_that_is_refused_for_hours_in_forty_lines(tmp_path: Path) -> None:
    world = build(tmp_path, 12)
    world.slurm.submit(1, ("m1",))
    world.advance(4 * 3600, step=30)
    decisions = explain.explain(world.config, world.slurm, "1").decisions
    assert len(decisions) > 30, "it was tried again and again"
    text = explained(world, "1")
    assert len(text.splitlines()) <= 40
    assert "times since" in text
    assert "12 offers" in text
    assert f"of {len(decisions)} decisions" in text
    assert len(explained(world, "1", whole=True).splitlines()) > 40
    world.close()
