"""Packs this package into one file for the nodes: a zip archive that Python runs."""

from __future__ import annotations

import io
import zipfile
from importlib import resources

from .site import CONFIG

_SHEBANG = b"#!/usr/bin/python3 -I\n"
# A fixed time makes the archive reproducible; zip knows none before 1980.
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build(config: str = CONFIG) -> bytes:
    """Return the bytes of the program, which will read the configuration ``config``.

    The same sources give the same bytes.
    """
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for source in sorted(resources.files(__package__).iterdir(), key=lambda s: s.name):
            if source.name.endswith(".py"):
                _add(archive, f"ckptroot/{source.name}", source.read_bytes())
        main = f"import sys\nfrom ckptroot.main import main\nsys.exit(main(config={config!r}))\n"
        _add(archive, "__main__.py", main.encode())
    return _SHEBANG + content.getvalue()


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
