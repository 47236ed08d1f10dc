"""The runs that the daemon keeps for ``cost``: Slurm forgets its jobs."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from ledger_cases import instance, offer, spec
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError, TransientError
from slurm_elastic.config.sections.books import BooksSettings
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.config.sections.reservations import Reservation
from slurm_elastic.controller.apply import apply
from slurm_elastic.controller.context import Site
from slurm_elastic.controller.launching.launch import rebuild_spec
from slurm_elastic.controller.snapshot import build_terms, take_snapshot
from slurm_elastic.features.money import usage_counters
from slurm_elastic.features.money.cost_notes import costs_of
from slurm_elastic.features.money.usage_counters import counted
from slurm_elastic.features.money.usage_record import UsageRecord, news, run_of
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Market
from slurm_elastic.model.memory import Drained
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.repair.cluster import decide
from slurm_elastic.policies.repair.cluster_snapshot import RoundRule
from slurm_elastic.state.ledger.histograms import series
from tests.controller.looks import Looks
from tests.controller.world import Inline, World

T = 1_800_000_000.0
JOB = SlurmJob(
    id=7, states=frozenset({"RUNNING"}), user="ann", uid=1000, account="physics",
    partitions=("pub",), nodes=("pub1", "pub2", "own1"), start=T + 10, end=T + 3610,
    allocated="cpu=3,mem=3G,node=3",
)  # fmt: skip


@pytest.fixture
def site(world: World) -> Site:
    return Site.of(world.config, world.slurm, world.ledger, world.clouds, lambda: world.now)


def ended(job: SlurmJob, end: float) -> SlurmJob:
    return replace(job, states=frozenset({"COMPLETED"}), end=end)


def test_a_run_has_its_share_of_each_node_of_ours(site: Site) -> None:
    run = run_of(site, JOB)
    assert run is not None
    assert (run.begin, run.end, run.account, run.partition) == (T + 10, None, "physics", "pub")
    assert run.shares == (("pub[1-2]", 500_000),), "one of two CPUs; own1 is none of ours"


@pytest.mark.parametrize(
    "job",
    [
        replace(JOB, states=frozenset({"CONFIGURING"})),
        replace(JOB, states=frozenset({"RUNNING", "CONFIGURING", "POWER_UP_NODE"})),
        replace(JOB, states=frozenset({"PENDING"}), nodes=()),
        replace(JOB, states=frozenset({"PENDING", "NODE_FAIL"})),
        replace(JOB, nodes=("own1",)),
        replace(JOB, start=0.0),
    ],
)
def test_what_does_not_run_on_our_machines_is_no_run(site: Site, job: SlurmJob) -> None:
    assert run_of(site, job) is None


@pytest.mark.parametrize(
    ("fields", "share"),
    [
        ({"gres": "gres/gpu:t4:4"}, 1_000_000),
        ({"gres": "gres:gpu:2"}, 500_000),
        ({"job_gres": "gres/gpu:6"}, 500_000),
        ({"gres": "gres/gpu:4", "allocated": "cpu=3,node=3,gres/gpu=3"}, 250_000),
        ({"gres": "gres/gpu:4", "allocated": ""}, 1_000_000),
    ],
)
def test_gpus_count_if_slurm_does_not_account_for_them(
    site: Site, fields: dict[str, str], share: int
) -> None:
    pools = {name: replace(pool, gres={"gpu:t4": 4}, cpus=32) for name, pool in site.pools.items()}
    of_nodes = {node: pools[pool.name] for node, pool in site.pool_of.items()}
    site = dataclasses.replace(site, pools=pools, pool_of=of_nodes)
    run = run_of(site, replace(JOB, **fields))
    assert run is not None
    assert [node_share for _, node_share in run.shares] == [share]


def test_a_run_is_written_once_and_once_more_at_its_end(site: Site, world: World) -> None:
    world.now = T + 100
    first = news(site, (), [JOB], world.now)
    site.ledger.usage.write(first)
    assert news(site, site.ledger.usage.open_runs(), [JOB], world.now) == []
    world.now = T + 600
    (last,) = news(site, site.ledger.usage.open_runs(), [ended(JOB, T + 555)], world.now)
    assert last.end == T + 555
    site.ledger.usage.write([last])
    assert site.ledger.usage.open_runs() == ()
    assert news(site, (), [ended(JOB, T + 555)], world.now) == []
    assert site.ledger.usage.runs(T, T + 1000) == (last,)


def test_a_job_that_came_and_went_between_two_looks_is_kept(site: Site, world: World) -> None:
    (run,) = news(site, (), [ended(JOB, T + 12)], T + 60)
    assert (run.begin, run.end) == (T + 10, T + 12)


def test_of_runs_that_ended_at_different_times_none_is_written_again(site: Site) -> None:
    jobs = [ended(JOB, T + 100), ended(replace(JOB, id=8), T + 600)]
    site.ledger.usage.write(news(site, (), jobs, T + 700))
    assert news(site, (), jobs, T + 700) == []


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, "ok"),
        (TransientError("pub", "Busy", "later"), "transient"),
        (ValueError("nonsense"), "error"),
    ],
)
def test_each_call_to_a_cloud_is_timed_and_counted_once(
    site: Site, world: World, monkeypatch: pytest.MonkeyPatch, error: Exception | None, outcome: str
) -> None:
    clock = [100.0]

    def slow() -> None:
        clock[0] += 2.5
        if error is not None:
            raise error

    monkeypatch.setattr(usage_counters, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(world.clouds["pub"], "instances", slow)
    record = UsageRecord(site, Inline())
    with suppress(TransientError, ValueError):
        world.clouds["pub"].instances()
    record.look()
    record.look()
    found = {n: v for n, v in world.ledger.usage.counters().items() if n.startswith("api_")}
    labels = {"cloud": "pub", "call": "instances"}
    assert found[series("api_calls", outcome=outcome, **labels)] == 1
    assert found[series("api_seconds_sum", **labels)] == 2.5
    assert found[series("api_seconds_bucket", le="+Inf", **labels)] == 1


@pytest.mark.parametrize(
    ("account", "told"), [("physics", "physics"), ("chemistry", "(other)"), ("", "(none)")]
)
def test_the_dollars_of_a_span_are_those_of_accounts_and_of_nobody(
    site: Site, account: str, told: str
) -> None:
    budgets = dict.fromkeys(("physics", "(none)"), Budget(per_day=1.0))
    config = replace(site.config, policies=SitePolicies(account_budgets=budgets))
    bought = offer(cloud="pub", price=0.5)
    site.ledger.machines.adopt(
        instance("i-1", "pub1", "g1", launched=T - 3600, bought=bought), "burst", T - 3600
    )
    site.ledger.machines.record_end("pub", ["i-1"], Quoted(text="gone"), T)
    job = replace(JOB, nodes=("pub1",), start=T - 1800, allocated="cpu=2", account=account)
    run = run_of(site, job)
    assert run is not None
    site.ledger.usage.write([replace(run, end=T)])
    found = counted(config, site.ledger, T - 7200, T + 100, T + 200)
    whole = found[series("dollars", cloud="pub", pool="burst", market="spot")]
    unused = sum(v for name, v in found.items() if name.startswith("unused_dollars"))
    used = found[series("account_dollars", account=told)]
    assert (whole, used) == (pytest.approx(0.5, abs=1e-7), pytest.approx(0.25, abs=1e-7))
    assert used + unused == pytest.approx(whole, abs=1e-9)


def test_a_run_that_slurm_does_not_tell_any_more_is_over(site: Site, world: World) -> None:
    site.ledger.usage.write(news(site, (), [JOB], T + 20))
    requeued = replace(JOB, states=frozenset({"PENDING"}), nodes=(), restarts=1)
    (last,) = news(site, site.ledger.usage.open_runs(), [requeued], T + 90)
    assert (last.begin, last.end) == (T + 10, T + 90)
    again = replace(JOB, start=T + 200, restarts=1)
    site.ledger.usage.write([last])
    (new,) = news(site, site.ledger.usage.open_runs(), [again], T + 220)
    assert (new.begin, new.end) == (T + 200, None)


def test_a_job_of_several_machines_is_timed_from_the_first_asked_for_and_the_last_up(
    site: Site,
) -> None:
    for node, asked, up in (("pub1", T - 300, T - 40), ("pub2", T - 200, T)):
        one = instance(f"i-{node}", node, f"g{asked * 1000:.0f}x", launched=asked)
        site.ledger.machines.adopt(one, "burst", asked)
        site.ledger.machines.record_registration(one.cloud, [one.id], up)
    job = replace(JOB, nodes=("pub1", "pub2"), id=7)
    site.ledger.usage.write(news(site, (), [job], T + 20))
    counts = counted(site.config, site.ledger, T - 400, T + 100, T + 100)
    assert counts[series("start_delay_seconds_sum", cloud="aws")] == 10


def test_a_job_of_several_launches_was_asked_for_with_the_first_of_them(site: Site) -> None:
    for node, asked, up in (("pub1", T - 300, T - 40), ("pub2", T - 200, T)):
        bought = offer(cloud="pub")
        made = spec(f"g{asked * 1000:.0f}x", (node,), site.pools["burst"], bought, jobs=(7,))
        site.ledger.launches.record_intent(made, "r1", asked)
        one = instance(f"i-{node}", node, made.generation, launched=asked, bought=bought)
        site.ledger.machines.record_launch(made.generation, [one], asked)
        site.ledger.machines.record_registration("pub", [one.id], up)
    site.ledger.usage.write(news(site, (), [replace(JOB, nodes=("pub1", "pub2"))], T + 20))
    counts = counted(site.config, site.ledger, T - 400, T + 100, T + 100)
    assert counts[series("resume_to_running_seconds_sum", cloud="pub")] == 310
    assert counts[series("resume_to_running_seconds_bucket", cloud="pub", le="+Inf")] == 1
    assert counts[series("start_delay_seconds_sum", cloud="pub")] == 10


def test_of_a_job_of_which_one_launch_cannot_be_read_it_is_not_told_how_long_it_waited(
    site: Site,
) -> None:
    for node, generation in (("pub1", f"g{(T - 200) * 1000:.0f}x"), ("pub2", "another's")):
        bought = offer(cloud="pub")
        made = spec(generation, (node,), site.pools["burst"], bought, jobs=(7,))
        site.ledger.launches.record_intent(made, "r1", T - 200)
        one = instance(f"i-{node}", node, generation, launched=T - 200, bought=bought)
        site.ledger.machines.record_launch(generation, [one], T - 200)
        site.ledger.machines.record_registration("pub", [one.id], T)
    site.ledger.usage.write(news(site, (), [replace(JOB, nodes=("pub1", "pub2"))], T + 20))
    counts = counted(site.config, site.ledger, T - 400, T + 100, T + 100)
    assert counts[series("start_delay_seconds_sum", cloud="pub")] == 10
    assert series("resume_to_running_seconds_sum", cloud="pub") not in counts


@pytest.mark.parametrize(("delay", "counts"), [(0, 1), (3600, 1), (3601, 0), (-1, 0)])
def test_a_job_that_starts_an_hour_after_its_machine_did_not_wait_for_it(
    site: Site, delay: float, counts: int
) -> None:
    site.ledger.machines.adopt(
        instance("i-1", "pub1", "g1", bought=offer(cloud="pub")), "burst", T - 5000
    )
    site.ledger.machines.record_registration("pub", ["i-1"], T + 10 - delay)
    site.ledger.usage.write(news(site, (), [replace(JOB, nodes=("pub1",))], T + 20))
    found = counted(site.config, site.ledger, T, T + 100, T + 100)
    assert found.get(series("start_delay_seconds_bucket", cloud="pub", le="+Inf"), 0) == counts


@pytest.mark.parametrize(("at", "counts"), [(T - 1, 0), (T, 1), (T + 99, 1), (T + 100, 0)])
def test_what_becomes_of_a_machine_counts_in_one_span(site: Site, at: float, counts: int) -> None:
    labels = {"cloud": "pub", "pool": "burst", "market": "spot"}
    one = instance("i-1", "pub1", "g1", launched=at, bought=offer(cloud="pub"))
    site.ledger.machines.adopt(one, "burst", at)
    site.ledger.machines.record_registration("pub", ["i-1"], at)
    site.ledger.machines.record_end("pub", ["i-1"], Quoted(text="gone"), at)
    found = counted(site.config, site.ledger, T, T + 100, T + 1000)
    names = (
        series("launched", **labels),
        series("ended", reason="lost", **labels),
        series("boot_seconds_bucket", cloud="pub", pool="burst", le="+Inf"),
    )
    assert [found.get(name, 0) for name in names] == [counts] * 3


class Settled:
    """A ledger that only knows until when all is counted."""

    end_only = ""

    def __init__(self, since: float | None) -> None:
        self.since = since
        self.until: list[float] = []
        self.usage = self

    def settled(self) -> float | None:
        return self.since

    def settle(self, until: float, _: object) -> None:
        self.until.append(until)


WEEK = 7 * 86400


@pytest.mark.parametrize(
    ("since", "until", "span"),
    [
        (None, [T - 120], None),
        (T + 1, [T - 120], None),
        (T, [], None),
        (T - 149, [], None),
        (T - 150, [T - 120], (T - 150, T - 120)),
        (T - 120 - WEEK, [T - 120], (T - 120 - WEEK, T - 120)),
        (T - 121 - WEEK, [T - 120], None),
    ],
    ids=["new", "the clock was set back", "now", "soon", "due", "a week", "too long"],
)
def test_two_minutes_later_each_span_of_half_a_minute_to_a_week_is_counted(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    since: float | None,
    until: list[float],
    span: tuple[float, float] | None,
) -> None:
    spans: list[tuple[object, ...]] = []
    monkeypatch.setattr(usage_counters, "counted", lambda *args: spans.append(args))
    ledger = Settled(since)
    usage_counters.settle(world.config, ledger, T)  # type: ignore[arg-type]
    assert ledger.until == until
    assert [args[2:] for args in spans] == ([(*span, T)] if span else [])


@pytest.mark.parametrize(("took", "due"), [(0.0, 60.0), (3.0, 60.0), (3.5, 70.0)])
def test_it_looks_once_a_minute_and_for_a_twentieth_of_the_time_at_most(
    site: Site, world: World, monkeypatch: pytest.MonkeyPatch, took: float, due: float
) -> None:
    looks = Looks(world, took)
    monkeypatch.setattr(UsageRecord, "look", looks)
    record = UsageRecord(dataclasses.replace(site, monotonic=lambda: world.now), Inline())
    assert looks.begun(record.task, due) == [-took, due]


@pytest.mark.parametrize(
    ("generation", "begin", "told"),
    [(f"g{T * 1000:.0f}x", T, 0.0), (f"g{T * 1000:.0f}x", T - 5, 0.0), ("another's", T, None)],
    ids=["at once", "the clock was set back", "unreadable"],
)
def test_how_long_a_job_waits_for_its_machine_is_never_less_than_nothing_nor_guessed(
    site: Site, generation: str, begin: float, told: float | None
) -> None:
    made = spec(generation, ("pub1",), site.pools["burst"], offer(cloud="pub"), jobs=(7,))
    site.ledger.launches.record_intent(made, "r1", T)
    one = instance("i-1", "pub1", generation, launched=T, bought=offer(cloud="pub"))
    site.ledger.machines.record_launch(generation, [one], T)
    site.ledger.machines.record_registration("pub", ["i-1"], begin - 1)
    site.ledger.usage.write(news(site, (), [replace(JOB, nodes=("pub1",), start=begin)], T + 20))
    found = counted(site.config, site.ledger, T - 10, T + 100, T + 100)
    assert found.get(series("resume_to_running_seconds_sum", cloud="pub")) == told
    assert found[series("boot_seconds_sum", cloud="pub", pool="burst")] == 0.0
    assert found[series("start_delay_seconds_sum", cloud="pub")] == 1.0


@pytest.mark.parametrize(("ago", "asked"), [(180, 1), (181, 0)])
def test_slurm_is_asked_for_three_minutes_after_the_last_machine(
    site: Site, world: World, ago: float, asked: int
) -> None:
    site.ledger.machines.adopt(instance("i-1", "pub1", "g1", bought=offer(cloud="pub")), "burst", T)
    site.ledger.machines.record_end("pub", ["i-1"], Quoted(text="gone"), world.now - ago)
    before = world.slurm.calls["jobs"]
    UsageRecord(site, Inline()).look()
    assert world.slurm.calls["jobs"] - before == asked


def test_reservations_are_recorded_also_without_machines(world: World) -> None:
    year = Reservation(
        name="year", begins_at=world.now - 60, ends_at=world.now + 60, type="small", count=1
    )
    clouds = tuple(replace(c, reservations=(year,)) for c in world.config.clouds if c.name == "pub")
    config = replace(world.config, clouds=clouds)
    site = Site.of(world.config, world.slurm, world.ledger, world.clouds, lambda: world.now)
    UsageRecord(dataclasses.replace(site, config=config), Inline()).look()
    counted_by_cloud = world.ledger.books.counted_reservations((), world.now)
    assert [held.name for held in counted_by_cloud["pub"]] == ["year"]


def test_nobody_is_asked_while_there_is_no_machine(site: Site, world: World) -> None:
    before = world.slurm.calls["jobs"]
    UsageRecord(site, Inline()).look()
    assert world.slurm.calls["jobs"] == before


def test_the_daemon_keeps_who_used_its_machines(world: World) -> None:
    world.slurm.submit(5, ["op1"], user="ann", uid=1000, account="physics")
    world.advance(200)
    (run,) = world.ledger.usage.open_runs()
    assert (run.job, run.user, run.shares) == (5, "ann", (("op1", 1_000_000),))
    world.slurm.finish(5)
    world.advance(120)
    assert world.ledger.usage.open_runs() == ()


def test_a_run_of_some_seconds_that_ends_by_a_requeue_is_charged(world: World) -> None:
    """Slurm's record of the job does not say that there was a run."""
    world.slurm.submit(5, ["op1"], user="ann", uid=1000, account="physics")
    while "RUNNING" not in world.slurm.queue()[5].states:
        world.advance(1, step=1)
    world.slurm.set_job(5, start=world.now)
    world.advance(61, step=1)  # the look of this minute is over
    began = world.now
    world.slurm.set_job(5, start=began, restarts=1)
    world.site.job_starts.note(world.site.monotonic())
    world.advance(23, step=1)
    world.slurm.set_job(5, "PENDING", start=world.now + 121, restarts=2, nodes=())
    world.advance(61, step=1)
    runs = [run for run in world.ledger.usage.runs(0, world.now) if run.begin == began]
    assert [(run.job, run.user) for run in runs] == [(5, "ann")]
    assert runs[0].end is not None
    assert 23 <= runs[0].end - began <= 90


