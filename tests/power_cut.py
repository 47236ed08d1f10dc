"""A power cut: of a directory only that is left which the programs have put on the disk.

Programs run with ``env`` have ``power_cut.c`` loaded, which keeps what each fsync makes safe. The
kernel may have written more than that; of all it can leave, these are the worst: the names of
a directory as they were synced last, or (``Names.LATEST``) as they are now, each file with no more than
the content that was synced.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from enum import Enum
from pathlib import Path

SOURCE = Path(__file__).with_name("power_cut.c")


class Names(Enum):
    """Which names of a directory are there afterwards."""

    SYNCED = "synced"
    LATEST = "latest"


def build(place: Path) -> Path:
    """The library, made in ``place``."""
    library = place / "power_cut.so"
    command = ["gcc", "-O2", "-Wall", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"]
    subprocess.run(command, check=True)
    return library


class Disk:
    """The part of ``root`` that is safe: at first all of it."""

    def __init__(self, root: Path, place: Path, library: Path | None = None) -> None:
        self.root = root
        self._kept = place / "disk"
        self._kept.mkdir(parents=True)
        self.env: Mapping[str, str] = {
            "LD_PRELOAD": str(library or build(place)),
            "POWER_CUT_DISK": str(self._kept),
        }
        for directory, _, files in os.walk(root):
            self._keep_names(Path(directory))
            for name in files:
                path = Path(directory, name)
                shutil.copy(path, self._kept / str(path.stat().st_ino))

    def _keep_names(self, directory: Path) -> None:
        entries = [f"{one.inode()}/{one.name}\0" for one in os.scandir(directory)]
        (self._kept / str(directory.stat().st_ino)).write_text("".join(entries))

    def after_cut(self, into: Path, names: Names) -> Path:
        """The files that the next start finds, made in ``into``."""
        self._restore(self.root.stat().st_ino, self.root, into, names)
        return into

    def _restore(self, inode: int, now: Path, into: Path, names: Names) -> None:
        into.mkdir()
        for name, of in self._names(inode, now, names).items():
            safe = self._kept / str(of)
            if (now / name).is_dir():
                self._restore(of, now / name, into / name, names)
            elif safe.exists():
                shutil.copy(safe, into / name)
            else:
                (into / name).touch()

    def _names(self, inode: int, now: Path, names: Names) -> dict[str, int]:
        if names is Names.LATEST:
            return {one.name: one.inode() for one in os.scandir(now)}
        safe = self._kept / str(inode)
        entries = safe.read_text().split("\0")[:-1] if safe.exists() else []
        found = (entry.partition("/") for entry in entries)
        return {name: int(of) for of, _, name in found if name not in (".", "..")}
