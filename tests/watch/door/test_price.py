"""Forecasts at the read door: for everybody, of the whole queue, and bounded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cost_cases import config_file
from msgspec.structs import replace
from patience import patience
from status_cases import NOW, busy_ledger, busy_slurm, config

from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.processes import bounded_process
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.config import Config
from slurm_elastic.config.sections.copying import Traffic
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.machine_options import MachineOptions
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.launch.habits import Habits
from slurm_elastic.watch.door.answers import DoorAnswers, Refreshed
from slurm_elastic.watch.door.pricing import Moment, habits_of, prices_of
from slurm_elastic.watch.door.questions import DoorAnswer, PartitionPrice, PriceAsk

WISH = SlurmJob(
    id=0, states=frozenset({"PENDING"}), user="ann", partitions=("batch",), cpus=2, limit=3600
)
NODES = {
    name: SlurmNode(name=name, states=frozenset({"IDLE"}), partitions=("batch",), cpus=2)
    for name in ("st1", "st2")
}


def running(number: int, node: str, elapsed: float = 600.0, limit: int = 3600) -> SlurmJob:
    return SlurmJob(
        id=number, states=frozenset({"RUNNING"}), user="bob", nodes=(node,), cpus=2, limit=limit,
        start=NOW - elapsed, partitions=("batch",), allocated="cpu=2,mem=1G,node=1",
    )  # fmt: skip


def one(config: Config, *jobs: SlurmJob, wish: SlurmJob = WISH) -> PartitionPrice:
    seen = Moment(now=NOW, jobs=jobs, nodes=NODES, habits=Habits())
    (found,) = prices_of(config, PriceAsk(job=wish), seen)
    return found


@pytest.fixture
def site(tmp_path: Path) -> Config:
    return config(tmp_path)


def test_a_free_node_is_there_at_once_and_costs_nothing(site: Config) -> None:
    found = one(site, running(1, "st1"))
    assert (found.start, found.by_limits, found.low, found.high) == ((0, 0, 0), 0, 0.0, 0.0)


def test_who_runs_and_waits_before_it_counts_and_who_is_held_does_not(site: Config) -> None:
    busy = running(1, "st1"), running(2, "st2", limit=7200)
    assert one(site, *busy).by_limits == 3000
    waits = SlurmJob(
        id=3, states=frozenset({"PENDING"}), cpus=2, limit=3600, partitions=("batch",), priority=9
    )
    assert one(site, *busy, waits).by_limits == 6600
    array = replace(waits, tasks=100, max_running_tasks=1)
    assert one(site, *busy, array).by_limits == 6600, "only the task that may start now counts"
    assert one(site, *busy, replace(waits, reason="JobHeldUser")).by_limits == 3000
    assert one(site, *busy, replace(waits, partitions=("other",))).by_limits == 3000


def test_the_time_for_which_a_job_was_suspended_is_not_used(site: Config) -> None:
    resumed = replace(running(1, "st1"), limit_ends_at=NOW + 3300)
    assert one(site, resumed, running(2, "st2", limit=7200)).by_limits == 3300


def test_a_partition_without_enough_nodes_says_so(site: Config) -> None:
    found = one(site, wish=replace(WISH, node_count=3, cpus=6))
    assert (found.start, found.why) == ((), "2 nodes of it are in service")


def test_a_job_that_names_nodes_waits_for_these(site: Config) -> None:
    named = replace(WISH, required=("st1",))
    assert one(site, running(1, "st1"), wish=named).by_limits == 3000
    assert one(site, running(1, "st2"), wish=named).start == (0, 0, 0)


def test_a_job_that_names_a_node_out_of_service_has_no_forecast(site: Config) -> None:
    failed = {**NODES, "st1": replace(NODES["st1"], states=frozenset({"IDLE", "FAIL"}))}
    wish = replace(WISH, required=("st1",))
    seen = Moment(now=NOW, jobs=(), nodes=failed, habits=Habits())
    (found,) = prices_of(site, PriceAsk(job=wish), seen)
    assert (found.start, found.why) == ((), "st1, which the job names, is out of service")


def test_only_the_pool_of_a_node_that_the_job_names_has_a_forecast(site: Config) -> None:
    slurm = busy_slurm()
    pool = next(pool for pool in site.pools if pool.cloud == "aws")
    node = next(name for name in expand(pool.nodes) if name in slurm.nodes())
    seen = Moment(now=NOW, jobs=slurm.jobs(), nodes=slurm.nodes(), habits=Habits())
    partitions = tuple(cloud.partition_name for cloud in site.clouds)
    wish = replace(WISH, partitions=partitions, cpus=1, required=(node,))
    assert {p.pool for p in prices_of(site, PriceAsk(job=wish), seen)} == {pool.name}


@pytest.mark.parametrize("asked", ["gres", "job_gres"])
def test_free_processors_promise_no_gpu(site: Config, asked: str) -> None:
    found = one(site, wish=replace(WISH, **{asked: "gres/gpu:a100:4"}))
    assert (found.start, found.why) == (
        (),
        "whether its GPUs (or other gres) are free is not known",
    )


def test_a_cloud_costs_from_its_last_spot_price_to_its_dearest_at_the_limit(
    site: Config,
) -> None:
    ledger = busy_ledger(site.state / "ledger.db")
    machines = ledger.machines.live(ended_since=0.0)
    ledger.close()
    cloud = next(c for c in site.clouds if c.name == "aws")
    wish = replace(WISH, partitions=(cloud.partition_name,), cpus=1)
    slurm = busy_slurm()
    seen = Moment(
        now=NOW, jobs=slurm.jobs(), nodes=slurm.nodes(), habits=Habits(), machines=machines
    )  # fmt: skip
    found = [p for p in prices_of(site, PriceAsk(job=wish), seen) if not p.why]
    assert found
    spot = [m.instance for m in machines if m.instance.market is Market.SPOT]
    cheap = max(spot, key=lambda m: m.launched).price
    for price in found:
        assert price.low is not None
        assert price.high is not None
        assert price.chance is not None
        assert 0 < price.low <= price.high
        assert price.low <= cheap * max(price.run[1], 60) / 3600 * price.nodes + 1e-9
        assert 0 < price.chance < 1
        assert price.start[0] > 0, "its machines have to boot"


def test_a_job_without_a_limit_costs_at_most_what_its_partition_lets_it_run(site: Config) -> None:
    slurm = busy_slurm()
    seen = Moment(now=NOW, jobs=slurm.jobs(), nodes=slurm.nodes(), habits=Habits())
    name = next(cloud.partition_name for cloud in site.clouds if cloud.name == "aws")
    wish = replace(WISH, partitions=(name,), cpus=1, limit=None)

    def highest(ask: PriceAsk) -> float:
        return max(p.high or 0.0 for p in prices_of(site, ask, seen))

    named = highest(PriceAsk(job=replace(wish, limit=600)))
    assert highest(PriceAsk(job=wish, limits={name: 600})) == named > 0
    assert highest(PriceAsk(job=wish, limits={"batch": 600})) > 24 * named
    found = prices_of(site, PriceAsk(job=wish, limits={name: 600}), seen)
    assert {p.limit for p in found if p.start} == {600}


def test_the_disks_of_the_machines_are_paid_beside_their_type(site: Config) -> None:
    slurm = busy_slurm()
    seen = Moment(now=NOW, jobs=slurm.jobs(), nodes=slurm.nodes(), habits=Habits())
    name = next(cloud.partition_name for cloud in site.clouds if cloud.name == "aws")
    ask = PriceAsk(job=replace(WISH, partitions=(name,), cpus=1, limit=600))
    disks = MachineOptions(disk_price=0.25)
    pools = tuple(replace(pool, machine=disks) for pool in site.pools)

    def rate(config: Config) -> float:
        found = next(p for p in prices_of(config, ask, seen) if not p.why)
        assert found.low is not None
        return found.low / found.nodes * 3600 / max(found.run[1], 60)

    assert rate(replace(site, pools=pools)) - rate(site) == pytest.approx(0.25)


def test_the_data_of_a_job_costs_traffic_and_time(site: Config) -> None:
    traffic = Traffic(out=0.09, bandwidth=1000.0)
    clouds = tuple(replace(c, traffic=traffic) if c.name == "aws" else c for c in site.clouds)
    slurm = busy_slurm()
    seen = Moment(now=NOW, jobs=slurm.jobs(), nodes=slurm.nodes(), habits=Habits())
    name = next(cloud.partition_name for cloud in site.clouds if cloud.name == "aws")
    wish = replace(WISH, partitions=(name,), cpus=1, limit=600)

    def price(config: Config, comment: str) -> PartitionPrice:
        asked = PriceAsk(job=replace(wish, comment=comment))
        return next(p for p in prices_of(config, asked, seen) if not p.why)

    counted = replace(site, clouds=clouds)
    plain, moved = price(counted, ""), price(counted, "data=100G/50G")
    assert price(site, "data=100G/50G") == plain == price(site, "")
    assert None not in (plain.low, plain.high, moved.low, moved.high)
    # 50 GB at $0.09, and 150 GB at 1 Gbit/s: 20 minutes of machines.
    for before, after in ((plain.low, moved.low), (plain.high, moved.high)):
        assert 4.5 < (after or 0.0) - (before or 0.0) < 4.5 + 1.0


def test_habits_are_learnt_from_jobs_with_a_limit() -> None:
    rows = [("ann", "a", 2, 3600, 360)] * 3 + [("ann", "a", 2, 0, 5), ("ann", "a", 2, 60, 0)]
    assert habits_of(rows).jobs == 3


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine may take longer to start the process that answers."""
    monkeypatch.setattr(bounded_process, "TIMEOUT_S", patience(bounded_process.TIMEOUT_S))


