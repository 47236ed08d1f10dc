"""Which of two heads acts, as status, the page's document and metrics tell it on either of them."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console
from status_cases import NOW, busy_ledger, busy_slurm, config

from slurm_elastic.cli.operate import status
from slurm_elastic.cli.operate.status_tables import render
from slurm_elastic.config import Config, HaSettings
from slurm_elastic.controller.other_heads import REMEDY
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.finding import FindingLevel as Worse
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.heads import Epochs
from slurm_elastic.state.heartbeat import (
    CKPTMAN_MARK,
    MARK,
    STANDS_BY_MEANS,
    Mark,
    leave_mark,
)
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor.head import memory
from slurm_elastic.watch.doctor.services import checkpoints
from slurm_elastic.watch.door.metrics import text
from slurm_elastic.watch.view import StatusView, status_view

ACTS = "Head: heada acts, this one, epoch 2"
STANDS_BY = "Head: heada acts, epoch 2; this one, headb, stands by"


@pytest.fixture
def site(tmp_path: Path) -> Config:
    """Of heada and headb; heada acts, in the second epoch."""
    busy_ledger(tmp_path / "ledger.db").close()
    conf, shared = tmp_path / "slurm.conf", tmp_path / "shared"
    conf.write_text(f"SlurmctldHost=heada\nSlurmctldHost=headb\nStateSaveLocation={tmp_path}\n")
    says(tmp_path, 0)
    shared.mkdir()
    for host in ("headb", "heada"):
        Epochs(shared).take(host)
    made = config(tmp_path)
    slurm = replace(made.slurm, conf=str(conf), user=str(os.geteuid()))  # who has these files
    return replace(made, slurm=slurm, ha=HaSettings(directory=str(shared)))


def says(root: Path, place: int) -> None:
    """Have Slurm say who acts."""
    (root / "heartbeat").write_bytes(struct.pack(">QQ", int(NOW), place))


def on(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    uname = os.uname()
    here = os.uname_result((uname.sysname, host, *uname[2:]))
    monkeypatch.setattr(os, "uname", lambda: here)


def seen(site: Config) -> StatusView:
    return status_view(site, status.gather(site, busy_slurm(), NOW))


def screen_of(view: StatusView) -> list[str]:
    console = Console(width=80, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        render(view, console)
    return captured.get().splitlines()


def metrics_of(site: Config) -> list[str]:
    return [line for line in text(site, NOW).decode().splitlines() if line[0] != "#"]


def stands_by(site: Config) -> None:
    why = "heada acts (epoch 2 of heada)"
    mark = Mark(NOW - 2, os.getpid(), why, "nothing", NOW - 60, STANDS_BY_MEANS)
    leave_mark(site.state, mark)


@pytest.mark.parametrize(("host", "told"), [("heada", ACTS), ("headb", STANDS_BY)])
def test_each_head_tells_which_one_acts(
    site: Config, monkeypatch: pytest.MonkeyPatch, host: str, told: str
) -> None:
    on(host, monkeypatch)
    view = seen(site)
    assert told in screen_of(view)
    document: Any = msgspec.json.decode(msgspec.json.encode(view))
    assert document["head"] == {
        "text": told, "hosts": ["heada", "headb"], "acting": "heada", "here": host, "epoch": 2,
        "advice": "",
    }  # fmt: skip
    found = metrics_of(site)
    for name in ("heada", "headb"):
        here = "yes" if name == host else "no"
        acts = float(name == "heada")
        assert f'slurm_elastic_head_acting{{here="{here}",host="{name}"}} {acts}' in found
    assert "slurm_elastic_head_epoch 2.0" in found


def test_a_head_that_stands_by_is_in_no_trouble(
    site: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("headb", monkeypatch)
    stands_by(site)
    view = seen(site)
    assert view.daemon.alive
    assert view.daemon.end_only is None
    assert not [one for one in view.attention if "stands by" in one.text]
    found = metrics_of(site)
    assert "slurm_elastic_ledger_usable 1.0" in found
    beat = 'slurm_elastic_service_heartbeat_timestamp_seconds{service="slurm-elasticd"}'
    assert [float(line.split()[-1]) for line in found if line.startswith(beat)] == [NOW - 2]


def test_another_head_is_said_first_everywhere_also_without_the_service(
    site: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("heada", monkeypatch)
    why = "another head works for this cluster: it launched machine i-9"
    with contextlib.closing(Ledger(site.state / "ledger.db")) as ledger:
        ledger.owner.record_other_head(Quoted(text=why), ["i-9"], NOW - 60)
    first = seen(site).attention[0]
    assert first.text.lower().startswith(why)
    assert first.do == REMEDY
    found = metrics_of(site)
    assert "slurm_elastic_other_head 1.0" in found
    assert "slurm_elastic_ledger_usable 1.0" in found
    (finding,) = [one for one in memory(site, NOW) if one.subject == "head"]
    assert finding.observed.startswith(why)
    assert finding.advice == REMEDY


def test_ckptman_that_stands_by_is_in_no_trouble(
    site: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    on("headb", monkeypatch)
    CheckpointState(site.state / FILE).close()
    why, pid = "heada acts (epoch 2 of heada)", os.getpid()
    do = "nothing: Slurm decides which head acts"
    for name in (MARK, CKPTMAN_MARK):
        mark = Mark(NOW, pid, why, do, NOW - 3600, STANDS_BY_MEANS)
        leave_mark(site.state, mark, name)
    view = seen(site)
    assert [told.text for told in view.attention if "stands by" in told.text] == []
    assert view.checkpoints is not None
    assert view.checkpoints.alive
    assert [one for one in checkpoints(site, NOW) if one.level is Worse.WRONG] == []
    leave_mark(site.state, Mark(NOW, pid, "the disk is full", "make room", NOW), CKPTMAN_MARK)
    assert [told.text for told in seen(site).attention if "the disk is full" in told.text]
    assert [one.observed for one in checkpoints(site, NOW) if one.level is Worse.WRONG] != []


def test_nobody_acts(site: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on("headb", monkeypatch)
    for place in (7, None):
        says(tmp_path, place or 0)
        if place is None:
            (tmp_path / "heartbeat").unlink()
        assert "Head: no slurmctld acts, epoch 2 of heada" in screen_of(seen(site))


def test_a_host_that_is_no_head_is_told_so(site: Config) -> None:
    head = seen(site).head
    assert head is not None
    assert head.told.startswith("Head: it is unknown which head acts: ha.directory: this host is ")


def test_one_head_has_not_a_word_of_it(site: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: pytest.fail("who acts was asked"))
    alone = replace(site, ha=HaSettings())
    view = seen(alone)
    assert view.head is None
    assert not [line for line in screen_of(view) if line.startswith("Head")]
    assert not [line for line in metrics_of(alone) if "_head_" in line]
