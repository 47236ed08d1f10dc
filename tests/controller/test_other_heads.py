"""Two heads with the identity of one cluster and no journal in common: neither ends or buys a
machine until a person has said which of them continues.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from msgspec.structs import replace as replaced

from slurm_elastic.base.errors import CapacityError
from slurm_elastic.config.sections.telling import NotifyEvent
from slurm_elastic.controller.context import new_generation
from slurm_elastic.controller.daemon import Daemon
from slurm_elastic.controller.other_heads import REMEDY, continue_here
from slurm_elastic.features.news.telling import all_occasions
from slurm_elastic.features.registry import FEATURES
from slurm_elastic.model.causes.repairs import JournalOfOtherHost
from slurm_elastic.model.cluster import Instance, InstanceState, LaunchSpec
from slurm_elastic.model.journal_owner import MAX_CARDS, Host, JournalOwner
from slurm_elastic.policies.repair.other_heads import launched_by_others
from slurm_elastic.providers.fake.provider import FakeProvider
from slurm_elastic.state.heartbeat import OTHER_HEAD_MEANS, read_mark
from slurm_elastic.state.host import read_host
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.state.ledger.schema import LEDGER
from slurm_elastic.state.store import backup
from slurm_elastic.state.store.endurance import Refuge
from slurm_elastic.testing.in_memory import Inline, Silent
from tests.controller.world import World


@pytest.fixture
def head() -> Iterator[World]:
    world = World()
    world.advance(10)
    yield world
    world.close()


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Callable[[World], World]]:
    """Starts a copy of a head: its state directory of this moment, and its clouds."""
    worlds: list[World] = []

    def copied(original: World) -> World:
        directory = tmp_path / "clone"
        shutil.copytree(original.dir, directory)
        world = World(directory)
        world.stop()
        world.now, world.accounts = original.now, original.accounts
        world.clouds.clear()
        world.start()
        worlds.append(world)
        return world

    yield copied
    for world in worlds:
        with contextlib.suppress(Exception):
            world.close()


def together(seconds: float, *worlds: World) -> None:
    """Let the heads work side by side."""
    for _ in range(int(seconds / 5)):
        for world in worlds:
            world.advance(5)


def is_found(world: World) -> bool:
    return world.ledger.owner.other_head() is not None


def state_of(world: World, job: int) -> frozenset[str]:
    return world.slurm.queue()[job].states


def say_it_continues(world: World) -> None:
    continue_here(world.ledger, None, world.ledger.journal_origin(), world.now, "root")


def test_a_copy_ends_no_machine_of_the_head_that_it_was_copied_from(
    head: World, clone: Callable[[World], World]
) -> None:
    copy = clone(head)
    head.slurm.submit(1, ["pub1"], requeue=False)
    # For half an hour the copy sees a machine that no node of its Slurm needs.
    together(1800, head, copy)
    assert is_found(copy)
    assert not is_found(head)  # it has launched all that there is
    assert [i.node for i in head.alive()] == ["pub1"]
    assert "RUNNING" in state_of(head, 1)


def test_a_head_whose_copy_begins_to_launch_stops_and_says_so(
    head: World, clone: Callable[[World], World]
) -> None:
    copy = clone(head)
    copy.slurm.submit(1, ["pub1"], requeue=False)
    together(60, copy, head)
    assert is_found(head)
    # Nothing of the head's own starts or ends now, and its requests wait.
    head.slurm.submit(2, ["pub2"])
    together(300, head, copy)
    assert [i.node for i in head.alive()] == ["pub1"]
    assert head.spool.count() == 1
    mark = read_mark(head.dir)
    assert mark is not None
    assert mark.means == OTHER_HEAD_MEANS
    assert mark.remedy == REMEDY
    assert str(mark.why).startswith("another head works for this cluster: it launched machine")
    assert "other-head" in head.kinds("pub1")
    (occasion,) = [o for o in all_occasions(head.site) if o.event is NotifyEvent.OTHER_HEAD]
    assert REMEDY in occasion.text


def test_the_head_that_a_person_chooses_continues_with_all_machines(
    head: World, clone: Callable[[World], World]
) -> None:
    copy = clone(head)
    copy.slurm.submit(1, ["pub1"])
    together(60, copy, head)
    head.slurm.submit(2, ["pub2"])
    head.advance(30)
    copy.stop()
    say_it_continues(head)
    head.advance(600)
    assert not is_found(head)
    # The copy's machine serves no node of this head's Slurm, and job 2 has got its own.
    assert [i.node for i in head.alive()] == ["pub2"]
    assert "RUNNING" in state_of(head, 2)


def test_the_finding_outlives_the_machines_and_a_restart(
    head: World, clone: Callable[[World], World]
) -> None:
    copy = clone(head)
    copy.slurm.submit(1, ["pub1"])
    together(60, copy, head)
    copy.stop()
    for machine in list(head.alive()):
        head.clouds["pub"].terminate([machine.id])
    head.restart()
    head.advance(600)
    assert is_found(head)


def test_a_chosen_head_takes_a_machine_that_the_others_fast_clock_dated_ahead(
    head: World, clone: Callable[[World], World]
) -> None:
    copy = clone(head)
    copy.now += 3600
    copy.slurm.submit(1, ["pub1"])
    copy.advance(30)
    for machine in head.accounts["pub"].machines.values():
        machine.visible_from = 0.0  # the cloud has a clock of its own
    head.advance(30)
    assert is_found(head)
    copy.stop()
    say_it_continues(head)
    head.advance(60)
    assert not is_found(head)


def test_a_lost_journal_adopts_the_machines_from_before(head: World) -> None:
    head.slurm.submit(1, ["pub1"])
    head.advance(60)
    head.lose_ledger()
    head.advance(600)
    assert not is_found(head)
    assert "RUNNING" in state_of(head, 1)


def test_a_restored_older_journal_waits_for_a_person(head: World, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    head.stop()
    shutil.copytree(head.dir / "journal", backup)
    head.start()
    head.slurm.submit(1, ["pub1"], requeue=False)
    head.advance(60)
    head.stop()
    shutil.rmtree(head.dir / "journal")
    for file in head.dir.glob("ledger.db*"):
        file.unlink()
    shutil.copytree(backup, head.dir / "journal")
    head.start()
    head.advance(600)
    assert is_found(head)
    assert "RUNNING" in state_of(head, 1)
    say_it_continues(head)
    head.advance(600)
    assert "RUNNING" in state_of(head, 1)
    assert [m.instance.node for m in head.ledger.machines.live()] == ["pub1"]


def test_a_person_who_imports_a_journal_has_chosen(head: World, tmp_path: Path) -> None:
    memory = (head.dir / "ledger.db", LEDGER)
    backup.export([memory], tmp_path / "export")
    head.slurm.submit(1, ["pub1"], requeue=False)
    head.advance(60)
    head.stop()
    backup.put_back(tmp_path / "export", [memory], older=True)
    head.start()
    head.advance(600)
    assert not is_found(head)
    assert [m.instance.node for m in head.ledger.machines.live()] == ["pub1"]
    assert "RUNNING" in state_of(head, 1)


def test_a_machine_whose_answer_was_lost_is_no_other_heads(head: World) -> None:
    head.clouds["pub"].lose_answer_next()
    head.slurm.submit(1, ["pub1"])
    head.advance(300)
    assert not is_found(head)
    assert "RUNNING" in state_of(head, 1)


def moved_to(world: World, host: Host | None) -> None:
    """The service starts on this host; None: with two heads."""
    world.restart()
    world.site = replace(world.site, host=host)
    world.daemon = Daemon(
        world.site, world.spool, Silent(), lambda _: Inline(),  # type: ignore[arg-type]
        features=FEATURES,
    )  # fmt: skip
    world.advance(10)


HERE = Host(name="here", machine="m1", cards=("52:54:00:00:00:01", "52:54:00:00:00:02"))


@pytest.mark.parametrize(
    "other",
    [
        Host(name="here", machine="m1", cards=("52:54:00:00:00:09",)),
        Host(name="there", machine="m2", cards=HERE.cards),
    ],
    ids=["a clone has cards of its own", "another host"],
)
def test_a_journal_on_another_host_waits_for_a_person(head: World, other: Host) -> None:
    moved_to(head, HERE)
    assert not is_found(head)
    moved_to(head, other)
    finding = head.ledger.owner.other_head()
    assert finding is not None
    assert finding.cause == JournalOfOtherHost(host="here", here=other.name)
    head.slurm.submit(1, ["pub1"])
    head.advance(120)
    assert not head.alive()
    continue_here(head.ledger, other, head.ledger.journal_origin(), head.now, "root")
    head.advance(120)
    assert "RUNNING" in state_of(head, 1)


def test_a_copy_of_the_head_only_lists_its_clouds(
    head: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidied: list[str] = []

    def tidy(provider: FakeProvider) -> Sequence[Instance]:
        tidied.append(provider.name)
        return provider.instances()

    monkeypatch.setattr(FakeProvider, "tidy", tidy, raising=False)
    moved_to(head, HERE)
    assert set(tidied) == set(head.clouds)
    tidied.clear()
    copy = Host(name="there", machine="m2")
    moved_to(head, copy)
    assert is_found(head)
    head.advance(120)
    assert not tidied
    continue_here(head.ledger, copy, head.ledger.journal_origin(), head.now, "root")
    head.advance(60)
    assert set(tidied) == set(head.clouds)


def no_disk(*_: object) -> NoReturn:
    raise OSError(errno.EIO, "Input/output error")


cannot_be_read = {"_opened": no_disk, "_readable": lambda *_: None}


class EnduringWorld(World):
    """As the daemon has its ledger."""

    def make_ledger(self) -> Ledger:
        return Ledger.enduring(self.dir / "ledger.db", lambda: self.now, lambda: self.now)


def test_a_journal_that_cannot_be_read_at_the_start_is_checked_once_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(EnduringWorld(tmp_path)) as head:
        moved_to(head, HERE)
        with monkeypatch.context() as away:
            for read in ("_opened", "_readable"):
                away.setattr(Refuge, read, cannot_be_read[read])
            moved_to(head, replaced(HERE, name="there", machine="m2"))
            assert head.ledger.end_only
            assert not is_found(head)
        head.advance(60)
        assert not head.ledger.end_only
        finding = head.ledger.owner.other_head()
        assert finding is not None
        assert finding.cause == JournalOfOtherHost(host="here", here="there")


@pytest.mark.parametrize(
    "same",
    [
        Host(name="renamed", machine="m1", cards=("52:54:00:00:00:02", "52:54:00:00:00:03")),
        Host(name="here", machine="m1"),
        None,
    ],
    ids=["one card replaced", "cards unreadable", "two heads"],
)
def test_a_journal_stays_with_its_host(head: World, same: Host | None) -> None:
    moved_to(head, HERE)
    moved_to(head, same)
    assert not is_found(head)


def test_cards_that_take_turns_in_being_there_are_one_hosts(head: World) -> None:
    """One card is late at a boot, and at the next boot the other one is broken."""
    first, second = HERE.cards[0], "52:54:00:00:00:09"
    for cards in ((first, second), (first,), (second,)):
        moved_to(head, replaced(HERE, cards=cards))
        assert not is_found(head)


def test_a_bond_is_one_host_whichever_card_gives_it_its_address(tmp_path: Path) -> None:
    """The kernel gives every card of a bond the address of the card that came first at the boot."""
    hosts: list[Host] = []
    own = {"eth0": "aa:00:00:00:00:01", "eth1": "aa:00:00:00:00:02"}
    for first in own:
        root = tmp_path / first
        for name, address in own.items():
            card = root / "sys/class/net" / name
            (card / "device").mkdir(parents=True)
            (card / "bonding_slave").mkdir()
            (card / "address").write_text(f"{own[first]}\n")
            (card / "bonding_slave/perm_hwaddr").write_text(f"{address}\n")
        hosts.append(read_host(root))
    assert hosts[0].cards == hosts[1].cards == tuple(own.values())


def test_addresses_that_are_new_at_each_boot_fill_no_journal() -> None:
    host = HERE
    for boot in range(40):
        new = tuple(f"52:54:00:00:{boot:02x}:{n:02x}" for n in range(10))
        host = host.seen_again(replaced(HERE, cards=(HERE.cards[0], *new)))
    assert len(host.cards) == MAX_CARDS
    assert {HERE.cards[0], *new} <= set(host.cards)


def test_a_machine_that_a_cloud_makes_in_spite_of_its_refusal_is_no_other_heads(
    head: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = head.clouds["pub"]
    cloud.visible_after = 20
    launch, refused = cloud.launch, list[LaunchSpec]()

    def launch_and_refuse_once(spec: LaunchSpec) -> Sequence[Instance]:
        machines = launch(spec)
        if not refused:
            refused.append(spec)
            raise CapacityError("pub", "NoValidHost", "one of the hosts failed")
        return machines

    monkeypatch.setattr(cloud, "launch", launch_and_refuse_once)
    head.slurm.submit(1, ["pub1", "pub2"])
    head.advance(300)
    assert refused
    assert not is_found(head)
    assert "RUNNING" in state_of(head, 1)
    assert len(head.alive("pub")) == 1  # one of the two machines has ended as a double


def test_every_generation_that_a_head_makes_proves_a_head(head: World) -> None:
    (template,) = [*booted(head, "pub1")]
    owner = JournalOwner(knows_since=head.now - 1)
    for generation in (
        new_generation(head.now),
        new_generation(head.now, epoch=7),
        new_generation(head.now, after=head.now + 60, epoch=12),
    ):
        machine = replaced(template, id="i-9", generation=generation)
        assert launched_by_others([machine], (), (), owner) == [machine]
    # What a cloud cleans up after a launch that it has refused, and the ledger has forgotten.
    for state in (InstanceState.TERMINATED, InstanceState.STOPPING, InstanceState.STOPPED):
        assert launched_by_others([replaced(machine, state=state)], (), (), owner) == []
    edited = replaced(template, id="i-9", generation="g9999999999999-x")
    assert launched_by_others([edited], (), (), owner) == []


def booted(world: World, node: str) -> Sequence[Instance]:
    world.slurm.submit(1, [node])
    world.advance(60)
    return world.alive()
