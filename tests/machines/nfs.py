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
NFSv4 { Only_Numeric_Owners = true; }
"""
EXPORT = """\
EXPORT {
  Export_Id = NUMBER; Path = PLACE; Pseudo = PLACE; Protocols = 4; SecType = sys;
  Access_Type = RW; Squash = No_Root_Squash; FSAL { Name = VFS; }
}
"""


@contextmanager
def nfs(work: Path) -> Iterator[None]:
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
    words = ["ganesha.nfsd", "-F", "-f", file, "-L", log, "-p", work / "ganesha.pid"]
    server = subprocess.Popen(words)

    def listens() -> bool:
        assert server.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", PORT)) == 0

    try:
        eventually(listens)
        yield
    finally:
        server.kill()
        server.wait()
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
