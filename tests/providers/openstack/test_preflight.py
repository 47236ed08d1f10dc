"""Doctor's findings on OpenStack: flavors, images, networks, key pair, groups, zones, quotas."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from providers.openstack.bed import POLICY, StackBed
from providers.openstack.stand_in import GROUPS

from slurm_elastic.model.boot_image import ImageChoice
from slurm_elastic.model.cluster import Limits
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.model.protocols import Examinable
from slurm_elastic.providers.openstack.preflight import lets_udp_in
from slurm_elastic.providers.openstack.settings import Flavor
from slurm_elastic.testing.contract import spec_for

LOCKED = {"id": "22222222-aaaa-4bbb-8ccc-222222222222", "name": "old", "status": "deactivated"}


def examined(bed: StackBed, **settings: object) -> dict[str, Finding]:
    provider = bed.open(**settings)
    assert isinstance(provider, Examinable)
    return {f.subject: f for f in provider.examine([bed.pool])}


def level(bed: StackBed, what: str, **settings: object) -> FindingLevel:
    return examined(bed, **settings)[what].level


def test_a_cloud_where_all_is_well(bed: StackBed) -> None:
    found = examined(
        bed, key_name="admin", security_groups=("web", GROUPS[0][0]), networks=("lan",),
        zones=("nova",),
    )  # fmt: skip
    assert {f.level for f in found.values()} == {FindingLevel.OK}
    assert {"flavors", "image worker", "network lan", "key pair admin", "zone nova"} <= found.keys()


def test_flavors_that_are_missing_or_too_small(bed: StackBed) -> None:
    types = {
        "small": Flavor(cpus=2, memory=4096),
        "none": Flavor(cpus=1, memory=1),
        "tall": Flavor(cpus=64, memory=999999, flavor="big"),
    }
    found = examined(bed, types=types)
    assert found["flavors"].observed == "as configured: small"
    assert found["flavor none"].observed == "the cloud has no such flavor"
    assert "64 cpus and 262144 MiB" in found["flavor big"].observed
    assert {found["flavor none"].level, found["flavor big"].level} == {FindingLevel.WRONG}


def test_images(bed: StackBed) -> None:
    assert level(bed, "image nothing", image="nothing") is FindingLevel.WRONG
    bed.world.images = [LOCKED]
    found = examined(bed, image=LOCKED["id"])[f"image {LOCKED['id']}"]
    assert (found.level, found.observed) == (FindingLevel.WRONG, "deactivated")
    provider = bed.open()
    assert isinstance(provider, Examinable)
    pool = replace(bed.pool, image=ImageChoice(os="plan9"))
    missing = {f.subject: f for f in provider.examine([pool])}["image of pool os"]
    assert missing.level is FindingLevel.WRONG
    assert missing.expected == "an image with os plan9"


def test_an_image_that_asks_for_more_than_a_flavor_has(bed: StackBed) -> None:
    bed.world.images = [LOCKED | {"status": "active", "min_ram": 8192, "min_disk": 1}]
    found = examined(bed, image=LOCKED["id"])[f"image {LOCKED['id']}"]
    assert (found.level, found.observed) == (
        FindingLevel.WRONG, "it asks for 8192 MiB of memory and 1 GiB of disk",
    )  # fmt: skip
    assert "flavor small" in found.expected


@pytest.mark.parametrize(
    ("what", "settings", "word"),
    [
        ("network twice", {"networks": ("twice",)}, "2 networks are called"),
        ("network nowhere", {"networks": ("nowhere",)}, "0 networks are called"),
        ("key pair other", {"key_name": "other"}, "HTTP404"),
        ("security group twice", {"security_groups": ("twice",)}, "2 are called so"),
        ("security group nobody", {"security_groups": ("nobody",)}, "not there"),
        ("zone old", {"zones": ("old",)}, "not available"),
        ("zone moon", {"zones": ("moon",)}, "not there"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_do(
    bed: StackBed, what: str, settings: dict[str, object], word: str
) -> None:
    found = examined(bed, **settings)[what]
    assert found.level is FindingLevel.WRONG
    assert word in found.observed
    assert found.advice


def test_the_quota_is_compared_with_what_the_pools_could_ask_for(bed: StackBed) -> None:
    bed.world.quota = 10
    found = examined(bed)["quota of instances"]
    assert (found.level, found.observed) == (
        FindingLevel.NOTE, "10 servers, of which others use 0; the pools could ask for 1200",
    )  # fmt: skip
    assert level(bed, "quota of instances", limits=Limits(nodes=10)) is FindingLevel.OK
    bed.world.quota = 0
    assert level(bed, "quota of instances") is FindingLevel.WRONG


def test_our_machines_are_the_pools_own(bed: StackBed) -> None:
    bed.world.quota = 3
    provider = bed.open()
    provider.launch(spec_for(bed, provider, 2))
    bed.add_foreign()
    found = examined(bed, limits=Limits(nodes=2))["quota of instances"]
    assert found.observed == "3 servers, of which others use 1; the pools could ask for 2"
    assert found.level is FindingLevel.OK


def test_a_right_that_is_missing_is_a_finding_and_no_error(bed: StackBed) -> None:
    bed.stand_in.refuse(403, POLICY, "GET /compute/v2.1/*")
    found = examined(bed, key_name="admin", zones=("nova",))
    assert {found[w].level for w in ("flavors", "key pair admin", "zones")} == {FindingLevel.WRONG}
    assert "rights" in found["flavors"].advice
    assert found["quota"].level is FindingLevel.NOTE
    bed.heal()


@pytest.mark.parametrize(
    ("rule", "is_open"),
    [
        ({"protocol": "udp", "port_range_min": 51820, "port_range_max": 51820}, True),
        ({"protocol": None}, True),
        ({"protocol": "udp", "port_range_min": 1, "port_range_max": 1024}, False),
        ({"protocol": "tcp", "port_range_min": 51820, "port_range_max": 51820}, False),
        ({"protocol": "udp", "remote_group_id": "itself"}, False),
        ({"protocol": "udp", "direction": "egress"}, False),
    ],
)
def test_a_group_lets_the_heads_udp_in(rule: dict[str, object], is_open: bool) -> None:
    def call(service: str, method: str, path: str) -> dict[str, object]:
        assert (service, method) == ("network", "GET")
        assert path == "/security-groups?name=web&fields=security_group_rules"
        return {"security_groups": [{"security_group_rules": [{"direction": "ingress"} | rule]}]}

    assert lets_udp_in(call, "web", 51820) is is_open
