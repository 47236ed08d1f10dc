"""Copies whose end on the head waits in the kernel for a directory that does not answer."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import eventually

from slurm_elastic.machine.jobfiles import copier
from slurm_elastic.machine.jobfiles.copier import MAX_STUCK_ENDS, Copier, CopierRefusalError

UID, OTHER = 1001, 1002


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Each end is a process that no signal of ours ends."""
    ends: list[subprocess.Popen[bytes]] = []

    def start(*_: object) -> subprocess.Popen[bytes]:
        ends.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return ends[-1]

    monkeypatch.setattr(copier, "start_head", start)
    monkeypatch.setattr(copier, "stuck_ends", copier.StuckEnds())
    monkeypatch.setattr(copier, "KILL_WAIT_S", 0.05)
    monkeypatch.setattr(copier, "_PLACE_WAIT_S", 0.05)
    monkeypatch.setattr(copier, "_MAX_CLIENTS", 2)
    monkeypatch.setattr(copier.os, "killpg", lambda *_: None)
    yield ends
    for end in ends:
        end.kill()
        end.wait()


def test_they_take_the_places_of_no_other_user(
    tmp_path: Path, stuck: list[subprocess.Popen[bytes]]
) -> None:
    made = Copier(tmp_path / "copier.sock", {os.getuid()})
    threading.Thread(target=made.serve, daemon=True).start()
    for count in range(1, 6):
        with socket.socket(socket.AF_UNIX) as link, open(os.devnull) as file:
            link.connect(str(tmp_path / "copier.sock"))
            socket.send_fds(link, [json.dumps({"uid": UID}).encode() + b"\n"], [file.fileno()] * 3)
            eventually(lambda: len(stuck) == count)  # noqa: B023
    made.end()


def test_a_client_that_left_while_it_waited_takes_no_place(
    tmp_path: Path, stuck: list[subprocess.Popen[bytes]]
) -> None:
    ours, theirs = socket.socketpair()
    assert not copier._has_left(ours)
    theirs.sendall(b"{}\n")
    assert not copier._has_left(ours)
    theirs.close()
    assert copier._has_left(ours)
    ours.close()


def test_a_user_with_many_of_them_gets_no_further_one(stuck: list[subprocess.Popen[bytes]]) -> None:
    ends = copier.StuckEnds()
    for _ in range(MAX_STUCK_ENDS):
        ends.check(UID)
        assert ends.kill(UID, copier.start_head({}, ())) is None
    with pytest.raises(CopierRefusalError, match="does not answer"):
        ends.check(UID)
    ends.check(OTHER)
    stuck[0].kill()
    stuck[0].wait()
    ends.check(UID)
