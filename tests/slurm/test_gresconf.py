"""Our part of gres.conf: its lines, what it stands beside, and what a real slurmctld makes of it."""

from __future__ import annotations

import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import missing

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config
from slurm_elastic.slurm.conf import check, dryrun, gresconf, plan
from slurm_elastic.slurm.conf.install import install
from slurm_elastic.slurm.conf.uninstall import uninstall
from tests.slurm import site_cases

VERSION = (22, 5)
GPUS = "NodeName=pubgpu[1-2] AutoDetect=off Name=gpu File=/dev/nvidia0"
isolated = pytest.mark.skipif(
    bool(missing("slurmctld")) or dryrun.isolation() is None,
    reason=missing("slurmctld") or "no network namespaces here",
)


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-gres-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def configured(root: Path, gres_conf: str | None = None, **gpus: object) -> Config:
    """The small site, with a gres.conf, and other settings of its pool ``gpus``."""
    conf = site_cases.copy("small", root)
    if gres_conf is not None:
        (conf.parent / "gres.conf").write_text(gres_conf)
    config = site_cases.config("small", conf)
    settings = replace(config.slurm, programs_dir=f"{root}/libexec")
    spot, other, hall = config.pools
    pools = (spot, replace(other, **gpus), hall)
    return replace(config, slurm=settings, state_dir=f"{root}/state", pools=pools)


def alone(config: Config) -> Config:
    """Where nobody answers, or even has the name of the site's head: it is asked for a second only."""
    return replace(config, slurm=replace(config.slurm, command_timeout=1.0))


def lines(config: Config) -> list[str]:
    text = plan.make(config, version=VERSION).gres
    return [line for line in text.splitlines() if not line.startswith("#")]


def refusal(config: Config) -> str:
    with pytest.raises(ConfigError) as caught:
        plan.make(config, version=VERSION)
    return str(caught.value)


@pytest.mark.parametrize(
    ("gres", "devices", "told"),
    [
        ({"gpu": 1}, {}, ["Name=gpu File=/dev/nvidia0"]),
        ({"gpu:a100": 4}, {}, ["Name=gpu Type=a100 File=/dev/nvidia[0-3]"]),
        (
            {"gpu:t4": 2, "gpu:a100": 1}, {},
            ["Name=gpu Type=t4 File=/dev/nvidia[0-1]", "Name=gpu Type=a100 File=/dev/nvidia2"],
        ),
        ({"gpu": 2}, {"gpu": ("/dev/dri/renderD[128-129]",)}, ["Name=gpu File=/dev/dri/renderD[128-129]"]),
        (
            {"gpu:a100_3g.20gb": 2},
            {"gpu:a100_3g.20gb": ("/dev/nvidia0,/dev/caps/cap[21-22]", "/dev/nvidia0,/dev/caps/cap[30-31]")},
            [
                "Name=gpu Type=a100_3g.20gb MultipleFiles=/dev/nvidia0,/dev/caps/cap[21-22]",
                "Name=gpu Type=a100_3g.20gb MultipleFiles=/dev/nvidia0,/dev/caps/cap[30-31]",
            ],
        ),
        ({"fpga": 2}, {}, []),
        ({"fpga": 2}, {"fpga": ("/dev/fpga[0-1]",)}, ["Name=fpga File=/dev/fpga[0-1]"]),
    ],
)  # fmt: skip
def test_devices_of_a_pool(
    gres: dict[str, int], devices: dict[str, tuple[str, ...]], told: list[str], root: Path
) -> None:
    start = "NodeName=pubgpu[1-2] AutoDetect=off "
    assert lines(configured(root, gres=gres, devices=devices)) == [start + line for line in told]


def test_a_part_of_a_gpu_without_files_is_refused(root: Path) -> None:
    assert refusal(configured(root, gres={"gpu:a100_3g.20gb": 2})) == (
        "pool gpus: gres gpu:a100_3g.20gb is a part of a GPU (MIG), whose files differ from machine"
        " to machine type; expected `devices` with them, or lines for pubgpu1 in gres.conf"
        " (slurm-elastic help gpus)"
    )


def test_nodes_that_the_site_names_are_the_sites(root: Path) -> None:
    own = "NodeName=pubgpu1 Name=gpu Type=a100_3g.20gb Count=2\n"
    config = configured(root, own + own.replace("gpu1", "gpu2"), gres={"gpu:a100_3g.20gb": 2})
    made = plan.make(config, version=VERSION)
    assert made.gres == ""
    assert f"pool gpus: {root}/etc/gres.conf names its nodes, and says what devices they have" in (
        made.notices
    )


def test_a_line_for_all_nodes_is_refused_where_it_would_double_devices(root: Path) -> None:
    config = configured(root, "# ours\nName=gpu File=/dev/nvidia[0-7]\n")
    assert (
        f"{root}/etc/gres.conf:2: Name=gpu without NodeName holds for the nodes of pool gpus, too;"
        " expected NodeName= with the site's own nodes before it"
    ) in refusal(config)
    assert lines(configured(root / "2", "Name=gpu Count=1\n", gres={})) == []


FOR_ALL = "Name=gpu File=/dev/not-there[0-1]"


