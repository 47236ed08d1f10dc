"""The units that role head writes, by the role's own tasks, run on this host into another directory."""

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
UNITS = "/etc/systemd/system"
NAMES = (
    "The group of SlurmUser",
    "Units, which run the services as SlurmUser",
    "Directories of what units have besides",
    "The services may write into another state directory",
)
pytestmark = [pytest.mark.release, unless("ansible-playbook")]


def written(place: Path, **variables: str) -> Path:
    """Where the tasks have written the units with these variables of the role."""
    tasks = [task for task in yaml.safe_load(TASKS.read_text()) if task["name"] in NAMES]
    assert len(tasks) == len(NAMES)
    for task in tasks:
        task.pop("notify", None)
    text = json.dumps([{
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "vars": {"slurm_elastic_shared": "", **variables}, "tasks": tasks,
    }])  # fmt: skip
    units = place / "units"
    units.mkdir()
    book = place / "ansible" / "play.yml"
    book.parent.mkdir()
    book.write_text(text.replace(UNITS, str(units)))
    (place / "etc").symlink_to(REPO / "etc")
    done = subprocess.run(
        ["ansible-playbook", "-i", "localhost,", book], capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(place), "LANG": "C.UTF-8"}, timeout=patience(120),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return units


def test_by_default_they_are_those_of_the_repository(tmp_path: Path) -> None:
    units = written(
        tmp_path, slurm_elastic_user="slurm", slurm_elastic_state="/var/lib/slurm-elastic"
    )
    files = list(units.iterdir())
    assert len(files) == 5
    assert all(file.read_bytes() == (REPO / "etc" / file.name).read_bytes() for file in files)


def test_another_slurm_user_and_state_directory_are_in_them(tmp_path: Path) -> None:
    units = written(tmp_path, slurm_elastic_user="nobody", slurm_elastic_state="/srv/elastic")
    daemon = (units / "slurm-elasticd.service").read_text()
    assert "\nUser=nobody\nGroup=nogroup\n" in daemon
    assert "User=root\n" in (units / "slurm-elastic-copier.service").read_text()
    for service in ("slurm-elasticd", "slurm-elastic-ckptman", "slurm-elastic-web"):
        drop_in = units / f"{service}.service.d" / "state.conf"
        assert drop_in.read_text() == "[Service]\nReadWritePaths=/srv/elastic\n"
