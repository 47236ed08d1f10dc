"""BLCR's method over a real sshd, on stand-ins for its commands."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from needs import ROOT
from patience import awake, eventually, patience, stretched

from slurm_elastic.base.errors import CheckpointError
from slurm_elastic.checkpointers.blcr import BlcrCheckpointer, _Records
from slurm_elastic.checkpointers.ssh import CommandResult, Shells, _execute
from slurm_elastic.config.sections.checkpoint import BlcrSettings
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.hooks.launcher import launchers
from slurm_elastic.testing.saving import (
    SAVE_TIMEOUT_S,
    Deadlines,
    Holds,
    SaveContract,
    Spoils,
    save,
)
from tests.real_sshd import Sshd, make_key

USER = 65534
HOST = "127.0.0.1"

PAYLOAD = """
import os, sys, time
from pathlib import Path
progress = Path(sys.argv[1])
step = int(progress.read_text()) if progress.exists() else 0
while True:
    step += 1
    part = progress.with_suffix(".part")
    part.write_text(str(step))
    os.replace(part, progress)
    time.sleep(0.02)
"""

CR_CHECKPOINT = """#!/bin/sh
# cr_checkpoint [--stop] --tree --file FILE PID
stop=
for word; do
    case $word in --stop) stop=yes ;; --file) file=next ;; --tree) ;; *)
        [ "$file" = next ] && file=$word || pid=$word ;; esac
