"""The table that compares all clouds for one job, in three commands."""

from __future__ import annotations

import io
import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ledger_cases import T0, instance
from rich.console import Console

from slurm_elastic.cli.jobs import explain, offers, price
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate import cloud_table
from slurm_elastic.cli.operate.cloud_table import RankedCloudRow, cloud_rows, published_rows
from slurm_elastic.config import Config, configfile
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.exclusion import COOL_DOWN, Exclusion
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.job_data import JobData
from slurm_elastic.policies.launch.pool_order import JobShape, PoolTerms, PricedRoom, TrafficTerms
from slurm_elastic.policies.launch.ranking import DEFAULT_KEYS
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.hooks.order_file import FILE, MAX_AGE_S, text_of
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.door.questions import PartitionPrice

ME = pwd.getpwuid(os.geteuid()).pw_name
YAML = """
cluster: {{name: alps, uuid: 11111111-1111-4111-8111-111111111111}}
state_dir: {state}
slurm: {{conf: {state}/slurm.conf, bin_dir: {state}/no-slurm-here, user: {me}}}
allow: {{accounts: [physics]}}
limits: {{dollars_per_hour: 9}}
clouds:
  - {{name: rack, provider: fake, location: on-premises, types: {{s: {{cpus: 2, memory: 4G, price: 0.01}}}}, stock: 0}}
  - {{name: east, provider: fake, location: public, types: {{s: {{cpus: 2, memory: 4G, price: 0.40}}}}}}
  - {{name: west, provider: fake, location: public, types: {{s: {{cpus: 2, memory: 4G, price: 0.10}}}}}}
pools:
  - {{name: own, cloud: rack, nodes: "own[1-3]", cpus: 2, memory: 4G}}
  - {{name: e, cloud: east, nodes: "e[1-8]", cpus: 2, memory: 4G, markets: [on-demand]}}
  - {{name: w, cloud: west, nodes: "w[1-8]", cpus: 2, memory: 4G, markets: [on-demand]}}
  - {{name: w2, cloud: west, nodes: "v[1-8]", cpus: 2, memory: 4G, markets: [on-demand]}}
"""
HOUR = 3600.0
JOB = SlurmJob(
    id=7, states=frozenset({"PENDING"}), partitions=("batch", "rack", "east", "west"), limit=3600,
    node_count=4, cpus=8, reason="Resources",
)  # fmt: skip


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=tmp_path, me=ME))
    return path


@pytest.fixture
def config(file: Path) -> Config:
    return configfile.load(file)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = Ledger(tmp_path / "ledger.db")
    yield made
    made.close()


@pytest.fixture
def slurm() -> FakeSlurm:
    return FakeSlurm(jobs=[JOB])


def terms(pool: str, dollars: float, cloud: str = "", **changes: Any) -> PoolTerms:
    cloud = cloud or pool
    settings: dict[str, Any] = {
        "offers": (PricedRoom(room=9, market=Market.ON_DEMAND, price=dollars),),
        "keys": {"location": 0.0 if cloud == "rack" else 1.0, "waste": 0.0},
    }
    return PoolTerms(pool=pool, cloud=cloud, partition=cloud, **{**settings, **changes})


TABLE = (
    terms("own", 0.0, "rack", unavailable=Quoted(text="the cloud has none free")),
    terms("e", 0.4, "east"),
    terms("w", 0.1, "west"),
    terms("w2", 0.05, "west"),
)


def rows(
    *table: PoolTerms, ranking: tuple[str, ...] = DEFAULT_KEYS, machines: int = 4
) -> tuple[RankedCloudRow, ...]:
    job = JobShape(machines=dict.fromkeys((row.pool for row in table), machines), seconds=HOUR)
    return cloud_rows(job, table, ranking)


def shown(width: int, table: tuple[RankedCloudRow, ...]) -> list[str]:
    out = io.StringIO()
    cloud_table.show(table, Console(file=out, width=width, markup=False, highlight=False))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_rows_are_the_order_of_the_jobs_partitions() -> None:
    table = rows(*TABLE)
    assert [(row.rank, row.pool, row.cost) for row in table] == [
        (1, "own", 0.0),
        (2, "w", pytest.approx(0.4)),
        (None, "w2", pytest.approx(0.2)),
        (3, "e", pytest.approx(1.6)),
    ]
    assert [row.reason for row in table] == [
        "the cloud has none free",
        "on-premises clouds come first",
        "Slurm uses pool w of this partition first",
        "costs $1.20 more than west",
    ]


