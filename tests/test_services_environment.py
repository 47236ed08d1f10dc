"""``doctor`` and ``offers`` look for credentials where the services do."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.watch.doctor import environment
from slurm_elastic.watch.doctor.environment import of_the_services, of_the_units, parse


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("A=1\n", {"A": "1"}),
        ("# A=1\n; B=2\n\nno assignment\n", {}),
        ("A='two words'\nB=\"x\"\nC=it's\n", {"A": "two words", "B": "x", "C": "it's"}),
        ("A = spaced \n", {"A": "spaced"}),
        ("A=one \\\n two\n", {"A": "one   two"}),
        ("URL=http://x/?a=b\n", {"URL": "http://x/?a=b"}),
    ],
)
def test_the_file_is_read_as_systemd_reads_it(text: str, found: dict[str, str]) -> None:
    assert parse(text) == found


def test_the_services_environment_lasts_for_the_look_and_no_longer(tmp_path: Path, monkeypatch):
    file = tmp_path / "slurm-elastic"
    file.write_text("AWS_PROFILE=cluster\n")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    with of_the_services("nobody", file) as finding:
        assert os.environ["AWS_PROFILE"] == "cluster"
        home = pwd.getpwnam("nobody").pw_dir
        assert os.geteuid() != 0 or os.environ["HOME"] == home
    assert os.environ["AWS_PROFILE"] == "mine"
    assert os.environ["HOME"] != home
    assert (finding.level, finding.observed) == (FindingLevel.OK, f"{file} sets AWS_PROFILE")
    assert "cluster" not in finding.observed, "its values may be secrets"


def test_without_the_file_the_home_is_named_where_credentials_are_looked_for(tmp_path: Path):
    with of_the_services("root", tmp_path / "none") as finding:
        pass
    assert finding.level is FindingLevel.OK
    assert pwd.getpwnam("root").pw_dir in finding.observed


def test_a_home_that_is_not_there_is_told_with_the_remedy(tmp_path: Path, monkeypatch):
    """As that of Debian's slurm."""
    monkeypatch.setattr(environment, "_directory", lambda _user: "/nonexistent")
    file = tmp_path / "slurm-elastic"
    with of_the_services("slurm", file) as finding:
        assert os.environ["HOME"] == "/nonexistent" or os.geteuid() != 0
    assert finding.level is FindingLevel.NOTE
    assert finding.observed.endswith("home of slurm (/nonexistent), which is not there")
    assert finding.advice.startswith(f"say in {file} where they are")


def test_a_file_that_cannot_be_read_is_a_note_that_says_as_whom_to_run(tmp_path: Path):
    with of_the_services("nobody", tmp_path) as finding:  # a directory
        pass
    assert finding.level is FindingLevel.NOTE
    assert "run this as root" in finding.advice


def test_what_the_units_file_sets_is_had_with_the_own_home(tmp_path: Path, monkeypatch):
    """`init` looks so: what SlurmUser's home lacks, it is to tell."""
    file = tmp_path / "slurm-elastic"
    file.write_text("AWS_PROFILE=cluster\n")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    home = os.environ["HOME"]
    with of_the_units(file):
        assert (os.environ["AWS_PROFILE"], os.environ["HOME"]) == ("cluster", home)
    assert "AWS_PROFILE" not in os.environ
    before = dict(os.environ)
    for unreadable in (tmp_path, tmp_path / "none"):
        with of_the_units(unreadable):
            assert dict(os.environ) == before