done
echo "uid=$(id -u) home=${HOME-} args=$*" >>HOME/calls
[ ! -e HOME/stuck ] || sleep 3600
[ ! -e HOME/fails ] || { echo "cr_checkpoint: no BLCR in this kernel" >&2; exit 1; }
kill -STOP "$pid"
cat "HOME/progress-$pid" >"$file"
[ ! -e HOME/empty ] || : >"$file"
[ ! -e HOME/huge ] || truncate -s 40G "$file"
[ -n "$stop" ] || kill -CONT "$pid"
"""


class BlcrBed:
    """Jobs of user nobody on "node" 127.0.0.1, whose sshd is real."""

    def __init__(self, sshd: Sshd) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="se-blcr-", dir="/tmp"))
        self.home.chmod(0o777)
        (self.home / "shared").mkdir(mode=0o755)
        (self.home / "shared" / "blcr").mkdir()
        (self.home / "shared" / "blcr").chmod(0o1777)
        (self.home / "bin").mkdir()
        self.program("cr_checkpoint", CR_CHECKPOINT)
        self.program("scontrol", '#!/bin/sh\n[ "$1" = listpids ] && cat HOME/pids-${2%.batch}\n')
        self.jobs: dict[int, subprocess.Popen[bytes]] = {}
        self.settings = BlcrSettings(
            key=str(sshd.key), known_hosts=str(sshd.known_hosts), port=sshd.port,
            bin_dir=str(self.home / "bin"), scontrol=str(self.home / "bin" / "scontrol"),
        )  # fmt: skip
        self.slurm = FakeSlurm()
        self.slurm.set_node(HOST, "IDLE", partitions=("p",))
        self.opened: list[BlcrCheckpointer] = []
        self.checkpointer = self.reopen()

    def program(self, name: str, text: str) -> None:
        path = self.home / "bin" / name
        path.write_text(text.replace("HOME/", f"{self.home}/"))
        path.chmod(0o755)

    def reopen(self) -> BlcrCheckpointer:
        shared, records = self.home / "shared", self.home / "records"
        made = BlcrCheckpointer(self.settings, shared, records, self.slurm)
        self.opened.append(made)
        return made

    def close(self) -> None:
        for one in self.opened:
            one.close()
        for job in self.jobs.values():
            job.kill()
            job.wait()
        shutil.rmtree(self.home)

    def run(self, job: int = 7, attempt: int = 0) -> JobRun:
        if job not in self.jobs:
            command = ["/usr/bin/python3", "-c", PAYLOAD, str(self.home / f"progress-{job}")]
            self.jobs[job] = started = subprocess.Popen(command, user=USER, group=USER)
            until = time.monotonic() + patience(SAVE_TIMEOUT_S)
            while not (self.home / f"progress-{job}").exists():
                assert time.monotonic() < until
                time.sleep(0.02)
            (self.home / f"progress-{started.pid}").symlink_to(f"progress-{job}")
            table = f"PID JOBID STEPID LOCALID GLOBALID\n{started.pid} {job} batch 0 0\n"
            (self.home / f"pids-{job}").write_text(table)
        return JobRun(
            job=job, label=str(job), attempt=attempt, user="nobody", uid=USER, gid=USER,
            nodes=(HOST,), partition="p", started=0.0,
        )  # fmt: skip

    def works(self, run: JobRun) -> bool:
        def step() -> str:
            return (self.home / f"progress-{run.job}").read_text()

        state = Path(f"/proc/{self.jobs[run.job].pid}/stat").read_text().rpartition(")")[2].split()
        before = step()
        until = time.monotonic() + (1.0 if state[0] == "T" else patience(SAVE_TIMEOUT_S))
        while time.monotonic() < until:
            if step() not in (before, ""):
                return True
            time.sleep(0.02)
        return False

    def spoil(self, image: Image) -> None:
        os.truncate(f"{image.path}/{image.number}", 0)

    def stick(self, run: JobRun) -> None:
        (self.home / "stuck").touch()

    def calls(self) -> list[str]:
        return (self.home / "calls").read_text().splitlines()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    server = Sshd(tmp_path_factory.mktemp("blcr") / "sshd")
    with server.running():
        yield server


@pytest.fixture
def bed(sshd: Sshd) -> Iterator[BlcrBed]:
    made = BlcrBed(sshd)
    yield made
    made.close()


class TestBlcr(SaveContract, Spoils, Deadlines, Holds):
    pass


def test_cr_checkpoint_runs_as_the_jobs_user(bed: BlcrBed) -> None:
    save(bed, bed.run())
    assert all(call.startswith(f"uid={USER} ") for call in bed.calls())
    image = bed.home / "shared" / "blcr" / "7" / "1"
    assert (image.stat().st_uid, image.stat().st_mode & 0o777) == (USER, 0o600)


@pytest.mark.release
def test_a_number_that_has_become_anothers_is_not_signalled(bed: BlcrBed) -> None:
    """Between Slurm's list and the signal, which is sent over SSH from root's shell."""
    run = bed.run()
    with subprocess.Popen(["/bin/sleep", "600"]) as other:
        other.send_signal(signal.SIGSTOP)
        with (bed.home / "pids-7").open("a") as table:
            table.write(f"{other.pid} 7 batch - -\n")
        with pytest.raises(CheckpointError, match="kill on"):
            bed.checkpointer.release(run)
        state = Path(f"/proc/{other.pid}/stat").read_text().rpartition(")")[2].split()[0]
        other.kill()
    assert state == "T"
    assert bed.works(run)


def test_a_save_that_hangs_ends_by_its_deadline_and_the_job_goes_on(bed: BlcrBed) -> None:
    run = bed.run()
    bed.stick(run)
    with pytest.raises(CheckpointError):
        save(bed, run, stop=True, within=2.5)
    assert bed.works(run)


def test_a_save_whose_image_is_read_for_too_long_does_not_leave_the_job_stopped(
    bed: BlcrBed,
) -> None:
    run = bed.run()
    (bed.home / "huge").touch()
    with pytest.raises(CheckpointError):
        save(bed, run, stop=True, within=3.5)
    eventually(lambda: bed.works(run))
    assert list(bed.checkpointer.images(run)) == []


def test_a_failure_says_why_and_the_job_goes_on(bed: BlcrBed) -> None:
    run = bed.run()
    (bed.home / "fails").touch()
    with pytest.raises(CheckpointError, match="no BLCR in this kernel"):
        save(bed, run, stop=True)
    assert bed.works(run)
    assert list(bed.checkpointer.images(run)) == []
    assert list((bed.home / "shared" / "blcr" / "7").iterdir()) == []


def test_an_empty_file_is_no_image_and_the_job_goes_on(bed: BlcrBed) -> None:
    run = bed.run()
    (bed.home / "empty").touch()
    with pytest.raises(CheckpointError, match="empty, or not 0 bytes long"):
        bed.checkpointer.checkpoint(
            run, deadline=time.time() + patience(SAVE_TIMEOUT_S), stop=False
        )
    assert bed.checkpointer.images(run) == ()
    assert bed.works(run)


@pytest.mark.release
def test_two_images_are_kept(bed: BlcrBed) -> None:
    for _ in range(4):
        save(bed, bed.run())
    names = sorted(os.listdir(bed.home / "shared" / "blcr" / "7"))
    assert names == ["3", "3.sum", "4", "4.sum", "last"]


@pytest.mark.release
@pytest.mark.parametrize("there", [True, False], ids=["as root has made it", "not made yet"])
def test_roots_directory_has_one_for_each_job_and_no_user_takes_anothers(
    bed: BlcrBed, there: bool
) -> None:
    blcr = bed.home / "shared" / "blcr"
    blcr.rmdir()
    if there:
        blcr.mkdir(mode=0o755)
    save(bed, bed.run())
    save(bed, bed.run())
    found = [(path.stat().st_uid, path.stat().st_mode & 0o7777) for path in (blcr, blcr / "7")]
    assert found == [(0, 0o755), (USER, 0o711)]


@pytest.mark.release
@pytest.mark.parametrize("squat", ["directory", "link"])
def test_a_directory_of_somebody_else_is_not_used_and_it_is_said(bed: BlcrBed, squat: str) -> None:
    """A user has taken the name before the job's user came to it."""
    path = bed.home / "shared" / "blcr" / "7"
    if squat == "link":
        (bed.home / "elsewhere").mkdir()
        os.chown(bed.home / "elsewhere", USER, USER)
        path.symlink_to(bed.home / "elsewhere")
        os.chown(path, 1, 1, follow_symlinks=False)
    else:
        path.mkdir()
        os.chown(path, 1, 1)
    run = bed.run()
    owner = rf"{path} belongs to \S+ .uid 1.: it is not the job's user's, or a link"
    with pytest.raises(CheckpointError, match=owner):
        save(bed, run, stop=True)
    assert bed.works(run)
    assert not (bed.home / "elsewhere" / "1").exists()


