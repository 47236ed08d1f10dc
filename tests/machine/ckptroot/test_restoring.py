"""Restoring with the user's own rights on files: what CRIU is started as."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurm_elastic.machine.ckptroot import capabilities, dump, kernel
from slurm_elastic.machine.ckptroot.caller import Caller

from .helpers import ROOT

ALICE = Caller(7, 2000, 2001, "alice", (2001, 2005), {})
SYS_ADMIN, SYS_RESOURCE, CHECKPOINT_RESTORE, SETPCAP = 1 << 21, 1 << 24, 1 << 40, 1 << 8
ALL = (1 << 41) - 1

SHOW = """
import os
print(os.getresuid(), os.getresgid(), sorted(os.getgroups()))
with open("/proc/self/status") as file:
    print(*(line.split()[1].lstrip("0") for line in file if line.startswith(("CapPrm", "CapEff"))))
try:
    os.setuid(0)
except PermissionError:
    print("stays")
"""


def having(monkeypatch: pytest.MonkeyPatch, have: int) -> None:
    monkeypatch.setattr(capabilities, "status_of", lambda _: {"CapEff": f"{have:x}"})


@pytest.mark.parametrize(
    ("have", "kept"),
    [
        (ALL, "-all,+cap_8,+cap_24,+cap_40"),
        (ALL & ~CHECKPOINT_RESTORE, "-all,+cap_8,+cap_21,+cap_24"),
        (SYS_ADMIN | SETPCAP, "-all,+cap_8,+cap_21"),
        (SETPCAP, "-all,+cap_8"),
    ],
)
def test_what_restores_is_the_user_with_no_right_on_others_files(
    monkeypatch: pytest.MonkeyPatch, have: int, kept: str
) -> None:
    having(monkeypatch, have)
    command = capabilities.restorer(ALICE, (2001, 2005))
    assert command == [
        "/usr/bin/setpriv", "--reuid", "2000", "--regid", "2001", "--groups", "2001,2005",
        "--inh-caps", kept, "--ambient-caps", kept,
    ]  # fmt: skip
    assert "--clear-groups" in capabilities.restorer(ALICE, ())


@ROOT
def test_it_becomes_that_user_for_good() -> None:
    command = [*capabilities.restorer(ALICE, (2001, 2005)), "/usr/bin/python3", "-c", SHOW]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    ids, masks, stays = done.stdout.splitlines()
    assert ids == "(2000, 2000, 2000) (2001, 2001, 2001) [2001, 2005]"
    for mask in masks.split():
        assert int(mask, 16) & ~(SETPCAP | SYS_RESOURCE | CHECKPOINT_RESTORE | SYS_ADMIN) == 0
    assert stays == "stays"


@pytest.mark.parametrize(
    ("have", "words"),
    [
        (ALL, ["--bounding-set", "-all,+cap_1,+cap_2,+cap_5,+cap_12,+cap_19,+cap_24,+cap_40"]),
        (SYS_RESOURCE, []),
        (
            SETPCAP | SYS_ADMIN,
            ["--ruid", "2000", "--rgid", "2001", "--keep-groups", "--bounding-set", "-all,+cap_21"],
        ),
    ],
)
def test_what_dumps_has_no_more_rights_than_it_takes(
    monkeypatch: pytest.MonkeyPatch, have: int, words: list[str]
) -> None:
    having(monkeypatch, have)
    command = capabilities.dumper(ALICE, has_sysv=False)
    assert command == (["/usr/bin/setpriv", *words] if words else [])


def test_system_v_ipc_takes_more_rights_and_only_that(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, ALL)
    assert capabilities.restorer(ALICE, ())[-1] == "-all,+cap_8,+cap_24,+cap_40"
    assert capabilities.own_dumper(ALICE, has_sysv=False)[-1] == (
        "-all,+cap_12,+cap_19,+cap_24,+cap_40"
    )
    assert capabilities.restorer(ALICE, (), has_sysv=True)[-1] == (
        "-all,+cap_8,+cap_21,+cap_24,+cap_40"
    )
    more = "+cap_12,+cap_15,+cap_19,+cap_21,+cap_24,+cap_40"
    assert capabilities.own_dumper(ALICE, has_sysv=True)[-1] == f"-all,{more}"
    root = capabilities.dumper(ALICE, has_sysv=True)
    assert root[-1] == f"-all,+cap_1,+cap_2,+cap_5,{more}"


def test_the_kernel_is_looked_at_once_and_as_plain_root(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the rights of a dump it could make no network namespace to look into."""
    checked: list[Any] = []
    monkeypatch.setattr(dump, "run_silently", checked.append)
    monkeypatch.setattr(dump, "KNOWN_KERNEL", tmp_path / "criu.kdat")
    dump.know_kernel("/usr/sbin/criu")
    assert checked == [["/usr/sbin/criu", "check"]]
    (tmp_path / "criu.kdat").touch()
    dump.know_kernel("/usr/sbin/criu")
    assert len(checked) == 1


MOUNTS = rb"""
22 27 0:21 / /proc rw shared:5 - proc proc rw
23 22 0:22 / /proc/sys/fs/binfmt_misc rw - binfmt_misc none rw
24 22 0:21 /sys /proc/sys ro - proc proc rw
25 27 0:21 / /srv/root\040of\040trixie/proc rw - proc proc rw
26 27 8:1 / / rw - ext4 /dev/vda1 rw
""".strip()


def test_proc_elsewhere_is_found() -> None:
    assert kernel.other_procs(MOUNTS) == [b"/srv/root of trixie/proc"]
