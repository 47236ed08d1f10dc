"""A machine's user data and metadata tell it who it is, and no secret."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from slurm_elastic.image.cloud_metadata import KINDS, Card, configuration
from slurm_elastic.image.trial import secrets_in, unpacked

KEY = bytes(range(128))
END = b"-----END PRIVATE KEY-----\n"
PRIVATE = b"-----BEGIN OPENSSH PRIVATE KEY-----\n" + base64.encodebytes(KEY) + END


@pytest.mark.parametrize(
    "text",
    [
        PRIVATE,
        b"-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n"
        + base64.encodebytes(KEY)
        + END,
        b"key=" + KEY.hex().encode(),
        base64.b64encode(KEY),
        b"\0\0" + KEY + b"\0\0",
    ],
)
def test_a_key_is_found_in_any_form(text: bytes) -> None:
    assert secrets_in(b"before\n" + text + b"\nafter", KEY)


def test_a_program_that_knows_of_keys_has_none() -> None:
    assert secrets_in(b"-----BEGIN PRIVATE KEY-----\0-----END", KEY) == ""
    assert secrets_in(b"-----BEGIN PRIVATE KEY-----\n" + b"A" * 64 + b"\n...\n" + END, KEY) == ""
    assert secrets_in(b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIF", KEY) == ""


@pytest.mark.parametrize("cloud", KINDS)
def test_a_machine_is_told_its_node_by_the_shipped_text(cloud: str, tmp_path: Path) -> None:
    munge, login = tmp_path / "munge.key", tmp_path / "login"
    munge.write_bytes(KEY)
    login.write_bytes(PRIVATE)
    config = configuration(cloud, "10.0.0.1:6817", 60.0, login, munge)
    card = Card(address="10.0.0.2", gateway="10.0.0.1", bits=24, mac="52:54:00:00:00:01")
    told = KINDS[cloud](config, card, "ssh-ed25519 AAAA check")
    text = unpacked(told.user_data)
    assert b"--conf-server 10.0.0.1:6817" in text
    assert b"heartbeat_timeout=60" in text
    assert b"check1" in text
    assert b"/var/lib/slurm-elastic-node/munge-key" in text
    rest = repr((told.answers, told.files)).encode()
    assert secrets_in(text + rest, KEY, PRIVATE) == ""
    assert b"ssh-ed25519 AAAA check" in rest