@pytest.mark.release
def test_where_root_is_squashed_the_jobs_user_makes_his_directory(bed: BlcrBed) -> None:
    """A directory that root makes there belongs to nobody, and cannot be given away."""
    bed.program("chown", "#!/bin/sh\nexit 1\n")
    shells = bed.checkpointer._shells
    runs = shells.run

    def squashed(host: str, command: Sequence[str], *, deadline: float) -> CommandResult:
        path = f"PATH={bed.home}/bin:/usr/bin:/bin"
        return runs(host, ("env", path, *command), deadline=deadline)

    shells.run = squashed  # type: ignore[method-assign]
    save(bed, bed.run())
    assert (bed.home / "shared" / "blcr" / "7").stat().st_uid == USER


def made_by(bed: BlcrBed, node: str) -> None:
    """As if that node had made the images of job 7."""
    image = bed.checkpointer.images(bed.run())[0]
    bed.checkpointer._write(7, _Records(images=(replace(image, node=node),)))


@pytest.mark.release
def test_images_of_a_node_that_is_gone_are_removed_on_another(bed: BlcrBed) -> None:
    save(bed, bed.run())
    made_by(bed, "192.0.2.1")
    bed.slurm.set_node("192.0.2.1", "IDLE", "CLOUD", "POWERED_DOWN", partitions=("p",))
    bed.checkpointer.remove(7)
    assert not (bed.home / "shared" / "blcr" / "7").exists()
    assert not (bed.home / "records" / "7.json").exists()


@pytest.mark.release
@pytest.mark.parametrize("states", [{"DOWN"}, {"IDLE", "NOT_RESPONDING"}, {"IDLE", "POWERED_DOWN"}])
def test_no_node_is_asked_to_remove_images_while_none_is_up(
    bed: BlcrBed, monkeypatch: pytest.MonkeyPatch, states: set[str]
) -> None:
    save(bed, bed.run())
    bed.slurm.set_node(HOST, *states)
    bed.slurm.set_node("other", "IDLE", partitions=("q",))
    asked: list[str] = []
    monkeypatch.setattr(bed.checkpointer._shells, "run", lambda host, *_, **__: asked.append(host))
    with pytest.raises(CheckpointError, match="partitions is up to remove the images"):
        bed.checkpointer.remove(7)
    assert asked == []
    assert len(bed.checkpointer.images(bed.run())) == 1


