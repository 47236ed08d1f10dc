"""The watchdog ends what nobody needs once the daemon is silent, and nothing else, ever."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import ConfigError, SlurmError, TransientError
from slurm_elastic.cli.services.watchdog import main
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.journal_owner import Host
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.policies.repair.unneeded import Bound, overdue
from slurm_elastic.state.heartbeat import (
    CANNOT_ACT_MEANS,
    DAEMON,
    MARK,
    OTHER_HEAD_MEANS,
    STANDS_BY_MEANS,
    Mark,
    leave_mark,
    read_mark,
)
from slurm_elastic.state.presence import Presence, acting_files, files, write_presence
from slurm_elastic.watch.watchdog import Watchdog, WatchedClouds
from tests.controller.world import World

AFTER = 600.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Two machines with jobs; then the daemon dies, and one of the jobs ends."""
    made = World(tmp_path)
    for job, node in ((1, "pub1"), (2, "pub2")):
        made.slurm.submit(job, (node,))
        made.advance(60)
        assert "RUNNING" in made.slurm.queue()[job].states
    made.stop()
    made.slurm.finish(1)
    yield made
    made.close()


def dog(world: World, **options: Any) -> Watchdog:
    return Watchdog(
        world.slurm, world.clouds, world.dir, Bound(seconds=AFTER), lambda: world.now, **options
    )


def watch(world: World, one: Watchdog, seconds: float, *, beats: bool = False) -> None:
    """Its loop, without the waiting; ``SlurmError`` as the loop takes it."""
    end = world.now + seconds
    while world.now < end:
        world.advance(60)
        if beats:
            leave_mark(world.dir, Mark(world.now, 1))
        try:
            one.look()
        except SlurmError:
            one._standing.clear()


def test_with_the_daemon_gone_a_powered_down_node_loses_its_machine(world: World) -> None:
    watch(world, dog(world), 1800)
    assert world.machines_of("pub1") == []
    assert len(world.machines_of("pub2")) == 1
    assert "RUNNING" in world.slurm.queue()[2].states


@pytest.mark.parametrize(
    ("kept", "stays"), [({"pub1": math.inf}, True), ({"pub1": -math.inf}, False), ({}, False)]
)
def test_what_is_stopped_stays_until_it_is_too_old_where_its_pool_keeps_some(
    world: World, kept: dict[str, float], stays: bool
) -> None:
    (machine,) = world.machines_of("pub1")
    world.advance(500)
    account = world.accounts["pub"].machines[machine]
    account.instance = replace(account.instance, state=InstanceState.STOPPED)
    watch(world, dog(world, kept=kept), 1800)
    assert (world.machines_of("pub1") == [machine]) is stays


def test_a_machine_that_runs_ends_though_its_pool_keeps_stopped_ones(world: World) -> None:
    watch(world, dog(world, kept={"pub1": math.inf}), 1800)
    assert world.machines_of("pub1") == []


def test_a_copy_of_a_head_ends_nothing_after_its_daemon_was_stopped(world: World) -> None:
    why = "another head works for this cluster"
    leave_mark(world.dir, Mark(world.now, 1, why, "stop it", world.now, OTHER_HEAD_MEANS))
    watch(world, dog(world), 3600)
    assert len(world.machines_of("pub1")) == 1


HERE = Host(name="head", machine="5e1f", cards=("aa:00", "aa:01"))


@pytest.mark.parametrize(
    ("host", "ends"),
    [
        (HERE, True),
        (replace(HERE, cards=("aa:01", "aa:02")), True),
        (replace(HERE, cards=("bb:00",)), False),
        (replace(HERE, machine="another"), False),
        (None, False),
    ],
)
def test_a_copy_whose_daemon_has_never_worked_there_ends_nothing(
    world: World, caplog: pytest.LogCaptureFixture, host: Host | None, ends: bool
) -> None:
    """Its slurm-elasticd is masked or cannot start, so the mark is the one of the original."""
    leave_mark(world.dir, Mark(world.now, 1, host=host))
    watch(world, dog(world, here=lambda: HERE), 3600)
    assert (world.machines_of("pub1") == []) is ends
    assert caplog.text.count("may be a copy of the head") == (0 if ends else 1)


