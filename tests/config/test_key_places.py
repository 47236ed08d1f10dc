"""A key at the wrong level is named with its level, and counts in Slurm's form with ours."""

from __future__ import annotations

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import configfile

TEXT = """\
cluster: {name: alps}
allow: {groups: [users]}
limits: {dollars_per_hour: 1}
clouds:
  - name: far
    provider: fake
    location: public
    types: {small: {cpus: 2, memory: 4G, price: 0.10}}
pools:
  - {name: wide, cloud: far, nodes: "pub[1-4]", cpus: 2, memory: 4G, EXTRA}
"""


def refused(extra: str, text: str = TEXT) -> str:
    with pytest.raises(ConfigError) as error:
        configfile.parse(text.replace("EXTRA", extra), "x.yaml")
    (problem,) = error.value.problems
    return problem


@pytest.mark.parametrize(
    ("extra", "place"),
    [
        ("partition: gpu", "clouds[].partition"),
        ("max_time: 1d", "allow.max_time"),
        ("dollars_per_hour: 2", "limits.dollars_per_hour"),
        ("featurs: [x]", "features"),
    ],
)
def test_a_key_of_another_level_is_named_with_it(extra: str, place: str) -> None:
    problem = refused(extra)
    assert problem.startswith("x.yaml:10: pools[0] (wide).")
    assert problem.endswith(f"; did you mean {place}?")


@pytest.mark.parametrize("key", ["partitions", "groups"])
def test_a_key_of_a_clouds_own_section_is_named_with_it(key: str) -> None:
    problem = refused("", TEXT.replace("location: public", f"location: public\n    {key}: [gpu]"))
    assert problem.endswith(f"; did you mean clouds[].allow.{key}?")


@pytest.mark.parametrize(
    ("extra", "mapping"),
    [
        ("gres: gpu:a100:8", '{"gpu:a100": 8}'),
        ("gres: gpu", '{"gpu": 1}'),
        ('gres: "gpu:2,fpga:1"', '{"gpu": 2, "fpga": 1}'),
    ],
)
def test_gres_in_slurms_form_is_answered_with_ours(extra: str, mapping: str) -> None:
    problem = refused(extra)
    assert problem.endswith(f"each value a whole number of at least 1; did you mean {mapping}?")
