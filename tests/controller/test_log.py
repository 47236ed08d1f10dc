"""The log of the daemon: each thing that goes wrong, or is decided, has its line for who looks."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import (
    AuthError,
    InstanceNotFound,
    ProviderError,
    SlurmError,
    TransientError,
)
from slurm_elastic.config import Timings
from slurm_elastic.controller import holds
from slurm_elastic.controller.adoption import adopt, record_ended_unadopted
from slurm_elastic.controller.apply import apply
from slurm_elastic.controller.context import new_generation
from slurm_elastic.controller.ending import terminate
from slurm_elastic.controller.launching.boots import record_boot_failures, reopen_pools
from slurm_elastic.controller.launching.launch import end_far_exclusions, launch
from slurm_elastic.controller.reconcile import Round
from slurm_elastic.controller.snapshot import build_terms, take_snapshot
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec, Market
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.exclusion import BREAKER, COOL_DOWN, Exclusion
from slurm_elastic.policies import actions
from slurm_elastic.policies.repair.cluster_snapshot import ClusterSnapshot
from slurm_elastic.state.ledger import Machine
from tests.controller.world import World

LATE = SlurmError(("scontrol",), 1, "Access/permission denied")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[str], list[str]]:
    """The levels at which a line that begins so was written."""
    caplog.set_level(logging.DEBUG)
    return lambda line: [r.levelname for r in caplog.records if r.getMessage().startswith(line)]


def fails(error: Exception) -> Callable[..., None]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def one(world: World, ident: str = "i-1", node: str = "pub1", **fields: object) -> Instance:
    made = Instance(
        id=ident, cloud="pub", node=node, generation=new_generation(world.now),
        instance_type="small", zone="zone-1", market=Market.SPOT, price=0.03,
        state=InstanceState.RUNNING, launched=world.now,
    )  # fmt: skip
    return replace(made, **fields)


def row(world: World, ident: str = "i-1", node: str = "pub1") -> Machine:
    world.ledger.machines.adopt(one(world, ident, node), "burst", world.now)
    return next(m for m in world.ledger.machines.live() if m.instance.id == ident)


def spec(world: World) -> LaunchSpec:
    pool = world.site.pools["burst"]
    offer = world.clouds["pub"].offers(pool)[0]
    made = LaunchSpec(generation=new_generation(world.now), pool=pool, nodes=("pub1",), offer=offer)
    world.ledger.launches.record_intent(made, "r1", world.now)
    return made


def snapshot(world: World, listed: Sequence[Instance] | None = None) -> ClusterSnapshot:
    found = None if listed is None else tuple(listed)
    return take_snapshot(world.site, build_terms(world.site, "pub"), world.slurm.nodes(), found)


# repair


def test_a_lost_machine_and_its_jobs(world: World, said: Callable[[str], list[str]]) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    (machine,) = world.alive()
    world.slurmd_timeout = 3600.0
    world.clouds["pub"].take(machine.id)
    world.advance(300)
    assert said("machines lost nodes=pub1 jobs=[1]") == ["WARNING"]


def test_a_repair_that_slurm_calls_for_no_more_is_dropped(
    world: World, said: Callable[[str], list[str]]
) -> None:
    before = len(world.slurm.updates)
    apply(
        world.site, "pub", [actions.Restore(node="pub1", cause=Quoted(text="x"))], snapshot(world)
    )
    assert said(
        "repair dropped, Slurm's state has changed since the decision subjects=['pub1']"
    ) == ["INFO"]
    assert len(world.slurm.updates) == before


def test_a_machine_that_has_ended_since_keeps_no_other_from_its_end(
    world: World, said: Callable[[str], list[str]]
) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    (machine,) = world.alive()
    todo = [actions.Terminate(machine=i, cause=Quoted(text="x")) for i in ("gone", machine.id)]
    apply(world.site, "pub", todo, snapshot(world))
    assert world.alive() == []
    assert said("in an unknown way") == []


@pytest.mark.parametrize(
    "error", [LATE, sqlite3.OperationalError("database is locked"), OSError("requests/ is stale")]
)
def test_a_repair_that_fails(
    world: World,
    said: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    monkeypatch.setattr(world.ledger.machines, "record_whole_list", fails(error))
    apply(
        world.site, "pub", [actions.NoteRead(cloud="pub", cause=Quoted(text="x"))], snapshot(world)
    )
    told = f"repair fails, tried again next round kind=note-read error={error}"
    assert said(told) == ["WARNING"]


def test_a_repair_is_told_before_it_is_done(world: World, said: Callable[[str], list[str]]) -> None:
    left = one(world, "pub-left", "pub1")
    world.accounts["pub"].add_foreign(left, owner="uuid-1")
    world.advance(60)
    assert said("repair adopt subject=pub-left reason=") == ["INFO"]


@pytest.mark.parametrize(
    ("error", "told", "level", "left"),
    [
        (
            sqlite3.OperationalError("locked"),
            "end of a machine not recorded yet id=i-1 error=locked",
            "WARNING",
            1,
        ),
        (RuntimeError("bug"), "end of a machine not recorded id=i-1", "ERROR", 0),
    ],
)
def test_a_gone_machine_that_cannot_be_written_down(
    world: World,
    said: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    told: str,
    level: str,
    left: int,
) -> None:
    world.site.unadopted["pub", "i-1"] = one(world)
    world.site.unadopted["onp", "i-2"] = replace(one(world, "i-2"), cloud="onp")
    monkeypatch.setattr(world.ledger.machines, "adopt", fails(error))
    record_ended_unadopted(world.site, "pub", [])
    assert said(told) == [level]
    assert len(world.site.unadopted) == left + 1, "the other one is another cloud's"


def test_machines_adopted_without_offers(
    world: World, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.clouds["pub"], "offers", fails(ValueError("no JSON")))
    machine = one(world)
    adopt(
        world.site,
        [actions.Adopt(machine="i-1", cause=Quoted(text="x"))],
        [machine],
        {"i-1": "no zone"},
    )
    told = "offers not read, machines adopted at their own price pool=burst error=ValueError('no JSON')"
    assert said(told) == ["WARNING"]
    (made,) = [d for d in world.ledger.decisions.about("pub1") if d.kind == "adopted"]
    assert str(made.reason) == "x; its tags are not trusted: no zone"
    (kept,) = world.ledger.machines.live()
    assert kept.worst_price == pytest.approx(0.10), "its type has a price in the configuration"


def test_machines_that_are_paid_and_serve_nobody_are_told_of_once(
    world: World, said: Callable[[str], list[str]]
) -> None:
    for ident in ("pub-a", "pub-b"):
        left = one(world, ident, f"former-{ident}", generation="g0", market=Market.ON_DEMAND)
        world.accounts["pub"].add_foreign(left, owner="uuid-1")
    world.advance(300)
    for ident in ("pub-a", "pub-b"):
        assert said(f"machine is paid but not served cloud=pub id={ident} reason=") == ["ERROR"]
    assert "2 serve no node: pub-a: " in str([h.error for h in world.ledger.health.all()])


@pytest.mark.parametrize(
    ("error", "told", "code"),
    [
        (AuthError("pub", "Denied", "no"), "cloud cannot be read cloud=pub error=", "auth"),
        (
            TransientError("pub", "Busy", "no"),
            "cloud cannot be read cloud=pub error=",
            "unreadable",
        ),
        (KeyError("zone"), "cloud cannot be read cloud=pub", "unreadable"),
    ],
)
def test_a_cloud_that_cannot_be_read(
    world: World,
    said: Callable[[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    told: str,
    code: str,
) -> None:
    monkeypatch.setattr(world.clouds["pub"], "instances", fails(error))
    Round(world.site, "pub").run()
    assert said(told) == ["WARNING" if isinstance(error, ProviderError) else "ERROR"]
    (health,) = [h for h in world.ledger.health.all() if h.name == "pub"]
    assert health.code == code
    assert world.site.unreadable.snapshot().keys() == {"pub"}


def test_tags_that_are_not_believed_are_told_of_once(
    world: World, said: Callable[[str], list[str]]
) -> None:
    world.accounts["pub"].add_foreign(one(world, price=-1.0), owner="uuid-1")
    world.advance(120)
    told = "tags not believed, put them right or end the machine cloud=pub id=i-1 reason="
    assert said(told) == ["WARNING"]


def test_a_held_pool_whose_cloud_has_no_offers(
    world: World, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds = Round(world.site, "pub")
    rounds.run()
    holds.hold(world.site, world.site.pools["burst"], ["pub1"], Quoted(text="none left"))
    holds.drain_when_powered_down(world.site)
    assert said("held nodes=pub1 reason=slurm-elastic:hold:none left") == ["INFO"]
    monkeypatch.setattr(world.clouds["pub"], "offers", fails(ValueError("no JSON")))
    world.now += 3600
    rounds.run()
    assert said("offers cannot be read pool=burst error=ValueError('no JSON')") == ["WARNING"]


# launches, boots and ends


def test_refused_credentials(world: World, said: Callable[[str], list[str]]) -> None:
    world.clouds["pub"].fail_next(AuthError, 1, "launch")
    launch(world.site, spec(world), "r1")
    assert said("cloud cannot be used cloud=pub error=") == ["ERROR"]


def test_a_launch_in_doubt_and_one_that_is_repeated(
    world: World, said: Callable[[str], list[str]]
) -> None:
    made = spec(world)
    world.clouds["pub"].fail_next(TransientError, 1, "launch")
    launch(world.site, made, "r1", is_repetition=True)
    assert said(f"launch in doubt generation={made.generation} cloud=pub error=") == ["WARNING"]
    world.clouds["pub"].fail_next(TransientError, 1, "launch")
    launch(world.site, made, "r1")
    assert said("repeated after=") == ["INFO"]
    key = made.offer.key
    told = f"launched request=r1 generation={made.generation} offer={key} count=1 wanted=1"
    assert said(told) == ["INFO"]


def test_a_launch_that_fails_in_an_unknown_way(
    world: World, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.clouds["pub"], "launch", fails(KeyError("InstanceId")))
    made = spec(world)
    assert launch(world.site, made, "r1").reason == "KeyError: 'InstanceId'"
    assert said(f"launch failed in an unknown way generation={made.generation}") == ["ERROR"]


def test_an_answer_that_is_not_believed(
    world: World, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = world.clouds["pub"].launch
    monkeypatch.setattr(
        world.clouds["pub"], "launch", lambda s: [replace(i, price=-1.0) for i in real(s)]
    )
    result = launch(world.site, spec(world), "r1")
    assert [i.price for i in result.instances] == [pytest.approx(0.03)]
    assert said("launch's answer not believed cloud=pub id=") == ["WARNING"]


def test_a_clock_that_was_set_back(world: World, said: Callable[[str], list[str]]) -> None:
    # The longest that any is set for.
    longest = 3600.0 + world.config.timings.capacity_cooldown
    rows = [
        Exclusion(kind=COOL_DOWN, scope=f"pub/{name}", until=world.now + seconds)
        for name, seconds in (("far", longest + 61), ("near", longest + 60))
    ]
    world.ledger.exclusions.add(*rows)
    end_far_exclusions(world.site, world.ledger.exclusions.all())
    assert said("the clock was set back: cool-downs and holds over count=1") == ["WARNING"]
    assert [c.scope for c in world.ledger.exclusions.cool_downs(world.now)] == ["pub/near"]
    end_far_exclusions(world.site, world.ledger.exclusions.all())
    assert len(said("the clock was set back")) == 1


def test_a_machine_that_did_not_boot(world: World, said: Callable[[str], list[str]]) -> None:
    record_boot_failures(world.site, [row(world)], "boots", [7])
    assert said("machines failed pool=burst nodes=pub1") == ["WARNING"]
    kinds = [d.kind for d in world.ledger.decisions.about("job:7")]
    assert kinds == ["boot-failed", "cooled-down"]


def test_a_pool_that_is_opened_again(world: World, said: Callable[[str], list[str]]) -> None:
    reopen = actions.ReopenPool(
        pool="burst", nodes=("pub1", "pub2"), cause=Quoted(text="pub1 registered")
    )
    for until in (0.0, world.now + 60):
        row = Exclusion(
            kind=BREAKER, scope="burst", until=until, count=3, cause=Quoted(text="never up")
        )
        world.ledger.exclusions.add(row)
        reopen_pools(world.site, [reopen])
        assert world.ledger.exclusions.breakers() == ()
    assert said("pool no longer paused pool=burst nodes=pub[1-2]") == ["WARNING"], (
        "only what was paused"
    )
    assert "breaker-closed" in world.kinds("pool:burst")


@pytest.mark.parametrize(
    ("error", "told", "level"),
    [
        (TransientError, "terminate fails, reconcile repeats it nodes=pub1 error=", "WARNING"),
        (InstanceNotFound, "already gone cloud=pub nodes=pub1", "INFO"),
        (None, "terminated request=r1 nodes=pub1 reason=idle", "INFO"),
    ],
)
def test_an_end_of_a_machine(
    world: World,
    said: Callable[[str], list[str]],
    error: type[ProviderError] | None,
    told: str,
    level: str,
) -> None:
    if error is not None:
        world.clouds["pub"].fail_next(error, 1, "terminate")
    world.accounts["pub"].add_foreign(one(world), owner="uuid-1")
    terminate(world.site, "pub", [row(world)], Quoted(text="idle"), "r1")
    assert said(told) == [level]


def test_a_suspend_of_a_node_that_is_up(world: World, said: Callable[[str], list[str]]) -> None:
    world.slurm.submit(1, ("pub1",))
    world.advance(60)
    name = world.program("suspend", ["pub1"], {}, received=world.now)
    world.advance(10)
    assert said(f"dropped request={name} nodes=pub1 reason=Slurm does not power the node") == [
        "INFO"
    ]


# requests


def test_a_request_and_its_nodes_of_no_pool(world: World, said: Callable[[str], list[str]]) -> None:
    name = world.program("resume", ["pub1", "who1"], {3: ["pub1"]}, received=world.now)
    world.tick()
    assert said(f"resume request={name} nodes=pub1,who1 jobs=[3]") == ["INFO"]
    assert said(f"nodes of no pool request={name} nodes=who1") == ["ERROR"]
    assert said(f"dropped request={name} nodes=pub1 reason=Slurm does not power the node") == [
        "INFO"
    ]


def test_a_request_that_fails(
    world: World,
    said: Callable[[str], list[str]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world.tick()
    world.slurm.submit(1, ("pub1",))
    world.slurm.broken = LATE
    world.tick()
    world.tick()
    (known,) = [r for r in caplog.records if r.getMessage().startswith("request fails id=")]
    assert "Access/permission denied" in known.getMessage()
    assert not known.exc_info
    caplog.clear()
    world.slurm.broken = None
    monkeypatch.setattr("slurm_elastic.controller.apply.provision", fails(KeyError("bug")))
    world.advance(60)
    assert said("request fails id=") == ["ERROR"] * 3
    assert all(r.exc_info for r in caplog.records if r.getMessage().startswith("request fails"))
    assert said("request given up id=") == ["ERROR"]


def test_a_request_that_cannot_be_removed(
    world: World, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.spool, "remove", fails(OSError(30, "Read-only file system")))
    name = world.program("suspend", ["pub1"], {}, received=world.now)
    world.tick()
    world.tick()
    assert set(said(f"request stays in the spool id={name} error=")) == {"DEBUG"}


def test_a_sign_of_life_that_cannot_be_left_is_told_of_once(
    world: World, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "slurm_elastic.controller.daemon.leave_mark"
    for words, count in (("No space left", 1), ("Read-only", 1)):
        with monkeypatch.context() as patched:
            patched.setattr(place, fails(OSError(words)))
            world.advance(30)
        assert (
            len(said(f"the mark file cannot be written in the state directory: {words}")) == count
        )
    world.advance(30)
    with monkeypatch.context() as patched:
        patched.setattr(place, fails(OSError("Read-only")))
        world.advance(30)
    assert len(said("the mark file cannot be written in the state directory: Read-only")) == 2


def test_owners_that_slurm_does_not_tell(
    tmp_path: Path, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    monkeypatch.setattr(world.slurm, "owners", fails(LATE))
    world.slurm.submit(1, ("pub1",))
    world.tick()
    assert said("machines get no tags of their owner: ") == ["INFO"]
    assert len(world.alive()) == 1
    world.close()


def test_offers_that_fail_in_an_unknown_way(
    world: World, said: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world.clouds["pub"], "offers", fails(ValueError("no JSON")))
    world.slurm.submit(1, ("pub1",))
    world.tick()
    assert said("offers failed in an unknown way cloud=pub") == ["ERROR"]
    (told,) = [d for d in world.ledger.decisions.about("pub1") if d.kind == "no-offers"]
    assert str(told.reason) == "pub: ValueError: no JSON"
    assert said("no-offers request=") == ["INFO"]
    assert said("no offer left request=") == ["WARNING"]


def test_a_launch_and_a_refused_offer(world: World, said: Callable[[str], list[str]]) -> None:
    world.clouds["pub"].limit("small/zone-1/spot", 0)
    for cloud in world.clouds.values():
        offers = cloud.offers
        cloud.offers = lambda pool, told=offers: tuple(  # type: ignore[method-assign, misc]
            replace(o, free=None) for o in told(pool)
        )
    world.slurm.submit(1, ("pub1",))
    world.tick()
    assert said("offer refused request=")[:1] == ["INFO"]
    assert said("launch-refused request=")[:1] == ["INFO"]
    assert said("launched request=")[:1] == ["INFO"]


# operators and policies


def test_a_word_that_is_over(world: World, said: Callable[[str], list[str]]) -> None:
    word = Directive(
        word=Pause(scope="pool:burst"), who="alice", since=world.now, starts=world.now,
        until=world.now + 60,
    )  # fmt: skip
    number = world.ledger.directives.give(word).number
    world.advance(120)
    assert said(f"order ended number={number}: its time is over: ") == ["INFO"]
    assert world.ledger.directives.all() == ()


def test_what_was_held_and_let_go(world: World, said: Callable[[str], list[str]]) -> None:
    holds.hold_back(world.site, ["pub1"], Quoted(text="by a policy"))
    holds.release(world.site, ["pub1"], Quoted(text="no policy"), "policy")
    assert said("released nodes=pub1 reason=no policy") == ["INFO"]


def test_a_requeued_job_that_may_start(tmp_path: Path, said: Callable[[str], list[str]]) -> None:
    world = World(tmp_path, timings=Timings(resume_timeout=600))
    world.clouds["pub"].limit("*", 0)
    world.slurm.submit(1, ("pub1",))
    world.advance(30, step=1)
    assert said("requeued job may start at once job=1")[:1] == ["INFO"]
    world.close()
