"""Where operators' directives let nothing new start, and how people read them."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from msgspec.structs import replace

from slurm_elastic.cli.main import COMMANDS
from slurm_elastic.model.directive import (
    Departure,
    Directive,
    LimitChange,
    Pause,
    Word,
    describe,
    stop_reason,
    stopped_nodes,
    stopped_pools,
)
from slurm_elastic.watch.door.orders import RULES

NOW = 1_800_000_000.0  # 2027-01-15 08:00 UTC
CLOUD_OF = {"burst": "aws", "gpu": "aws", "own": "gcp"}
DRAIN = Departure(verb="drain", about="cloud aws", nodes=("n1", "n2"), scope="cloud:aws")
REPLACE = replace(DRAIN, verb="replace")
MIGRATE = replace(DRAIN, verb="migrate", to="gcp")
LIMIT = LimitChange(scope="pool:burst", key="max_nodes", value=4.0)


def said(word: Word, **fields: Any) -> Directive:
    return Directive(**{"word": word, "who": "ann", "since": NOW, "starts": NOW, **fields})


def test_an_order_that_was_given_for_at_once_holds_whatever_is_done_to_the_clock() -> None:
    set_back = NOW - 400
    order = said(Pause(scope=""))
    assert order.holds(set_back)
    assert describe(order, set_back) == "the cluster is paused by ann"
    assert not said(Pause(scope=""), starts=NOW + 60).holds(NOW)


@pytest.mark.parametrize(
    ("word", "stopped"),
    [
        (Pause(scope=""), {"burst", "gpu", "own"}),
        (Pause(scope="cloud:aws"), {"burst", "gpu"}),
        (Pause(scope="pool:gpu"), {"gpu"}),
        (Pause(scope="pool:left"), set()),
        (DRAIN, {"burst", "gpu"}),
        (MIGRATE, {"burst", "gpu"}),
        (REPLACE, set()),
        (replace(DRAIN, scope=""), set()),
        (LIMIT, set()),
    ],
)
def test_a_pause_and_a_departure_stop_the_pools_of_their_scope(
    word: Word, stopped: set[str]
) -> None:
    assert stopped_pools([said(word)], CLOUD_OF, NOW).keys() == stopped


def test_the_narrowest_directive_that_holds_says_why() -> None:
    some = [said(Pause(scope=scope)) for scope in ("", "cloud:aws", "pool:gpu")]
    orders = stopped_pools(some, CLOUD_OF, NOW)
    assert {pool: stop_reason(order) for pool, order in orders.items()} == {
        "burst": "cloud aws is paused by ann",
        "gpu": "pool gpu is paused by ann",
        "own": "the cluster is paused by ann",
    }
    over = [replace(one, until=NOW) for one in some]
    to_come = [replace(one, starts=NOW + 1) for one in some]
    assert stopped_pools([*over, *to_come], CLOUD_OF, NOW) == {}


@pytest.mark.parametrize(
    ("word", "stopped"),
    [(DRAIN, {"n1", "n2"}), (MIGRATE, {"n1", "n2"}), (REPLACE, set()), (Pause(scope=""), set())],
)
def test_the_nodes_of_a_departure_are_kept_from_slurm_while_it_holds(
    word: Word, stopped: set[str]
) -> None:
    assert stopped_nodes([said(word)], NOW).keys() == stopped
    assert stopped_nodes([said(word, until=NOW)], NOW) == {}
    assert all(order == said(word) for order in stopped_nodes([said(word)], NOW).values())


@pytest.mark.parametrize(
    ("directive", "line"),
    [
        (said(Pause(scope="")), "the cluster is paused by ann"),
        (said(Pause(scope="cloud:aws"), until=NOW + 3600, reason="the bill"),
         "cloud aws is paused by ann until 2027-01-15 09:00 UTC: the bill"),
        (said(DRAIN), "cloud aws is drained by ann"),
        (said(REPLACE, reason="new image"), "cloud aws is being replaced by ann: new image"),
        (said(MIGRATE, until=NOW + 60), "cloud aws is emptied to gcp by ann until 2027-01-15 08:01 UTC"),
        (said(replace(DRAIN, about="pub2", nodes=("pub2",), scope="")), "node pub2 is drained by ann"),
        (said(replace(REPLACE, about="n[1-2]", scope="")), "nodes n[1-2] are being replaced by ann"),
        (said(LIMIT), "pool burst: max_nodes is 4 by ann since 2027-01-15 08:00 UTC"),
        (said(replace(LIMIT, scope="", key="dollars_per_hour", value=2.5), until=NOW + 60, reason="r"),
         "the cluster: dollars_per_hour is $2.50/h by ann since 2027-01-15 08:00 UTC until 2027-01-15 08:01 UTC: r"),
        (said(Pause(scope=""), starts=NOW + 60), "from 2027-01-15 08:01 UTC on: the cluster is paused by ann"),
    ],
)  # fmt: skip
def test_a_directive_is_told_in_one_line(directive: Directive, line: str) -> None:
    assert describe(directive, NOW) == line


def test_each_word_has_its_rule() -> None:
    assert set(RULES) == set(get_args(Word))


def test_each_word_names_the_command_that_gives_it() -> None:
    some = {type(word): word.command_name for word in (Pause(scope=""), LIMIT, DRAIN)}
    assert some == {Pause: "pause", LimitChange: "limit", Departure: "drain"}
    assert set(some) == set(get_args(Word))
    assert {*some.values(), *Departure.VERBS} <= set(COMMANDS)
