"""Names of other nodes in a machine's hosts file."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.machine.programs import names, tunnel

SHOWN = """\
NodeName=pub1 Arch=x86_64 CPUTot=2 NodeAddr=10.0.0.5 NodeHostName=pub1 Version=22.05.8 \
OS=Linux 6.1 #1 SMP State=IDLE+CLOUD ThreadsPerCore=1
NodeName=pub2 CoresPerSocket=1 NodeAddr=10.0.0.6 NodeHostName=pub2 State=MIXED+CLOUD+POWERING_UP
NodeName=pub3 CoresPerSocket=1 NodeAddr=10.0.0.7 NodeHostName=pub3 State=IDLE+CLOUD+POWERED_DOWN
NodeName=pub4 CoresPerSocket=1 NodeAddr=233.252.0.4 NodeHostName=pub4 State=IDLE+CLOUD
NodeName=login CoresPerSocket=1 NodeAddr=login NodeHostName=login State=IDLE
NodeName=old1 CoresPerSocket=1 NodeAddr=10.1.2.9 NodeHostName=old1 State=DOWN*
"""
SITE = "127.0.0.1 localhost\n10.1.2.9 old1 # of the site\n"


def test_addresses_are_those_of_nodes_with_a_machine() -> None:
    assert names.live_nodes(SHOWN) == {"pub1": "10.0.0.5", "pub2": "10.0.0.6", "old1": "10.1.2.9"}


def test_a_young_machine_asks_more_often_while_a_node_boots() -> None:
    assert names.period(SHOWN, 0.0) == pytest.approx(5.0 + 6 * 0.05)
    assert names.period(SHOWN, names.YOUNG_S) == pytest.approx(30.0 + 6 * 0.05)
    assert names.period(SHOWN.replace("+POWERING_UP", ""), 0.0) == pytest.approx(30.0 + 6 * 0.05)


@pytest.mark.parametrize("age_s", [0.0, names.YOUNG_S])
@pytest.mark.parametrize("machines", [20, 100, 1000])
def test_all_machines_together_ask_twice_a_second_at_most(machines: int, age_s: float) -> None:
    line = "NodeName=n{} Arch=x NodeAddr=10.1.{}.{} State=IDLE+CLOUD+POWERING_UP\n"
    text = "".join(line.format(n, n // 250, n % 250 + 1) for n in range(machines))
    assert machines / names.period(text, age_s) <= 2.0
    own = text.replace("+CLOUD+POWERING_UP", "")
    assert names.period(own, age_s) <= 30.0 + 0.05 * machines, "own nodes do not ask"


def test_names_that_are_found_without_us_need_no_question(monkeypatch: pytest.MonkeyPatch) -> None:
    dns = {"pub2": "10.0.0.6", "pub3": "10.0.0.7", "pub4": "10.0.0.8", "login": "10.1.2.1"}

    def looked_up(name: str, _: None) -> list[tuple[object, ...]]:
        if name not in dns:
            raise OSError("Name or service not known")
        return [(2, 1, 6, "", (dns[name], 0))]

    monkeypatch.setattr(names.socket, "getaddrinfo", looked_up)
    assert not names.are_known(SHOWN, {"pub1"}), "old1 is not in DNS"
    assert names.are_known(SHOWN, {"pub1", "old1"})
    assert names.are_known(SHOWN, {"pub1", "pub2", "pub3", "pub4", "login", "old1"})
    dns["old1"] = "10.9.9.9"
    assert not names.are_known(SHOWN, {"pub1"}), "Slurm has another address"
    dns["old1"] = "10.1.2.9"
    assert names.are_known(SHOWN, {"pub1"})
    dns["pub3"] = dns["pub4"]
    assert not names.are_known(SHOWN, {"pub1"}), "one address for all names"


def test_lines_of_the_site_stay_and_its_names_get_no_line_of_ours() -> None:
    text = names.with_names(SITE, {"pub2": "10.0.0.6", "old1": "10.0.0.9", "pub1": "10.0.0.5"})
    assert text == SITE + "10.0.0.5 pub1 # slurm-elastic\n10.0.0.6 pub2 # slurm-elastic\n"
    assert names.with_names(text, {"pub2": "10.0.0.8"}) == SITE + "10.0.0.8 pub2 # slurm-elastic\n"
    assert names.with_names(text, {}) == SITE
    assert names.with_names("10.9.9.9 far", {"a": "10.0.0.1"}).startswith(
        "10.9.9.9 far\n10.0.0.1 a"
    )


def test_addresses_in_the_tunnel_are_those_that_machines_have() -> None:
    settings = {"pools": {"pub": {"first": "10.99.0.8", "nodes": "pub[08-11],x"}}}
    addresses = names.in_tunnel(settings)
    assert addresses["pub11"] == "10.99.0.11"
    for node, address in addresses.items():
        assert tunnel.own_address(settings, {"pool": "pub", "node": node}) == address
    assert names.in_tunnel({}) == {}
    many = {"pools": {"pub": {"first": "10.99.0.8", "nodes": "pub[1-5000]"}}}
    assert names.in_tunnel(many) == {}, "a hosts file is read from its begin for each name"


def test_the_file_keeps_its_mode_and_is_replaced_whole(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text(SITE)
    hosts.chmod(0o664)
    before = hosts.stat()
    names.write(str(hosts), SITE + "x\n")
    after = hosts.stat()
    assert hosts.read_text() == SITE + "x\n"
    assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid)
    assert after.st_ino != before.st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


def test_a_file_that_cannot_be_replaced_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replace(*_: str) -> None:
        raise OSError("Device or resource busy")

    monkeypatch.setattr(os, "replace", replace)
    hosts = tmp_path / "hosts"
    hosts.write_text(SITE + "and more\n")
    names.write(str(hosts), SITE)
    assert hosts.read_text() == SITE
    assert [path.name for path in tmp_path.iterdir()] == ["hosts"]


def _lines(hosts: Path) -> list[str]:
    return [line for line in hosts.read_text().splitlines() if line.endswith(names.MARK)]


def _wait(hosts: Path, lines: list[str]) -> None:
    until = time.monotonic() + patience(30)
    while _lines(hosts) != lines:
        assert time.monotonic() < until, hosts.read_text()
        time.sleep(0.05)


def test_the_program_follows_slurm_and_takes_its_lines_out_at_its_end(tmp_path: Path) -> None:
    hosts, shown, settings = tmp_path / "hosts", tmp_path / "shown", tmp_path / "agent"
    hosts.write_text(SITE + "10.0.0.4 pub1 # slurm-elastic\n")
    scontrol, mark = tmp_path / "scontrol", tmp_path / "mark"
    scontrol.write_text(f"#!/bin/sh\n[ \"$*\" = '--oneliner show nodes' ] && cat {shown}\n")
    scontrol.chmod(0o755 | stat.S_IXUSR)
    settings.write_text(f"node=pub1\nscontrol={scontrol}\nkey_mark={mark}\n")
    link = tmp_path / "tunnel.json"
    link.write_text(json.dumps({"pools": {"far": {"first": "10.99.0.8", "nodes": "far1"}}}))
    program = subprocess.Popen(
        [sys.executable, "-I", names.__file__, str(settings), str(link), str(hosts)]
    )
    try:
        far = f"10.99.0.8 far1 {names.MARK}"
        _wait(hosts, [far, f"10.0.0.4 pub1 {names.MARK}"])  # its own name is there from the boot on
        shown.write_text(SHOWN)
        mark.touch()
        pub = [f"10.0.0.{n} pub{n - 4} {names.MARK}" for n in (5, 6)]
        _wait(hosts, [far, *pub])
    finally:
        program.send_signal(signal.SIGTERM)
    assert program.wait(patience(30)) == 0
    assert hosts.read_text() == SITE


def test_where_the_tunnel_has_all_names_the_program_asks_once(tmp_path: Path) -> None:
    hosts, settings, scontrol = tmp_path / "hosts", tmp_path / "agent", tmp_path / "scontrol"
    hosts.write_text(SITE + "10.0.0.5 pub1 # slurm-elastic\n")
    line = SHOWN.splitlines()[0]
    scontrol.write_text(f"#!/bin/sh\ncat <<'END'\n{line}\n{line.replace('pub1', 'far1')}\nEND\n")
    scontrol.chmod(0o755)
    settings.write_text(f"node=pub1\nscontrol={scontrol}\n")
    link = tmp_path / "tunnel.json"
    link.write_text(json.dumps({"pools": {"far": {"first": "10.99.0.8", "nodes": "far1"}}}))
    program = subprocess.Popen(
        [sys.executable, "-I", names.__file__, str(settings), str(link), str(hosts)],
        stderr=subprocess.PIPE,
    )
    try:
        assert program.stderr is not None
        assert b"no question to slurmctld is needed" in program.stderr.readline()
        lines = [f"10.99.0.8 far1 {names.MARK}", f"10.0.0.5 pub1 {names.MARK}"]
        assert _lines(hosts) == lines, "they stay"
    finally:
        program.send_signal(signal.SIGTERM)
    assert program.wait(patience(30)) == 0
    program.stderr.close()
    assert hosts.read_text() == SITE


def test_a_machine_without_a_hosts_file_gets_one(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    hosts = names.HostsFile(str(file), "pub1", {})
    hosts.put({"pub2": "10.0.0.6"})
    assert file.read_text() == "10.0.0.6 pub2 # slurm-elastic\n"
    hosts.clear()
    assert file.read_text() == ""
