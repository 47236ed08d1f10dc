"""``conf check`` names files that several slurmds of one host would share."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from slurm_elastic.base.hostlist import expand
from slurm_elastic.config import domain_pools
from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf.checks import slurmd_files
from tests.slurm import site_cases

APART = "SlurmdPidFile=/run/slurmd-%n.pid\nSlurmdSpoolDir=/var/spool/slurmd/%n\n"


def told(root: Path, text: str, nodes: str, provider: str = "local") -> list[str]:
    conf = site_cases.copy("small", root)
    conf.write_text(f"{conf.read_text()}\n{text}")
    config = site_cases.config("small", conf)
    (cloud,) = (cloud for cloud in config.clouds if cloud.provider == provider)
    pool = next(pool for pool in config.pools if pool.cloud == cloud.name)
    config = replace(config, pools=(replace(pool, nodes=nodes),), clouds=(cloud,))
    return list(slurmd_files.notices(config, domain_pools(config, expand), siteconf.read(conf)))


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", "op[1-2]"),
        ("NodeName=head\n", "op1"),
        ("NodeName=m1 NodeHostname=head.example.org\n", "op1"),
        ("NodeName=m1 NodeAddr=127.0.0.1\n", "op1"),
    ],
)
def test_two_slurmds_with_the_same_files_are_told_apart(
    tmp_path: Path, text: str, nodes: str
) -> None:
    pid, spool = told(tmp_path, text, nodes)
    assert pid == (
        f"{tmp_path}/etc/slurm.conf:9: SlurmdPidFile is /run/slurmd.pid, and with provider local"
        " several slurmds run on this host: they would end each other, or overwrite the files of"
        " each other's jobs; write %n, as SlurmdPidFile=/run/slurmd-%n.pid, and restart slurmd on"
        " all nodes"
    )
    assert "SlurmdSpoolDir is /var/spool/slurmd, and" in spool


@pytest.mark.parametrize(
    ("text", "nodes", "provider"),
    [(APART, "op[1-2]", "local"), ("", "op1", "local"), ("NodeName=head\n", "pub[1-2]", "aws")],
)
def test_slurmds_with_files_of_their_own_are_not_noted(
    tmp_path: Path, text: str, nodes: str, provider: str
) -> None:
    assert told(tmp_path, text, nodes, provider) == []
