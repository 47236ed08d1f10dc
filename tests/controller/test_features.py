"""Optional features: what joins where it is switched on, and nothing of them where it is off."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.config.sections.books import BooksSettings
from slurm_elastic.config.sections.policies import Budget, SitePolicies
from slurm_elastic.config.sections.telling import Notify
from slurm_elastic.controller.extensions import Extensions, join
from slurm_elastic.model.cluster import Limits
from tests.controller.world import World, make_config

OFF = {
    "admission", "owners", "starting", "stopping", "addresses", "enrolment", "telling", "occasions",
    "account_mails", "account_costs", "tunnels", "copying", "copy_part", "copy_orders", "copy_runner", "munge_keys", "host_keys", "key_rotation",
}  # fmt: skip
"""Modules that only features have."""
PLAIN = {"accounting": BooksSettings(tags=())}


ALWAYS_JOINED = {"doers", "find_recipes"}
"""Machines that an earlier configuration stopped are still started or ended."""
PARTS = ["operators", "wait notes", "policies", "usage", "credentials"]


def joined(extensions: Extensions) -> set[str]:
    points = {name for name in extensions.__struct_fields__ if getattr(extensions, name)}
    return points - ALWAYS_JOINED - {"parts"}


def parts(extensions: Extensions) -> list[str]:
    return [name for name, _ in extensions.parts]


def test_of_what_is_switched_off_no_code_runs(tmp_path: Path) -> None:
    """Through a launch, an end and the rounds between."""
    world = World(tmp_path, **PLAIN)
    assert joined(world.site.extensions) == set()
    assert parts(world.site.extensions) == PARTS
    ran: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and {"controller", "features"} & {*path.parts}:
            ran.add(path.stem)

    sys.setprofile(note)
    try:
        world.slurm.submit(1, ("pub1",))
        world.advance(60)
        world.slurm.finish(1)
        world.advance(600)
    finally:
        sys.setprofile(None)
    assert world.kinds("pub1")[-1] == "terminated"
    assert {"provision", "apply", "ending"} <= ran
    assert ran & OFF == set()
    world.close()


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"accounting": BooksSettings(tags=("user",))}, {"find_owners"}),
        (
            {"policies": SitePolicies(account_budgets={"a": Budget(per_day=1.0)})},
            {"filter_admitted"},
        ),
        (
            {"pools": tuple(replace(p, max_stopped=1) for p in make_config(Path("/x")).pools)},
            {"serve_before_buying", "on_intent", "on_answer", "spare_from_end", "spare_of_refused"},
        ),
    ],
    ids=["owners", "budgets of accounts", "stopped pools"],
)
def test_what_is_switched_on_joins_its_steps(
    tmp_path: Path, changes: dict[str, Any], steps: set[str]
) -> None:
    world = World(tmp_path, **(PLAIN | changes))
    assert joined(world.site.extensions) == steps
    world.close()


def test_mail_is_a_part_beside_the_rounds(tmp_path: Path) -> None:
    world = World(tmp_path, **PLAIN, notify=Notify(mail=("ops@example.org",)))
    assert parts(world.site.extensions) == [*PARTS, "notify"]
    world.close()
    world = World(tmp_path / "other", **PLAIN, notify=Notify(coordinators=True))
    assert parts(world.site.extensions) == [*PARTS, "account-mails"]
    world.close()


def test_another_service_of_the_site_joins_anew(world: World) -> None:
    both = [lambda _: None, lambda _: Extensions(on_intent=[print])]
    for _ in range(2):
        join(world.site, both)
    assert world.site.extensions.on_intent == [print]


def test_owners_are_asked_for_once_a_request_whatever_pools_it_has(tmp_path: Path) -> None:
    rack, burst = make_config(Path("/x")).pools
    pools = (rack, replace(burst, nodes="pub[1-2]"), replace(burst, name="more", nodes="pub3"))
    world = World(tmp_path, pools=pools, accounting=BooksSettings(tags=("user",)), limits=Limits())
    world.slurm.submit(1, ("pub1", "pub3"), count=2)
    world.advance(30)
    assert {m.instance.node for m in world.ledger.machines.live()} == {"pub1", "pub3"}
    assert world.slurm.calls["owners"] == 1
    world.close()
