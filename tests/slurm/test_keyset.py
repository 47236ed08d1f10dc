"""The keys of auth/slurm: who gets which, and what a rotation does to them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.conf import keyset
from slurm_elastic.slurm.conf.keyset import AuthKey, KeySet

NOW = 1_800_000_000.0
DAY = 86400.0


def key(kid: str, **more: object) -> dict[str, object]:
    return {"alg": "HS256", "kty": "oct", "kid": kid, "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQ"} | more


def keys(*found: dict[str, object]) -> KeySet:
    return keyset.parse(json.dumps({"keys": found}).encode())


def kids(found: KeySet) -> list[str]:
    return [one.kid for one in found.keys]


SITE = keys(
    key("site", use="default"), key("slurm-elastic:aws:1"), key("slurm-elastic:azure:1"),
    key("slurm-elastic:aws:2", exp=int(NOW + DAY)), key("ended", exp=int(NOW - 1)),
)  # fmt: skip


def test_a_clouds_machines_get_everybodys_keys_and_their_own_but_no_other_clouds() -> None:
    found = SITE.for_cloud("aws", NOW)
    assert kids(found) == ["site", "slurm-elastic:aws:1", "slurm-elastic:aws:2"]
    assert found.default.kid == "slurm-elastic:aws:2"
    assert [one.use for one in found.keys].count("default") == 1
    assert kids(keyset.parse(found.encoded())) == kids(found)


def test_a_cloud_without_a_key_signs_as_slurmctld() -> None:
    found = SITE.for_cloud("one", NOW)
    assert kids(found) == ["site"]
    assert found.default.kid == "site"


def test_the_first_key_is_the_default_where_none_says_so() -> None:
    assert keys(key("a"), key("b")).default.kid == "a"
    assert keys(key("a"), key("b", use="default")).default.kid == "b"


def test_a_rotation_adds_a_key_for_slurmctld_and_each_cloud_and_lets_the_old_ones_end() -> None:
    after = SITE.renewed(["aws", "azure"], NOW, ends=NOW + 90 * DAY, overlap=2 * DAY)
    number = int(NOW)
    fresh = kids(after)[-3:]
    assert kids(after)[:-3] == kids(SITE)[:-1], "what had ended is left out"
    assert [kid.partition("-")[2].partition("-")[0] for kid in fresh] == [
        f"elastic:{cloud}:{number}" for cloud in ("", "aws", "azure")
    ]
    assert after.default.kid == fresh[0]
    ends = {one.kid: one.exp for one in after.keys}
    assert ends["site"] == NOW + 2 * DAY
    assert ends["slurm-elastic:aws:2"] == NOW + DAY, "never later than before"
    assert ends[fresh[0]] == ends[fresh[1]] == NOW + 90 * DAY
    assert len({one.k for one in after.keys[-3:]}) == 3
    assert after.for_cloud("aws", NOW).default.kid == fresh[1]


def test_two_rotations_in_one_second_make_other_ids() -> None:
    first = SITE.renewed(["aws"], NOW, ends=NOW + DAY, overlap=DAY)
    second = first.renewed(["aws"], NOW, ends=NOW + DAY, overlap=DAY)
    assert len(set(kids(second))) == len(second.keys)
    assert second.default.kid.startswith(f"slurm-elastic::{int(NOW) + 1}-")


def test_a_rotation_after_one_that_was_taken_back_in_the_same_second_makes_other_ids() -> None:
    """A machine may still have the keys of the first, which the file no longer names."""
    first, second = (SITE.renewed(["aws"], NOW, ends=NOW + DAY, overlap=DAY) for _ in range(2))
    assert not set(kids(first)[-2:]) & set(kids(second)[-2:])


def test_without_overlap_only_the_new_ones_are_left() -> None:
    after = SITE.renewed(["aws"], NOW, ends=NOW + DAY, overlap=0)
    assert [one.cloud for one in after.keys] == ["", "aws"]


def test_what_machines_learn_first_leaves_them_signing_as_before() -> None:
    before = SITE.for_cloud("aws", NOW)
    after = SITE.renewed(["aws"], NOW, ends=NOW + DAY, overlap=DAY).for_cloud("aws", NOW)
    known = before.joined(after)
    assert known.default == before.default
    assert set(kids(known)) == set(kids(before)) | set(kids(after))
    assert [one.use for one in known.keys].count("default") == 1


def test_a_slurm_key_becomes_the_default_of_a_file() -> None:
    found = keyset.parse(keyset.of_slurm_key(bytes(range(200, 232))).encoded())
    assert found.default == AuthKey(
        alg="HS256", kty="oct", kid="slurm.key", use="default",
        k="yMnKy8zNzs_Q0dLT1NXW19jZ2tvc3d7f4OHi4-Tl5uc",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"keys": []}, "it has no key"),
        ({"keys": [key("a"), key("a")]}, "two keys have the kid a"),
        ({"keys": [key("a", use="default"), key("b", use="default")]}, "more than one key has"),
        ({"keys": [key("a", k="c2hvcnQ")]}, "key a has fewer than 16 bytes"),
        ({"keys": [key("a", k="c2hv!!cn??Q")]}, "key a: k is no base64"),
        ({"keys": [key("a", alg="RS256")]}, "key a: alg RS256, kty oct; Slurm takes HS256, oct"),
        ({"keys": [{"kid": "a"}]}, "missing required field `alg`"),
        ({}, "missing required field `keys`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_what_would_stop_slurms_daemons_is_refused(tmp_path: Path, found: object, why: str) -> None:
    path = tmp_path / "slurm.jwks"
    path.write_text(json.dumps(found))
    with pytest.raises(ConfigError) as error:
        keyset.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert why in str(error.value)
    assert "secret" not in str(error.value)