def test_a_cost_is_machines_and_hours_at_the_price() -> None:
    few = (
        PricedRoom(room=1, market=Market.SPOT, price=0.1),
        PricedRoom(room=9, market=Market.ON_DEMAND, price=0.5),
    )
    (row,) = rows(terms("a", 0.0, offers=few, boot_s=1800.0))
    assert (row.market, row.price) == (Market.SPOT, pytest.approx((0.1 + 3 * 0.5) / 4))
    assert row.cost == pytest.approx(row.machines * (row.price or 0.0) * 1.5)


def test_the_traffic_of_a_job_is_in_its_cost_and_not_in_the_price_of_an_hour() -> None:
    traffic = TrafficTerms(price_out=0.09, bandwidth=1000.0)
    job = JobShape(machines={"a": 2}, seconds=HOUR, data=JobData(gb_in=100.0, gb_out=50.0))
    (row,) = cloud_rows(job, [terms("a", 0.1, traffic=traffic)], DEFAULT_KEYS)
    assert row.price == pytest.approx(0.1)
    assert row.cost == pytest.approx(50 * 0.09 + 2 * 0.1 * (HOUR + 1200) / HOUR)


@pytest.mark.parametrize(
    ("changes", "ranking", "reason"),
    [
        ({}, DEFAULT_KEYS, "equal to a; the order of the file decides"),
        ({"keys": {"location": 1.0, "waste": 0.5}}, DEFAULT_KEYS,
         "more of its machines stays unused than in a"),
        ({"keys": {"location": 1.0, "own": 0.5}}, ("location", "own"),
         "behind a by the ranking key own"),
        ({"offers": (PricedRoom(room=9, market=Market.ON_DEMAND, price=0.2, lost_share=0.5),)},
         ("risk",), "costs $0.80 more than a, with work lost by interruptions"),
        ({"offers": (PricedRoom(room=9, market=Market.RESERVED, price=0.1),)}, ("market",), ""),
        ({"offers": ()}, DEFAULT_KEYS, "no offers"),
    ],
)  # fmt: skip
def test_the_first_key_that_differs_is_named(
    changes: dict[str, Any], ranking: tuple[str, ...], reason: str
) -> None:
    if "offers" in changes and not changes["offers"]:
        changes |= {"unavailable": Quoted(text="no offers")}
    first = terms("a", 0.1, keys={"location": 1.0, "waste": 0.0, "own": 0.0})
    found = {row.pool: row for row in rows(first, terms("b", 0.1, **changes), ranking=ranking)}
    assert found["b"].reason == reason


def test_markets_are_named() -> None:
    spot = terms("s", 0.05, offers=(PricedRoom(room=9, market=Market.SPOT, price=0.05),))
    _, after = rows(terms("a", 0.1, on_demand=0.1), spot)
    assert after.reason == "spot comes before on-demand"
    _, after = rows(terms("a", 0.05, on_demand=0.05), spot)
    assert after.reason == "its spot machines cost no less than on-demand machines"


def test_it_fits_each_screen() -> None:
    table = rows(*TABLE)
    assert shown(120, table) == [
        "Clouds for this job, best first (costs for its time limit, else for a day):",
        "   Partition/pool  Cloud  Market     Machines  $/h each   Job $  Why here",
        "1  rack/own        rack   on-demand         4    0.0000  0.0000  the cloud has none free",
        "2  west/w          west   on-demand         4    0.1000  0.4000  on-premises clouds come first",
        "   west/w2         west   on-demand         4    0.0500  0.2000  Slurm uses pool w of this partition first",
        "3  east/e          east   on-demand         4    0.4000  1.6000  costs $1.20 more than west",
    ]
    assert shown(80, table)[1:4] == [
        "   Partition/pool  Market     Machines   Job $  Why here",
        "1  rack/own        on-demand         4  0.0000  the cloud has none free",
        "2  west/w          on-demand         4  0.4000  on-premises clouds come first",
    ]
    assert shown(44, table)[2:5] == [
        "1 rack/own",
        "  $0.0000: 4 on-demand machines at $0.0000/h",
        "  the cloud has none free",
    ]
    for width in (40, 50, 60, 80, 100, 120):
        assert max(map(len, shown(width, table))) <= width


def test_one_cloud_needs_no_table() -> None:
    assert shown(80, rows(TABLE[1])) == []
    assert shown(80, rows(TABLE[2], TABLE[3])) == []


def test_a_reservation_that_ends_before_the_job_has_no_cost() -> None:
    block = PricedRoom(room=9, market=Market.RESERVED, price=0.0, max_run_s=HOUR - 1)
    usual = PricedRoom(room=9, market=Market.ON_DEMAND, price=0.5)
    first, second, third = rows(
        terms("a", 0.1), terms("b", 0.0, offers=(block, usual)), terms("c", 0.0, offers=(block,))
    )
    assert (first.pool, second.market, second.price) == ("a", Market.ON_DEMAND, 0.5)
    assert (third.pool, third.market, third.cost) == ("c", None, None)
    assert third.reason == "its reservation ends before the job"


