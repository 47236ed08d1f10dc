"""mpirun's commands for other nodes, and srun, which must not start ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import mpi
from slurm_elastic.machine.ckptroot.caller import Caller
from slurm_elastic.machine.ckptroot.job_nodes import JobNode, JobNodes
from slurm_elastic.machine.ckptroot.site import HelperSite

from .helpers import ROOT, eventually

pytestmark = ROOT
NODES = JobNodes(JobNode("n1", "127.0.0.1"), (JobNode("n2", "10.0.0.2"),))
CALLER = Caller(
    job=7, uid=os.geteuid(), gid=os.getegid(), user="us", groups=tuple(os.getgroups()),
    environment={b"PATH": b"/opt/mpi/bin:/usr/bin:/bin", b"UCX_TLS": b"tcp"},
)  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> dict[bytes, bytes]:
    """The job's variables; its programs are there."""
    site = HelperSite(cluster="t", directory=tmp_path, key=b"", reader=(0, 0),
                      scontrol=str(tmp_path / "scontrol"))  # fmt: skip
    (tmp_path / "t" / "7").mkdir(parents=True)
    (tmp_path / "scontrol").write_text("#!/bin/sh\necho 'MpiDefault              = pmix'\n")
    (tmp_path / "scontrol").chmod(0o755)
    return mpi.environment(site, CALLER, NODES, tmp_path)


@pytest.fixture
def agent(made: dict[bytes, bytes], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """ssh's place, as Hydra calls it."""
    program = os.fsdecode(made[b"HYDRA_LAUNCHER_EXEC"])
    environment = {
        **made, b"SLURMD_NODENAME": b"n1", b"MINE": b"a=b\nc", b"DMTCP_QUIET": b"2",
        b"LD_PRELOAD": b"/usr/lib/dmtcp/libdmtcp_none.so",
    }  # fmt: skip
    process = subprocess.Popen(
        [program, "-x", "n2", '"echo"', "--id", "1"], env=environment, cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    yield process
    process.kill()
    process.wait()


def test_the_job_keeps_its_own_values_but_for_what_starts_ranks(made: dict[bytes, bytes]) -> None:
    assert made[b"UCX_TLS"] == b"tcp"
    assert made[b"OMPI_MCA_btl"] == b"tcp,self"
    assert made[b"OMPI_MCA_plm_rsh_agent"] == made[b"HYDRA_LAUNCHER_EXEC"]
    assert made[b"PATH"].endswith(b"/t/7/bin:/opt/mpi/bin:/usr/bin:/bin")


def test_a_command_for_another_node_is_taken_once_and_its_end_ends_ssh(
    agent: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    taken: list[mpi.Start] = []
    eventually(lambda: taken.extend(mpi.starts(tmp_path, CALLER)) or taken)
    (start,) = taken
    assert (start.node, start.directory) == ("n2", str(tmp_path))
    assert start.command == '"echo" --id 1'
    before = os.umask(0o22)
    os.umask(before)
    assert start.umask == before
    assert start.environment[b"MINE"] == b"a=b\nc"
    assert b"DMTCP_QUIET" not in start.environment
    assert start.environment[b"LD_PRELOAD"] == b""
    assert mpi.starts(tmp_path, CALLER) == []
    assert agent.poll() is None, "mpirun finds its child after a restore"
    mpi.end(tmp_path, CALLER, start.name, 3)
    assert agent.wait(60) == 3


def test_a_command_for_its_own_node_is_carried_out(made: dict[bytes, bytes]) -> None:
    program = os.fsdecode(made[b"HYDRA_LAUNCHER_EXEC"])
    environment = {**made, b"SLURMD_NODENAME": b"n1"}
    done = subprocess.run(
        [program, "n1", "echo", '"a', 'b"'], env=environment, capture_output=True, check=True
    )
    assert done.stdout == b"a b\n"


@pytest.mark.parametrize(
    ("words", "refused"),
    [
        (["--mpi=pmi2", "ring"], "pmi2"), (["-n", "2", "--mpi", "pmix_v4", "ring"], "pmix_v4"),
        (["ring"], "pmix"), (["hostname"], "pmix"), (["-n", "2", "ring"], "pmix"),
        (["--mpi=pmix", "-n", "1", "ring"], "pmix"), (["-n1", "-n", "4", "ring"], "pmix"),
        (["ring", "-n", "1"], "pmix"), (["-N", "2", "ring", "--ntasks=1"], "pmix"),
        (["-l", "ring", "-n1"], "pmix"), (["-n", "1", "a", ":", "-n", "1", "b"], "pmix"),
        (["-n1", ":", "-n", "1", "b"], "pmix"), (["-n", "12", "ring"], "pmix"), ([], "pmix"),
        (["-N1", "ring"], "pmix"), (["-n", "2", "prog", "-n", "1"], "pmix"),
        (["--mpi=none", "ring"], ""), (["--mpi", "none", "-n", "2", "ring"], ""),
        (["-n", "1", "hostname"], ""), (["-n1", "hostname"], ""), (["--ntasks=1", "hostname"], ""),
        (["-N1", "-n1", "a b"], ""), (["-N", "1", "--ntasks", "1", "hostname"], ""),
        (["-l", "-J", "x", "--mem=0", "-w", "n1", "-n", "1", "prog", "-n", "4"], ""),
    ],
)  # fmt: skip
def test_srun_starts_no_rank(
    made: dict[bytes, bytes], tmp_path: Path, words: list[str], refused: str
) -> None:
    (tmp_path / "srun").write_text("#!/bin/sh\nprintf '%s\\n' \"$*\"\n")
    (tmp_path / "srun").chmod(0o755)
    own = made[b"PATH"].partition(b":")[0]
    environment = {**made, b"PATH": own + b":" + os.fsencode(tmp_path) + b":/bin"}
    done = subprocess.run(
        ["/usr/bin/env", "srun", *words], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    if refused:
        assert done.returncode == 1
        reason = f"srun --mpi={refused} cannot be saved by dmtcp: start them by mpirun"
        assert reason in done.stderr
        assert "srun --mpi=none hostname" in done.stderr
    else:
        assert done.stdout == " ".join(words) + "\n"