@pytest.mark.usefixtures("patient")
def test_everybody_may_ask_and_nonsense_is_refused(tmp_path: Path) -> None:
    site = config(tmp_path)
    config_file(tmp_path)
    answers = DoorAnswers(site, busy_slurm(), lambda: NOW)

    def ask(job: SlurmJob) -> DoorAnswer:
        line = msgspec.json.encode(PriceAsk(job=job))
        return msgspec.json.decode(answers(Peer(uid=4321), line), type=DoorAnswer)

    told = ask(replace(WISH, partitions=("aws",)))
    assert told.prices
    assert "no sense" in ask(replace(WISH, cpus=-1)).error
    assert "no sense" in ask(replace(WISH, limit=1 << 40)).error
    assert "32 partitions" in ask(replace(WISH, partitions=tuple(map(str, range(40))))).error


@pytest.mark.usefixtures("patient")
def test_nobody_learns_by_a_forecast_how_long_anothers_jobs_ran(tmp_path: Path) -> None:
    """As Slurm's configuration cannot be read here, all is private that may be."""
    answers = DoorAnswers(config(tmp_path), busy_slurm(), lambda: NOW)
    rows = [("ann", "a", 2, 3600, 360), ("bob", "b", 2, 3600, 3000)] * 30
    seen = Moment(now=NOW, jobs=(), nodes=NODES, habits=habits_of(rows))
    answers._seen = Refreshed(lambda: seen, 60.0)

    def runs(uid: int) -> list[tuple[int, ...]]:
        told = []
        for user, account in (("ann", ""), ("bob", ""), ("", "a"), ("", "b")):
            ask = PriceAsk(job=replace(WISH, user=user, account=account))
            line = answers(Peer(uid=uid), msgspec.json.encode(ask))
            told += [one.run for one in msgspec.json.decode(line, type=DoorAnswer).prices or ()]
        return told

    of_operator, of_user = runs(0), runs(4321)
    assert len(set(of_operator)) == 2
    assert len(of_user) == 4
    assert len(set(of_user)) == 1
