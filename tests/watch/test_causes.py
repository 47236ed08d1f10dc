"""One cause is told once, whoever remembers it or suffers from it."""

from __future__ import annotations

from pathlib import Path
from tempfile import mkdtemp

import pytest

from slurm_elastic.controller import holds
from slurm_elastic.model.directive import Directive, Pause
from slurm_elastic.model.exclusion import CAPACITY, COOL_DOWN, Exclusion
from slurm_elastic.model.finding import Finding
from slurm_elastic.policies.launch.exclusions import DENIED, until_told
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
    hold = Exclusion(kind=CAPACITY, scope="pub1", pool="burst", cause=words)
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
    one = Exclusion(kind=COOL_DOWN, scope=scope, code=code, cause=words)
    assert causes.of_cool_down(one) == cause


@pytest.mark.parametrize("words", ["no /scratch", 'the "GPU" has pending retirements; ' * 10])
def test_a_long_sentence_is_the_same_cause_in_a_hold_and_in_its_cool_down(words: str) -> None:
    """Slurm has the reason of a node cut, the hold's row has it whole."""
    world = World(Path(mkdtemp()))
    cause = f"the machine of pub1 did not register; its check failed: {' '.join(words.split())}"
    cool = Exclusion(
        kind=COOL_DOWN, scope="pub/*/*/*/burst", until=world.now + 60, code="BootFailed",
        cause=cause,
    )  # fmt: skip
    why = f"pool burst cools down {until_told(cool.until, world.now)}: {cool.cause}"
    holds.hold(world.site, world.site.pools["burst"], ["pub2"], why)
    (row,) = world.ledger.exclusions.holds()
    assert causes.of_hold(row, "pub", {}) == causes.of_cool_down(cool) == cause
    world.close()
