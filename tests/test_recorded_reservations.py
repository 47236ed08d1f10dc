"""Costs and budgets of the past do not depend on the reservations that the configuration has now."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cost_cases import YAML, machine
from msgspec.structs import replace

from slurm_elastic.config import Config, configfile
from slurm_elastic.controller.launching.budget import read_spending
from slurm_elastic.features.money.books import read_books, report
from slurm_elastic.features.money.cost_keys import By
from slurm_elastic.features.money.usage_counters import record_reservations
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.reserved import Held, ReservationKind
from slurm_elastic.policies.money.reservations import MachineHour, settle
from slurm_elastic.state.ledger import Ledger

BEGIN = 1_799_971_200.0  # 2027-01-15T00:00Z
DAY = 86400.0
LATER = BEGIN + 5 * DAY
WEEK = {"from": "2027-01-15", "to": "2027-01-17", "upfront": 480}
"""Two days at $10 an hour."""


class Site:
    """A site whose file has these reservations under the name ``year``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        (directory / "state").mkdir(mode=0o700)
        self.path = directory / "state" / "ledger.db"
        self.ledger = Ledger(self.path)

    def config(self, *reservations: dict[str, object], name: str = "year") -> Config:
        entries = "".join(
            f"\n      - {{name: {name}, type: small, count: 2, "
            + ", ".join(f"{key}: {value}" for key, value in entry.items())
            + "}"
            for entry in reservations
        )
        section = f"\n    reservations:{entries}" if entries else ""
        text = YAML.format(state=self._directory / "state", user="root")
        text = text.replace("price: 0.36}}\n", f"price: 0.36}}}}{section}\n", 1)
        path = self._directory / "slurm-elastic.yaml"
        path.write_text(f"{text}policies: {{budget: {{per_month: 10000}}}}\n")
        path.chmod(0o644)
        return configfile.load(path)

    def dollars(self, config: Config, now: float = LATER) -> float:
        """The costs of the month until ``now``, which the budget counts, too."""
        costs = report(read_books(config, self.ledger, BEGIN - 9 * DAY, None, now), By.POOL)
        assert costs.problems == ()
        spent = read_spending(config, self.ledger, now)[""].month
        assert spent == pytest.approx(costs.micro / 1e6, abs=1e-5)
        return costs.micro / 1e6


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    site.ledger.close()


def test_the_entry_of_an_ended_reservation_may_be_removed(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY)
    assert site.dollars(site.config(WEEK)) == pytest.approx(480)
    without = site.config()
    record_reservations(without, site.ledger, LATER)
    assert site.dollars(without) == pytest.approx(480)


def test_a_renewal_may_have_the_name_of_the_ended_reservation(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY)
    renewed = site.config({"from": "2027-01-17", "to": "2027-01-19", "upfront": 96})
    record_reservations(renewed, site.ledger, LATER)
    assert site.dollars(renewed) == pytest.approx(480 + 96)


def test_a_reservation_counts_until_its_entry_is_removed(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY / 2)
    without = site.config()
    record_reservations(without, site.ledger, BEGIN + DAY)
    record_reservations(without, site.ledger, BEGIN + DAY * 1.5)
    assert site.dollars(without) == pytest.approx(240)
    # The entry comes back, so it was the same reservation all the time.
    record_reservations(site.config(WEEK), site.ledger, LATER)
    assert site.dollars(site.config(WEEK)) == pytest.approx(480)


def of_renamed_cloud(config: Config, name: str) -> Config:
    clouds = (replace(cloud, name=name) if cloud.held else cloud for cloud in config.clouds)
    return replace(config, clouds=tuple(clouds))


def test_a_renamed_reservation_counts_once(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY / 4)
    renamed = site.config(WEEK, name="renamed")
    moved = of_renamed_cloud(renamed, "east")
    again = of_renamed_cloud(site.config({**WEEK, "upfront": 96}, name="renamed"), "west")
    for config, at in ((renamed, DAY / 2), (moved, DAY), (again, DAY * 1.5)):
        now = BEGIN + at
        before = site.dollars(config, now)
        record_reservations(config, site.ledger, now)
        assert site.dollars(config, now) == pytest.approx(before)
    # The last half of a day has the corrected price.
    assert site.dollars(again) == pytest.approx(360 + 24)


