"""The page follows the configuration file while it serves."""

from __future__ import annotations

import json
import pwd
from pathlib import Path

import pytest
from patience import eventually
from status_cases import config_file

from slurm_elastic.base.errors import SlurmElasticError
from slurm_elastic.base.processes.unixsocket import Peer
from slurm_elastic.cli.operate import web
from slurm_elastic.config.fresh import FreshConfig
from slurm_elastic.state.heartbeat import process_exists


def status(sources: dict[str, web.DocumentSource]) -> dict[str, object]:
    document: dict[str, object] = json.loads(sources["status"].make({}))
    return document


def test_a_change_of_the_file_is_on_the_page_at_once(tmp_path: Path) -> None:
    file = config_file(tmp_path)
    sources = dict(web.current_sources(FreshConfig(file), file))
    assert [pool["name"] for pool in status(sources)["pools"]] == ["rack"]  # type: ignore[attr-defined]
    file.write_text(file.read_text().replace("name: rack", "name: cellar"))
    assert [pool["name"] for pool in status(sources)["pools"]] == ["cellar"]  # type: ignore[attr-defined]


def test_while_the_file_is_broken_the_page_shows_the_cluster_and_says_so_first(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = config_file(tmp_path)
    sources = dict(web.current_sources(FreshConfig(file), file))
    good = file.read_text()
    file.write_text(good + "limitz: {}\n")
    document = status(sources)
    first = document["attention"][0]  # type: ignore[index]
    assert "limitz" in first["text"]
    assert "did you mean" in first["text"]
    assert [pool["name"] for pool in document["pools"]] == ["rack"]  # type: ignore[attr-defined]
    assert caplog.text.count("the configuration before the change is used") == 1
    file.write_text(good)
    assert not [n for n in status(sources)["attention"] if "limitz" in n["text"]]  # type: ignore[attr-defined]


def test_a_web_server_that_the_file_no_longer_trusts_names_nobody(tmp_path: Path) -> None:
    file = config_file(tmp_path)
    without = file.read_text()
    file.write_text(f"{without}users: {{page_proxy: {{user: daemon, header: X-User}}}}\n")
    visitors, peer = web.socket_visitors(FreshConfig(file)), Peer(uid=pwd.getpwnam("daemon").pw_uid)
    assert visitors.header == "X-User"
    assert visitors.person(peer, ["nobody"]).name == "nobody"
    file.write_text(without)
    assert visitors.header == ""
    assert visitors.person(peer, ["nobody"]).name == "daemon"


def test_a_doctor_that_takes_too_long_ends_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, child = tmp_path / "slow", tmp_path / "child"
    slow.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! >{child}.part\nmv {child}.part {child}\nwait\n"
    )
    slow.chmod(0o755)
    monkeypatch.setattr(web.sys, "executable", str(slow))
    monkeypatch.setattr(web, "DOCTOR_TTL_S", 2.0)
    with pytest.raises(SlurmElasticError, match="doctor did not end within"):
        web._doctor(tmp_path / "slurm-elastic.yaml", {})
    pid = int(child.read_text())
    eventually(lambda: not process_exists(pid))