def test_a_job_that_is_not_there_is_an_error(bed: BlcrBed) -> None:
    with pytest.raises(CheckpointError, match="listpids"):
        save(bed, replace(bed.run(), job=99))


def test_words_reach_the_node_as_they_are(bed: BlcrBed) -> None:
    shells = Shells(bed.settings)
    words = ("printf", "%s\n", "a b", "$(id)", "it's", '"', "*", "; true", "-n", "")
    try:
        answer = shells.run(HOST, words, deadline=time.time() + patience(SAVE_TIMEOUT_S))
        assert answer.out.splitlines() == list(words[2:])
        answer = shells.run(HOST, ("sh", "-c", "echo out; echo err >&2; exit 5"),
                            deadline=time.time() + patience(SAVE_TIMEOUT_S))  # fmt: skip
        assert (answer.code, answer.out, answer.err) == (5, "out\n", "err\n")
        long = shells.run(HOST, ("sh", "-c", "yes | head -c 300000; yes | head -c 300000 >&2"),
                          deadline=time.time() + patience(SAVE_TIMEOUT_S))  # fmt: skip
        assert (len(long.out), len(long.err)) == (300000, 300000)
    finally:
        shells.close()


class Hasty:
    """A channel whose last words come right after it was asked for some, and its end behind them."""

    said, eof_received = b"", False

    def recv_ready(self) -> bool:
        found = bool(self.said)
        if not self.eof_received:
            self.said, self.eof_received = b"out", True
        return found

    def recv(self, most: int) -> bytes:
        said, self.said = self.said[:most], b""
        return said

    def recv_stderr_ready(self) -> bool:
        return False

    recv_stderr = recv

    def exit_status_ready(self) -> bool:
        return self.eof_received

    def recv_exit_status(self) -> int:
        return 0

    def settimeout(self, seconds: float) -> None: ...

    def exec_command(self, command: str) -> None: ...

    def shutdown_write(self) -> None: ...


def test_last_words_that_come_between_two_looks_are_read() -> None:
    channel: Any = Hasty()
    answer = _execute(channel, ("true",), time.time() + patience(SAVE_TIMEOUT_S))
    assert answer == CommandResult(code=0, out="out", err="")


def test_connections_are_kept_and_made_anew_when_they_broke(sshd: Sshd, bed: BlcrBed) -> None:
    shells = Shells(bed.settings)
    ask = ("sh", "-c", "echo $SSH_CONNECTION")
    try:
        first = shells.run(HOST, ask, deadline=time.time() + patience(SAVE_TIMEOUT_S)).out
        assert shells.run(HOST, ask, deadline=time.time() + patience(SAVE_TIMEOUT_S)).out == first
        sshd.stop()
        with pytest.raises(CheckpointError):
            shells.run(HOST, ask, deadline=time.time() + 5)
        sshd.start()
        assert shells.run(HOST, ask, deadline=time.time() + patience(SAVE_TIMEOUT_S)).out != first
    finally:
        shells.close()
        if sshd.process is None:
            sshd.start()


@pytest.mark.release
def test_connections_are_bounded(sshd: Sshd, bed: BlcrBed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlcrSettings, "connections", 1)
    known = sshd.known_hosts.read_text()
    sshd.known_hosts.write_text(known + known.replace("127.0.0.1", "localhost"))
    shells = Shells(bed.settings)
    try:
        for host in (HOST, "localhost", HOST):
            shells.run(host, ("true",), deadline=time.time() + patience(SAVE_TIMEOUT_S))
            assert len(shells._open) == 1
    finally:
        shells.close()
        sshd.known_hosts.write_text(known)


