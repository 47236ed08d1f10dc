"""The systemd units: who runs what, and what must survive a restart."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from needs import unless
from patience import eventually, patience

from tests.needs import ROOT

ETC = Path(__file__).parent.parent / "etc"
UNITS = (
    "slurm-elasticd.service",
    "slurm-elastic-ckptman.service",
    "slurm-elastic-local.service",
    "slurm-elastic-hub.service",
    "slurm-elastic-copier.service",
    "slurm-elastic-watchdog.service",
    "slurm-elastic-web.service",
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


def test_the_daemon_may_lower_the_priority_of_what_users_ask_for() -> None:
    """By nice(2), which @resources has."""
    filters = settings("slurm-elasticd.service")["SystemCallFilter"]
    assert filters[-1] == "setpriority"


def test_the_watchdog_shares_nothing_with_the_daemon_that_could_stop_both() -> None:
    """Nor may it write the state directory, which may be what ails the daemon."""
    unit = settings("slurm-elastic-watchdog.service")
    assert unit["ProtectSystem"] == ["strict"]
    assert not {"StateDirectory", "ReadWritePaths", "Requires", "BindsTo", "PartOf"} & unit.keys()


@pytest.mark.parametrize(
    "name", ["slurm-elasticd", "slurm-elastic-ckptman", "slurm-elastic-watchdog"]
)
def test_services_that_ask_clouds_find_the_credentials_of_the_site(name: str) -> None:
    """docs/install.md names one file for all. The watchdog may have its own, which wins."""
    files = settings(f"{name}.service")["EnvironmentFile"]
    assert files[0] == "-/etc/default/slurm-elastic"
    own = ["-/etc/default/slurm-elastic-watchdog"] if name == "slurm-elastic-watchdog" else []
    assert files[1:] == own


@pytest.mark.parametrize("unit", sorted(path.name for path in ETC.glob("*.service")))
def test_each_unit_sees_what_a_site_keeps_below_a_home(unit: str) -> None:
    """slurm.conf, the state directory, ha.directory or images: many sites share only /home."""
    assert settings(unit).get("ProtectHome", ["no"])[0] in ("no", "read-only")


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


EXPOSURE = {
    "slurm-elasticd.service": 3.5,
    "slurm-elastic-ckptman.service": 3.5,
    "slurm-elastic-watchdog.service": 3.5,
    "slurm-elastic-web.service": 3.5,
    "slurm-elastic-metrics.service": 3.5,
    "slurm-elastic-ckpt-sweep.service": 3.5,
    "slurm-elastic-agent.service": 3.5,
    "slurm-elastic-hub.service": 3.5,
    "slurm-elastic-copier.service": 3.5,
    # What jobs run under, which are its children; docs/units.md has the reason for each line.
    "slurm-elastic-local.service": 8.0,
}


def test_every_unit_is_measured() -> None:
    assert {path.name for path in ETC.glob("*.service")} == set(EXPOSURE)


@unless("systemd-analyze")
@pytest.mark.parametrize(("unit", "most"), EXPOSURE.items(), ids=EXPOSURE)
def test_what_a_unit_leaves_open_is_little(unit: str, most: float) -> None:
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(ETC / unit)]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    level = re.search(r"exposure level for \S+: ([0-9.]+)", said)
    assert level, said
    assert float(level[1]) <= most


@unless("systemd-analyze")
def test_what_the_unit_of_jobs_leaves_open_has_a_reason() -> None:
    """Which of it is open is another matter with another release of systemd."""
    page = (ETC.parent / "docs" / "units.md").read_text().partition("## slurm-elastic-local")[2]
    rows = [re.split(r"(?<!\\)\|", line)[1] for line in page.splitlines() if line.startswith("| `")]
    given = {name.replace("\\|", "|") for row in rows for name in re.findall(r"`([^`]+)`", row)}
    families = tuple(name.removesuffix("*") for name in given if name.endswith("=~*"))
    unit = str(ETC / "slurm-elastic-local.service")
    command = ["systemd-analyze", "security", "--offline=true", "--json=short", unit]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = {one["name"] for one in json.loads(said) if float(one["exposure"] or 0) > 0}
    assert len(found) > 30
    assert {name for name in found - given if not name.startswith(families)} == set()


@pytest.mark.parametrize("unit", EXPOSURE)
def test_memory_and_tasks_are_bounded_but_for_jobs(unit: str) -> None:
    found = settings(unit)
    if unit == "slurm-elastic-local.service":
        assert "MemoryMax" not in found
        return
    assert found["MemoryMax"][0].endswith(("M", "G"))
    assert int(found["TasksMax"][0]) <= 512
    assert found["UMask"] == ["0077"]


@pytest.mark.parametrize(
    "name", ["slurm-elasticd", "slurm-elastic-ckptman", "slurm-elastic-watchdog"]
)
def test_a_command_that_takes_all_memory_does_not_end_its_service(name: str) -> None:
    assert settings(f"{name}.service")["OOMPolicy"] == ["continue"]


def confined(unit: str, *command: str) -> subprocess.CompletedProcess[str]:
    """A command with the capabilities that the unit leaves root."""
    names = settings(unit)["CapabilityBoundingSet"][0].split()
    kept = ",".join(["-all", *(f"+{name.removeprefix('CAP_').lower()}" for name in names)])
    return subprocess.run(
        ["setpriv", f"--bounding-set={kept}", "--inh-caps=-all", "--no-new-privs", *command],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@ROOT
def test_the_switch_can_tell_whose_slurmstepd_it_is_with_what_its_unit_leaves_it(
    tmp_path: Path,
) -> None:
    """Where it could not it would take each for a job, and the machine would never stop."""
    program = tmp_path / "slurmstepd"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", program)
    look = "from slurm_elastic.machine.programs import agent; import sys; print(agent.is_step(sys.argv[1], ''))"
    process = subprocess.Popen([program, "600"])
    try:
        eventually(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "slurmstepd\n")
        words = ("slurm-elastic-agent.service", sys.executable, "-c", look, str(process.pid))
        assert confined(*words).stdout == "True\n"
        os.chown(program, 2, 2)
        assert confined(*words).stdout == "False\n"
    finally:
        process.kill()
        process.wait()


@ROOT
def test_the_hub_can_read_the_directory_of_two_heads_as_slurmuser_with_what_its_unit_leaves_it(
    tmp_path: Path,
) -> None:
    """NFS may map root to nobody there, who may not enter the directory."""
    look = (
        "import os, sys; from pathlib import Path; from slurm_elastic.base.account import acting_in\n"
        "with acting_in([Path(sys.argv[1])], 'daemon'): print(os.geteuid(), os.listdir(sys.argv[1]))"
    )
    tmp_path.chmod(0o755)
    place = tmp_path / "shared"
    place.mkdir(mode=0o700)
    os.chown(place, 1, 1)
    words = ("slurm-elastic-hub.service", sys.executable, "-c", look, str(place))
    done = confined(*words)
    assert "root cannot take on" not in done.stderr
    assert settings("slurm-elastic-hub.service")["SystemCallFilter"][-1] == "@setuid @chown"


@ROOT
def test_the_sweeper_can_remove_with_what_its_unit_leaves_it(tmp_path: Path) -> None:
    """A directory that a user owns and that nobody else may enter."""
    place = tmp_path / "12"
    place.mkdir(mode=0o700)
    (place / "image").write_text("x")
    for path in (place / "image", place):
        os.chown(path, 2, 2)
    assert confined("slurm-elastic-ckpt-sweep.service", "rm", "-r", str(place)).stderr == ""
    assert not place.exists()


@pytest.mark.parametrize("service", ["daemon", "ckptman", "watchdog", "hub", "copier"])
def test_a_service_has_no_simulator_in_its_process(service: str) -> None:
    """A question for a price runs it in the bounded process, which imports it by name."""
    code = (
        f"import sys, slurm_elastic.cli.services.{service}\n"
        "print([m for m in sys.modules if m.startswith('slurm_elastic.simulate')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ETC.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