def test_one_of_two_like_reservations_that_is_removed_counts_until_then(site: Site) -> None:
    first, second = site.config(WEEK), of_renamed_cloud(site.config(WEEK), "east")
    both = replace(first, clouds=(*first.clouds, *(c for c in second.clouds if c.held)))
    record_reservations(both, site.ledger, BEGIN + DAY / 2)
    record_reservations(first, site.ledger, BEGIN + DAY)
    assert site.dollars(first) == pytest.approx(480 + 240)


def test_an_entry_for_the_same_dates_corrects_the_past(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY)
    corrected = site.config({**WEEK, "from": "2027-01-16", "upfront": 48})
    assert site.dollars(corrected) == pytest.approx(48)
    record_reservations(corrected, site.ledger, LATER)
    assert site.dollars(site.config()) == pytest.approx(48)


def test_a_reservation_that_has_not_begun_leaves_no_record(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN - DAY)
    assert site.dollars(site.config()) == 0


def test_machines_keep_the_reservation_that_they_were_launched_on(site: Site) -> None:
    """Two machines of the removed reservation pay its price, not the renewal's."""
    for node in ("pub1", "pub2"):
        launched = machine(node, BEGIN, 5.0, market=Market.RESERVED)
        site.ledger.machines.adopt(replace(launched, reservation="year"), "burst", BEGIN, 5.0)
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY)
    ids = ["i-pub1", "i-pub2"]
    site.ledger.machines.record_end("aws", ids, Quoted(text="over"), BEGIN + 2 * DAY)
    renewed = site.config({"from": "2027-01-17", "to": "2027-01-19", "upfront": 96})
    record_reservations(renewed, site.ledger, LATER)
    assert site.dollars(renewed) == pytest.approx(480 + 96)
    costs = report(read_books(renewed, site.ledger, BEGIN, None, LATER), By.POOL)
    by_pool = {line.key: line.micro / 1e6 for line in costs.lines}
    assert by_pool["burst"] == pytest.approx(480)


def test_the_record_comes_back_from_the_journal(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY)
    site.ledger.close()
    site.path.unlink()
    site.ledger = Ledger(site.path)
    assert site.dollars(site.config()) == pytest.approx(480)


def test_the_record_outlives_the_cloud_in_the_configuration(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY)
    config = site.config()
    config = replace(config, clouds=config.clouds[1:], pools=config.pools[1:])
    assert site.dollars(config) == pytest.approx(480)


def test_records_are_deleted_with_the_machines_of_their_time(site: Site) -> None:
    record_reservations(site.config(WEEK), site.ledger, BEGIN + DAY)
    years_later = LATER + 500 * DAY
    site.ledger.compact(years_later)
    record_reservations(site.config(WEEK), site.ledger, years_later)
    assert site.ledger.books.counted_reservations((), years_later) == {}


def test_a_machine_of_a_block_takes_nothing_of_its_renewal() -> None:
    def block(begins_at: float, upfront: float) -> Held:
        return Held(
            cloud="aws", name="cb", kind=ReservationKind.BLOCK, begins_at=begins_at,
            ends_at=begins_at + 3600, instance_type="p5", zone="a", count=1, upfront=upfront,
        )  # fmt: skip

    begin = round(BEGIN * 1000)
    hours = [
        MachineHour(begin, begin + 3_600_000, 9, "p5", "a", 50.0, reservation="cb"),
        MachineHour(begin + 3_600_000, begin + 7_200_000, 9, "p5", "a", 50.0, reservation="cb"),
    ]
    held = (block(BEGIN + 3600, 7.0), block(BEGIN, 4.0))
    settled = settle(hours, held, begin, begin + 7_200_000)
    assert list(settled.micro) == [4_000_000, 7_000_000]
    assert list(settled.idle) == []
