"""``key`` with auth/slurm: what head and machine have after each way that ``rotate`` can end. The
machine is this host, over a real sshd; that real Slurm takes it is in tests/realcloud.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.cli.main import main
from slurm_elastic.cli.setting_up import key_slurm
from slurm_elastic.controller.context import new_generation
from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.slurm.conf import keyset
from slurm_elastic.slurm.conf.keyset import AuthKey, KeySet
from slurm_elastic.state.ledger import Ledger
from tests.cli.test_key import away
from tests.needs import ROOT
from tests.real_sshd import Sshd

pytestmark = ROOT
CONFIG = {
    "cluster": {"name": "site", "uuid": "7d1f0c52-4d8e-4f5b-9a3e-0f6c1f5f0a11"},
    "clouds": [
        {
            "name": "aws", "provider": "aws", "location": "public", "region": "us-east-1",
            "image": "ami-1", "types": {"c5.large": {"cpus": 2, "memory": "4G", "price": 0.1}},
        }
    ],
    "pools": [
        {
            "name": "pub", "cloud": "aws", "nodes": "pub[1-4]", "cpus": 2, "memory": "4G",
            "instance_types": ["c5.large"],
        }
    ],
}  # fmt: skip
BEFORE = KeySet(
    tuple(
        AuthKey(alg="HS256", kty="oct", kid=kid, k="A" * 43)
        for kid in ("site", "slurm-elastic:aws:1", "slurm-elastic:other:1")
    )
)


class Bed:
    """``steps`` has a line for each time that head or machine was told to read its file."""

    def __init__(self, place: Path) -> None:
        self.place, self.sshd = place, Sshd(place / "sshd")
        for name in ("state", "head", "machine"):
            (place / name).mkdir()
        self.head, self.machine = (place / name / "slurm.jwks" for name in ("head", "machine"))
        self.head.write_bytes(BEFORE.encoded())
        self.machine.write_bytes(BEFORE.for_cloud("aws", time.time()).encoded())
        for path in (self.head, self.machine):
            path.chmod(0o600)
        self.steps = place / "steps"
        self.yaml = place / "slurm-elastic.yaml"
        ssh = {
            "key": str(self.sshd.key), "slurm_keys": str(self.head), "port": self.sshd.port,
            "host_key": self.sshd.host_key, "target": str(self.machine),
        }  # fmt: skip
        join = {"head": "head", "ssh": ssh}
        self.yaml.write_text(
            json.dumps({**CONFIG, "state_dir": str(place / "state"), "join": join})
        )
        self.ledger = Ledger(place / "state" / "ledger.db")

    def boots(self, ident: str, node: str, address: str = "127.0.0.1") -> None:
        now = time.time()
        one = Instance(
            id=ident, cloud="aws", node=node, generation=new_generation(now),
            instance_type="c5.large", zone="z", market=Market.SPOT, price=0.1,
            state=InstanceState.RUNNING, launched=now, address=address,
        )  # fmt: skip
        self.ledger.machines.adopt(one, "pub", now)
        self.ledger.machines.record_registration("aws", [ident], now)

    def key(self, *words: str) -> int:
        return main(["--config", str(self.yaml), "key", *words])

    def rotate(self, *options: str, head: str = "true", machine: str = "true") -> int:
        note = f">>{self.steps} grep -c . {{}}"  # lines, so that each file has its own number
        return self.key(
            "rotate",
            "--head-command", f"echo head {note.format('{key}')}; {head}",
            "--restart", f"echo machine {note.format(self.machine)}; {machine}",
            *options,
        )  # fmt: skip

    @property
    def told(self) -> list[str]:
        """Who was told to read the file, in order."""
        return [line.split()[0] for line in self.steps.read_text().splitlines()]


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bed]:
    monkeypatch.setattr(key_slurm, "SETTLE_S", 0.0)
    made = Bed(tmp_path)
    with made.sshd.running():
        yield made
    made.ledger.close()


def test_machines_learn_head_signs_machines_sign(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.boots("i-1", "pub1")
    assert bed.rotate() == 0, capsys.readouterr().err
    assert bed.told == ["machine", "head", "machine"]
    head, machine = keyset.read(bed.head), keyset.read(bed.machine)
    assert head.default.kid == head.keys[-2].kid
    assert (head.default.cloud, machine.default.cloud) == ("", "aws")
    assert machine.default == head.signing(head.keys[-1].kid).default
    assert {key.kid for key in BEFORE.keys} < {key.kid for key in head.keys}
    assert all(key.exp for key in head.keys), "every key has an end now"
    assert not {key.cloud for key in machine.keys} - {"", "aws"}
    assert bed.head.stat().st_mode & 0o777 == bed.machine.stat().st_mode & 0o777 == 0o400
    out = capsys.readouterr().out
    assert "for 90d" in out
    assert "the old keys end in 1d" in out
    assert head.default.k not in out


def test_revoked_keys_are_nowhere_when_all_machines_have_the_new_ones(bed: Bed) -> None:
    bed.boots("i-1", "pub1")
    assert bed.rotate("--revoke", "--expires", "7d") == 0
    assert bed.told == ["machine", "head", "machine", "head"]
    for path in (bed.head, bed.machine):
        assert not {key.kid for key in keyset.read(path).keys} & {key.kid for key in BEFORE.keys}


def test_with_a_machine_that_is_away_nothing_changes(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.boots("i-1", "pub1")
    bed.boots("i-2", "pub2", address="127.0.0.77")
    before = bed.head.read_bytes(), bed.machine.read_bytes()
    assert bed.rotate() == 1
    assert "pub2: it cannot get the key" in capsys.readouterr().err
    assert (bed.head.read_bytes(), bed.machine.read_bytes()) == before
    assert not bed.steps.exists()
    assert bed.rotate("--without-unreachable") == 0
    assert keyset.read(bed.machine).default.kid != "slurm-elastic:aws:1"


def test_a_head_that_cannot_change_keeps_all_as_it_is(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.boots("i-1", "pub1")
    before = bed.head.read_bytes(), bed.machine.read_bytes()
    once = f"[ $(grep -c ^head {bed.steps}) -gt 1 ]"
    assert bed.rotate(head=once) == 1
    said = capsys.readouterr().err
    assert "the head cannot take the new keys: exit 1" in said
    assert "it has its old keys, as all machines" in said
    assert (bed.head.read_bytes(), bed.machine.read_bytes()) == before


def test_a_lost_machine_that_answers_again_hides_no_other(
    bed: Bed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.boots("i-1", "pub1")
    bed.boots("i-2", "pub2")
    away(monkeypatch, {("pub1", 1), ("pub1", 2), ("pub2", 3)})
    assert bed.rotate("--revoke", "--without-unreachable") == 1
    said = capsys.readouterr()
    assert "pub2: not changed" in said.err
    assert "1 machine signs with the old keys" in said.out
    assert {key.kid for key in BEFORE.keys} < {key.kid for key in keyset.read(bed.head).keys}


def test_nothing_is_revoked_while_a_machine_signs_with_an_old_key(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    bed.boots("i-1", "pub1")
    second = f"[ $(grep -c machine {bed.steps}) -lt 2 ]"
    assert bed.rotate("--revoke", machine=second) == 1
    said = capsys.readouterr()
    assert "1 machine signs with the old keys, for 1d; nothing is revoked" in said.out
    assert "pub1: not changed" in said.err
    assert {key.kid for key in BEFORE.keys} < {key.kid for key in keyset.read(bed.head).keys}
    assert bed.told.count("head") == 1


def test_options_of_the_other_kind_are_refused(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    before = bed.head.read_bytes()
    assert bed.rotate("--key", "/etc/hostname") == 2
    assert "--key: found it with join.ssh.slurm_keys" in capsys.readouterr().err
    bed.yaml.write_text(bed.yaml.read_text().replace("slurm_keys", "munge_key"))
    assert bed.rotate("--revoke") == 2
    assert "--revoke: found it with join.ssh.munge_key" in capsys.readouterr().err
    assert bed.head.read_bytes() == before


def test_show_prints_what_a_clouds_image_needs(
    bed: Bed, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bed.key("show", "aws") == 0
    found = keyset.parse(capsys.readouterr().out.encode())
    assert found == BEFORE.for_cloud("aws", time.time())
    assert bed.key("show", "gcp") == 2
    assert "there is no cloud 'gcp', only aws" in capsys.readouterr().err


def test_convert_makes_a_file_of_a_slurm_key(bed: Bed, capsys: pytest.CaptureFixture[str]) -> None:
    key = bed.place / "slurm.key"
    key.write_bytes(b"k" * 32)
    assert bed.key("convert", str(key)) == 0
    assert keyset.parse(capsys.readouterr().out.encode()) == keyset.of_slurm_key(b"k" * 32)
    key.write_bytes(b"short")
    assert bed.key("convert", str(key)) == 2
    assert "has fewer than 16 bytes" in capsys.readouterr().err
