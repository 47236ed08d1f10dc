"""Accounts over their budget: no new machine for their jobs, all else goes on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import Timings
from slurm_elastic.config.sections.access import Who
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.controller.launching.budget import read_payer_spending, read_spending
from slurm_elastic.features.money.budget_enforcement import enforce
from slurm_elastic.features.money.usage_record import PERIOD_S
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.changed_jobs import Barred, ChangedJob, JobValues
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.model.job_key import JobKey
from slurm_elastic.policies.money.account_budgets import Overdrawn
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.client import fake_timed
from tests.controller.world import PUB, SHAPE, World, make_config

OWN = "own1"
SMALL = Budget(per_day=0.02)
"""Twelve minutes of a machine."""


@pytest.fixture
def make() -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def world(booting: int | None = None, **site: Any) -> World:
        """A public cloud with a pool of three, and a node of the site's own in partition main."""
        plain = make_config(Path("/nonexistent"))
        pub = FakeCloud(
            name="pub", location=Location.PUBLIC, types=SHAPE, limits=Limits(dollars_per_hour=10.0)
        )
        site.setdefault("poll_interval", 5.0)
        site.setdefault("account_budgets", {"physics": SMALL})
        one = World(
            allow=Who(accounts=("physics", "chemistry")),
            clouds=(pub,),
            pools=(replace(plain.pools[1], markets=(Market.ON_DEMAND,), max_booting=booting),),
            limits=Limits(),
            policies=SitePolicies(**site),
            timings=Timings(suspend_time=60, suspend_timeout=30, resume_timeout=600),
        )
        for name in PUB:
            one.slurm.set_node(name, partitions=("pub",))
        one.slurm.set_node(OWN, "DOWN", partitions=("main",))
        made.append(one)
        return one

    yield world
    for one in made:
        one.close()


def submit(world: World, job: int, account: str, count: int = 1, **fields: Any) -> None:
    given = {"partitions": ("pub",), "limit": 3600, "node_count": count} | fields
    world.slurm.submit(job, (*PUB, OWN), count, account=account, **given)


def running(world: World) -> list[int]:
    return sorted(j.id for j in world.slurm.queue().values() if "RUNNING" in j.states)


def up(world: World) -> list[str]:
    return [n for n in PUB if phase(world.slurm.node(n)) is Phase.UP]


def overdraw(world: World) -> None:
    """Physics runs job 1 for longer than its budget lasts."""
    submit(world, 1, "physics")
    world.advance(900)
    assert running(world) == [1]


def own_node_is_free(world: World) -> None:
    world.slurm.set_node(OWN, "IDLE")
    world.slurm.set_since(OWN, world.now + 1e9)  # nobody powers it down


def whys(world: World, job: int, kind: str) -> list[str]:
    return [str(d.reason) for d in world.ledger.decisions.about(f"job:{job}") if d.kind == kind]


def test_its_jobs_wait_for_the_next_day_others_go_on_and_so_do_running_ones(
    make: Callable[..., World],
) -> None:
    world = make()
    overdraw(world)
    submit(world, 2, "chemistry")
    world.advance(30)
    world.now += 1  # slurmctld gives nothing to this one before the look has seen it
    world.slurm.set_job(3, "PENDING", account="physics", partitions=("pub",), submit=world.now)
    world.slurm.set_wish(3, PUB)
    world.tick()
    world.advance(60)
    assert running(world) == [1, 2]
    assert len(world.alive()) == 2
    (why,) = whys(world, 3, "set-aside")
    assert "account physics has spent $0.0259 of $0.02 today; new machines from 20" in why
    assert world.slurm.queue()[3].reason == "BeginTime"
    world.slurm.finish(1)
    midnight = world.now - world.now % 86400 + 86400
    world.advance(midnight - world.now + 60, step=120)
    assert 3 in running(world), "a new day, a new budget"
    assert whys(world, 3, "let-back") == []
    assert world.ledger.changed_jobs.all() == ()


