"""``conf uninstall`` is proven before anything is written: slurmctld starts without our part."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import unless

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.slurm.conf import leaving, removal
from tests.slurm import site_cases
from tests.slurm.test_install import Host

pytestmark = unless("slurmctld")


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(prefix="se-removal-") as name:
        Path(name).chmod(0o755)
        yield Host("small", Path(name))


def add(host: Host, line: str) -> int:
    """Add a line of the site's above our two; its number."""
    lines = host.conf.read_text().splitlines()
    lines.insert(-2, line)
    host.conf.write_text("\n".join(lines) + "\n")
    return lines.index(line) + 1


@pytest.mark.parametrize("restart", [None, "/bin/true"])
@pytest.mark.parametrize(
    ("line", "holder", "names", "fatal"),
    [
        ("PartitionName=sim Nodes=n1,op[1-2],pub[3-4] State=UP", "partition sim", "op[1-2],pub[3-4]", True),
        ("NodeSet=big Nodes=n1,pub2", "node set big", "pub2", True),
        ("SuspendExcNodes=n1,pub[1-4]:2", "SuspendExcNodes", "pub[1-4]", False),
        ("SuspendExcParts=batch,aws", "SuspendExcParts", "aws", False),
        ("DownNodes=pub1 State=DOWN", "DownNodes", "pub1", False),
    ],
)  # fmt: skip
def test_a_line_of_the_sites_that_names_our_nodes_is_refused_with_its_place(
    host: Host, restart: str | None, line: str, holder: str, names: str, fatal: bool
) -> None:
    host.install()
    number = add(host, line)
    before = host.etc()
    with pytest.raises(ConfigError) as refused:
        host.uninstall(force=fatal, restart=restart)
    assert str(refused.value).startswith(f"{host.conf}:{number}: {holder} has {names}: slurmctld ")
    assert "take them out first" in str(refused.value)
    assert host.etc() == before
    if not fatal:
        host.uninstall(force=True)
        assert line in host.conf.read_text()


def test_a_pool_whose_nodes_the_site_names_does_not_leave(host: Host) -> None:
    host.install()
    number = add(host, "PartitionName=sim Nodes=n1,op1")
    config = host.config
    smaller = replace(
        config,
        pools=tuple(pool for pool in config.pools if pool.cloud != "onprem"),
        clouds=tuple(cloud for cloud in config.clouds if cloud.name != "onprem"),
    )
    before = host.etc()
    with pytest.raises(ConfigError) as refused:
        host.install(smaller, force=True)
    assert str(refused.value).startswith(f"{host.conf}:{number}: partition sim has op1: slurmctld")
    assert host.etc() == before


def test_a_switch_with_our_nodes_is_refused_with_its_place() -> None:
    with tempfile.TemporaryDirectory(prefix="se-removal-") as name:
        Path(name).chmod(0o755)
        host = Host("topology", Path(name))
        host.install()
        with pytest.raises(ConfigError) as refused:
            host.uninstall(force=False)
    first, second, jobs = refused.value.problems
    assert "slurmctld does not answer" in jobs
    file = host.conf.parent / "topology.conf"
    assert first.startswith(f"{file}:4: switch elastic-aws has pub[1-8],pubgpu[1-2]: ")
    assert second.startswith(f"{file}:5: switch elastic-onprem has op[1-2]: ")


def test_a_reservation_with_our_nodes_is_named(host: Host) -> None:
    host.install()
    times = "StartTime=2030-01-01T00:00:00 EndTime=2030-01-01T01:00:00"
    host.command(
        "scontrol",
        'case "$*" in ping) echo "Slurmctld(primary) at head is UP";;'
        f' *reservations*) echo "ReservationName=fut {times} Nodes=n1,pub2 Flags=MAINT";'
        f' echo "ReservationName=all {times} Nodes=n1,pub2 Flags=MAINT,ALL_NODES";; esac',
    )
    with pytest.raises(ConfigError) as refused:
        host.uninstall(force=False)
    problem, jobs = refused.value.problems
    assert jobs.startswith("the jobs on cloud nodes are not known: ")
    assert problem.startswith(
        "reservation fut has pub2: slurmctld deletes a reservation with nodes"
    )


@pytest.fixture
def real(host: Host) -> Host:
    """With Slurm's own scontrol, which the throw-away slurmctld is asked by."""
    host.command(
        "scontrol",
        'case "$1" in ping) echo "Slurmctld(primary) at head is DOWN";;'
        ' *) exec /usr/bin/scontrol "$@";; esac',
    )
    host.install()
    return host


@site_cases.ISOLATED
def test_a_throw_away_slurmctld_proves_that_slurmctld_starts_without_us(real: Host) -> None:
    done = real.uninstall(verify=True)
    assert (
        done.lines[0] == "a throw-away slurmctld starts on slurm.conf without slurm-elastic's part"
    )


@site_cases.ISOLATED
def test_what_only_slurmctld_sees_is_refused_before_anything_is_written(
    real: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "mentions", lambda *_: ())
    monkeypatch.setattr(leaving, "hindrances", lambda *_, **_options: ())
    add(real, "PartitionName=sim Nodes=pub1")
    before = real.etc()
    with pytest.raises(ConfigError, match=r"slurmctld does not start without .*partition sim"):
        real.uninstall(verify=True, force=False)
    assert real.etc() == before


@site_cases.ISOLATED
def test_a_slurm_conf_that_no_throw_away_slurmctld_takes_can_still_be_left(real: Host) -> None:
    add(real, "PartitionName=odd Nodes=nowhere")
    done = real.uninstall(verify=True)
    assert done.lines[0].startswith("not proven by a throw-away slurmctld: it does not start now")
