"""slurm-elastic-ckptman as a process: its start, its lock, its end, and a Slurm that is not there."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import eventually, patience

from slurm_elastic.cli.services import ckptman
from slurm_elastic.state.heartbeat import CKPTMAN, CKPTMAN_MARK, Mark, read_mark
from slurm_elastic.state.ledger import Ledger

YAML = """
cluster: {{name: alps, uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11}}
state_dir: {state}
slurm: {{bin_dir: {state}/no-slurm-here, command_timeout: 5}}
checkpoint: {{method: signal}}
clouds:
  - name: onp
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 2, memory: 4096, price: 0.1}}}}
pools:
  - {{name: rack, cloud: onp, nodes: "op[1-2]", cpus: 2, memory: 4G}}
"""
COMMAND = (sys.executable, "-P", "-m", "slurm_elastic.cli.services.ckptman", "--config")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir()
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(YAML.format(state=state))
    return path


@contextlib.contextmanager
def serving(config: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*COMMAND, str(config)], stderr=subprocess.PIPE, text=True) as process:
        try:
            eventually(lambda: beat(config) or process.poll() is not None)
            assert process.poll() is None, process.stderr and process.stderr.read()
            yield process
        finally:
            process.kill()


def beat(config: Path) -> tuple[float, int] | None:
    path = config.parent / "state" / "ledger.db"
    if not path.exists():
        return None
    with contextlib.closing(Ledger(path, read_only=True)) as ledger:
        return ledger.health.heartbeat(CKPTMAN)


def run(config: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, str(config)], capture_output=True, text=True, timeout=patience(60), check=False
    )


def test_it_lives_without_slurm_and_ends_cleanly_on_sigterm(config: Path) -> None:
    with serving(config) as process:
        found = beat(config)
        assert found is not None
        assert found[1] == process.pid
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(patience(60)) == 0, said
    assert "slurm (ckptman) fails" in said
    assert "Traceback" not in said


def test_one_serves_a_state_directory(config: Path) -> None:
    with serving(config):
        done = run(config)
    assert done.returncode == 1
    assert f"another {CKPTMAN} serves" in done.stderr


def test_a_wrong_configuration_is_exit_2(config: Path) -> None:
    config.write_text(config.read_text().replace("method: signal", "method: dmtcp"))
    done = run(config)
    assert done.returncode == 2
    assert "method dmtcp keeps its images there" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_state_directory_that_is_not_there_is_exit_2(config: Path) -> None:
    (config.parent / "state").rmdir()
    done = run(config)
    assert done.returncode == 2
    assert "cannot be written" in done.stderr


def no_file_grows() -> None:
    """Beyond the mark: what a full disk does, without one."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))


@contextlib.contextmanager
def started(config: Path, before: Callable[[], None]) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([*COMMAND, str(config)], stderr=subprocess.DEVNULL, preexec_fn=before) as process:  # fmt: skip
        try:
            eventually(lambda: mark(config) or process.poll() is not None)
            assert process.poll() is None
            yield process
        finally:
            process.kill()


def mark(config: Path) -> Mark | None:
    return read_mark(config.parent / "state", CKPTMAN_MARK)


def test_a_full_disk_is_no_reason_to_leave_jobs_unsaved(config: Path) -> None:
    with started(config, no_file_grows) as process:
        eventually(lambda: (found := mark(config)) and "in memory only" in found.why)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        eventually(lambda: (found := mark(config)) and not found.why)
        assert (config.parent / "state" / "checkpoints.db").stat().st_size


def test_a_damaged_state_is_no_reason_either(config: Path) -> None:
    state = config.parent / "state"
    (state / "checkpoints.db").write_bytes(b"no database at all, but long enough\n" * 99)
    with started(config, lambda: None):
        eventually(lambda: list(state.glob("checkpoints.db.damaged-*")))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOSPC, os.EX_TEMPFAIL),
        (errno.ETIMEDOUT, os.EX_TEMPFAIL),
        (errno.EHOSTDOWN, os.EX_TEMPFAIL),
        (errno.EINTR, os.EX_TEMPFAIL),
        (errno.ENOENT, 2),
        (errno.EACCES, 2),
        (errno.ENOTDIR, 2),
    ],
)
def test_only_an_error_that_lasts_ends_it_for_good(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    number: int, code: int,
) -> None:  # fmt: skip
    """systemd restarts it after 75, and never after 2: jobs would go unsaved."""

    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number), "/shared/images")

    monkeypatch.setattr(ckptman, "open_site", fails)
    assert ckptman.main(["--config", str(config)]) == code
    (told,) = capsys.readouterr().err.splitlines()[-1:]
    assert told.endswith(f"/shared/images cannot be used: {os.strerror(number)}")
    assert "state_dir" not in told