@pytest.mark.parametrize("known", ["", "ed25519", "rsa"])
def test_hosts_that_are_not_known_are_refused(sshd: Sshd, bed: BlcrBed, known: str) -> None:
    """Not known at all, by another key, or by one of another kind than the host's ed25519."""
    path = bed.home / "known_hosts"
    key = make_key(bed.home / "another", known) if known else ""
    path.write_text(f"[{HOST}]:{sshd.port} {key}" if known else "")
    shells = Shells(replace(bed.settings, known_hosts=str(path)))
    with contextlib.closing(shells), pytest.raises(CheckpointError, match="SSH"):
        shells.run(
            HOST, ("touch", str(bed.home / "ran")), deadline=time.time() + patience(SAVE_TIMEOUT_S)
        )
    assert not (bed.home / "ran").exists()


def test_a_wrong_key_is_an_error(sshd: Sshd, bed: BlcrBed) -> None:
    shells = Shells(replace(bed.settings, key=str(sshd.place / "host")))
    with contextlib.closing(shells), pytest.raises(CheckpointError, match="uthentication"):
        shells.run(HOST, ("true",), deadline=time.time() + patience(SAVE_TIMEOUT_S))


def test_a_host_that_says_nothing_costs_no_more_than_the_time_out(
    bed: BlcrBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    import socket

    monkeypatch.setattr(BlcrSettings, "timeout", 1.0)
    with socket.create_server((HOST, 0)) as silent:
        settings = replace(bed.settings, port=silent.getsockname()[1])
        shells = Shells(settings)
        with awake() as took:
            with contextlib.closing(shells), pytest.raises(CheckpointError):
                shells.run(HOST, ("true",), deadline=time.time() + patience(SAVE_TIMEOUT_S))
            assert took() < stretched(SAVE_TIMEOUT_S)


@pytest.mark.release
def test_one_command_a_host_at_a_time(bed: BlcrBed) -> None:
    shells = Shells(bed.settings)
    try:
        shells.run(HOST, ("true",), deadline=time.time() + patience(SAVE_TIMEOUT_S))
        begun, go = bed.home / "begun", bed.home / "go"
        lasts = f"touch {begun}; until [ -e {go} ]; do sleep 0.05; done"
        slow = threading.Thread(
            target=shells.run,
            args=(HOST, ("sh", "-c", lasts)),
            kwargs={"deadline": time.time() + patience(SAVE_TIMEOUT_S)},
        )
        slow.start()
        eventually(begun.exists)
        with pytest.raises(CheckpointError, match="busy"):
            shells.run(HOST, ("true",), deadline=time.time() + 0.5)
        go.touch()
        slow.join()
    finally:
        shells.close()


@pytest.mark.parametrize(
    "state", ["first run", "image", "changed", pytest.param("not the user's", marks=ROOT)]
)
def test_the_launcher_restarts_only_a_whole_image_of_the_users(tmp_path: Path, state: str) -> None:
    directory = tmp_path / "blcr" / "7"
    directory.mkdir(parents=True)
    (directory / "3").write_text("saved")
    digest = "0" * 64 if state == "changed" else _sha(directory / "3")
    (directory / "3.sum").write_text(f"{digest}\n")
    (directory / "last").write_text("3\n")
    if state == "not the user's":
        os.chown(directory / "3", USER, USER)
    (tmp_path / "bin").mkdir()
    for name, text in (("cr_run", 'echo run; exec "$@"'), ("cr_restart", 'echo "restart $1"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    script = tmp_path / "slurm_script"
    script.write_text(launchers(str(tmp_path))["blcr"] + "#!/bin/sh\necho script $1\n")
    script.chmod(0o755)
    environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "SLURM_JOB_ID": "7"}
    if state != "first run":
        environment["SLURM_RESTART_COUNT"] = "1"
    done = subprocess.run(
        [str(script), "x"], env=environment, capture_output=True, text=True, check=True
    )
    wanted = f"restart {directory}/3\n" if state == "image" else "run\nscript x\n"
    assert done.stdout == wanted


def _sha(path: Path) -> str:
    return subprocess.run(
        ["sha256sum", str(path)], capture_output=True, text=True, check=True
    ).stdout.split()[0]
