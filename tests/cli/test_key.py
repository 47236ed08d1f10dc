"""``key rotate``: two real munged's, the head's and a machine's, over a real sshd."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from patience import eventually

from slurm_elastic.cli.main import main
from slurm_elastic.controller.context import new_generation
from slurm_elastic.features.network.key_rotation import Rotation, RotationResult
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.state.heads import Epochs
from slurm_elastic.state.ledger import Ledger, Machine
from tests.real_sshd import Sshd

YAML = """\
cluster: {{name: site, uuid: 7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11}}
state_dir: {place}/state
clouds:
  - name: aws
    provider: aws
    location: public
    region: us-east-1
    image: ami-1
    types: {{c5.large: {{cpus: 2, memory: 4G, price: 0.1}}}}
pools:
  - {{name: pub, cloud: aws, nodes: "pub[1-4]", cpus: 2, memory: 4G, instance_types: [c5.large]}}
join:
  head: head
  ssh:
    key: {key}
    munge_key: {place}/copy/munge.key
    port: {port}
    host_key: {host_key}
    target: {place}/machine/munge.key
"""
OLD = b"the key of before" * 8
START = """\
for pid in $(cat {dir}/pid 2>/dev/null); do while kill $pid 2>/dev/null; do sleep 0.05; done; done
rm -f {dir}/socket*
munged --force --key-file={dir}/munge.key --socket={dir}/socket --pid-file={dir}/pid \
  --log-file={dir}/log --seed-file={dir}/seed
"""


def has_ended(pid: str) -> bool:
    """Also where nobody has waited for it yet: such a process has no command line.

    munged checks for a signal before it waits for a client. A signal that comes between the two is
    seen at the next one.
    """
    subprocess.run(["kill", pid], check=False, stderr=subprocess.DEVNULL)
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


class Bed:
    """A head and machines that are this host, each with a munged of its own."""

    def __init__(self, place: Path) -> None:
        self.place, self.sshd = place, Sshd(place / "sshd")
        for name in ("state", "copy", "machine", "head"):
            (place / name).mkdir(mode=0o755)
        for key in ("copy/munge.key", "machine/munge.key", "head/munge.key"):
            (place / key).write_bytes(OLD)
            (place / key).chmod(0o400)
        for name in ("machine", "head"):
            (place / name / "start").write_text(START.format(dir=place / name))
            self.sh(f"chown -R munge:munge {place / name}; chmod 755 {place / name}")
        self.sh(f"chown munge:munge {place}/machine/munge.key {place}/head/munge.key")
        self.yaml = place / "slurm-elastic.yaml"
        self.yaml.write_text(
            YAML.format(
                place=place, key=self.sshd.key, port=self.sshd.port, host_key=self.sshd.host_key
            )
        )
        self.ledger = Ledger(place / "state" / "ledger.db")
        run = f"runuser -u munge -- sh {place}"
        self.head_command = (
            f"install -m 0400 -o munge -g munge {{key}} {place}/head/munge.key && {run}/head/start"
        )
        self.restart = f"{run}/machine/start"
        self.sh(f"{run}/head/start; {run}/machine/start")

    def sh(self, command: str) -> None:
        subprocess.run(["sh", "-c", command], check=True)

    def machine(self, ident: str, node: str, address: str = "127.0.0.1") -> None:
        now = time.time()
        one = Instance(
            id=ident, cloud="aws", node=node, generation=new_generation(now),
            instance_type="c5.large", zone="z", market=Market.SPOT, price=0.1,
            state=InstanceState.RUNNING, launched=now, address=address,
        )  # fmt: skip
        self.ledger.machines.adopt(one, "pub", now)
        self.ledger.machines.record_registration("aws", [ident], now)

    def rotate(self, *arguments: str) -> int:
        return main([
            "--config", str(self.yaml), "key", "rotate", "--head-command", self.head_command,
            "--restart", self.restart, *arguments,
        ])  # fmt: skip

    def understand_each_other(self) -> bool:
        said = subprocess.run(
            ["munge", "-n", f"--socket={self.place}/head/socket"], capture_output=True, check=False
        )
        read = subprocess.run(
            ["unmunge", f"--socket={self.place}/machine/socket"],
            input=said.stdout, capture_output=True, check=False,
        )  # fmt: skip
        return said.returncode == 0 and read.returncode == 0

    def keys(self) -> set[bytes]:
        return {
            (self.place / name / "munge.key").read_bytes() for name in ("copy", "machine", "head")
        }

    def close(self) -> None:
        """A munged writes into its directory until it is gone."""
        self.ledger.close()
        for name in ("machine", "head"):
            file = self.place / name / "pid"
            if file.exists():
                eventually(partial(has_ended, file.read_text().strip()))


@pytest.fixture
def bed() -> Iterator[Bed]:
    """In a directory that munge may enter: pytest's own is closed to others."""
    with tempfile.TemporaryDirectory(prefix="se-key-") as name:
        Path(name).chmod(0o755)
        made = Bed(Path(name))
        try:
            with made.sshd.running():
                yield made
        finally:
            made.close()


