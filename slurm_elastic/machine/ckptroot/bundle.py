"""The program for the nodes as one file: this package in a zip archive that Python runs."""

from __future__ import annotations

import io
import zipfile
from importlib import resources

from slurm_elastic.machine.ckptroot.site import CONFIG

_SHEBANG = b"#!/usr/bin/python3 -I\n"
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(config: str = CONFIG) -> bytes:
    """The program; the same bytes for the same sources. ``config`` is where it reads its own."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("slurm_elastic", "slurm_elastic/base", "slurm_elastic/machine"):
            _add(archive, f"{package}/__init__.py", b"")
        trust = resources.files("slurm_elastic.base").joinpath("trust.py")
        _add(archive, "slurm_elastic/base/trust.py", trust.read_bytes())
        for source in sorted(resources.files(__package__).iterdir(), key=lambda s: s.name):
            if source.name.endswith(".py"):
                _add(archive, f"slurm_elastic/machine/ckptroot/{source.name}", source.read_bytes())
        main = (
            "import sys\nfrom slurm_elastic.machine.ckptroot.main import main\n"
            f"sys.exit(main(config={config!r}))\n"
        )
        _add(archive, "__main__.py", main.encode())
    return _SHEBANG + content.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
