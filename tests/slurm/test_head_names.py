"""A name in join.head that this host cannot resolve is a note of check and doctor."""

from __future__ import annotations

import socket
import tempfile
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import unless

from slurm_elastic.slurm.conf import plan
from slurm_elastic.watch.doctor import head
from tests.slurm import small_sites

pytestmark = unless("slurmctld")
KNOWN = "known.example.org"


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    def getaddrinfo(host: str, *_: object) -> list[str]:
        if host != KNOWN:
            raise socket.gaierror(-2, "Name or service not known")
        return ["an address"]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_an_unknown_name_is_a_note_and_a_known_one_is_not() -> None:
    with tempfile.TemporaryDirectory(prefix="se-head-") as root:
        config = small_sites.config(small_sites.copy("default-1", Path(root)))
        config = replace(config, join=replace(config.join, head=f"head01:6817,{KNOWN}"))
        (line,) = [one for one in plan.make(config).notices if "join.head" in one]
    assert line.startswith("join.head: this host cannot resolve head01; write a name")
    (finding,) = head.join_head(config)
    assert (finding.subject, finding.observed) == ("join.head", "this host cannot resolve head01")
    assert finding.level.value == "note"