@pytest.mark.parametrize(("took", "due"), [(0.0, 8.0), (1.0, 20.0)])
def test_a_start_is_looked_at_soon_but_never_for_more_than_a_twentieth_of_the_time(
    site: Site, world: World, monkeypatch: pytest.MonkeyPatch, took: float, due: float
) -> None:
    looks = Looks(world, took)
    monkeypatch.setattr(UsageRecord, "look", looks)
    moved = dataclasses.replace(site, monotonic=lambda: world.now)
    record = UsageRecord(moved, Inline())
    moved.job_starts.note(world.now + 5.0)
    assert looks.begun(record.task, due) == [-took, due]


def test_a_drained_node_is_noted_until_it_takes_jobs_again(site: Site, world: World) -> None:
    site.ledger.machines.adopt(instance("i-1", "pub1", "g1", bought=offer(cloud="pub")), "burst", T)
    drained = SlurmNode(name="pub1", states=frozenset({"IDLE", "DRAIN"}))
    idle = SlurmNode(name="pub1", states=frozenset({"IDLE"}))
    for now, node in ((T + 100, drained), (T + 100, drained), (T + 160, idle)):
        world.now = now
        snapshot = take_snapshot(site, build_terms(site, "pub"), {"pub1": node})
        apply(site, "pub", decide(snapshot, (RoundRule.DRAINS,)), snapshot)
    assert site.ledger.usage.drains(T, T + 1000) == (
        Drained(node="pub1", begin=T + 100, end=T + 160),
    )
    assert site.ledger.state().drains == ()


