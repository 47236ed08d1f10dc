"""What the role installs is the release and the extras of this run, whatever ran before it.

The role's own tasks run on this host, with a copy in place of pip.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
import yaml
from needs import unless
from patience import patience

REPO = Path(__file__).parents[2]
TASKS = REPO / "ansible" / "roles" / "head" / "tasks" / "main.yml"
NAMES = ("What is installed", "Is it installed already", "Remember what is installed")
PACKAGE = "The package, in an environment of Debian's Python that SlurmUser can read"
pytestmark = unless("ansible-playbook")


def book(home: Path) -> Path:
    """A play of the tasks that decide whether pip runs. A line is added to ``pip`` if it does."""
    tasks = {task["name"]: task for task in yaml.safe_load(TASKS.read_text())}
    play = {
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "vars": {"slurm_elastic_home": str(home)},
        "tasks": [
            *(tasks[name] for name in NAMES[:-1]),
            {
                "name": "pip",
                "ansible.builtin.shell": f"echo '{{{{ run }}}}' >>{home}/pip",
                "when": tasks[PACKAGE]["when"],
            },
            tasks[NAMES[-1]],
        ],
    }  # fmt: skip
    path = home / "play.yml"
    path.write_text(json.dumps([play]))
    return path


def run(path: Path, checksum: str, extras: str) -> None:
    variables = {
        "slurm_elastic_sources": {"checksum": checksum},
        "slurm_elastic_extras": extras,
        "run": f"{checksum} {extras}",
    }
    done = subprocess.run(
        ["ansible-playbook", "-i", "localhost,", "-e", json.dumps(variables), str(path)],
        capture_output=True, text=True, check=False, timeout=patience(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("runs", "installed"),
    [
        ([("a", "[aws]"), ("a", "[aws]")], ["a [aws]"]),
        ([("a", "[aws]"), ("b", "[aws]"), ("a", "[aws]")], ["a [aws]", "b [aws]", "a [aws]"]),
        ([("a", "[aws]"), ("a", "[aws,gcp]")], ["a [aws]", "a [aws,gcp]"]),
    ],
    ids=["again", "back to an earlier release", "other extras"],
)
def test_pip_runs_if_another_release_or_other_extras_are_there(
    tmp_path: Path, runs: list[tuple[str, str]], installed: list[str]
) -> None:
    path = book(tmp_path)
    for checksum, extras in runs:
        run(path, checksum, extras)
    assert (tmp_path / "pip").read_text().splitlines() == installed