def test_head_and_machines_get_a_new_key(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    bed.machine("i-1", "pub1")
    eventually(bed.understand_each_other)
    assert bed.rotate() == 0, capsys.readouterr().err
    (key,) = bed.keys()
    assert key != OLD
    assert len(key) == 1024
    eventually(bed.understand_each_other)
    for name in ("machine", "copy"):
        assert (bed.place / name / "munge.key").stat().st_mode & 0o777 == 0o400
        assert not list((bed.place / name).glob("munge.key.*")), "no second key lies beside it"
    told = capsys.readouterr().out
    assert "machines whose key we change: 1 machine: pub1" in told


def test_with_a_machine_that_is_away_nothing_changes(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.machine("i-1", "pub1")
    bed.machine("i-2", "pub2", address="127.0.0.77")
    assert bed.rotate() == 1
    told = capsys.readouterr().err
    assert "pub2: it cannot get the key" in told
    assert "nothing is changed" in told
    assert bed.keys() == {OLD}
    assert bed.rotate("--without-unreachable") == 0
    assert bed.keys() != {OLD}


def test_a_head_that_cannot_change_keeps_all_as_it_is(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.machine("i-1", "pub1")
    assert bed.rotate("--head-command", "echo no such unit >&2; exit 5") == 1
    said = capsys.readouterr().err
    assert "the head cannot take the new key: exit 5" in said
    assert "the head may use either key" in said, "its command fails also for the old key"
    assert f"When {bed.place}/copy/munge.key has the old key, run as root:" in said
    assert bed.keys() == {OLD}
    eventually(bed.understand_each_other)


def test_a_head_whose_command_does_half_of_its_work_gets_its_old_key_again(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    """As an install that works before a restart that fails: munged has the new key at its next
    start.
    """
    bed.machine("i-1", "pub1")
    once = f"{{ [ -e {bed.place}/tried ] || {{ touch {bed.place}/tried; exit 9; }}; }}"
    head = bed.head_command.replace(" && ", f" && {once} && ", 1)
    assert bed.rotate("--head-command", head) == 1
    assert "it has its old key, as all machines" in capsys.readouterr().err
    assert bed.keys() == {OLD}
    eventually(bed.understand_each_other)


def test_a_rotation_taken_back_ends_with_the_earlier_key(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also at a machine that the change did not reach."""
    bed.machine("i-1", "pub1")
    assert bed.rotate() == 0
    (key,) = bed.keys()
    answers = away(monkeypatch, {("pub1", 2)})
    assert bed.rotate() == 1
    assert answers["pub1"] == 3
    assert "1 machine cannot take the new key: all use the old key again" in capsys.readouterr().err
    assert bed.keys() == {key}
    eventually(bed.understand_each_other)


def test_a_machine_that_cannot_be_taken_back_is_named(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.machine("i-1", "pub1")
    bed.machine("i-2", "pub2", address="127.0.0.77")
    away(monkeypatch, {("pub2", 2), ("pub2", 3), ("pub1", 3)}, well={("pub2", 1)})
    assert bed.rotate() == 1
    said = capsys.readouterr().err
    assert "pub1: it may still use the new key" in said
    assert "2 machines may still use the new key: run slurm-elastic key rotate" in said
    assert "all use the old key" not in said


def away(
    monkeypatch: pytest.MonkeyPatch,
    calls: set[tuple[str, int]],
    well: set[tuple[str, int]] = frozenset(),  # type: ignore[assignment]
) -> dict[str, int]:
    """Let machines not answer in the so manieth call each, or answer without any host. Returns how
    often each was called.
    """
    counts: dict[str, int] = {}
    real = Rotation._run_at

    def run(self: Rotation, machine: Machine, script: str, text: bytes) -> RotationResult:
        node, ident = machine.instance.node, machine.instance.id
        counts[node] = counts.get(node, 0) + 1
        call = node, counts[node]
        if call in calls:
            return RotationResult(node, "TimeoutError: timed out", ident)
        return (
            RotationResult(node, "", ident) if call in well else real(self, machine, script, text)
        )

    monkeypatch.setattr(Rotation, "_run_at", run)
    return counts


def test_a_machine_that_cannot_change_takes_all_back(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.machine("i-1", "pub1")
    once = f"[ -e {bed.place}/tried ] && {bed.restart} || {{ touch {bed.place}/tried; exit 9; }}"
    assert bed.rotate("--restart", once) == 1
    assert "1 machine cannot take the new key: all use the old key again" in capsys.readouterr().err
    assert bed.keys() == {OLD}
    eventually(bed.understand_each_other)


def test_a_lost_machine_hides_no_other_that_cannot_change(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    """The machine was reached, so it works, and would lose its jobs with the old key."""
    bed.machine("i-1", "pub1")
    bed.machine("i-2", "pub2", address="127.0.0.77")
    once = f"[ -e {bed.place}/tried ] && {bed.restart} || {{ touch {bed.place}/tried; exit 9; }}"
    assert bed.rotate("--restart", once, "--without-unreachable") == 1
    assert "1 machine cannot take the new key: all use the old key again" in capsys.readouterr().err
    assert bed.keys() == {OLD}
    assert bed.rotate("--without-unreachable") == 0
    assert "munge.key, 1 machine\n" in capsys.readouterr().out


def test_with_two_heads_a_command_must_say_how_the_other_head_gets_the_key(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = bed.place / "shared"
    shared.mkdir()
    with bed.yaml.open("a") as yaml:
        yaml.write(f"ha: {{directory: {shared}}}\n")
    command = ["--config", str(bed.yaml), "key", "rotate", "--restart", bed.restart]
    assert main(command) == 2
    assert "expected the command that brings {key} to both heads" in capsys.readouterr().err
    assert bed.keys() == {OLD}


def share(bed: Bed, actor: str) -> None:
    """Give the head another one, and let the head ``actor`` act."""
    shared = bed.place / "shared"
    shared.mkdir()
    with bed.yaml.open("a") as yaml:
        yaml.write(f"ha: {{directory: {shared}}}\n")
    Epochs(shared).take(actor)


def test_only_the_head_that_acts_rotates(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    bed.machine("i-1", "pub1")
    share(bed, "other")
    assert bed.rotate() == 1
    assert "key rotate: other (epoch 1) acts" in capsys.readouterr().err
    assert bed.keys() == {OLD}


@pytest.mark.parametrize("shares", [False, True])
def test_a_second_rotation_waits_for_the_end_of_the_first(
    bed: Bed, shares: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of the first one's head tries the second one, in another process."""
    bed.machine("i-1", "pub1")
    if shares:
        share(bed, os.uname().nodename)
    again = f"{sys.executable} -m slurm_elastic.cli.main --config {bed.yaml} key rotate"
    again += f" --head-command 'touch {bed.place}/second' >{bed.place}/told 2>&1"
    assert bed.rotate("--head-command", f"! {again} && {bed.head_command}") == 0
    told = (bed.place / "told").read_text()
    assert f"another key rotate runs ({os.uname().nodename}, pid {os.getpid()})" in told
    assert not (bed.place / "second").exists()
    assert bed.keys() != {OLD}
    capsys.readouterr()
    assert bed.rotate() == 0, "the lock has ended with its rotation"


def test_a_dry_run_names_the_machines(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    bed.machine("i-1", "pub1")
    assert bed.rotate("--dry-run") == 0
    told = capsys.readouterr().out
    assert "pub1" in told
    assert "Running jobs continue" in told
    assert bed.keys() == {OLD}


def test_a_key_that_others_can_read_is_refused(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    key = bed.place / "mine"
    key.write_bytes(b"k" * 64)
    key.chmod(0o644)
    assert bed.rotate("--key", str(key)) == 2
    assert "may be read by others" in capsys.readouterr().err
    assert bed.keys() == {OLD}
