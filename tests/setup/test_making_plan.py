"""The plan of ``init --make`` and ``--unmake`` by rules alone, on a cloud in memory: whatever breaks
wherever, a repeated run completes the site, and a removal leaves nothing of it and all of others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from slurm_elastic.base.errors import TransientError
from slurm_elastic.config.site_place import ResourceGroup
from slurm_elastic.model.site_resources import (
    FoundResource,
    SiteResource,
    resolved,
    with_references,
)
from slurm_elastic.setup.making.apply import attributes_of, carry_out
from slurm_elastic.setup.making.plan import (
    CHANGING,
    GROUPS,
    Step,
    Verb,
    plan_make,
    plan_unmake,
)

SITE = (
    SiteResource(key="net", kind="net", purpose="p", properties={"size": 4}),
    SiteResource(
        key="subnet", kind="subnet", purpose="p", properties={"net": "@{net.id}"}, part_of="net"
    ),
    SiteResource(
        key="address", kind="address", purpose="p", properties={"subnet": "@{subnet.id}"},
        part_of="subnet", goes_along=True,
    ),
    SiteResource(key="gate", kind="gate", purpose="p"),
    SiteResource(
        key="link", kind="link", purpose="p", part_of="subnet",
        properties={"gate": "@{gate.id}", "subnet": "@{subnet.id}"},
    ),
    SiteResource(key="group", kind="group", purpose="p", properties={"net": "@{net.id}"}),
    SiteResource(
        key="rule", kind="rule", purpose="p", properties={"group": "@{group.id}", "port": 1},
        part_of="group", goes_along=True,
    ),
    SiteResource(key="role", kind="role", purpose="p"),
    SiteResource(
        key="rights-1", kind="rights", purpose="p", part_of="role",
        properties={"role": "@{role.id}", "group": "@{group.id}"},
    ),
)  # fmt: skip
MARKED = ("net", "subnet", "gate", "group", "role")


class Memory:
    """A cloud. ``breaks``: the call that fails, and whether it is carried out before."""

    def __init__(self) -> None:
        self.there: dict[str, FoundResource] = {}
        self.calls = 0
        self.breaks: tuple[int, bool] | None = None

    def _called(self, carry: Any) -> None:
        number, self.calls = self.calls, self.calls + 1
        fails = self.breaks is not None and self.breaks[0] == number
        if not fails or self.breaks[1]:
            carry()
        if fails:
            raise TransientError("memory", "Reset", "no answer")

    def find(self) -> list[FoundResource]:
        keys = [resource.key for resource in SITE]
        order = {key: number for number, key in enumerate(keys)}
        return sorted(
            self.there.values(), key=lambda f: order.get(f.key.partition("+")[0], len(order))
        )

    def create(
        self, resource: SiteResource, attributes: Mapping[str, Mapping[str, str]]
    ) -> Mapping[str, str]:
        ids = resolved(resource.properties, attributes)
        back = {values["id"]: f"@{{{key}.id}}" for key, values in attributes.items()}
        assert all(key in self.there for key in resource.needed_keys)
        found = FoundResource(
            key=resource.key, kind=resource.kind, id=f"id-{resource.key}", is_ours=True,
            properties=with_references(ids, back), part_of=resource.part_of,
            made_digest=resource.digest if resource.kind in MARKED else "",
            goes_along=resource.goes_along, attributes={"id": f"id-{resource.key}"},
        )  # fmt: skip
        self._called(lambda: self.there.setdefault(resource.key, found))
        return found.attributes

    def remove(self, resource: FoundResource, _attributes: object) -> None:
        # Nothing else that stays may need it; what goes along goes.
        def gone() -> None:
            parts = [f for f in self.there.values() if f.part_of == resource.key]
            others = [f for f in self.there.values() if resource.key in f.needed_keys]
            assert all(f.goes_along for f in others), resource.key
            for key in [resource.key, *(f.key for f in parts if f.goes_along)]:
                self.there.pop(key, None)

        self._called(gone)

    def run(self, steps: Sequence[Step]) -> None:
        doing = [step for step in steps if step.verb in CHANGING]
        for _ in carry_out(self, doing, attributes_of(self.find())):  # type: ignore[arg-type]
            pass

    def broken(self, steps: Sequence[Step], at: int, done: bool) -> None:
        self.calls, self.breaks = 0, (at, done)
        try:
            self.run(steps)
        except TransientError:
            pass
        finally:
            self.breaks = None

    def make(self) -> tuple[Step, ...]:
        return plan_make(SITE, self.find())

    def unmake(self) -> tuple[Step, ...]:
        return plan_unmake(self.find())


BREAKS = st.lists(st.tuples(st.booleans(), st.integers(0, len(SITE)), st.booleans()), max_size=6)


@given(BREAKS)
def test_after_any_broken_runs_make_completes_and_unmake_leaves_nothing(
    breaks: list[tuple[bool, int, bool]],
) -> None:
    cloud = Memory()
    foreign = FoundResource(
        key="", kind="net", id="theirs", is_ours=False, attributes={"id": "theirs"}
    )
    cloud.there["theirs"] = foreign
    for makes, at, done in breaks:
        cloud.broken(cloud.make() if makes else cloud.unmake(), at, done)
    cloud.run(cloud.make())
    assert {step.verb for step in cloud.make()} == {Verb.KEEP}
    assert set(cloud.there) == {"theirs", *(resource.key for resource in SITE)}
    cloud.run(cloud.unmake())
    assert cloud.there == {"theirs": foreign}


@given(st.sets(st.sampled_from([resource.key for resource in SITE])), st.booleans())
def test_what_is_used_or_changed_keeps_all_that_it_needs(keys: set[str], used: bool) -> None:
    cloud = Memory()
    cloud.run(cloud.make())
    mark: dict[str, Any] = {"users": ("i-1",)} if used else {"strangers": ("a rule",)}
    for key in keys:
        cloud.there[key] = replace(cloud.there[key], **mark)
    before = dict(cloud.there)
    cloud.run(cloud.unmake())
    assert keys <= set(cloud.there)
    for resource in cloud.there.values():
        assert resource.needed_keys <= set(cloud.there)
        parts = {f.key for f in before.values() if f.part_of == resource.key}
        assert parts <= set(cloud.there), "what stays stays whole"
    cloud.there = {key: replace(f, users=(), strangers=()) for key, f in cloud.there.items()}
    cloud.run(cloud.unmake())
    assert cloud.there == {}


def test_every_group_has_its_kinds_and_no_kind_is_of_two_groups() -> None:
    assert set(GROUPS) == set(ResourceGroup)
    kinds = [kind for kinds in GROUPS.values() for kind in kinds]
    assert len(kinds) == len(set(kinds))


def test_a_name_that_is_taken_refuses_the_whole_plan() -> None:
    taken = FoundResource(key="role", kind="role", id="r", is_ours=False)
    steps = plan_make(SITE, [taken])
    assert [step.key for step in steps if step.verb is Verb.REFUSE] == ["role"]
    assert plan_unmake([taken]) == ()


def test_other_settings_leave_the_resource_and_say_how_it_changes() -> None:
    cloud = Memory()
    cloud.run(cloud.make())
    other = (replace(SITE[0], properties={"size": 8}), *SITE[1:])
    (step, *_) = plan_make(other, cloud.find())
    assert (step.verb, step.key) == (Verb.LEAVE, "net")
    assert "use --unmake and --make" in step.reason


def test_outdated_rights_go_after_the_new_ones_are_there() -> None:
    cloud = Memory()
    cloud.run(cloud.make())
    rights = replace(SITE[-1], key="rights-2", properties={"role": "@{role.id}"})
    steps = plan_make((*SITE[:-1], rights), cloud.find())
    assert [(s.verb, s.key) for s in steps if s.verb in CHANGING] == [
        (Verb.CREATE, "rights-2"), (Verb.REMOVE, "rights-1"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "verbs"),
    [
        (4_000, 4_000, [Verb.CREATE, Verb.REMOVE]),
        (6_000, 6_000, [Verb.REMOVE, Verb.CREATE]),
        (6_000, 11_000, [Verb.CREATE, Verb.REMOVE]),
    ],
)
def test_rights_that_have_no_room_beside_the_old_ones_come_after_them(
    old: int, new: int, verbs: list[Verb]
) -> None:
    """IAM bounds all rights of a role together. Rights that are too long alone replace nothing."""
    cloud = Memory()

    def rights(key: str, length: int) -> SiteResource:
        properties = {"role": "@{role.id}", "policy": "x" * length}
        return SiteResource(
            key=key, kind="role policy", purpose="p", part_of="role", properties=properties
        )

    cloud.run(plan_make((*SITE[:-1], rights("rights-1", old)), cloud.find()))
    steps = plan_make((*SITE[:-1], rights("rights-2", new)), cloud.find())
    assert [step.verb for step in steps if step.verb in CHANGING] == verbs


@pytest.mark.parametrize("users", [(), ("i-1",)])
def test_a_second_resource_goes_unless_it_is_used(users: tuple[str, ...]) -> None:
    cloud = Memory()
    cloud.run(cloud.make())
    second = replace(cloud.there["net"], key="net+2", id="id-second", users=users)
    steps = plan_make(SITE, [*cloud.find(), second])
    last = steps[-1]
    assert (last.verb, last.key) == (Verb.KEEP if users else Verb.REMOVE, "net+2")


def test_a_resource_that_nothing_needs_is_kept_and_said() -> None:
    cloud = Memory()
    cloud.run(cloud.make())
    steps = plan_make(SITE[:5], cloud.find())
    assert {step.verb for step in steps} == {Verb.KEEP}
    assert any("no longer needs it; --unmake removes it" in step.reason for step in steps)
