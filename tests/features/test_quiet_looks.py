"""Looks at queue and nodes become rarer while nothing happens, and come at once when it does."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmError
from slurm_elastic.config import SlurmSettings, configfile
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import PoolPolicies, SitePolicies
from slurm_elastic.features.growth import autoscaler
from slurm_elastic.features.growth.observe import observe
from slurm_elastic.features.growth.quiet_looks import FILES, PROOF, STALE_S, QuietLooks
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.memory import Purchase, UnhelpedJob
from slurm_elastic.providers.fake.settings import FakeCloud
from tests.controller.world import PUB, SHAPE, World, make_config
from tests.outside import site_text

HOUR = 3600.0


class Site:
    """A world whose slurmctld writes its state files, and the number of looks at Slurm."""

    def __init__(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, longest: float, warm: int = 0
    ) -> None:
        self.state, self.looks = place / "state", 0
        self.state.mkdir()
        conf = place / "slurm.conf"
        conf.write_text(f"ClusterName=demo\nStateSaveLocation={self.state}\n")
        (self.state / PROOF).write_text("demo")
        self.changes = 0
        burst = replace(
            make_config(Path("/nonexistent")).pools[1], markets=(Market.ON_DEMAND,),
            policies=PoolPolicies(
                growth="on_demand", release="idle(seconds=60)", min_idle_machines=warm
            ),
        )  # fmt: skip
        pub = FakeCloud(
            name="pub", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=10.0)
        )

        def counted(*given):  # type: ignore[no-untyped-def]
            self.looks += 1
            return observe(*given)

        monkeypatch.setattr(autoscaler, "observe", counted)
        self.world = World(
            allow=Who(accounts=("physics",)), clouds=(pub,), pools=(burst,), limits=Limits(),
            slurm=SlurmSettings(conf=str(conf)),
            policies=SitePolicies(poll_interval=15.0, max_poll_interval=longest),
        )  # fmt: skip

    def change(self) -> None:
        """slurmctld writes its files, as it does after each change."""
        self.changes += 1
        for name in FILES:
            new = self.state / f"{name}.new"
            new.write_text("x" * self.changes)
            new.rename(self.state / name)

    def looks_in(self, seconds: float) -> int:
        before = self.looks
        self.world.advance(seconds)
        return self.looks - before


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    made = Site(tmp_path, monkeypatch, longest=300.0)
    yield made
    made.world.close()


def test_a_quiet_hour_takes_a_twentieth_of_the_looks(site: Site) -> None:
    assert site.looks_in(HOUR) <= 20
    assert 11 <= site.looks_in(HOUR) <= 13


def test_without_a_longer_maximum_and_without_the_files_each_look_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fixed = Site(tmp_path, monkeypatch, longest=15.0)
    try:
        assert fixed.looks_in(HOUR) >= 200
        (fixed.state / PROOF).unlink()
        assert fixed.looks_in(HOUR) >= 200
    finally:
        fixed.world.close()


def test_a_directory_that_is_not_slurmctlds_makes_each_look_read(site: Site) -> None:
    site.looks_in(HOUR)
    (site.state / PROOF).unlink()
    assert site.looks_in(HOUR) >= 200


def test_files_that_slurmctld_writes_no_longer_make_each_look_read(site: Site) -> None:
    """Another head has another directory; the files of this one stay as they were."""
    site.change()
    site.looks_in(HOUR)
    old = time.time() - 2 * STALE_S
    for name in FILES:
        os.utime(site.state / name, (old, old))
    assert site.looks_in(HOUR) >= 200


def test_machines_that_are_kept_without_a_job_start_as_soon_as_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(tmp_path, monkeypatch, longest=3600.0, warm=1)
    try:
        now = site.world.now
        site.world.ledger.directives.give(
            Directive(
                word=Pause(scope="cloud:pub"), who="ann", since=now, starts=now, until=now + HOUR
            )
        )
        assert site.looks_in(HOUR - 15) >= 200
        assert site.world.alive() == []
        site.world.advance(60)
        assert len(site.world.alive()) == 1
    finally:
        site.world.close()


def test_the_end_of_an_order_is_seen_at_the_next_short_interval(site: Site) -> None:
    now = site.world.now
    pause = Pause(scope="cloud:pub")
    site.world.ledger.directives.give(
        Directive(word=pause, who="ann", since=now, starts=now, until=now + HOUR + 100)
    )
    site.looks_in(HOUR + 90)
    assert site.looks_in(30) >= 1


def test_a_new_job_is_seen_at_the_next_short_interval(site: Site) -> None:
    world = site.world
    site.looks_in(HOUR)
    world.slurm.submit(1, PUB, 1, partitions=("pub",), limit=120, node_count=1)
    world.advance(30)
    assert site.world.alive() == [], "slurmctld has not written the job yet"
    site.change()
    world.advance(30)
    assert len(world.alive()) == 1
    assert site.looks_in(HOUR) >= 200, "while a machine is up, its end may be due at each look"
    world.slurm.finish(1)
    site.change()
    world.advance(HOUR / 4)
    assert world.alive() == []
    site.looks_in(HOUR)
    assert site.looks_in(HOUR) <= 13


def test_a_job_that_slurmctld_has_not_examined_is_no_quiet(site: Site) -> None:
    """Growth leaves it out for half a minute, and no file changes after that."""
    world = site.world
    site.looks_in(HOUR)
    world.slurm.set_job(
        1, "PENDING", partitions=("pub", "batch"), node_count=1, reason="None", submit=world.now,
        user="alice", account="physics",
    )  # fmt: skip
    site.change()
    world.advance(16)
    assert [d for d in world.ledger.decisions.about("pool:burst") if d.kind == "policy"] == []
    world.advance(45)
    assert [d for d in world.ledger.decisions.about("pool:burst") if d.kind == "policy"] != []


def test_a_job_is_seen_soon_after_its_begin_time(site: Site) -> None:
    world = site.world
    site.looks_in(HOUR)
    begin = world.now + HOUR + 40
    world.slurm.set_job(
        1, "PENDING", partitions=("pub",), node_count=1, reason="BeginTime", submit=world.now,
        eligible=begin, start=begin, user="alice", account="physics",
    )  # fmt: skip
    site.change()
    assert site.looks_in(HOUR) <= 20, "until then it is quiet"
    world.advance(begin - world.now + 17)
    assert [d for d in world.ledger.decisions.about("pool:burst") if d.kind == "policy"] != []


def test_the_order_of_a_person_is_seen_at_the_next_short_interval(site: Site) -> None:
    world = site.world
    site.looks_in(HOUR)
    pause = Pause(scope="cloud:pub")
    world.ledger.directives.give(
        Directive(word=pause, who="alice", since=world.now, starts=world.now)
    )
    assert site.looks_in(20) >= 1
    site.looks_in(HOUR)
    row = UnhelpedJob(job=7, asks="", since=world.now)
    purchase = Purchase(first_node="pub1", at=0.0, open=frozenset())
    world.ledger.growth_guard.judge(purchase, [row])
    assert site.looks_in(20) >= 1, "any change of the jobs that growth does not count"


def test_a_failed_look_is_repeated_at_once(tmp_path: Path) -> None:
    for name in (PROOF, *FILES):
        (tmp_path / name).write_text("x")
    now = 0.0
    looks = QuietLooks(15.0, 300.0, tmp_path, lambda: now)
    for _ in range(3):
        assert looks.is_needed(), SlurmError("no look ended well yet")
        now += 15.0
    assert looks.is_needed()
    looks.looked(is_quiet=True)
    now += 15.0
    assert not looks.is_needed()


def test_a_maximum_below_the_interval_is_refused() -> None:
    text = site_text("policies: {poll_interval: 1m, max_poll_interval: 30s}")
    with pytest.raises(ConfigError, match="found 30s, expected at least poll_interval, 1m"):
        configfile.parse(text, "site.yaml")
    assert configfile.parse(site_text("policies: {poll_interval: 10m}"), "site.yaml")
