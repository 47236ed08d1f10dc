"""``conf diff`` as a person reads it: short, 80 columns, however many nodes there are."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.config import Config
from slurm_elastic.slurm.conf import conf_diff, plan
from slurm_elastic.slurm.conf.install import install
from tests.slurm import site_cases

VERSION = (22, 5)


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="d-") as name:
        Path(name).chmod(0o755)  # root works there as SlurmUser
        yield Path(name)


def configured(root: Path) -> Config:
    conf = site_cases.copy("small", root)
    config = site_cases.config("small", conf)
    settings = replace(config.slurm, programs_dir=f"{root}/libexec", bin_dir=f"{root}/bin")
    return replace(config, slurm=settings, state_dir=f"{root}/state")


def shown(config: Config) -> list[str]:
    return conf_diff.short(plan.make(config, version=VERSION)).splitlines()


def installed(root: Path) -> Config:
    config = configured(root)
    path = root / "elastic" / "slurm-elastic.yaml"
    path.parent.mkdir()
    path.write_text("# what install reads is `config`\n")
    install(config, path, version=VERSION, verify=False)
    return config


def test_a_first_install_fits_a_screen(root: Path) -> None:
    lines = shown(configured(root))
    assert len(lines) <= 50
    assert max(map(len, lines)) <= 80
    assert lines[0] == f"new in {root}/libexec (ours; --all prints them):"
    assert "  + ResumeRate=0" in lines
    assert "  + include slurm-elastic.conf" in lines
    node = lines.index("  + NodeName=pub[1-8] CPUs=2 RealMemory=3840 Feature=aws,spot Weight=1010")
    assert lines[node + 1] == "        NodeAddr=233.252.0.[1-8] State=CLOUD"


def test_of_a_change_only_the_words_that_change_are_told(root: Path) -> None:
    config = installed(root)
    aws, onprem = config.clouds
    fewer = replace(config, clouds=(replace(aws, suspend_time=900.0), onprem))
    assert shown(fewer) == [
        f"changed {root}/etc/slurm-elastic.conf:",
        "  ~ PartitionName=aws SuspendTime=300 -> 900",
    ]


def test_a_pool_that_leaves_or_grows_is_a_line(root: Path) -> None:
    config = installed(root)
    spot, gpus, hall = config.pools
    lines = shown(replace(config, pools=(replace(spot, nodes="pub[1-16]"), hall)))
    assert gpus.nodes == "pubgpu[1-2]"
    assert {line.split(" CPUs")[0] for line in lines if "NodeName=" in line} == {
        "  + NodeName=pub[1-16]",
        "  - NodeName=pub[1-8]",
        "  - NodeName=pubgpu[1-2]",
        "  - NodeName=pubgpu[1-2] AutoDetect=off Name=gpu File=/dev/nvidia0",
    }
    assert "  ~ PartitionName=aws Nodes=pub[1-8],pubgpu[1-2] -> pub[1-16]" in lines


def test_ten_thousand_nodes_in_many_pools_are_counted(root: Path) -> None:
    config = configured(root)
    spot = config.pools[0]
    many = [replace(spot, name=f"p{i}", nodes=f"r{i}n[1-50]") for i in range(199)]
    scattered = ",".join(f"x{i}y{i}" for i in range(50))
    pools = (replace(spot, name="odd", nodes=scattered), *many)
    lines = shown(replace(config, pools=pools, clouds=config.clouds[:1]))
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert any("... (50 nodes)" in line for line in lines)
    assert "    and 188 more NodeName lines (9,400 nodes)" in lines
    assert any("(10,000 nodes)" in line for line in lines)
