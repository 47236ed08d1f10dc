"""The names of resources in a configuration: put in and taken out, and all else stays as it is."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.setup.making.apply import with_names, without_removed

TEXT = """\
# ours
cluster: {name: demo}
clouds:
  - name: lab    # first
    provider: fake
    location: on-premises
    types: {s: {cpus: 1, memory: 1G, price: 0}}
  - {name: aws, provider: aws, location: public, region: us-east-1, image: ami-1, types: {c: {cpus: 1, memory: 1G, price: 1}}}  # second
pools:
  - {name: a, cloud: aws, nodes: "a[1-2]", cpus: 1, memory: 1G, instance_types: [c]}
  - {name: l, cloud: lab, nodes: "l[1-2]", cpus: 1, memory: 1G}
"""
NAMES: dict[str, object] = {
    "subnets": {"us-east-1a": "subnet-1", "us-east-1b": "subnet-2"}, "security_groups": ["sg-1"],
    "key_name": "k", "launch_template": "lt-1",
}  # fmt: skip


def test_names_go_in_and_out_of_any_entry() -> None:
    text = with_names(TEXT, "x", "aws", NAMES)
    cloud = configfile.parse(text, "x").cloud("aws")
    assert (cloud.subnets, cloud.security_groups) == (NAMES["subnets"], ("sg-1",))
    assert with_names(text, "x", "aws", NAMES) == text
    assert with_names(text, "x", "aws", without_removed(text, "x", "aws", NAMES)) == TEXT


def test_names_that_a_person_put_beside_ours_stay() -> None:
    names = {**NAMES, "security_groups": ["sg-1", "sg-site"], "key_name": "site"}
    text = with_names(TEXT, "x", "aws", names)
    removed = {**NAMES, "subnets": {"us-east-1b": "subnet-2"}}
    changes = without_removed(text, "x", "aws", removed)
    assert changes == {
        "subnets": {"us-east-1a": "subnet-1"}, "security_groups": ["sg-site"],
        "launch_template": None,
    }  # fmt: skip


def test_yaml_that_cannot_be_edited_is_told_line_by_line() -> None:
    text = TEXT.replace(
        "  - {name: aws, provider: aws,",
        "  - {<<: &c {region: us-east-1}, name: aws, provider: aws,",
    ).replace(" region: us-east-1, image", " image")
    merged = text.replace("&c {region: us-east-1}", "&c {region: us-east-1, key_name: theirs}")
    with pytest.raises(ConfigError) as caught:
        with_names(merged, "x", "aws", {"key_name": None})
    assert "Put these into the entry of cloud aws by hand:" in str(caught.value)
    assert "  key_name: (remove it)" in str(caught.value)
