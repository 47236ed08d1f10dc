"""Times that Slurm's commands print and read, whatever the zones of this process and of its host."""

from __future__ import annotations

import ast
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import slurm_elastic.slurm
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.client.cli import SlurmCli

BOOTED_AT, RESERVED_AT = 1_795_000_000, 1_796_000_000
SCONTROL = f"""\
#!/bin/sh
# As scontrol: local times of the zone of its TZ, or else of its host.
at() {{ date -d "@$1" +%Y-%m-%dT%H:%M:%S; }}
echo "$*" >>"${{0%/*}}/calls"
case "$*" in
*"show config"*) echo "BOOT_TIME               = $(at {BOOTED_AT})" ;;
*"show reservations"*)
  echo "ReservationName=res StartTime=$(at {RESERVED_AT}) EndTime=$(at {RESERVED_AT + 60}) Nodes=n1" ;;
*"show nodes"*) echo NodeName=n1 ;;
*"show partitions"*) echo PartitionName=aws ;;
esac
"""
ROOM = Path(slurm_elastic.slurm.__file__).parent
STARTS_OTHER_PROGRAMS = {
    "client/command.py": "the runner itself",
    "client/pyslurm_child.py": "a Python of ours with pyslurm",
    "client/pyslurm_client.py": "a Python of ours with pyslurm",
    "conf/dryrun.py": "unshare, for the throw-away slurmctld",
    "conf/isolated.py": "inside unshare, with the standard library alone",
}


@pytest.fixture(params=["Asia/Tokyo", "America/Los_Angeles", "UTC"])
def settings(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmSettings]:
    """A scontrol of a host, and this process in another zone."""
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    (tmp_path / "slurm.conf").touch()
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield SlurmSettings(bin_dir=str(tmp_path), conf=str(tmp_path / "slurm.conf"))
    time.tzset()


def test_times_of_slurms_answers_are_right_in_every_zone(settings: SlurmSettings) -> None:
    slurm = SlurmCli(settings)
    (reservation,) = slurm.reservations()
    assert (reservation.start, reservation.end) == (RESERVED_AT, RESERVED_AT + 60)
    assert slurm.slurmctld_started() == BOOTED_AT


def test_files_newer_than_slurmctld_are_not_served_in_any_zone(settings: SlurmSettings) -> None:
    def serves(written_at: float) -> bool:
        return controller.serves(settings, {"n1"}, {"aws"}, written_at)

    assert serves(BOOTED_AT - 3600)
    assert not serves(BOOTED_AT + 3600)


def test_a_reservation_begins_when_it_should_in_every_zone(settings: SlurmSettings) -> None:
    SlurmCli(settings).reserve("res", ("n1",), RESERVED_AT, RESERVED_AT + 600)
    calls = (Path(settings.bin_dir) / "calls").read_text()
    assert re.findall(r"starttime=(\S+)", calls) == ["2026-11-30T00:53:20"]


def test_one_module_starts_the_commands_of_slurm() -> None:
    def starts(path: Path) -> bool:
        names = (
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)
        )
        return any(alias.name == "subprocess" for node in names for alias in node.names)

    found = {str(path.relative_to(ROOM)) for path in ROOM.rglob("*.py") if starts(path)}
    assert found == set(STARTS_OTHER_PROGRAMS)


def test_the_restart_command_may_be_a_program_in_usr_local(
    settings: SlurmSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "wait_up", lambda _: None)
    controller.restart(settings, f"/bin/sh -c 'echo $PATH >{tmp_path}/path'")
    assert "/usr/local/bin" in (tmp_path / "path").read_text().strip().split(":")