def test_without_any_mark_nothing_ends(world: World) -> None:
    (world.dir / MARK).unlink()
    watch(world, dog(world, here=lambda: HERE), 3600)
    assert len(world.machines_of("pub1")) == 1


def test_a_disk_that_goes_away_takes_the_proof_of_the_host_not_back(world: World) -> None:
    leave_mark(world.dir, Mark(world.now, 1, host=HERE))
    one = dog(world, here=lambda: HERE)
    one.look()
    (world.dir / MARK).unlink()
    watch(world, one, 3600)
    assert world.machines_of("pub1") == []


def test_the_mark_names_a_host_with_hundreds_of_cards(tmp_path: Path) -> None:
    host = replace(HERE, cards=tuple(f"aa:00:00:00:{n:02x}:00" for n in range(256)))
    leave_mark(tmp_path, Mark(1.0, 1, "why " * 200, "do " * 100, host=host))
    mark = read_mark(tmp_path)
    assert mark is not None
    assert mark.host is not None
    assert mark.host.may_be(host)


def test_the_daemon_names_its_host_in_its_mark(world: World) -> None:
    world.host = HERE
    world.start()
    world.advance(60)
    mark = read_mark(world.dir)
    assert mark is not None
    assert mark.host == HERE


def test_not_before_both_have_lasted_for_the_bound(world: World) -> None:
    one = dog(world)
    watch(world, one, AFTER)
    assert world.machines_of("pub1") != [], "Slurm had the node up for SuspendTime at first"
    watch(world, one, 1800)
    assert world.machines_of("pub1") == []


def test_a_cloud_whose_machines_may_have_files_has_longer(world: World) -> None:
    late = dog(world, later={"pub": 1200.0})
    watch(world, late, 1500)
    assert world.machines_of("pub1") != []
    watch(world, late, 1500)
    assert world.machines_of("pub1") == []


def test_a_daemon_that_beats_is_left_alone(world: World) -> None:
    watch(world, dog(world), 7200, beats=True)
    assert len(world.alive()) == 2


def test_a_daemon_that_comes_back_takes_over(world: World) -> None:
    one = dog(world)
    watch(world, one, AFTER)
    watch(world, one, 7200, beats=True)
    assert len(world.alive()) == 2


