"""slurm-elasticd as a process: one sentence and an exit code for whatever is wrong at the start."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_elastic.ledger import Ledger

YAML = """
cluster: {{name: alps{uuid}}}
state_dir: {state}
slurm: {{bin_dir: {state}/no-slurm-here, command_timeout: 5}}
clouds:
  - name: onp
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 2, memory: 4096, price: 0.1}}}}
pools:
  - {{name: rack, cloud: onp, nodes: "op[1-2]", cpus: 2, memory: 4G}}
"""
UUID = ", uuid: 6f8c3a52-5a0b-4f5e-9f07-2f4d0a3a1c11"
COMMAND = (sys.executable, "-m", "slurm_elastic.cli.daemon", "--config")


@pytest.fixture
def state(tmp_path: Path) -> Path:
    made = tmp_path / "state"
    made.mkdir()
    return made


def config(state: Path, uuid: str = UUID) -> Path:
    path = state.parent / "slurm-elastic.yaml"
    path.write_text(YAML.format(uuid=uuid, state=state))
    return path


def run(path: Path, before: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=before,
    )


@contextlib.contextmanager
def serving(path: Path, state: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen([*COMMAND, str(path)], stderr=subprocess.PIPE, text=True) as daemon:
        try:
            wait_for(lambda: (state / "prolog.sock").exists() or daemon.poll() is not None)
            assert daemon.poll() is None, daemon.stderr and daemon.stderr.read()
            yield daemon
        finally:
            daemon.kill()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def one_sentence(done: subprocess.CompletedProcess[str], code: int) -> str:
    lines = [x for x in done.stderr.splitlines() if " INFO " not in x and " WARNING " not in x]
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, done.stderr
    return lines[0]


def test_without_a_uuid_nothing_is_touched(state: Path) -> None:
    assert "has no UUID" in one_sentence(run(config(state, uuid="")), 2)
    assert list(state.iterdir()) == []


def test_a_missing_configuration(tmp_path: Path) -> None:
    assert "missing.yaml" in one_sentence(run(tmp_path / "missing.yaml"), 2)


def test_a_missing_state_directory(tmp_path: Path) -> None:
    said = one_sentence(run(config(tmp_path / "nowhere")), 2)
    assert "cannot be written" in said
    assert "conf install" in said


def test_a_state_directory_where_nothing_can_be_made(state: Path) -> None:
    (state / "requests").write_text("in the way")
    assert "cannot be used" in one_sentence(run(config(state)), 2)


def test_a_full_disk(state: Path) -> None:
    """No file may grow by a byte: what ENOSPC does, without a disk to fill."""
    full = run(config(state), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    assert "ledger.db cannot be used" in one_sentence(full, 2)


def test_a_ledger_that_is_none(state: Path) -> None:
    (state / "ledger.db").write_bytes(b"not a database, but long enough to be looked at\n" * 99)
    said = one_sentence(run(config(state)), 2)
    assert "ledger.db cannot be used" in said
    assert "found again by their tags" in said


@pytest.mark.parametrize(
    ("program", "file"), [("daemon", "ledger.db"), ("ckptman", "ledger.db"),
                          ("ckptman", "checkpoints.db")],
)  # fmt: skip
def test_a_file_of_a_newer_release_is_no_reason_to_start_again(
    state: Path, program: str, file: str
) -> None:
    """The units do not restart after exit 2."""
    with contextlib.closing(sqlite3.connect(state / file)) as db:
        db.execute("pragma user_version = 99")
    done = subprocess.run(
        [sys.executable, "-m", f"slurm_elastic.cli.{program}", "--config", str(config(state))],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert "has schema 99, this release knows schemas up to" in one_sentence(done, 2)


def test_one_daemon_a_state_directory(state: Path) -> None:
    path = config(state)
    with serving(path, state):
        said = one_sentence(run(path), 1)
    assert "another slurm-elasticd serves" in said


def test_a_killed_daemon_is_no_obstacle(state: Path) -> None:
    path = config(state)
    with serving(path, state) as daemon:
        daemon.kill()
        daemon.wait(60)
    with serving(path, state) as daemon:
        assert daemon.poll() is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_clean_stop(state: Path, number: signal.Signals) -> None:
    with serving(config(state), state) as daemon:
        daemon.send_signal(number)
        assert daemon.wait(60) == 0
        assert daemon.stderr is not None
        said = daemon.stderr.read()
    assert "stopped" in said
    assert "Traceback" not in said
    assert not (state / "wake.sock").exists()


def test_while_slurm_is_dead_requests_stay(state: Path) -> None:
    request = {"kind": "resume", "hostlist": "op1", "received": time.time()}
    with serving(config(state), state):
        waiting = state / "requests" / "1-1-resume.json"
        waiting.write_text(json.dumps(request))
        wait_for(lambda: any(h.name == "slurm" and h.error for h in health(state)))
        time.sleep(3)  # three attempts are long over by then
        assert waiting.exists()


def health(state: Path) -> list[object]:
    with contextlib.closing(Ledger(state / "ledger.db", read_only=True)) as ledger:
        return list(ledger.health())
