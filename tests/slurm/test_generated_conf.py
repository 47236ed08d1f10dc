"""Our reading of generated slurm.conf is that of three releases' slurmctld in every value we use."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import ROOT_PART, unless

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client import answers, siteconf
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.conf import dryrun
from slurm_elastic.slurm.conf.checks import readings
from tests.slurm import releases
from tests.slurm.generated_conf import generated
from tests.slurm.site_cases import ISOLATED

pytestmark = [unless("slurmctld"), ISOLATED]
FEW, MANY = range(3), range(40)


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-generated-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("seed", FEW)
def test_a_few_are_read_as_this_hosts_slurmctld_does(seed: int, directory: Path) -> None:
    assert same_reading(seed, "22.05", SlurmSettings(), directory)


@pytest.mark.release
@ROOT_PART
@pytest.mark.parametrize("release", ["22.05", "24.11", "25.11"])
def test_forty_are_read_as_each_releases_slurmctld_does(release: str, directory: Path) -> None:
    settings = releases.settings(release, directory)
    read = [same_reading(seed, release, settings, directory / str(seed)) for seed in MANY]
    assert read.count(True) >= 30


def same_reading(seed: int, release: str, settings: SlurmSettings, directory: Path) -> bool:
    """Whether the file was read; False if we refused it with file and line, as Slurm does."""
    version = answers.version(f"slurm {release}")
    case = generated(seed, version)
    conf = case.write(directory)
    site = read_or_refusal(conf, version)
    if isinstance(site, str):
        assert not case.is_taken, site
        assert re.match(rf"{directory}/\S+:\d+: ", site)
        return False
    assert case.is_taken
    done = dryrun.run(replace(settings, conf=str(conf)), site, None, dryrun.isolation() or ())
    assert done.failure is None, (seed, done.failure)
    assert list(readings.differences(site, done, has_topology_yaml=False)) == [], seed
    default = site.default_partition
    shown = [name for name, p in done.partitions.items() if p["Default"] == "YES"]
    assert shown == ([default.names[0]] if default else [])
    return True


def read_or_refusal(conf: Path, version: tuple[int, int]) -> SiteConf | str:
    try:
        return siteconf.read(conf, release=lambda: version)
    except ConfigError as error:
        return str(error)
