"""How much memory a process has, as the kernel tells."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import proc


@pytest.fixture
def smaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "smaps_rollup"
    path.write_text("Rss:    9 kB\nPss_Shmem:     4097 kB\nPss_Anon:  3 kB\n")
    monkeypatch.setattr(proc, "Path", lambda _: path)
    return path


@pytest.mark.parametrize(("shared", "found"), [(4095, 0), (4096, 4097 << 10), (9999, 4097 << 10)])
def test_little_shared_memory_is_not_walked_through(smaps: Path, shared: int, found: int) -> None:
    assert proc.shared_of(7, {"RssShmem": f"{shared} kB"}) == found


@pytest.mark.parametrize("text", ["", "Rss: 9 kB\n", "Pss_Shmem:\n", "Pss_Shmem: many kB\n"])
def test_what_is_not_known_of_it_is_nothing(smaps: Path, text: str) -> None:
    smaps.write_text(text)
    assert proc.shared_of(7, {"RssShmem": "5000 kB"}) == 0
    smaps.unlink()
    assert proc.shared_of(7, {"RssShmem": "5000 kB"}) == 0
    assert proc.shared_of(7, {}) == 0


def test_memory_is_what_is_its_own_swapped_out_too() -> None:
    assert proc.memory_of({"RssAnon": "3 kB", "VmSwap": "2 kB", "RssFile": "9 kB"}) == 5 << 10
    assert proc.memory_of({}) == 0


def test_a_process_that_is_gone_has_no_status() -> None:
    assert proc.status_of(os.getpid())["Pid"] == str(os.getpid())
    assert proc.status_of(1 << 30) == {}
