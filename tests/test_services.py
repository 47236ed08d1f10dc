"""The systemd units: who runs what, and what must survive a restart."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from patience import patience

ETC = Path(__file__).parent.parent / "etc"
UNITS = (
    "slurm-elasticd.service",
    "slurm-elastic-ckptman.service",
    "slurm-elastic-local.service",
    "slurm-elastic-watchdog.service",
)


def settings(unit: str) -> dict[str, list[str]]:
    """Each key's values in order; systemd takes some keys several times."""
    found: dict[str, list[str]] = {}
    for line in (ETC / unit).read_text().splitlines():
        if line and not line.startswith(("#", "[")):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


@pytest.mark.parametrize("name", ["slurm-elasticd", "slurm-elastic-ckptman"])
def test_the_services_run_as_slurm_user_with_no_capability(name: str) -> None:
    unit = settings(f"{name}.service")
    assert name in unit["ExecStart"][0].split()
    assert unit["User"] == ["slurm"]
    assert unit["CapabilityBoundingSet"] == [""]
    assert unit["NoNewPrivileges"] == ["yes"]
    assert unit["ProtectSystem"] == ["strict"]
    assert unit["StateDirectory"] == ["slurm-elastic"]
    assert unit["StateDirectoryMode"] == ["0700"]
    assert unit["UMask"] == ["0077"]


def test_the_watchdog_shares_nothing_with_the_daemon_that_could_stop_both() -> None:
    """Nor may it write the state directory, which may be what ails the daemon."""
    unit = settings("slurm-elastic-watchdog.service")
    assert unit["EnvironmentFile"] == ["-/etc/default/slurm-elastic-watchdog"]
    assert unit["ProtectSystem"] == ["strict"]
    assert not {"StateDirectory", "ReadWritePaths", "Requires", "BindsTo", "PartOf"} & unit.keys()


def test_the_agents_machines_and_notes_outlive_it() -> None:
    unit = settings("slurm-elastic-local.service")
    assert unit["User"] == ["root"]
    assert unit["KillMode"] == ["process"]
    assert unit["RuntimeDirectoryPreserve"] == ["yes"]
    # Jobs are its grandchildren: a private file system would be theirs too.
    assert not {"ProtectSystem", "PrivateTmp", "ProtectHome", "NoNewPrivileges"} & unit.keys()


def test_the_agents_logs_are_in_a_directory_of_its_own() -> None:
    """systemd gives LogsDirectory with all its content to User=: never slurmctld's /var/log/slurm."""
    unit = settings("slurm-elastic-local.service")
    assert unit["LogsDirectory"] == ["slurm-elastic"]
    text = (ETC / "slurm-elastic-local.service").read_text()
    assert "--log-dir /var/log/slurm-elastic\n" in text


@pytest.mark.parametrize("unit", UNITS)
def test_a_wrong_configuration_is_not_tried_again(unit: str) -> None:
    found = settings(unit)
    assert found["RestartPreventExitStatus"] == ["2"]
    assert "--config /etc/slurm-elastic/slurm-elastic.yaml" in found["ExecStart"][0]


@pytest.mark.parametrize("unit", UNITS)
def test_systemd_understands_every_line(unit: str) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:  # a machine without systemd has no other judge
        assert settings(unit)["Type"] == ["exec"]
        return
    done = subprocess.run(
        [verify, "verify", "--man=no", str(ETC / unit)],
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if unit in line]
    assert ours == []


def test_the_agent_of_machines_never_stays_away() -> None:
    unit = settings("slurm-elastic-agent.service")
    assert unit["Restart"] == ["always"]
    assert unit["StartLimitIntervalSec"] == ["0"]
    assert unit["KillMode"] == ["process"], "without systemd's help slurmd is its child"
    assert unit["ConditionPathExists"] == ["/run/slurm-elastic/agent"]
