"""``conf check`` names typed gres of the site that a cloud's pools have without the type."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf.checks import untyped_gres
from tests.slurm import small_sites


def notices(root: Path, site_gres: str, pool_gres: dict[str, int], *allowed: str) -> list[str]:
    conf = root / "slurm.conf"
    conf.write_text(
        f"ClusterName=alpha\nNodeName=g[1-2] Gres={site_gres}\nNodeName=n1\n"
        "PartitionName=gpu Nodes=g[1-2]\nPartitionName=batch Nodes=n1 Default=YES\n"
    )
    config = small_sites.config(conf)
    pools = tuple(replace(pool, gres=pool_gres) for pool in config.pools)
    config = replace(config, pools=pools, allow=replace(config.allow, partitions=allowed))
    return list(untyped_gres.notices(config, siteconf.read(conf)))


@pytest.mark.parametrize(
    "gres", ["gpu:a100:2", "gpu:a100:2(S:0,1)", "lic:4,gpu:a100", "gpu:a100:no_consume:2"]
)
def test_a_pool_without_the_type_of_the_sites_nodes_is_noted(tmp_path: Path, gres: str) -> None:
    (line,) = notices(tmp_path, gres, {"gpu": 2}, "gpu")
    assert line.startswith("cloud aws: its pools have gpu without the type a100, which")
    assert f"{tmp_path}/slurm.conf:2 gives to g1: jobs with --gres=gpu:a100:1 do not burst" in line
    assert line.endswith('set gres: {"gpu:a100": N}')


@pytest.mark.parametrize(
    ("site_gres", "pool_gres", "allowed"),
    [
        ("gpu:2", {"gpu": 2}, ("gpu",)),
        ("gpu", {"gpu": 2}, ("gpu",)),
        ("gpu:no_consume:2", {"gpu": 2}, ("gpu",)),
        ("gpu:a100:2", {"gpu:a100": 2}, ("gpu",)),
        ("gpu:a100:2", {}, ("gpu",)),
        ("gpu:a100:2", {"gpu": 2}, ()),
    ],
)
def test_pools_that_jobs_of_the_partition_can_use_are_not_noted(
    tmp_path: Path, site_gres: str, pool_gres: dict[str, int], allowed: tuple[str, ...]
) -> None:
    assert notices(tmp_path, site_gres, pool_gres, *allowed) == []
