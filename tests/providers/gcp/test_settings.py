"""Mistakes in a cloud of provider gcp get one sentence each, with their place."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile
from slurm_elastic.providers.gcp import labels

SITE = """
cluster: {name: site, uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11}
allow: {groups: [hpc]}
limits: {dollars_per_hour: 5}
clouds:
  - name: google
    provider: gcp
    location: public
    project: my-project
    region: us-central1
    zones: [us-central1-a, us-central1-b]
    image: family/slurm-node
    types: {n2-standard-16: {cpus: 16, memory: 64G, price: 0.78, spot_price: 0.19}}
pools:
  - {name: gc, cloud: google, nodes: "gc[1-4]", cpus: 16, memory: 60G, instance_types: [n2-standard-16]}
"""


def problems(*changes: tuple[str, str]) -> tuple[str, ...]:
    text = SITE
    for before, after in changes:
        assert before in text
        text = text.replace(before, after, 1)
    try:
        configfile.parse(text, "site.yaml")
    except ConfigError as error:
        return error.problems
    return ()


def test_a_site_is_accepted() -> None:
    assert problems() == ()


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("project: my-project", "project: My_Project", "expected the id of a project"),
        ("region: us-central1\n", "region: us_central\n", "expected a region such as us-central1"),
        ("us-central1-b]", "europe-west4-b]", "zones[1]: found 'europe-west4-b', expected a zone of"),
        ("location: public", "location: on-premises", "expected public: provider gcp costs money"),
        ("image: family/slurm-node", "image: Slurm Node", "expected an image such as"),
        ('nodes: "gc[1-4]"', 'nodes: "B_[1-4]"', "expected nodes of lower-case letters, digits and"),
        ("types:", "labels: {Team: a}\n    types:", "expected a key of at most 63 characters"),
        ("types:", f"labels: {{team: {'a' * 64}}}\n    types:", "expected a value of at most 63"),
        ("types:", "labels: {slurm-elastic-pool: a}\n    types:", "does not begin with slurm-elastic-"),
        ("types:", "subnetwork: projects/p-host-1/regions/europe-west4/subnetworks/a\n    types:",
         "expected the name of a subnetwork"),
        ("types:", "endpoint: compute.example\n    types:", "expected a URL such as"),
        ("types:", "service_account: me\n    types:", "the address of a service account"),
        ("types:", "network_tags: [Slurm]\n    types:", "expected a network tag of lower-case"),
        ("types:", "launch_wait: 1h\n    types:", "the resume_timeout of the cloud"),
        ("types:", "zone: us-central1-a\n    types:", "unknown key 'zone'"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_sentence(before: str, after: str, words: str) -> None:
    (sentence,) = [p for p in problems((before, after)) if words in p]
    assert sentence.startswith("site.yaml:")


def test_a_pool_on_spot_needs_a_spot_price_to_have_spot_offers() -> None:
    assert (
        problems((", instance_types:", ", machine: {root_disk: {size: 40G}}, instance_types:"))
        == ()
    )
    (sentence,) = problems((", instance_types:", ", machine: {rdma: true}, instance_types:"))
    assert "expected one of disk_price, placement_group, root_disk" in sentence


@pytest.mark.parametrize("value", ["", "plain-1", "Under_score", "0.7769", "Größe", "a b/c:d@e"])
def test_a_label_holds_any_value(value: str) -> None:
    text = labels.cut(value)
    assert all(c in "abcdefghijklmnopqrstuvwxyz0123456789_-" for c in text)
    assert labels.decoded(text) == value


def test_a_long_value_is_cut_between_characters() -> None:
    text = labels.cut("Ö" * 40)
    assert len(text) <= 63
    assert labels.decoded(text) == "Ö" * 10


def test_an_edited_label_is_only_text() -> None:
    assert labels.decoded("_zz_") == "_zz_"
    assert labels.decoded("_ff") == "\ufffd"
