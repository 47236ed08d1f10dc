"""The hint that Slurm's own plugin resolves the names of a job's nodes."""

from __future__ import annotations

from pathlib import Path

from slurm_elastic.slurm.client import siteconf
from slurm_elastic.slurm.conf.checks.node_names import LIBRARY, notices


def test_a_host_with_the_plugin_is_told_how_to_use_it(tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    conf.write_text("ClusterName=c\nSlurmctldHost=h\nLaunchParameters=send_gids\n")
    assert list(notices(siteconf.read(str(conf)), [tmp_path])) == []
    library = tmp_path / "x86_64-linux-gnu" / LIBRARY
    library.parent.mkdir()
    library.touch()
    (told,) = notices(siteconf.read(str(conf)), [tmp_path])
    assert told.startswith(f"this host has {library}: with LaunchParameters=enable_nss_slurm")
    conf.write_text(conf.read_text().replace("send_gids", "send_gids,enable_nss_slurm"))
    assert list(notices(siteconf.read(str(conf)), [tmp_path])) == []
