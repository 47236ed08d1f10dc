"""The way to a machine: what our key may do there, by a real sshd."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import threading
import time
from pathlib import Path

import pytest
from patience import eventually, patience

from slurm_elastic.features.files import copy_runner
from slurm_elastic.features.files.copy_orders import order_of
from slurm_elastic.features.files.copy_runner import (
    _INSTALL,
    _Readiness,
    authorized_line,
    ssh_text,
)
from slurm_elastic.features.network.ssh_file import PushError
from slurm_elastic.machine.jobfiles import bundle
from slurm_elastic.machine.jobfiles.copier import CopierRefusalError
from tests import real_sshd
from tests.real_sshd import Sshd


@pytest.mark.skipif(bool(real_sshd.why_not()), reason=str(real_sshd.why_not()))
def test_the_key_runs_the_program_and_nothing_else(tmp_path: Path) -> None:
    sshd = Sshd(tmp_path / "sshd")
    program = tmp_path / "jobfiles.pyz"
    program.write_bytes(bundle.build())
    public = sshd.key.with_suffix(".pub").read_text().strip()
    (sshd.place / "authorized").write_text(authorized_line("root", public, str(program)) + "\n")
    command = [
        "ssh", "-F", "/dev/null", "-o", f"UserKnownHostsFile={sshd.known_hosts}", "-o",
        "BatchMode=yes", "-i", str(sshd.key), "-p", str(sshd.port), "-l", "root", "127.0.0.1",
    ]  # fmt: skip
    evil = tmp_path / "evil"
    with sshd.running():
        done = subprocess.run(
            [*command, f"touch {evil}"], input=b"", capture_output=True, check=False, timeout=60
        )
        order = {"do": "out", "job": 7, "restarts": 0, "made_at": 1, "live": [], "end_wait": 0, "uid": 0,
                 "gid": 8, "groups": [8], "directory": "/"}  # fmt: skip
        for_root = subprocess.run(
            [*command, ssh_text(f"$(touch {evil})", order)], input=b'{"uid": 7, "gid": 8}\n',
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    assert json.loads(done.stdout)["error"] == "the ssh command names no user and job"
    assert json.loads(for_root.stdout)["error"] == "the ssh command names no user and job"
    assert not evil.exists()


class Network:
    """The way to a machine that does not answer until ``goes_on`` is set."""

    def __init__(self) -> None:
        self.goes_on, self.tries, self.error = threading.Event(), 0, "no route to host"

    def install(self) -> None:
        self.tries += 1
        assert self.goes_on.wait(patience(60))
        if self.error:
            raise PushError(self.error)


def test_copies_of_one_machine_share_an_attempt_to_connect() -> None:
    """Each held its thread for the time-outs of all before it, past its own time."""
    readiness, network, told = _Readiness(), Network(), list[str]()

    def reach(until: float) -> None:
        try:
            readiness.reach(network.install, until)
        except PushError as error:
            told.append(str(error))

    threads = [threading.Thread(target=reach, args=(math.inf,)) for _ in range(24)]
    for thread in threads:
        thread.start()
    eventually(lambda: network.tries == 1)
    reach(time.monotonic())  # its time is over
    assert told.pop() == "another copy has been connecting to the machine for too long"
    network.goes_on.set()
    for thread in threads:
        thread.join()
    assert (network.tries, set(told), len(told)) == (1, {"no route to host"}, 24)


def test_a_machine_is_tried_again_a_moment_after_it_has_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readiness, network = _Readiness(), Network()
    network.goes_on.set()
    for _ in range(2):
        with pytest.raises(PushError, match="no route"):
            readiness.reach(network.install, math.inf)
    assert (network.tries, readiness.is_ready) == (1, False)
    network.error = ""
    monkeypatch.setattr(copy_runner, "_FAILED_FOR_S", 0.0)
    for _ in range(2):
        readiness.reach(network.install, math.inf)
    assert (network.tries, readiness.is_ready) == (2, True)


@pytest.mark.skipif(bool(real_sshd.why_not()), reason=str(real_sshd.why_not()))
def test_the_user_comes_from_the_ssh_command_alone(tmp_path: Path) -> None:
    sshd = Sshd(tmp_path / "sshd")
    program = tmp_path / "jobfiles.pyz"
    program.write_bytes(bundle.build())
    public = sshd.key.with_suffix(".pub").read_text().strip()
    (sshd.place / "authorized").write_text(authorized_line("root", public, str(program)) + "\n")
    secret = tmp_path / "munge.key"
    secret.write_text("secret")
    secret.chmod(0o400)
    order = {"do": "outputs", "job": 7, "restarts": 0, "made_at": 1, "live": [], "end_wait": 0, "uid": 65534,
             "gid": 65534, "groups": [65534]}  # fmt: skip
    forged = {"do": "outputs", "uid": 1, "gid": 1, "groups": [0], "outputs": [str(secret)],
              "present": [[0, ""]], "marks": {}, "directory": "/", "exclude": []}  # fmt: skip
    lines = json.dumps(forged) + "\n" + json.dumps({"t": "end"}) + "\n"
    with sshd.running():
        done = subprocess.run(
            ["ssh", "-F", "/dev/null", "-o", f"UserKnownHostsFile={sshd.known_hosts}", "-o",
             "BatchMode=yes", "-i", str(sshd.key), "-p", str(sshd.port), "-l", "root",
             "127.0.0.1", ssh_text("n1", order)],
            input=lines.encode(), capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    assert b'"t": "end"' in done.stdout, done.stderr
    assert b"secret" not in done.stdout


def test_a_head_that_stands_still_is_left_after_the_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its user may have stopped it. It must not keep a thread until out_within is over."""
    monkeypatch.setattr(copy_runner, "_AFTER_LINK_S", 0.0)
    result, head = os.pipe()
    link = subprocess.Popen(["sh", "-c", "echo no route >&2"], stderr=subprocess.PIPE)
    try:
        assert copy_runner._read(result, math.inf, threading.Event(), link) is None
    finally:
        os.close(head)
        os.close(result)
    assert copy_runner._end(link) == b"no route\n", "why it has ended can still be read"


