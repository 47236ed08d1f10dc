"""Pack the two ends into one file for machines: a zip archive that Python runs."""

from __future__ import annotations

import io
import zipfile
from importlib import resources

_MODULES = (
    "__init__", "wire", "locks", "tree", "marks", "identity", "places", "owed", "uses", "book",
    "steps", "head", "node", "run",
)  # fmt: skip
# A fixed time makes the archive reproducible; zip knows none before 1980.
_EPOCH = (1980, 1, 1, 0, 0, 0)
_MAIN = "import sys\nfrom jobfiles.run import main\nsys.exit(main(sys.argv))\n"


def build() -> bytes:
    """Return the archive. It is the same for the same sources."""
    content = io.BytesIO()
    folder = resources.files(__package__)
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        texts = {f"jobfiles/{name}.py": (folder / f"{name}.py").read_bytes() for name in _MODULES}
        for name, text in {**texts, "__main__.py": _MAIN.encode()}.items():
            archive.writestr(zipfile.ZipInfo(name, _EPOCH), text, zipfile.ZIP_DEFLATED)
    return content.getvalue()
