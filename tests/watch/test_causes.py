"""One cause is told once, whoever remembers it or suffers from it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from tempfile import mkdtemp

import pytest

from slurm_elastic.base.errors import AuthError, SlurmError
from slurm_elastic.ckptman.journal import Journal
from slurm_elastic.controller import holds
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.exclusion import CAPACITY, COOL_DOWN, Exclusion
from slurm_elastic.model.finding import Finding
from slurm_elastic.model.memory import Health
from slurm_elastic.policies.launch.exclusions import DENIED, until_told
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch import causes
from tests.controller.world import World

ORDERS = causes.orders(
    [Directive(word=Pause(scope=""), who="ann", since=1.0, starts=1.0, number=3)]
)
LACK = "pub3 did not register; munge key not brought"


def test_the_first_who_has_a_cause_tells_it_and_what_has_none_is_told_each_time() -> None:
    found = [
        Finding.wrong("credentials", "refused", cause="cloud:aws"),
        Finding.wrong("last errors", "refused", cause="cloud:aws"),
        *(Finding.note("spool", "unreadable") for _ in range(2)),
    ]
    assert list(causes.told_once(found, set())) == [found[0], *found[2:]]
    assert list(causes.told_once(found, {"cloud:aws"})) == found[2:], "another part told it"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("aws: ExpiredToken: no", "cloud:aws"),
        ("pool burst cools down until 09:05:05 UTC: pub3 did not register", "pool:burst"),
        ("pool burst is paused until 09:05:05 UTC: 10 machines in a row failed", "pool:burst"),
        (f"pool burst cools down until 09:05:05 UTC: {LACK}", LACK),
        ("8 offers: the cluster is paused by ann", "order:3"),
        ("8 offers: cools down until 09:05:05 UTC after ICE: none", "ICE: none"),
        ("outside the times at which machines may be started", ""),
    ],
)
def test_a_hold_has_the_cause_that_its_words_tell(words: str, cause: str) -> None:
    hold = Exclusion(kind=CAPACITY, scope="pub1", pool="burst", cause=Quoted(text=words))
    assert causes.of_hold(hold, "aws", ORDERS) == cause


@pytest.mark.parametrize(
    ("scope", "code", "words", "cause"),
    [
        ("aws/*/*/*", "ExpiredToken", "no", "cloud:aws"),
        ("aws/*/*/*/burst", "BootFailed", "Slurm took pub3 out of service", "pool:burst"),
        ("aws/*/*/*/burst", "BootFailed", LACK, LACK),
        ("aws/m1/a/spot", "ICE", "none", "ICE: none"),
        ("aws/m1/a/spot", DENIED, "no right", ""),
    ],
)
def test_a_cool_down_has_the_cause_of_what_it_covers(
    scope: str, code: str, words: str, cause: str
) -> None:
    one = Exclusion(kind=COOL_DOWN, scope=scope, code=code, cause=Quoted(text=words))
    assert causes.of_cool_down(one) == cause


@pytest.mark.parametrize("words", ["no /scratch", 'the "GPU" has pending retirements; ' * 10])
def test_a_long_sentence_is_the_same_cause_in_a_hold_and_in_its_cool_down(words: str) -> None:
    """Slurm has the reason of a node cut, the hold's row has it whole."""
    world = World(Path(mkdtemp()))
    cause = f"the machine of pub1 did not register; its check failed: {' '.join(words.split())}"
    cool = Exclusion(
        kind=COOL_DOWN, scope="pub/*/*/*/burst", until=world.now + 60, code="BootFailed",
        cause=Quoted(text=cause),
    )  # fmt: skip
    why = f"pool burst cools down {until_told(cool.until, world.now)}: {cool.cause}"
    holds.hold(world.site, world.site.pools["burst"], ["pub2"], why)
    (row,) = world.ledger.exclusions.holds()
    assert causes.of_hold(row, "pub", {}) == causes.of_cool_down(cool) == cause
    world.close()


def test_services_that_fail_because_slurm_or_a_cloud_does_are_not_told_beside_it() -> None:
    health = [
        Health(name="plans of Slurm", checked=1.0, error="scontrol: timed out", code="slurm"),
        Health(name="slurm", checked=2.0, error="sinfo: timed out", code="slurm"),
        Health(name="slurm (ckptman)", checked=1.0, error="squeue: timed out", code="slurm"),
        Health(name="aws", checked=1.0, error="aws: ExpiredToken: no", code="auth"),
        Health(name="notices of aws", checked=1.0, error="aws: ExpiredToken", code="cloud:aws"),
        Health(name="the network", checked=1.0, error="no route", code="network"),
        Health(name="growth policies", checked=1.0),
    ]
    named = [one.name for one in causes.faults(health, {"aws"}, set())]
    assert named == ["slurm", "the network"]
    assert [one.name for one in causes.faults(health, {"aws"}, {"slurm"})] == ["the network"]


def test_a_source_of_ckptman_says_whether_slurm_or_a_cloud_is_at_fault(tmp_path: Path) -> None:
    with (
        contextlib.closing(Ledger(tmp_path / "ledger.db")) as ledger,
        contextlib.closing(CheckpointState(tmp_path / "checkpoints.db")) as state,
    ):
        journal = Journal(ledger, state, lambda: 1.0)
        journal.failed("plans of Slurm", SlurmError(("scontrol",), 1, "away"))
        journal.failed("notices of aws", AuthError("aws", "ExpiredToken", "no"))
        journal.failed("notices in /x", OSError("gone"))
        found = {one.name: (one.code, one.told) for one in ledger.health.all()}
    assert found == {
        "plans of Slurm": ("slurm", "Slurm's reservations and drains: scontrol: exit 1: away"),
        "notices of aws": ("cloud:aws", "notices of aws: aws: ExpiredToken: no"),
        "notices in /x": ("ckpt", "notices in /x: OSError: gone"),
    }