def test_what_slurmctld_gave_its_job_in_between_is_refused_once_and_nobody_else_loses_a_node(
    make: Callable[..., World],
) -> None:
    world = make()
    overdraw(world)
    before = len(world.requests)
    submit(world, 2, "physics", count=2)
    submit(world, 3, "chemistry")
    assert len(world.requests) == before + 1, "slurmctld has powered both nodes up"
    world.advance(120)
    assert running(world) == [1, 3]
    assert len(world.alive()) == 2
    kinds = [d.kind for d in world.ledger.decisions.about("job:2")]
    assert kinds.count("refused") == 1
    assert kinds.count("set-aside") == 1
    assert world.ledger.exclusions.holds() == ()
    assert world.slurm.queue()[2].start > world.now + 600


def test_a_job_that_has_begun_to_boot_gets_the_rest_of_its_machines(
    make: Callable[..., World],
) -> None:
    """One machine boots at a time, and the first spends the budget."""
    world = make(booting=1, account_budgets={"physics": Budget(per_day=0.001)})
    submit(world, 1, "physics", count=3)
    world.advance(120)
    assert running(world) == [1]
    submit(world, 2, "physics")
    world.advance(60)
    assert whys(world, 1, "refused") == []
    assert whys(world, 2, "set-aside")


def test_a_job_that_may_start_elsewhere_too_moves_there_and_comes_back(
    make: Callable[..., World],
) -> None:
    world = make()
    overdraw(world)
    submit(world, 2, "physics", partitions=("main", "pub"))
    world.advance(30)
    job = world.slurm.queue()[2]
    assert (job.partitions, job.reason) == (("main",), "None"), "it need not wait out its requeue"
    assert "it may start in main" in whys(world, 2, "set-aside")[0]
    submit(world, 3, "physics", partitions=("main", "pub"))
    world.advance(60)
    own_node_is_free(world)
    world.advance(30)
    assert running(world) == [1, 2]
    assert world.slurm.queue()[2].nodes == (OWN,)
    world.stop()
    world.config = replace(world.config, policies=SitePolicies(poll_interval=5.0))
    world.start()
    world.advance(60)
    assert 3 in running(world), "there are no budgets any more"
    assert whys(world, 3, "let-back") == ["its account and user may start new machines again"]
    assert [row.key.number for row in world.ledger.changed_jobs.all()] == [2], (
        "it may be requeued yet"
    )
    world.slurm.finish(2)
    world.advance(30)
    assert world.ledger.changed_jobs.all() == ()
    before = world.slurm.calls["jobs"]
    world.advance(300)
    looks = world.slurm.calls["jobs"] - before
    assert looks <= 300 / PERIOD_S + 1, "then only who uses the machines is looked at any more"


def test_a_list_that_its_user_gives_a_job_meanwhile_is_kept(make: Callable[..., World]) -> None:
    world = make()
    overdraw(world)
    submit(world, 2, "physics", count=3, partitions=("main", "pub"))
    world.advance(30)
    assert world.slurm.queue()[2].partitions == ("main",)
    world.stop()
    world.slurm.change_pending((2,), partitions=("pub",))
    world.config = replace(world.config, policies=SitePolicies(poll_interval=5.0))
    world.start()
    world.advance(60)
    assert world.slurm.queue()[2].partitions == ("pub",)
    assert world.ledger.changed_jobs.all() == ()


def spent(world: World, seconds: float) -> dict[str, Overdrawn]:
    """Physics may start nothing for so long."""
    cause = Quoted(text="physics has spent it")
    return {"account:physics": Overdrawn(world.now + seconds, cause)}


def look(world: World, over: dict[str, Overdrawn]) -> None:
    enforce(world.site, world.slurm.jobs(), over)


def waits(world: World, job: int, **fields: Any) -> None:
    world.slurm.set_job(job, "PENDING", account="physics", submit=world.now, **fields)


