"""A user's ended jobs by sacct: rows as slurmdbd's clients print them, and the real program's words."""

from __future__ import annotations

import gzip
import shutil
import time
from pathlib import Path

import needs
import pytest

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client.accounted_jobs import FIELDS, EndedJobsCli

ROWS = """\
71|71|ann|1000|physics|batch|COMPLETED|1799996400|1799996460|1799998260|st[1-2]|relax | box
73|72_4|ann|1000|physics|batch,aws|CANCELLED by 1000|1799996400|Unknown|1799996520|None assigned|sweep
74|74|ann|1000|physics|aws|FAILED|1799910000|1799910000|1799910010|pub1|old
74.batch|74.batch|||physics||FAILED|1799910000|1799910000|1799910010|pub1|batch
"""
MANUAL = Path("/usr/share/man/man1/sacct.1.gz")
SINCE = 1_799_996_400.0  # 2027-01-15 07:00 UTC


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def settings(root: Path, script: str) -> SlurmSettings:
    (root / "slurm.conf").write_text("ClusterName=alps\n")
    sacct = root / "bin" / "sacct"
    sacct.parent.mkdir()
    sacct.write_text(f"#!/bin/sh\n{script}\n")
    sacct.chmod(0o755)
    return SlurmSettings(conf=str(root / "slurm.conf"), bin_dir=str(sacct.parent))


def test_ended_jobs_have_their_names_tasks_and_times(tmp_path: Path) -> None:
    (tmp_path / "rows").write_text(ROWS)
    asked = tmp_path / "asked"
    cli = EndedJobsCli(settings(tmp_path, f'echo "$@" > {asked}; cat {tmp_path}/rows'))
    first, task = cli.ended_jobs("1000", SINCE)
    assert (first.id, first.label, first.name) == (71, "71", "relax | box")
    assert (first.user, first.uid, first.nodes) == ("ann", 1000, ("st1", "st2"))
    assert (first.start, first.end) == (SINCE + 60, SINCE + 1860)
    assert first.has_ended
    assert (task.id, task.label, task.states) == (73, "72_4", {"CANCELLED"})
    assert (task.start, task.nodes, task.partitions) == (0.0, (), ("batch", "aws"))
    words = asked.read_text()
    assert "--user=1000" in words
    assert "--starttime=2027-01-15T07:00:00" in words


def test_times_do_not_depend_on_the_zone_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sacct does not get our TZ, so it writes local times of the host's zone."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    script = f"""
        at() {{
          if [ "$SLURM_TIME_FORMAT" = %s ]; then echo "$1"; else date -d "@$1" +%FT%T; fi
        }}
        begin=$(at {SINCE + 60:.0f}) end=$(at {SINCE + 120:.0f})
        echo "71|71|ann|1000|physics|batch|COMPLETED|$begin|$begin|$end|st1|x"
    """
    (job,) = EndedJobsCli(settings(tmp_path, script)).ended_jobs("ann", SINCE)
    assert (job.start, job.end) == (SINCE + 60, SINCE + 120)


def test_without_slurmdbd_it_is_an_error_of_slurm(tmp_path: Path) -> None:
    script = "echo 'Slurm accounting storage is disabled' >&2; exit 1"
    with pytest.raises(SlurmError, match="accounting storage is disabled"):
        EndedJobsCli(settings(tmp_path, script)).ended_jobs("ann", SINCE)


def test_the_real_program_knows_the_options_and_the_states(tmp_path: Path) -> None:
    """Without slurmdbd it reads all options, but not the fields."""
    if (sacct := shutil.which("sacct")) is None:
        pytest.skip(needs.missing("sacct"))
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=alps\nSlurmctldHost=localhost\nNodeName=st1\nPartitionName=batch Nodes=st1\n"
    )
    real = SlurmSettings(conf=str(tmp_path / "slurm.conf"), bin_dir=str(Path(sacct).parent))
    with pytest.raises(SlurmError, match="accounting storage is disabled"):
        EndedJobsCli(real).ended_jobs("0", time.time() - 86400)


@pytest.mark.skipif(not MANUAL.exists(), reason=f"{MANUAL} is missing")
def test_the_manual_has_the_fields() -> None:
    words = set(gzip.decompress(MANUAL.read_bytes()).decode().replace("\\", " ").split())
    assert set(FIELDS) <= words