# the commands


def test_offers_of_a_job_begin_with_it(
    config: Config, slurm: FakeSlurm, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    found = offers.gather(config, slurm, T0, job=7)
    assert [(row.rank, row.pool) for row in found.clouds] == [
        (1, "own"), (2, "w"), (None, "w2"), (3, "e"),
    ]  # fmt: skip
    by_pool = {row.pool: row for row in found.clouds}
    assert "0" in by_pool["own"].reason
    assert by_pool["e"].reason.startswith("costs $1.2")
    offers.render(found, Console(width=120))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Offers for job 7, 4 nodes")
    assert lines[1].startswith("Clouds for this job")
    assert [row["pool"] for row in json.loads(msgspec.json.encode(found))["clouds"]] == [
        "own", "w", "w2", "e",
    ]  # fmt: skip
    assert offers.gather(config, slurm, T0, pool="w").clouds == ()
    assert offers.gather(config, slurm, T0, job=7, nodes=1).clouds[1].machines == 1


def test_a_cloud_that_cools_down_sinks_in_the_offers(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    for pool in ("w", "w2"):
        ledger.exclusions.add(
            Exclusion(
                kind=COOL_DOWN, scope="west/s/*/on-demand", until=T0 + 60, pool=pool,
                code="InsufficientCapacity", cause=Quoted(text="none left"), count=1,
            )
        )  # fmt: skip
    rows_now = offers.gather(config, slurm, T0, job=7).clouds
    assert [row.cloud for row in rows_now if row.rank] == ["rack", "east", "west"]
    assert "InsufficientCapacity" in rows_now[-1].reason


def test_a_pool_without_free_nodes_has_its_price(
    config: Config, slurm: FakeSlurm, ledger: Ledger
) -> None:
    for n in range(1, 9):
        ledger.machines.adopt(instance(f"i-{n}", f"w{n}"), "w", T0)
    found = offers.gather(config, slurm, T0, job=7)
    assert next(row.price for row in found.clouds if row.pool == "w") == pytest.approx(0.1)
    (pool,) = (pool for pool in found.pools if pool.pool == "w")
    assert (pool.free, pool.ranked) == (0, ())


def publish(state: Path, at: float) -> None:
    (state / FILE).write_text(text_of(TABLE, DEFAULT_KEYS, at))


def test_the_published_terms_count_while_they_are_new(config: Config, tmp_path: Path) -> None:
    assert published_rows(config, JOB, T0) == ()
    publish(tmp_path, T0)
    assert [row.cloud for row in published_rows(config, JOB, T0)] == [
        "rack",
        "west",
        "west",
        "east",
    ]
    assert published_rows(config, JOB, T0 + MAX_AGE_S + 1) == ()
    few = msgspec.structs.replace(JOB, partitions=("batch", "west"))
    assert published_rows(config, few, T0) == (), "one cloud: nothing to compare"


def test_a_waiting_job_is_explained_with_it(
    config: Config,
    slurm: FakeSlurm,
    ledger: Ledger,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(explain.time, "time", lambda: T0)
    publish(tmp_path, T0)
    explained = explain.explain(config, slurm, "7")
    assert [row.rank for row in explained.clouds] == [1, 2, None, 3]
    assert [row["cloud"] for row in explain.document(explained)["clouds"]][1] == "west"
    console = Console(width=120)
    with console.capture() as captured:
        explain.render(explained, console)
    assert "3  east/e " in captured.get()
    slurm.set_job(7, "RUNNING", nodes=("w1",))
    assert explain.explain(config, slurm, "7").clouds == ()


def test_price_shows_it() -> None:
    forecast = PartitionPrice(
        partition="east", start=(0, 1, 2), run=(1, 2, 3), low=0.1, high=0.2, limit=60
    )
    found = price.Priced(
        at=T0, job="job.sh", limit=60, rows=(price.PartitionRow(forecast=forecast),), options={},
        clouds=rows(*TABLE),
    )  # fmt: skip
    console = Console(width=120)
    with console.capture() as captured:
        price.render(found, console)
    assert "costs $1.20 more than west" in captured.get()
    assert json.loads(msgspec.json.encode(found))["clouds"][3]["cost"] == pytest.approx(1.6)


def test_json_is_the_commands(
    file: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["offers", "--pool", "w", "--json", "--config", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["clouds"] == []
