"""A package of somebody else's, with an entry point, in a place of ``sys.path``."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from slurm_elastic.testing.contract import UUID

_SITE = f"""
cluster: {{name: demo, uuid: {UUID}}}
EXTRA
clouds:
  - name: rehearsal
    provider: fake
    location: on-premises
    types: {{small: {{cpus: 2, memory: 4G, price: 0.1}}}}
pools:
  - {{name: p, cloud: rehearsal, nodes: "p[1-4]", cpus: 2, memory: 4G, instance_types: [small]}}
"""


def site_text(section: str = "") -> str:
    """A site of four nodes in a fake cloud, with one more section of the file."""
    return _SITE.replace("EXTRA\n", f"{section}\n" if section else "")


def announce(folder: Path, group: str, name: str, place: str) -> None:
    """The entry point ``name = place``, as pip installs it."""
    package = place.partition(":")[0]
    about = folder / f"{package}-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n")


@contextmanager
def imported_from(
    folder: Path, monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]
) -> Iterator[Path]:
    """``folder`` on ``sys.path``; packages ``outside_*`` are forgotten afterwards, by ``forget``, too."""
    monkeypatch.syspath_prepend(str(folder))
    before = set(sys.modules)
    forget()
    yield folder
    forget()
    for name in set(sys.modules) - before:
        if name.startswith("outside_"):
            del sys.modules[name]
    importlib.invalidate_caches()