def test_the_list_that_a_user_gives_a_narrowed_job_comes_back(make: Callable[..., World]) -> None:
    world = make()
    over = spent(world, 7200)
    waits(world, 7, partitions=("main", "other", "pub"))
    look(world, over)
    world.slurm.change_pending((7,), partitions=("main", "pub"))
    look(world, over)
    assert world.slurm.queue()[7].partitions == ("main",)
    look(world, {})
    assert world.slurm.queue()[7].partitions == ("main", "pub")
    look(world, {})
    assert world.ledger.changed_jobs.all() == ()


def test_a_list_that_its_user_has_replaced_does_not_come_back(make: Callable[..., World]) -> None:
    """The user leaves only the public cloud, so the job waits. Then the user moves it to main."""
    world = make()
    over = spent(world, 7200)
    waits(world, 7, partitions=("main", "pub"))
    look(world, over)
    world.slurm.change_pending((7,), partitions=("pub",))
    look(world, over)
    world.slurm.change_pending((7,), partitions=("main",))
    look(world, {})
    assert world.slurm.queue()[7].partitions == ("main",)


@pytest.mark.parametrize(("first", "later"), [(0.0, 3600.0), (3000.0, 3600.0), (3600.0, 3000.0)])
def test_a_begin_time_that_its_user_gives_a_deferred_job_comes_back(
    make: Callable[..., World], first: float, later: float
) -> None:
    world = make()
    over = spent(world, 7200)
    begin = {"reason": "BeginTime", "eligible": world.now + first} if first else {}
    waits(world, 7, partitions=("pub",), **begin)
    look(world, over)
    asked = world.now + later
    world.now += 60
    world.slurm.change_pending((7,), begin_in=asked - world.now)
    look(world, over)
    assert world.slurm.queue()[7].begin > asked + 600
    world.now += 60
    look(world, {})
    assert world.slurm.queue()[7].begin == pytest.approx(asked, abs=10)


def test_a_begin_time_that_we_or_slurm_have_set_is_not_taken_for_its_users(
    make: Callable[..., World],
) -> None:
    world = make()
    asked = world.now + 3000
    waits(world, 7, partitions=("pub",), reason="BeginTime", eligible=asked)
    look(world, spent(world, 7200))
    look(world, spent(world, 30 * 86400))
    assert [row.own.begin for row in world.ledger.changed_jobs.all()] == [asked]
    requeued = world.now + 121
    world.slurm.set_job(7, restarts=1, reason="BeginTime", start=requeued, eligible=requeued)
    look(world, spent(world, 7200))
    assert [row.own.begin for row in world.ledger.changed_jobs.all()] == [asked]


def test_a_task_that_has_left_its_narrowed_array_gets_its_list_back(
    make: Callable[..., World],
) -> None:
    """Slurm gives a task a job id of its own when it starts. It may be requeued much later."""
    world = make()
    over = spent(world, 7200)
    waits(world, 100, array=100, partitions=("main", "pub"))
    look(world, over)
    world.slurm.set_job(101, "RUNNING", array=100, task=1, account="physics", partitions=("main",))
    look(world, over)
    look(world, {})
    assert world.slurm.queue()[100].partitions == ("main", "pub")
    look(world, {})
    assert [row.key.number for row in world.ledger.changed_jobs.all()] == [101]
    world.slurm.remove_job(100)
    look(world, {})
    waits(world, 101)
    look(world, {})
    assert world.slurm.queue()[101].partitions == ("main", "pub")
    look(world, {})
    assert world.ledger.changed_jobs.all() == ()


def test_a_task_of_an_array_that_has_left_the_queue_gets_its_list_back(
    make: Callable[..., World],
) -> None:
    """The array's own id is that of its last task, which may end before the others."""
    world = make()
    waits(world, 100, array=100, partitions=("main", "pub"))
    look(world, spent(world, 7200))
    world.slurm.remove_job(100)
    waits(world, 101, array=100, task=1, partitions=("main",))
    look(world, {})
    assert world.slurm.queue()[101].partitions == ("main", "pub")


def test_a_task_keeps_the_list_that_its_user_has_given_it(make: Callable[..., World]) -> None:
    world = make()
    waits(world, 100, array=100, partitions=("main", "pub"))
    look(world, spent(world, 7200))
    waits(world, 101, array=100, task=1, partitions=("other",))
    look(world, {})
    assert world.slurm.queue()[101].partitions == ("other",)


