"""``slurm-elastic help``: finds the pages wherever they were installed, and near ones for a wrong topic."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patience

from slurm_elastic.base import pages
from slurm_elastic.cli.main import main

ROOT = Path(__file__).parents[2]


def test_a_page_is_printed_whole_into_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "install"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "install.md").read_text()


def test_without_a_topic_all_are_listed_with_their_titles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["help"]) == 0
    listed = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert listed["first-burst"] == "The first burst"
    assert set(listed) == {page.stem for page in (ROOT / "docs").glob("*.md")}


@pytest.mark.parametrize(
    ("topic", "near"),
    [
        ("instal", "install"),
        ("criu", "checkpoint-criu"),
        ("munge", "joining"),
        ("(clusters", "lists all"),
        ("clusters", "operating"),
        ("Clusters", "operating"),
        ("cost", "simulate"),
        ("qqq", "lists all"),
    ],
)
def test_an_unknown_topic_names_near_ones(
    topic: str, near: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["help", topic]) == 2
    assert near in capsys.readouterr().err


def test_the_path_of_a_page_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "--path", "images"]) == 0
    assert Path(capsys.readouterr().out.strip()).is_file()


def test_where_no_page_is_installed_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pages, "directory", lambda: None)
    assert main(["help", "install"]) == 1
    assert "not installed here" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["doc", "share/doc/slurm-elastic"])
def test_an_environment_has_its_own_pages(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "README.md").write_text("# Documentation\n")
    monkeypatch.setattr(pages, "__file__", str(tmp_path / "lib" / "slurm_elastic" / "base" / "x"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert pages.directory() == tmp_path / place


def test_on_a_terminal_it_goes_through_the_pager(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    pager = tmp_path / "pager"
    pager.write_text(f"#!/bin/sh\nexec cat >'{seen}'\n")
    pager.chmod(0o755)
    ours, theirs = pty.openpty()
    code = (
        "import sys; from slurm_elastic.cli.main import main; sys.exit(main(['help', 'install']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=theirs,
        timeout=patience(60), env={**os.environ, "PAGER": str(pager), "TERM": "xterm"}, check=False,
    )  # fmt: skip
    os.close(ours)
    os.close(theirs)
    assert done.returncode == 0
    assert seen.read_text() == (ROOT / "docs" / "install.md").read_text()