def test_a_rehearsal_ends_nothing_and_says_what_it_would(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    watch(world, dog(world, dry_run=True), 3600)
    assert len(world.alive()) == 2
    assert "would end cloud=pub nodes=pub1" in caplog.text


def test_what_cannot_be_read_is_no_proof(world: World) -> None:
    one = dog(world)
    watch(world, one, 900)
    world.clouds["pub"].fail_next(TransientError, 1, "instances")
    watch(world, one, 60)
    world.slurm.broken = SlurmError(("sinfo",), 1, "Unable to contact slurm controller")
    watch(world, one, 3600)
    world.slurm.broken = None
    watch(world, one, AFTER - 120)
    assert len(world.machines_of("pub1")) == 1, "it is counted anew from the first good answer"
    watch(world, one, 300)
    assert world.machines_of("pub1") == []


def test_a_mark_that_may_not_be_looked_at_is_no_silence(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("slurm_elastic.watch.watchdog.os.stat", forbidden)
    with pytest.raises(ConfigError, match=f"{MARK} cannot be read"):
        dog(world).look()


def machine(number: int, node: str = "") -> Instance:
    return Instance(
        id=f"i-{number}", cloud="pub", node=node or f"n{number}", generation="g1",
        instance_type="small", zone="z", market=Market.SPOT, price=0.1,
        state=InstanceState.RUNNING, launched=0.0,
    )  # fmt: skip


def node(name: str, *states: str) -> SlurmNode:
    return SlurmNode(name=name, states=frozenset(states))


@pytest.mark.parametrize(
    "states",
    [
        ("IDLE", "CLOUD"),
        ("IDLE", "CLOUD", "POWERING_DOWN"),
        ("IDLE", "CLOUD", "POWERED_DOWN", "POWERING_UP"),
        ("ALLOCATED", "CLOUD", "POWERED_DOWN"),
        ("DOWN", "CLOUD", "NOT_RESPONDING"),
    ],
)
def test_any_other_state_is_a_doubt(states: tuple[str, ...]) -> None:
    nodes = {"n1": node("n1", *states)}
    bound = Bound(seconds=0.0, rounds=1)
    assert overdue(nodes, (), [machine(1)], {}, 0.0, bound).unneeded_since == {}


def test_a_node_that_slurm_does_not_list_or_a_job_is_on_is_a_doubt() -> None:
    nodes = {"n1": node("n1", "IDLE", "CLOUD", "POWERED_DOWN")}
    bound = Bound(seconds=0.0, rounds=1)
    assert overdue(nodes, (), [machine(2), machine(3, "")], {}, 0.0, bound).ready == ()
    assert overdue(nodes, ("n1",), [machine(1)], {}, 0.0, bound).ready == ()
    assert [a.subject for a in overdue(nodes, (), [machine(1)], {}, 0.0, bound).ready] == ["i-1"]


def test_time_alone_is_not_enough_nor_are_looks() -> None:
    nodes = {"n1": node("n1", "IDLE", "CLOUD", "POWERED_DOWN")}
    bound = Bound(seconds=100.0, rounds=3)
    first = overdue(nodes, (), [machine(1)], {}, 0.0, bound)
    second = overdue(nodes, (), [machine(1)], first.unneeded_since, 1000.0, bound)
    assert second.ready == ()
    quick = overdue(nodes, (), [machine(1)], first.unneeded_since, 1.0, bound)
    quick = overdue(nodes, (), [machine(1)], quick.unneeded_since, 2.0, bound)
    assert quick.ready == ()
    third = overdue(nodes, (), [machine(1)], second.unneeded_since, 1001.0, bound)
    assert [a.subject for a in third.ready] == ["i-1"]


def test_a_whole_site_never_ends_in_one_look() -> None:
    nodes = {f"n{i}": node(f"n{i}", "IDLE", "CLOUD", "POWERED_DOWN") for i in range(100)}
    verdict = overdue(
        nodes, (), [machine(i) for i in range(100)], {}, 0.0, Bound(seconds=0.0, rounds=1)
    )
    assert (len(verdict.ready), verdict.deferred_count) == (20, 80)


def test_what_its_cloud_is_ending_does_not_raise_how_many_may_end_in_one_look() -> None:
    nodes = {f"n{i}": node(f"n{i}", "IDLE", "CLOUD", "POWERED_DOWN") for i in range(100)}
    seen = [machine(i) for i in range(100)]
    seen[60:] = [replace(one, state=InstanceState.TERMINATED) for one in seen[60:]]
    verdict = overdue(nodes, (), seen, {}, 0.0, Bound(seconds=0.0, rounds=1))
    assert (len(verdict.ready), verdict.deferred_count) == (12, 48)


def test_each_machine_is_ended_for_its_own_cause(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one = dog(world)
    watch(world, one, 300, beats=True)
    world.slurm.finish(2)
    watch(world, one, 1800, beats=True)
    watch(world, one, AFTER + 60)
    assert world.alive() == []
    causes = dict(re.findall(r"ends cloud=pub nodes=(\S+) .* reason=(.*)", caplog.text))
    assert causes.keys() == {"pub1", "pub2"}
    assert causes["pub1"] != causes["pub2"]


def test_a_bound_within_which_the_daemon_acts_itself_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(
        f"cluster: {{name: alps, uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11}}\nstate_dir: {tmp_path}\n"
        "clouds: [{name: onp, provider: fake, location: on-premises,\n"
        "  types: {small: {cpus: 2, memory: 4096, price: 0.1}}}]\n"
        "pools: [{name: rack, cloud: onp, nodes: 'op[1-2]', cpus: 2, memory: 4G}]\n"
    )
    assert main(["--config", str(path), "--after", "5"]) == 2
    assert "--after: found 5, expected 120 or more" in capsys.readouterr().err
    assert not (tmp_path / "ledger.db").exists()


def test_a_bound_within_which_slurm_asks_again_after_a_takeover_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conf, path = tmp_path / "slurm.conf", tmp_path / "slurm-elastic.yaml"
    conf.write_text(f"SlurmctldHost={os.uname().nodename}\nSlurmctldHost=b\n")
    path.write_text(
        f"cluster: {{name: alps, uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11}}\nstate_dir: {tmp_path}\n"
        f"ha: {{directory: /shared}}\nslurm: {{conf: {conf}}}\n"
        "clouds: [{name: onp, provider: fake, location: on-premises,\n"
        "  types: {small: {cpus: 2, memory: 4096, price: 0.1}}}]\n"
        "pools: [{name: rack, cloud: onp, nodes: 'op[1-2]', cpus: 2, memory: 4G}]\n"
    )
    assert main(["--config", str(path), "--after", "299"]) == 2
    said = f"--after: found 299, expected 300 or more: 2 x SlurmctldTimeout of {conf} + 60 s"
    assert said in capsys.readouterr().err


def test_jobs_are_what_keeps_a_machine(world: World) -> None:
    """Also where slurmctld's nodes do not say so."""
    one = dog(world)
    jobs = [SlurmJob(id=9, states=frozenset({"RUNNING"}), nodes=("pub1",))]
    world.slurm.jobs = lambda *, ended=False: jobs  # type: ignore[method-assign]
    watch(world, one, 3600)
    assert len(world.machines_of("pub1")) == 1


def test_of_two_heads_a_sign_of_life_of_either_one_is_enough(world: World, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    one = dog(world, others=lambda: files(shared, DAEMON))
    for minute in range(30):
        write_presence(shared, DAEMON, Presence(host="headb", at=minute, config="", version=""))
        watch(world, one, 60)
    assert len(world.machines_of("pub1")) == 1
    watch(world, one, 1800)
    assert world.machines_of("pub1") == []


@pytest.mark.parametrize("means", [STANDS_BY_MEANS, CANNOT_ACT_MEANS])
def test_heads_that_both_stand_by_are_silent(world: World, tmp_path: Path, means: str) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    other = Presence(host="headb", at=0.0, config="", version="")
    one = dog(world, others=lambda: acting_files(shared, DAEMON))

    def minutes(count: int, *, acts: bool) -> None:
        for _ in range(count):
            leave_mark(world.dir, Mark(world.now, 1, "an older copy", "mount it", world.now, means))
            write_presence(shared, DAEMON, replace(other, acts=acts))
            watch(world, one, 60)

    minutes(30, acts=True)
    assert len(world.machines_of("pub1")) == 1
    minutes(30, acts=False)
    assert world.machines_of("pub1") == []


def test_a_head_that_says_nothing_readable_may_act(tmp_path: Path) -> None:
    (tmp_path / f"head-b.{DAEMON}").write_text("{")
    (tmp_path / f"head-c.{DAEMON}").write_text(
        '{"host": "c", "at": 1.0, "config": "", "version": "0.0.9"}'
    )
    assert len(acting_files(tmp_path, DAEMON)) == 2


def test_while_the_directory_of_two_heads_is_away_nothing_is_counted(
    world: World, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    one = dog(world, others=lambda: files(shared, DAEMON))
    for _ in range(40):
        world.advance(60)
        one.run(Once(), 60.0)
    assert len(world.machines_of("pub1")) == 1
    shared.mkdir()
    watch(world, one, AFTER - 60)
    assert len(world.machines_of("pub1")) == 1, "it was not heard for long enough"
    watch(world, one, 1800)
    assert world.machines_of("pub1") == []


class Once(threading.Event):
    """Over after one look."""

    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


def test_a_cloud_that_is_added_while_it_runs_is_watched(world: World) -> None:
    clouds = iter((None, WatchedClouds(providers=world.clouds, kept={}, later={})))
    late = Watchdog(
        world.slurm, {}, world.dir, Bound(seconds=AFTER), lambda: world.now,
        renew=lambda: next(clouds, None),
    )  # fmt: skip
    watch(world, late, 3 * AFTER)
    assert len(world.alive()) == 1, "the one without a job has ended"