def test_a_list_comes_back_though_a_cloud_of_it_has_left_the_configuration(
    make: Callable[..., World],
) -> None:
    world = make()
    overdraw(world)
    submit(world, 2, "physics", count=3, partitions=("main", "gone", "pub"))
    world.advance(30)
    assert world.slurm.queue()[2].partitions == ("main", "gone")
    (row,) = world.ledger.changed_jobs.all()
    latest = replace(row.latest, partitions=("main",))  # as if gone had been public then
    world.ledger.changed_jobs.keep([replace(row, latest=latest)])
    world.slurm.change_pending((2,), partitions=("main",))
    restart(world, SitePolicies(poll_interval=5.0))
    world.advance(60)
    assert world.slurm.queue()[2].partitions == ("main", "gone", "pub")


def test_a_job_that_its_user_moves_out_of_the_public_clouds_may_begin(
    make: Callable[..., World],
) -> None:
    world = make()
    over = spent(world, 7200)
    waits(world, 7, partitions=("pub",))
    look(world, over)
    assert world.slurm.queue()[7].begin > world.now + 600
    world.slurm.change_pending((7,), partitions=("main",))
    look(world, over)
    assert world.slurm.queue()[7].begin <= world.now
    look(world, over)
    assert world.ledger.changed_jobs.all() == ()


def test_its_own_begin_time_is_kept(make: Callable[..., World]) -> None:
    world = make()
    overdraw(world)
    begin = world.now + 3000
    submit(world, 2, "physics", start=begin, reason="BeginTime")
    world.advance(30)
    assert world.slurm.queue()[2].start > begin
    world.stop()
    world.config = replace(
        world.config,
        policies=SitePolicies(poll_interval=5.0, account_budgets={"physics": Budget(per_day=9)}),
    )
    world.start()
    world.advance(30)
    assert world.slurm.queue()[2].start == pytest.approx(begin, abs=10)
    far = world.now + 30 * 86400
    submit(world, 3, "physics", start=far, reason="BeginTime")
    world.advance(30)
    assert world.slurm.queue()[3].start == far


def test_slurms_estimate_is_not_taken_for_a_begin_time_of_its_own(
    make: Callable[..., World],
) -> None:
    """22.05 shows one of a job that waits for Resources, beside when it may start (measured)."""
    world = make()
    overdraw(world)
    estimate = world.now + 3000
    submit(world, 2, "physics", start=estimate, eligible=world.now - 10, reason="Resources")
    world.advance(30)
    (row,) = world.ledger.changed_jobs.all()
    assert row.own.begin == 0.0
    assert world.slurm.queue()[2].reason == "BeginTime"
    world.stop()
    world.config = replace(
        world.config,
        policies=SitePolicies(poll_interval=5.0, account_budgets={"physics": Budget(per_day=9)}),
    )
    world.start()
    world.advance(60)
    assert world.slurm.queue()[2].begin <= world.now


def test_a_job_that_goes_over_to_another_account_is_let_back(make: Callable[..., World]) -> None:
    world = make()
    overdraw(world)
    submit(world, 2, "physics")
    world.advance(60)
    assert whys(world, 2, "set-aside")
    world.slurm.set_job(2, account="chemistry")
    world.advance(60)
    assert running(world) == [1, 2]
    assert world.ledger.machines.live()[-1].accounts == {"chemistry": 1}


