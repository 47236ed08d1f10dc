"""The inside of ``test_mounts_nfs.py``, its first part: the shipped program mounts a directory through
WireGuard, and processes write there while the server is gone. No Slurm, so it takes little time.

This host is a machine of the test's own with a kernel that has the NFS client.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.nfs_heads import AWAY, Server
from patience import eventually

from slurm_elastic.config.mounting import OPTIONS, MachineMount
from slurm_elastic.providers.base.joining import mounting
from slurm_elastic.watch.doctor import mounts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3000)]

JOBS = int(os.environ.get("SLURM_ELASTIC_NFS_JOBS", "6"))
LINES = 60
HEAD, MACHINE = "10.99.0.1", "10.99.0.2"
LINK = """\
ip netns add machine
ip link add vhead type veth peer name vmachine netns machine
ip address add 192.0.2.1/24 dev vhead
ip link set vhead up
ip link set lo up
ip -n machine address add 192.0.2.2/24 dev vmachine
ip -n machine link set vmachine up
ip -n machine link set lo up
umask 077
wg genkey >head.key; wg genkey >machine.key
ip link add wg0 type wireguard
wg set wg0 private-key head.key listen-port 51820 peer $(wg pubkey <machine.key) allowed-ips 10.99.0.2/32
ip address add 10.99.0.1/24 dev wg0
ip link set wg0 mtu 1380 up
ip -n machine link add wg0 type wireguard
ip netns exec machine wg set wg0 private-key machine.key peer $(wg pubkey <head.key) \\
  endpoint 192.0.2.1:51820 allowed-ips 10.99.0.0/24 persistent-keepalive 25
ip -n machine address add 10.99.0.2/24 dev wg0
ip -n machine link set wg0 mtu 1380 up
"""
WRITER = """\
cd {at}
for n in $(seq {lines}); do
  echo "line $n" >>out-{job}
  seq $((n * 1000)) $((n * 1000 + 999)) >>data-{job}
  sleep 1
done
"""
DATA = "".join(f"{number}\n" for number in range(1000, (LINES + 1) * 1000))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """The server's directory; the machine is behind the tunnel."""
    subprocess.run(["modprobe", "wireguard"], check=False)
    subprocess.run(["sh", "-ec", LINK], cwd=tmp_path, check=True)
    homes = Path("/tmp/se-kernel-homes")
    homes.mkdir()
    yield homes
    subprocess.run(["ip", "netns", "del", "machine"], check=True)
    subprocess.run(["ip", "link", "del", "wg0"], check=True)


def test_no_byte_is_lost_while_the_server_is_away(place: Path, tmp_path: Path) -> None:
    at = tmp_path / "far"
    mount = MachineMount(path=str(at), server=HEAD, export=str(place), options=",".join(OPTIONS))
    program = tmp_path / "mounts"
    program.write_text(mounting([mount]).replace("/run/slurm-elastic", str(tmp_path)))
    command = ["nsenter", "--net=/run/netns/machine", "sh", str(program)]

    def mounted() -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        print(done.returncode, done.stdout, done.stderr)
        return done.returncode, done.stdout.strip()

    assert mounted() == (1, f"cannot mount {HEAD}:{place} at {at}: Connection refused")
    with pytest.raises(ConnectionRefusedError):
        mounts.connect(HEAD)
    server = Server(tmp_path)
    try:
        # The server has a grace period, in which the first mount may be refused.
        eventually(lambda: mounted() == (0, ""), 300.0)
        mounts.connect(HEAD)
        source = subprocess.run(
            ["findmnt", "-n", "-o", "FSTYPE,OPTIONS", str(at)], capture_output=True, text=True,
            check=True,
        ).stdout  # fmt: skip
        print(source)
        assert source.startswith("nfs4")
        assert all(word in source for word in ("hard", "timeo=150", "nosuid", "nodev", "vers=4.2"))
        writers = [
            subprocess.Popen(["sh", "-ec", WRITER.format(at=at, lines=LINES, job=job)])
            for job in range(JOBS)
        ]
        eventually(lambda: max(lines(place)) > 5, 600.0)
        server.send(signal.SIGKILL)
        at_loss = lines(place)
        time.sleep(AWAY)
        assert lines(place) == at_loss
        assert all(writer.poll() is None for writer in writers), "they wait"
        server.again()
        for writer in writers:
            assert writer.wait(1200) == 0
        for job in range(JOBS):
            text = "".join(f"line {n}\n" for n in range(1, LINES + 1))
            assert (place / f"out-{job}").read_text() == text
            assert (place / f"data-{job}").read_text() == DATA
        subprocess.run(["umount", str(at)], check=True)
    finally:
        server.send(signal.SIGKILL)


def lines(place: Path) -> list[int]:
    """The lines of each writer that the server's disk has."""
    paths = [place / f"out-{job}" for job in range(JOBS)]
    return [len(p.read_text().splitlines()) if p.exists() else 0 for p in paths]
