"""A payload under DMTCP is there when its own coordinator has said its port."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.ckptroot import dmtcp
from slurm_elastic.ckptroot.child import Child
from slurm_elastic.ckptroot.dmtcp import Dmtcp
from slurm_elastic.ckptroot.payload import Payload
from slurm_elastic.ckptroot.site import Refused

PAYLOAD = Payload(argv=("script",), environment={}, directory="/", umask=0, uid=0, gid=0, groups=())


class Bed:
    """A method with the port of an earlier run, whose payload does what the test says."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.port = place / "port"
        self.port.write_text("7779\n")
        self.method: Any = object.__new__(Dmtcp)
        self.method._payload = PAYLOAD
        self.method._child = None
        self.started: list[Any] = []
        monkeypatch.setattr(Dmtcp, "_port_file", lambda _: self.port)
        monkeypatch.setattr(Dmtcp, "_as_user", lambda _: nullcontext())
        monkeypatch.setattr(Dmtcp, "_port", lambda _: self.said())
        monkeypatch.setattr(dmtcp, "become", self.become)
        self.does = "tell"

    def said(self) -> str | None:
        return self.port.read_text() if self.port.exists() else None

    def become(self, payload: Payload, **how: Any) -> None:
        if self.does == "tell":
            self.port.write_text(f"{payload.argv} {how}")
        os._exit(3)


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    return Bed(tmp_path, monkeypatch)


def test_the_port_of_an_earlier_run_is_not_taken_for_this_ones(bed: Bed) -> None:
    bed.method._run(("dmtcp_launch", "script"), handed=5)
    assert bed.said() == "('dmtcp_launch', 'script') {'bound': True, 'handed': 5}"
    assert isinstance(bed.method._child, Child)
    bed.method._child.end()


def test_one_that_ends_before_it_has_a_coordinator_is_refused_and_gone(bed: Bed) -> None:
    bed.does = "end"
    with pytest.raises(Refused, match="dmtcp_launch: it started no coordinator"):
        bed.method._run(("dmtcp_launch", "script"))
    assert not bed.method._child