def test_who_is_set_aside_and_let_back_is_in_the_log(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = make()
    world.slurm.set_job(7, "PENDING", account="physics", partitions=("pub",))
    over = {"account:physics": Overdrawn(world.now + 5000, Quoted(text="physics has spent it"))}
    enforce(world.site, world.slurm.jobs(), over)
    assert "jobs deferred jobs=['7'] reason=physics has spent it" in caplog.text
    enforce(world.site, world.slurm.jobs(), {})
    assert "deferred jobs restored jobs=['7'] reason=its account and user may start" in caplog.text
    look(world, {})
    assert world.ledger.changed_jobs.all() == ()


@pytest.mark.parametrize(
    ("states", "partitions", "begin", "aside"),
    [
        ("PENDING", ("pub",), 0.0, True),
        ("PENDING", ("pub", "main"), 0.0, True),
        ("PENDING", ("main",), 0.0, False),
        ("RUNNING", ("pub",), 0.0, False),
        ("PENDING COMPLETING", ("pub",), 0.0, False),
        ("PENDING", ("pub",), 4939.0, True),
        ("PENDING", ("pub",), 4940.0, False),
        ("PENDING", ("pub",), 5000.0, False),
    ],
)
def test_only_what_might_get_a_node_of_a_public_cloud_before_is_set_aside(
    make: Callable[..., World], states: str, partitions: tuple[str, ...], begin: float, aside: bool
) -> None:
    world = make()
    over = {"account:physics": Overdrawn(world.now + 5000, Quoted(text="physics has spent it"))}
    start = world.now + begin if begin else 0.0
    world.slurm.set_job(
        7, *states.split(), account="physics", partitions=partitions, start=start, eligible=start,
        reason="BeginTime" if begin else "",
    )  # fmt: skip
    enforce(world.site, world.slurm.jobs(), over)
    assert bool(world.ledger.changed_jobs.all()) is aside


def test_a_job_that_may_start_elsewhere_keeps_the_begin_time_that_its_user_gave(
    make: Callable[..., World],
) -> None:
    world = make()
    own = world.now + 1000
    world.slurm.set_job(
        7, "PENDING", account="physics", partitions=("main", "pub"), start=own, eligible=own,
        reason="BeginTime",
    )  # fmt: skip
    over = {"account:physics": Overdrawn(world.now + 5000, Quoted(text="physics has spent it"))}
    enforce(world.site, world.slurm.jobs(), over)
    (job,) = [job for job in world.slurm.jobs() if job.id == 7]
    assert (job.partitions, job.begin) == (("main",), own)


@pytest.mark.parametrize(("begin", "aside"), [(0.0, True), (1.0, False)])
def test_a_job_that_may_begin_now_is_set_aside_also_in_the_last_minute(
    make: Callable[..., World], begin: float, aside: bool
) -> None:
    world = make()
    over = {"account:physics": Overdrawn(world.now + 30, Quoted(text="physics has spent it"))}
    world.slurm.set_job(
        7, "PENDING", account="physics", partitions=("pub",), eligible=world.now + begin
    )
    enforce(world.site, world.slurm.jobs(), over)
    assert bool(world.ledger.changed_jobs.all()) is aside


@pytest.mark.parametrize(("off", "back"), [(60.0, True), (-60.0, True), (61.0, False)])
def test_only_the_begin_time_that_we_gave_is_taken_back(
    make: Callable[..., World], off: float, back: bool
) -> None:
    world = make()
    until = world.now + 5000
    row = ChangedJob(
        key=JobKey(number=7), own=JobValues(partitions=("pub",)),
        latest=JobValues(partitions=("pub",), begin=until), wishes=(Barred(until=until),),
    )  # fmt: skip
    world.ledger.changed_jobs.keep([row])
    world.slurm.set_job(
        7, "PENDING", account="physics", partitions=("pub",), start=until + off,
        eligible=until + off, reason="BeginTime",
    )  # fmt: skip
    enforce(world.site, world.slurm.jobs(), {})
    assert (world.slurm.jobs()[-1].begin <= world.now) is back
    look(world, {})
    assert world.ledger.changed_jobs.all() == ()


def test_a_request_that_is_refused_for_a_budget_is_in_the_log(
    make: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = make()
    overdraw(world)
    submit(world, 2, "physics")
    world.tick()
    assert "nodes=pub2 reason=account physics has spent" in caplog.text


def test_a_job_that_is_cancelled_before_its_request_is_read_gets_no_machine(
    make: Callable[..., World],
) -> None:
    world = make()
    overdraw(world)
    submit(world, 2, "physics")
    world.slurm.finish(2)
    world.advance(60)
    assert [machine.node for machine in world.alive()] == ["pub1"], "that of the running job"
    (refused,) = [d for d in world.ledger.decisions.about("pub2") if d.kind == "refused"]
    assert str(refused.reason) == "the jobs that it was to serve have left the queue"
    world.advance(300)
    submit(world, 3, "chemistry")
    world.advance(60)
    assert running(world) == [1, 3], "its node serves others"


def test_a_job_that_gets_the_node_of_a_cancelled_one_is_asked_and_charged(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """slurmctld gives a node that boots to the next job if its own job has left the queue."""
    monkeypatch.setattr(
        fake_timed, "_usable",
        lambda node: "IDLE" in node.states and not node.states & {"DRAIN", "POWER_DOWN"},
    )  # fmt: skip
    world = make(booting=1)
    overdraw(world)
    world.slurm.finish(1)
    world.advance(200)
    world.hears = False  # a slow boot
    for job in (2, 3, 4):
        submit(world, job, "chemistry")
    world.advance(8)
    waits_for = {job: world.slurm.queue()[job].nodes for job in (3, 4)}
    for job, account in ((3, "physics"), (4, "biology")):
        world.slurm.finish(job)
        world.slurm.submit(
            job + 10, waits_for[job], 1, account=account, partitions=("pub",), limit=3600,
            node_count=1,
        )  # fmt: skip
    assert {job + 10: nodes for job, nodes in waits_for.items()} == {
        job: world.slurm.queue()[job].nodes for job in (13, 14)
    }
    world.hears = True
    world.advance(240)
    assert 13 not in running(world)
    assert 14 in running(world)
    shares = {m.instance.node: m.accounts for m in world.ledger.machines.live()}
    assert shares[waits_for[4][0]] == {"biology": 1}


def test_a_job_that_is_refused_for_a_budget_is_not_started_at_once_elsewhere(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    overdraw(world)
    hurried: list[bool] = []
    expect = world.site.requeues.expect

    def expected(*args: Any, hurry: bool = True) -> None:
        hurried.append(hurry)
        expect(*args, hurry=hurry)

    monkeypatch.setattr(world.site.requeues, "expect", expected)
    submit(world, 2, "physics")
    world.tick()
    assert hurried == [False]


def test_a_no_requeue_job_gets_its_own_setting_back(make: Callable[..., World]) -> None:
    world = make()
    overdraw(world)
    submit(world, 2, "physics", requeue=False)
    world.advance(60)
    job = world.slurm.queue()[2]
    assert (job.requeue, job.states) == (False, frozenset({"PENDING"}))
    assert world.ledger.requeues.lifted() == ()
    assert job.start > world.now + 600


def test_machines_started_ahead_are_paid_by_those_who_waited(make: Callable[..., World]) -> None:
    world = make(growth="on_demand", release="idle(seconds=30)")
    world.advance(20)
    submit(world, 1, "physics")
    world.advance(900)
    assert running(world) == [1]
    assert world.ledger.machines.live()[0].accounts == {"physics": 1}
    submit(world, 2, "physics")
    submit(world, 3, "chemistry")
    submit(world, 4, "")
    world.advance(60)
    assert running(world) == [1, 3, 4], "what a policy starts is not for physics either"
    assert len(world.alive()) == 3
    shares = [m.accounts for m in world.ledger.machines.live()]
    assert shares == [{"physics": 1}, *[{"(none)": 1, "chemistry": 1}] * 2]
    assert whys(world, 2, "set-aside")


def test_a_machine_is_not_paid_by_a_job_that_waits_for_an_earlier_one(
    make: Callable[..., World],
) -> None:
    world = make(growth="on_demand", release="idle(seconds=30)")
    world.advance(20)
    for job, account in ((1, "physics"), (2, "chemistry")):
        submit(world, job, account)
        while len(world.alive()) < job:
            world.advance(5)
            assert running(world) == [], "both wait"
    shares = [machine.accounts for machine in world.ledger.machines.live()]
    assert shares == [{"physics": 1}, {"chemistry": 1}]


def test_the_accounts_together_have_spent_what_the_cluster_has(make: Callable[..., World]) -> None:
    rich = Budget(per_day=100.0)
    budgets = {"physics": rich, "chemistry": rich, "(none)": rich}
    world = make(account_budgets=budgets, budget=rich)
    submit(world, 1, "physics", count=2)
    world.advance(100)
    submit(world, 2, "")
    world.advance(1000)
    world.slurm.finish(1)
    world.advance(300)
    submit(world, 3, "chemistry")
    world.advance(50)
    assert len(world.ledger.machines.live(ended_since=0.0)) == 4
    whole = read_spending(world.config, world.ledger, world.now)[""]
    found = read_payer_spending(world.config, world.ledger, world.now)
    assert sum(own.day for own in found.values()) == pytest.approx(whole.day, abs=1e-6)
    assert sum(own.month for own in found.values()) == pytest.approx(whole.month, abs=1e-6)
    physics, nobody, chemistry = (
        found[f"account:{name}"].day for name in ("physics", "(none)", "chemistry")
    )
    assert physics > nobody > chemistry > 0


def test_a_user_over_their_budget_waits_and_the_others_of_the_account_go_on(
    make: Callable[..., World],
) -> None:
    world = make(account_budgets={}, user_budgets={"alice": SMALL})
    submit(world, 1, "physics", user="alice")
    world.advance(900)
    assert running(world) == [1]
    assert world.ledger.machines.live()[0].accounts == {"physics/alice": 1}
    submit(world, 2, "chemistry", user="alice")
    submit(world, 3, "physics", user="bob")
    world.advance(60)
    assert running(world) == [1, 3]
    (why,) = whys(world, 2, "set-aside")
    assert "user alice has spent $0.025 of $0.02 today; new machines from 20" in why
    world.slurm.finish(1)
    midnight = world.now - world.now % 86400 + 86400
    world.advance(midnight - world.now + 60, step=120)
    assert 2 in running(world)


def test_the_budget_that_keeps_a_job_longest_is_the_one_that_is_told(
    make: Callable[..., World],
) -> None:
    world = make(user_budgets={"alice": Budget(per_month=0.02)})
    submit(world, 1, "physics", user="alice")
    world.advance(900)
    submit(world, 2, "physics", user="alice")
    submit(world, 3, "physics", user="bob")
    world.advance(60)
    assert "user alice has spent" in whys(world, 2, "set-aside")[0]
    assert "account physics has spent" in whys(world, 3, "set-aside")[0]
    assert world.slurm.queue()[2].begin > world.slurm.queue()[3].begin


def test_a_partition_that_refuses_a_job_lets_it_wait(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    overdraw(world)
    change = world.slurm.change_pending

    def refuses(jobs: Any, *, partitions: Any = (), begin_in: float | None = None) -> None:
        if partitions:
            text = "Requested time limit is invalid for job 2"
            raise SlurmError(("scontrol", "update"), 1, text)
        change(jobs, begin_in=begin_in)

    monkeypatch.setattr(world.slurm, "change_pending", refuses)
    submit(world, 2, "physics", partitions=("main", "pub"))
    world.advance(60)
    job = world.slurm.queue()[2]
    assert job.partitions == ("main", "pub")
    assert job.start > world.now + 600
    (row,) = world.ledger.changed_jobs.all()
    assert row.latest.partitions == row.own.partitions


def test_a_job_that_is_refused_again_still_gets_its_own_begin_time_back(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set aside until the end of the day, then of the month: what its user asked for is not lost."""
    world = make()
    overdraw(world)
    change = world.slurm.change_pending

    def refuses(jobs: Any, *, partitions: Any = (), begin_in: float | None = None) -> None:
        if partitions:
            raise SlurmError(("scontrol", "update"), 1, "Requested time limit is invalid")
        change(jobs, begin_in=begin_in)

    monkeypatch.setattr(world.slurm, "change_pending", refuses)
    own = world.now + 3000
    later = {"start": own, "eligible": own, "reason": "BeginTime"}
    submit(world, 2, "physics", partitions=("main", "pub"), **later)
    world.advance(60)
    (first,) = world.ledger.changed_jobs.all()
    monthly = SitePolicies(poll_interval=5.0, account_budgets={"physics": Budget(per_month=0.02)})
    restart(world, monthly)
    world.advance(60)
    (row,) = world.ledger.changed_jobs.all()
    assert row.latest.begin > first.latest.begin, "it waits for the next month by now"
    assert row.own.begin == pytest.approx(own)
    restart(world, SitePolicies(poll_interval=5.0, growth="slurm"))
    world.advance(60)
    assert world.slurm.queue()[2].begin == pytest.approx(own, abs=10)
    assert world.ledger.changed_jobs.all() == ()


def restart(world: World, policies: SitePolicies) -> None:
    world.stop()
    world.config = replace(world.config, policies=policies)
    world.start()


def test_what_slurm_does_not_give_back_now_is_tried_again(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    overdraw(world)
    submit(world, 2, "physics", partitions=("main", "pub"))
    submit(world, 3, "physics", partitions=("main", "pub"))
    world.advance(30)
    change = world.slurm.change_pending

    def refuses(jobs: Any, **fields: Any) -> None:
        if 2 in jobs:
            raise SlurmError(("scontrol", "update"), 1, "Access/permission denied for job 2")
        change(jobs, **fields)

    with monkeypatch.context() as patched:
        patched.setattr(world.slurm, "change_pending", refuses)
        restart(world, SitePolicies(poll_interval=5.0, growth="slurm"))
        world.advance(60)
        assert 3 in running(world)
        assert [row.key.number for row in world.ledger.changed_jobs.all()] == [2]
        assert whys(world, 2, "let-back") == []
    world.advance(60)
    assert 2 in running(world)
    assert world.ledger.changed_jobs.all() == ()


HANGS = SlurmError(("squeue",), None, "no answer")
STOPPED = SlurmError(("squeue",), 0, "slurm_load_jobs: Unspecified error (-1)")


@pytest.mark.parametrize("away", [HANGS, STOPPED])
def test_an_unreachable_slurm_ends_the_look_and_the_next_one_goes_on(
    make: Callable[..., World], away: SlurmError
) -> None:
    world = make()
    overdraw(world)
    world.slurm.set_job(3, "PENDING", account="physics", partitions=("pub",), submit=world.now)
    world.slurm.broken = away
    world.advance(60)
    world.slurm.broken = None
    world.advance(60)
    assert whys(world, 3, "set-aside")


@pytest.mark.parametrize("away", [HANGS, STOPPED])
def test_no_job_that_is_set_aside_is_forgotten_while_slurm_is_unreachable(
    make: Callable[..., World], away: SlurmError
) -> None:
    world = make()
    overdraw(world)
    world.slurm.set_job(3, "PENDING", account="physics", partitions=("pub",), submit=world.now)
    world.advance(60)
    before = world.ledger.changed_jobs.all()
    assert [row.key.number for row in before] == [3]
    world.slurm.broken = away
    world.advance(600)
    assert world.ledger.changed_jobs.all() == before


@pytest.mark.parametrize("away", [HANGS, STOPPED])
def test_a_change_that_got_no_answer_is_no_refusal_and_is_not_tried_job_by_job(
    make: Callable[..., World], away: SlurmError
) -> None:
    """Each try would take slurmctld's time-out, and the jobs would count as ones that cannot be."""
    world = make()
    overdraw(world)
    for job in (3, 4, 5):
        world.slurm.set_job(
            job, "PENDING", account="physics", partitions=("pub",), submit=world.now
        )
    asked: list[int] = []

    def gives_no_answer(jobs: Sequence[int], **_: object) -> None:
        asked.append(len(jobs))
        raise away

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(world.slurm, "change_pending", gives_no_answer)
        world.advance(6)
    assert asked
    assert set(asked) == {3}
