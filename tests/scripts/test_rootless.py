"""The demonstration without root, as somebody who has no rights here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import unless
from patience import patience

ROOT = Path(__file__).parents[2]
ROOTLESS = ROOT / "scripts" / "rootless"
USER = 12345
SUMMARY = "11 of 11 jobs completed, 0 instances left"


def as_nobody(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    become = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
    return subprocess.run(
        [*(become if os.geteuid() == 0 else ()), *map(str, words)],
        capture_output=True, text=True, check=False, cwd="/", stdin=subprocess.DEVNULL,
        timeout=patience(400), **options,
    )  # fmt: skip


def namespaces() -> str:
    """Why this machine gives nobody a user namespace; '' if it does."""
    done = as_nobody(
        "unshare", "--user", "--map-root-user", "--mount", "--net", "--pid", "--fork", "true"
    )
    return done.stderr.strip() if done.returncode else ""


@pytest.fixture
def rootless() -> Iterator[Path]:
    """The program where nobody may run it: the clone may lie below /root."""
    with tempfile.TemporaryDirectory(prefix="se-rootless-", dir="/var/tmp") as place:
        os.chmod(place, 0o755)
        shutil.copy(ROOTLESS.with_name("rootless.py"), place)
        yield Path(shutil.copy(ROOTLESS, place))


needs_namespaces = pytest.mark.skipif(bool(namespaces()), reason="no user namespaces here")


@needs_namespaces
def test_in_there_is_one_user_with_names_of_many_and_nothing_else_changes(rootless: Path) -> None:
    mark = Path(f"/tmp/rootless-{os.getpid()}")
    line = f"""
    set -e
    id -u; id -u slurm; id -un
    touch {mark}; chown slurm: {mark}; stat -c %U {mark}
    setpriv --reuid=slurm --regid=slurm --init-groups true
    python3 -c 'import os; os.setgroups([7])'
    getent ahostsv4 localhost >/dev/null
    """
    done = as_nobody(rootless, "bash", "-c", line)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "0", "root", "root"]
    assert not mark.exists()


@needs_namespaces
def test_the_commands_exit_code_is_its_own_and_processes_end_with_it(rootless: Path) -> None:
    done = as_nobody(rootless, "bash", "-c", f"sleep 1000{os.getpid()} & exit 7")
    assert done.returncode == 7
    running = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline"))
    assert not any(f"1000{os.getpid()}".encode() in line for line in running if b"sleep" in line)


def test_a_kernel_that_forbids_it_is_named_in_one_sentence(tmp_path: Path) -> None:
    """A stand-in for unshare refuses, as Ubuntu's kernel and most containers do."""
    for name in ("unshare", "id"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    tmp_path.parents[0].chmod(0o755)
    done = subprocess.run(
        [ROOTLESS, "true"], capture_output=True, text=True, check=False,
        env={**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "run it as root" in done.stderr


def test_a_clone_without_an_environment_names_the_way_without_root(tmp_path: Path) -> None:
    clone, stand_in = tmp_path / "clone", tmp_path / "bin"
    (clone / "scripts").mkdir(parents=True)
    stand_in.mkdir()
    for name in ("slurm-elastic", "scripts/lib.sh"):
        shutil.copy(ROOT / name, clone / name)
    environment = {"PATH": f"{stand_in}:/usr/bin:/bin", "HOME": str(tmp_path)}

    def message(user: int) -> str:
        (stand_in / "id").write_text(f"#!/bin/sh\necho {user}\n")
        (stand_in / "id").chmod(0o755)
        done = subprocess.run(
            [clone / "slurm-elastic", "status"], capture_output=True, text=True, check=False,
            env=environment,
        )  # fmt: skip
        assert done.returncode == 2
        return done.stderr

    assert f"do: {clone}/scripts/quickstart --rootless; or, with sudo" in message(USER)
    assert message(0).endswith(f"do: {clone}/scripts/quickstart\n")


@needs_namespaces
@pytest.mark.release
@pytest.mark.e2e
@unless("slurmctld", "slurmd", "munged")
def test_quickstart_runs_for_somebody_who_is_not_root() -> None:
    program = Path(sys.prefix) / "bin" / "slurm-elastic"
    done = as_nobody(
        ROOTLESS, program, "quickstart", env={**os.environ, "ROOTLESS_SHOW": str(ROOT)}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith(SUMMARY)