@pytest.mark.parametrize("line", [FOR_ALL, "Name=nic MultipleFiles=/dev/a,/dev/b"])
def test_a_line_with_files_for_all_nodes_is_refused_without_gpus_in_the_pools(
    line: str, root: Path
) -> None:
    config = configured(root, f"{line}\n", gres={})
    conf = root / "etc" / "slurm.conf"
    assert lines(config) == []  # a site without GresTypes: no slurmd reads gres.conf
    conf.write_text(f"{conf.read_text()}\nGresTypes=gpu,nic\n")
    kind = line[5:8]
    assert (
        f"{root}/etc/gres.conf:1: Name={kind} without NodeName holds for the nodes of pool spot,"
        " too; their slurmd ends if a machine lacks such a file; expected NodeName= with the"
        " site's own nodes before it"
    ) in refusal(config)
    (root / "etc" / "gres.conf").write_text(f"NodeName=n[1-4] {line}\n")
    assert lines(config) == []


@pytest.mark.skipif(bool(missing("slurmd")), reason=missing("slurmd"))
@pytest.mark.parametrize("nodes", ["", "NodeName=own "])
def test_slurmd_ends_over_a_line_for_all_nodes_on_a_node_without_gres(
    nodes: str, root: Path
) -> None:
    host = socket.gethostname().split(".")[0]
    (root / "slurm.conf").write_text(
        f"ClusterName=a\nSlurmctldHost={host}\nAuthType=auth/none\nCredType=cred/none\n"
        f"GresTypes=gpu\nNodeName=own Gres=gpu:2 CPUs=1 NodeHostname=elsewhere\n"
        f"NodeName=pub1 CPUs=1 NodeHostname={host}\nPartitionName=all Nodes=ALL Default=YES\n"
    )
    (root / "gres.conf").write_text(f"{nodes}{FOR_ALL}\n")
    command = ("slurmd", "-G", "-N", "pub1", "-f", str(root / "slurm.conf"))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ("can't stat gres.conf file /dev/not-there0" in done.stderr) is (not nodes)


def test_types_with_gpus_that_a_pool_does_not_tell_of_are_told(root: Path) -> None:
    (notice,) = [
        n for n in plan.make(configured(root, gres={}), version=VERSION).notices if "gpus" in n
    ]
    assert notice == (
        "pool gpus has no gres, but each of its types has: to let jobs use them, set gres: {\"gpu\": 1}"
    )  # fmt: skip
    assert gresconf.least([{"gpu": 4, "gpu:t4": 4}, {"gpu": 1, "gpu:t4": 1}]) == {"gpu:t4": 1}
    assert gresconf.least([{"gpu": 4, "gpu:t4": 4}, {"gpu": 8, "gpu:a100": 8}]) == {"gpu": 4}


@pytest.mark.parametrize("own", [None, "NodeName=n1 Name=gpu File=/dev/null", "#\r\nName=fpga\r\n"])
def test_gres_conf_is_the_sites_again_after_the_uninstall(own: str | None, root: Path) -> None:
    config, path = alone(configured(root, own)), root / "etc" / "gres.conf"
    yaml = root / "elastic" / "slurm-elastic.yaml"
    yaml.parent.mkdir()
    yaml.write_text("# what install reads is `config`\n")
    install(config, yaml, version=VERSION, verify=False)
    assert path.read_text().endswith("\ninclude slurm-elastic-gres.conf\n")
    assert GPUS in (root / "etc" / "slurm-elastic-gres.conf").read_text()
    again = install(config, yaml, version=VERSION, verify=False)
    assert again.changed == ()
    uninstall(config, yaml, version=VERSION, force=True)
    assert (path.read_bytes().decode() if path.exists() else None) == own
    assert not (root / "etc" / "slurm-elastic-gres.conf").exists()


def test_a_pool_that_has_no_gpus_any_more_leaves_gres_conf(root: Path) -> None:
    yaml = root / "elastic" / "slurm-elastic.yaml"
    yaml.parent.mkdir()
    yaml.write_text("# what install reads is `config`\n")
    config = alone(configured(root))
    install(config, yaml, version=VERSION, verify=False)
    spot, gpus, hall = config.pools
    without = replace(config, pools=(spot, replace(gpus, gres={}), hall))
    # Without a slurmctld nobody knows whether jobs use the GPUs.
    done = install(without, yaml, version=VERSION, verify=False, force=True)
    assert root / "etc" / "slurm-elastic-gres.conf" in done.changed
    assert (root / "etc" / "slurm-elastic-gres.conf").read_text() == ""
    assert "slurmctld is not running; it will read this when it starts" in done.lines


@isolated
def test_slurmctld_ends_itself_over_a_sites_autodetect_but_not_with_our_lines(root: Path) -> None:
    """Many sites with GPUs have this one line, and it holds for cloud nodes, too. 24.11 does not."""
    config = configured(root, "AutoDetect=nvml\n")
    one = plan.make(config)
    assert lines(config) == [
        "NodeName=pub[1-8] AutoDetect=off", GPUS, "NodeName=op[1-2] AutoDetect=off",
    ]  # fmt: skip
    wrapper = dryrun.isolation()
    assert wrapper
    ended = dryrun.run(config.slurm, one.site, one.fragment, wrapper).failure or ""
    assert one.version != VERSION or "Cannot use AutoDetect on cloud node" in ended
    assert check.check(one).full
