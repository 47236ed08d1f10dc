"""Files drawn from the schema: what the reader says to each, and that each key is drawn."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.base.errors import ConfigError
from tests.drawn.site_document import (
    COMPLAINT,
    Key,
    Step,
    all_keys,
    bases,
    draw,
    follow,
    keys_in,
    reach,
    read,
)

INDEX = st.integers(0, 1 << 16)
STEPS = st.lists(st.builds(Step, INDEX, INDEX, INDEX), max_size=40)
PAID = "the machines of a cloud on-premises are paid already"
NOT_REACHED = {
    Key("AwsCloud", "endpoint"): "needs a region without an account of its own",
    Key("DockerType", "gres"): "containers get no devices",
    Key("LibvirtType", "gres"): "domains get no devices",
    Key("ImageChoice", "id"): "stands alone, and files with an id write no mapping",
    Key("LibvirtCloud", "address_ranges"): "needs a network that is no bridge",
    Key("MachineOptions", "subnets"): "needs a mapping of zones",
    Key("Network", "enrol"): "needs a cloud without consoles",
    Key("Ssh", "munge_key"): "stands instead of slurm_keys",
    **{
        Key(of, key): PAID
        for key in ("reservations", "discounts")
        for of in ("DockerCloud", "LibvirtCloud", "LocalCloud", "OpenNebulaCloud", "OpenStackCloud",
                   "RedfishCloud")
    },
}  # fmt: skip
"""Keys that no single change of a file reaches, with the reason."""


@given(st.integers(0, 15), STEPS)
def test_each_refusal_names_the_place_what_was_found_and_what_was_expected(
    base: int, steps: list[Step]
) -> None:
    drawn = draw(base, steps)
    for refused in drawn.refused:
        for complaint in refused.complaints:
            assert COMPLAINT.fullmatch(complaint)
            assert re.search("expected", complaint), complaint
    assert read(drawn.document) == drawn.config


def test_each_key_of_the_schema_is_drawn() -> None:
    """A key that is added later is drawn by its schema, its example or the reader's complaints."""
    missing = {key for key in all_keys() if reach(key) is None}
    assert missing == set(NOT_REACHED)


@pytest.mark.parametrize("base", range(len(bases())))
def test_a_drawn_file_is_read_again_as_it_was(base: int) -> None:
    document = bases()[base]
    assert set(keys_in(document)) <= set(all_keys())
    assert read(document) == read(document)


def test_a_complaint_can_be_followed() -> None:
    document = {
        "cluster": {"name": "demo"},
        "clouds": [{"name": "c", "provider": "fake", "location": "publc", "node_address": "dns",
                    "types": {"t": {"cpus": 2, "memory": "4G", "price": 1}}}],
        "pools": [{"name": "p", "cloud": "c", "nodes": "n1", "cpus": 2, "memory": "3G",
                   "policies": {"start_windows": ["at night"]}}],
    }  # fmt: skip
    with pytest.raises(ConfigError):
        read(document)
    assert follow(document) is not None