def install(home: Path, line: str, key: str) -> None:
    script = _INSTALL.format(
        directory=home / "lib", program=home / "lib" / "jobfiles.pyz", user="root",
        line=shlex.quote(line), key=shlex.quote(key),
    ).replace("$(getent passwd root | cut -d: -f6)", str(home))  # fmt: skip
    subprocess.run(["sh", "-c", script], input=b"program", check=True, timeout=60)


@pytest.mark.skipif(os.getuid() != 0, reason="it is root's script")
def test_a_changed_line_replaces_the_old_one(tmp_path: Path) -> None:
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.parent.mkdir()
    key, line = "ssh-ed25519 AAAA", authorized_line("root", "ssh-ed25519 AAAA x")
    keys.write_text(f'ssh-ed25519 BBBB admin\ncommand="old" {key} x\n')
    for _ in range(2):
        install(tmp_path, line, key)
        assert keys.read_text().splitlines() == ["ssh-ed25519 BBBB admin", line]
        assert keys.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in keys.parent.iterdir()] == ["authorized_keys"]
    keys.unlink()
    install(tmp_path, line, key)
    assert keys.read_text() == f"{line}\n"


def test_another_login_uses_sudo() -> None:
    line = authorized_line("debian", "ssh-ed25519 AAAA x")
    assert line.startswith('restrict,command="sudo -n /usr/bin/env python3 -I /var/lib/')
    assert line.endswith(' node \\"$SSH_ORIGINAL_COMMAND\\"" ssh-ed25519 AAAA x')


@pytest.mark.parametrize("uid", [0, -1, 4_000_000_000])
def test_whose_files_are_not_copied(uid: int) -> None:
    with pytest.raises(CopierRefusalError):
        order_of(uid)
