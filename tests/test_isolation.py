"""Tests cannot reach beyond this machine, nor change the process for others unseen."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import leaks
import pytest


def test_an_address_of_the_internet_is_refused() -> None:
    with socket.socket() as client, pytest.raises(PermissionError, match="a test would connect"):
        client.connect(("8.8.8.8", 53))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_this_machine_may_be_asked(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(5.0)
        assert client.connect_ex((host, 9)) != 0  # nobody listens, and nothing is raised


def test_changes_of_the_process_are_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = leaks.state()
    assert leaks.left(before, leaks.state()) == ""
    monkeypatch.setenv("SOMETHING", "new")
    monkeypatch.chdir(tmp_path)
    told = leaks.left(before, leaks.state()).splitlines()
    assert told == [
        "$SOMETHING: None became 'new'",
        f"working directory: {before['working directory']!r} became {str(tmp_path)!r}",
    ]


def test_programs_of_the_package_run_as_installed() -> None:
    """User slurm may be unable to read the clone, which ``-m`` alone puts first in the module path."""
    repository = Path(__file__).parents[1]
    sources = (
        path
        for folder in ("tests", "slurm_elastic", "benchmarks")
        for path in (repository / folder).rglob("*.py")
    )
    programs = re.compile(r"""(?<!"-P", )"-m", "(?=slurm_elastic)""")
    assert [str(path) for path in sources if programs.search(path.read_text())] == []
