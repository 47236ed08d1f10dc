"""Catalogues in a configuration: types that are left out, requirements, and what is not believed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.config import Config, configfile
from slurm_elastic.config.catalogue import (
    OLDEST,
    Catalogue,
    filled,
    from_state,
    kept,
    path_of,
    plausible_types,
)
from slurm_elastic.config.sections.requirements import KnownType, Range, parse_range

TEXT = """\
cluster: {name: demo}
state_dir: STATE
allow: {accounts: [a]}
limits: {dollars_per_hour: 5}
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    image: ami-1
    catalogue: true
    types: {}
pools:
  - name: pub
    cloud: aws
    nodes: pub[1-8]
    cpus: 4
    memory: 8G
    instance_types: WANTED
"""
NOW = 1_800_000_000.0


def known(name: str, cpus: int = 4, memory: int = 8192, price: float | None = 0.17, **more: object):
    family = {
        "arch": "x86_64",
        "generation": int("".join(c for c in name.split(".")[0] if c.isdigit()) or 0),
    }
    return KnownType(name=name, cpus=cpus, memory=memory, price=price, **(family | more))


TYPES = (
    known("c5.xlarge"),
    known("c6g.xlarge", price=0.136, arch="arm64"),
    known("m4.xlarge", memory=16384, price=0.2),
    known("m5.2xlarge", cpus=8, memory=32768, price=0.384),
    known("c5.large", cpus=2, memory=4096, price=0.085),
    known("t3.xlarge", memory=16384, price=0.1664),
    known("g4dn.xlarge", memory=16384, price=0.526, gres={"gpu": 1, "gpu:t4": 1}),
    known("x9.xlarge", price=None),
)


def read(state: Path, wanted: str, **changes: str) -> Config:
    text = TEXT.replace("STATE", str(state)).replace("WANTED", wanted)
    for old, new in changes.items():
        text = text.replace(old, new)
    return configfile.parse(text, "site.yaml")


def catalogue(at: float = NOW, types=TYPES) -> dict[str, Catalogue]:
    return {"aws": Catalogue(cloud="aws", at=at, types=types)}


def resolved(state: Path, wanted: str, at: float = NOW) -> tuple[str, ...]:
    return filled(read(state, wanted), catalogue(at), NOW).pools[0].type_names


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("{}", ("c6g.xlarge", "t3.xlarge", "c5.xlarge", "m4.xlarge", "m5.2xlarge")),
        ("{cpus: 4}", ("c6g.xlarge", "t3.xlarge", "c5.xlarge", "m4.xlarge")),
        ("{cpus: 4..8, arch: x86_64}", ("t3.xlarge", "c5.xlarge", "m4.xlarge", "m5.2xlarge")),
        ("{memory: '>=16G'}", ("t3.xlarge", "m4.xlarge", "m5.2xlarge")),
        ("{generation: '>=5', exclude: ['c6*']}", ("c5.xlarge", "m5.2xlarge")),
        ("{gpu: 1}", ("g4dn.xlarge",)),
        ("{max_types: 2}", ("c6g.xlarge", "t3.xlarge")),
        ("{cpus: '>=64'}", ()),
    ],
)
def test_requirements_are_met_by_the_cheapest(
    tmp_path: Path, wanted: str, names: tuple[str, ...]
) -> None:
    assert resolved(tmp_path, wanted) == names


def test_a_pool_of_gpus_takes_types_that_have_them(tmp_path: Path) -> None:
    config = read(tmp_path, "{}", **{"memory: 8G": 'memory: 8G\n    gres: {"gpu:t4": 1}'})
    assert filled(config, catalogue(), NOW).pools[0].type_names == ("g4dn.xlarge",)


def test_only_the_types_that_pools_name_are_bought_by_the_catalogue(tmp_path: Path) -> None:
    config = filled(read(tmp_path, "[c5.xlarge, m4.xlarge]"), catalogue(), NOW)
    assert {n: t.price for n, t in config.clouds[0].shapes.items()} == {
        "c5.xlarge": 0.17, "m4.xlarge": 0.2,
    }  # fmt: skip


def test_a_typed_type_goes_over_the_catalogue(tmp_path: Path) -> None:
    typed = {"types: {}": "types: {c5.xlarge: {cpus: 4, memory: 8G, price: 0.5}}"}
    config = filled(read(tmp_path, "{max_types: 3, arch: x86_64}", **typed), catalogue(), NOW)
    assert config.clouds[0].shapes["c5.xlarge"].price == 0.5
    assert config.pools[0].type_names == ("t3.xlarge", "m4.xlarge", "m5.2xlarge")


def test_old_prices_of_a_public_cloud_are_no_prices(tmp_path: Path) -> None:
    assert resolved(tmp_path, "{}", at=NOW - OLDEST + 60)
    assert resolved(tmp_path, "{}", at=NOW - OLDEST - 60) == ()
    config = filled(read(tmp_path, "[c5.xlarge]"), catalogue(NOW - OLDEST - 60), NOW)
    assert config.clouds[0].shapes == {}


def test_without_a_catalogue_there_is_what_is_typed(tmp_path: Path) -> None:
    config = from_state(read(tmp_path, "{cpus: 4}"), NOW)
    assert config.pools[0].type_names == ()
    assert config.clouds[0].shapes == {}


def test_a_kept_catalogue_fills_the_file_as_it_is_loaded(tmp_path: Path) -> None:
    import time

    file = tmp_path / "slurm-elastic.yaml"
    file.write_text(
        TEXT.replace("STATE", str(tmp_path)).replace("WANTED", "{cpus: 4, max_types: 1}")
    )
    plain = configfile.read(file)
    path = path_of(plain, plain.clouds[0])
    path.parent.mkdir()
    path.write_bytes(msgspec.json.encode(catalogue(time.time())["aws"]))
    assert configfile.load(file).pools[0].type_names == ("c6g.xlarge",)
    assert configfile.parse(configfile.dump(configfile.load(file)), "dump").pools[0].type_names == (
        "c6g.xlarge",
    )
    assert configfile.parse(configfile.dump(plain), "dump").pools == plain.pools


@pytest.mark.parametrize("text", [b"", b"[]", b'{"cloud": 1}', b"\xff" * 100, b'{"version": 2}'])
def test_a_spoilt_file_is_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "aws.json"
    path.write_bytes(text)
    assert kept(path) is None


def test_a_link_or_a_pipe_is_none(tmp_path: Path) -> None:
    import os

    (tmp_path / "real").write_bytes(msgspec.json.encode(catalogue()["aws"]))
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    assert kept(tmp_path / "real") is not None
    assert kept(tmp_path / "link") is None
    assert kept(tmp_path / "pipe") is None


@given(st.floats(allow_nan=True, allow_infinity=True), st.integers(), st.integers(), st.text())
def test_values_that_make_no_sense_are_left_out(
    price: float, cpus: int, memory: int, name: str
) -> None:
    told = KnownType(name=name, cpus=cpus, memory=memory, price=price)
    for one in plausible_types([told]):
        assert 0 <= one.price <= 10_000
        assert 0 < one.cpus <= 65533
        assert one.memory > 0
        assert one.name.isprintable()


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [("4", 4, 4), ("4..8", 4, 8), (">= 4", 4, float("inf")), ("<=8", 0, 8), ("..8", 0, 8),
     ("4..", 4, float("inf"))],
)  # fmt: skip
def test_ranges(text: str, low: float, high: float) -> None:
    assert parse_range(text) == Range(low, high)


@pytest.mark.parametrize("text", ["", "8..4", "x", "4...8", ">=", "-4"])
def test_no_ranges(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_range(text)