@pytest.fixture
def noting(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, accounting=BooksSettings(admin_comment=True))
    yield made
    made.close()


def test_the_cost_of_a_job_is_noted_at_its_end_beside_the_sites_words(noting: World) -> None:
    world = noting
    world.slurm.accounted[5] = "ticket 12"
    world.slurm.submit(5, ["pub1"], user="ann", uid=1000, account="physics")
    world.advance(200)
    assert world.slurm.accounted == {5: "ticket 12"}, "it runs"
    job = world.slurm.queue()[5]
    world.slurm.set_job(5, "COMPLETED", nodes=job.nodes, start=job.start, end=world.now,
                        user="ann", uid=1000, account="physics")  # fmt: skip
    seconds = world.now - job.start
    world.advance(120)
    (machine,) = world.ledger.machines.live()
    dollars = machine.instance.price * seconds / 3600
    (run,) = [r for r in world.ledger.usage.runs(0.0, world.now) if r.job == 5]
    assert run.end is not None
    note = world.slurm.accounted[5]
    assert note.startswith("ticket 12 [slurm-elastic cost=$0.00")
    assert note.endswith(" market=spot]")
    assert float(note.partition("$")[2].split()[0]) == pytest.approx(dollars, rel=0.1)


def test_what_a_job_costs_is_that_of_all_its_runs_and_of_no_other_job(
    site: Site, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hour, world.now = 3600.0, T
    for node, market, begin, end in (
        ("pub1", Market.SPOT, T - 3 * hour, T - hour),
        ("pub2", Market.ON_DEMAND, T - hour, T),
    ):
        bought = offer(cloud="pub", market=market, price=0.5)
        one = instance(f"i-{node}", node, "g1", launched=begin, bought=bought)
        site.ledger.machines.adopt(one, "burst", begin)
        site.ledger.machines.record_end("pub", [one.id], Quoted(text="gone"), end)
    whole = replace(JOB, allocated="cpu=2")
    for number, node, begin in (
        (7, "pub1", T - 3 * hour), (8, "pub1", T - 2 * hour), (7, "pub2", T - hour)
    ):  # fmt: skip
        run = run_of(site, replace(whole, id=number, nodes=(node,), start=begin))
        assert run is not None
        site.ledger.usage.write([replace(run, end=begin + hour)])
    # The ledger may keep millions of runs, and nobody else may use it while they are read.
    read = site.ledger.usage.runs
    monkeypatch.setattr(
        site.ledger.usage,
        "runs",
        lambda begin, end: read(begin, end) if begin > 0.0 else pytest.fail("all runs are read"),
    )
    ((job, (micro, markets)),) = costs_of(site, {7: 1000}).items()
    assert (job, markets) == (7, {"spot", "on-demand"})
    assert micro == pytest.approx(1_000_000, rel=0.01)
    assert costs_of(site, {7: 1001}) == {}, "a number that came again, of another user"


def test_where_slurmdbd_refuses_nothing_is_noted_and_the_runs_are_kept(
    noting: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = noting

    def refuse(*_: object) -> None:
        raise SlurmError(("sacctmgr",), 1, "You are not running a supported accounting_storage")

    world.slurm.set_accounted_comment = refuse  # type: ignore[method-assign,assignment]
    world.slurm.submit(5, ["pub1"], user="ann", uid=1000)
    world.advance(200)
    job = world.slurm.queue()[5]
    world.slurm.set_job(5, "COMPLETED", nodes=job.nodes, start=job.start, end=world.now, user="ann")
    world.advance(120)
    assert world.ledger.usage.open_runs() == ()
    assert world.slurm.accounted == {}
    assert "costs are not noted in AdminComment jobs=1 error=sacctmgr" in caplog.text


def test_a_machine_is_tagged_with_whose_it_is(world: World) -> None:
    world.slurm.submit(5, ["pub1"], user="ann", account="physics")
    world.advance(5)
    (machine,) = world.ledger.machines.live()
    launch = world.ledger.launches.get(machine.instance.generation)
    assert launch is not None
    assert launch.owner == {"account": "physics", "user": "ann"}
    assert rebuild_spec(world.site, launch).owner == launch.owner, "a repeated call is the same"
