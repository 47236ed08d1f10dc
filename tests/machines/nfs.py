"""An NFS server of homes and of jobs' images, on a head that is the test's own (``trixie``)."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from patience import eventually

HOME = Path("/home/alice")
SHARED = Path("/shared")
EXPORTS = (HOME.parent, SHARED)
PORT = 2049
# A container's root may not set what it wants of the kernel first.
SERVER = """\
NFS_CORE_PARAM {
  Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; allow_set_io_flusher_fail = true;
}
NFSv4 { Only_Numeric_Owners = true; RecoveryBackend = fs; }
"""
EXPORT = """\
EXPORT {
  Export_Id = NUMBER; Path = PLACE; Pseudo = PLACE; Protocols = 4; SecType = sys;
  Access_Type = RW; Squash = No_Root_Squash; FSAL { Name = VFS; }
}
"""


class Server:
    """nfs-ganesha, which can be away for a while."""

    def __init__(self, file: Path, log: Path) -> None:
        self._command = [
            "ganesha.nfsd",
            "-F",
            "-f",
            file,
            "-L",
            log,
            "-p",
            file.with_suffix(".pid"),
        ]
        self._log = log
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command)
        eventually(self._listens)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", PORT)) == 0


@contextmanager
def nfs(work: Path) -> Iterator[Server]:
    """Served until the end of the block; ``work`` gets its configuration and log."""
    exports = [
        EXPORT.replace("NUMBER", str(number)).replace("PLACE", str(place))
        for number, place in enumerate(EXPORTS, 1)
    ]
    file, log = work / "ganesha.conf", work / "ganesha.log"
    file.write_text(SERVER + "".join(exports))
    Path("/run/ganesha").mkdir(exist_ok=True)
    _clear()  # a test that was killed may have left something
    (SHARED / "slurm-elastic").mkdir(parents=True)
    Path("/var/lib/nfs/ganesha").mkdir(parents=True, exist_ok=True)
    server = Server(file, log)
    try:
        yield server
    finally:
        server.kill()
        _clear()


def _clear() -> None:
    shutil.rmtree(SHARED, ignore_errors=True)
    for left in HOME.glob("*-*"):
        left.unlink()


def lines(job: int, first: str) -> list[list[str]]:
    """The job's lines that begin with this word, word by word."""
    path = HOME / f"out-{job}"
    text = path.read_text() if path.exists() else ""
    return [line.split() for line in text.splitlines() if line.startswith(f"{first} ")]
