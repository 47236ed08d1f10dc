"""A run that failed before it restarted the services leaves the restart to the next run.

The roles' own tasks run on this host, with a line in a file in place of each restart.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml
from needs import unless
from patience import patience

ROLES = Path(__file__).parents[2] / "ansible" / "roles"
RESTARTED_HUB = "The service of tunnel and firewall"
pytestmark = unless("ansible-playbook")


def tasks_from(file: str, name: str) -> list[dict[str, Any]]:
    """The tasks of the file, from the one of that name on."""
    tasks = yaml.safe_load((ROLES / file).read_text())
    return tasks[[task["name"] for task in tasks].index(name) :]


def play(home: Path, tasks: list[dict[str, Any]], variables: dict[str, Any], *options: str) -> bool:
    """Run the tasks, and return whether the play came to its end."""
    handlers = yaml.safe_load((ROLES / "head" / "handlers" / "main.yml").read_text())
    path = home / "play.yml"
    book = {
        "hosts": "localhost", "connection": "local", "gather_facts": False,
        "vars": {"slurm_elastic_home": str(home), **variables}, "tasks": tasks,
        "handlers": [
            {
                "name": handler["name"],
                "ansible.builtin.shell": f"echo '{handler['name']}' >>{home}/restarts",
                "when": handler["when"],
            }
            for handler in handlers
        ],
    }  # fmt: skip
    path.write_text(json.dumps([book]))
    done = subprocess.run(
        ["ansible-playbook", "-i", "localhost,", *options, str(path)],
        capture_output=True, text=True, check=False, timeout=patience(120),
    )  # fmt: skip
    assert done.returncode in (0, 2), done.stdout + done.stderr
    return done.returncode == 0


def restarts(home: Path) -> list[str]:
    """The restarts since the last call."""
    file = home / "restarts"
    lines = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return lines


FAILS = {"name": "A late task", "ansible.builtin.fail": {"msg": "no"}}
ALL = ["slurm-elasticd", "slurm-elastic-ckptman", "slurm-elastic-watchdog"]


def test_the_services_restart_in_the_run_after_a_failed_one(tmp_path: Path) -> None:
    tasks = tasks_from("head/tasks/main.yml", "What the services should run by")[:5]
    assert tasks[-1]["name"] == "Remember what the services run by"
    (tmp_path / "src.tar").write_text("a")
    variables = {
        "slurm_elastic_credentials": [], "slurm_elastic_extras": "[aws]",
        "slurm_elastic_runs": True, "slurm_elastic_local": False, "slurm_elastic_copier": False,
    }  # fmt: skip
    every = [f"Restart {name}" for name in ALL]
    assert play(tmp_path, tasks, variables)
    assert restarts(tmp_path) == every, "nothing says by what they run"
    assert play(tmp_path, tasks, variables)
    assert restarts(tmp_path) == []
    (tmp_path / "src.tar").write_text("b")
    assert not play(tmp_path, [FAILS, *tasks], variables)
    assert restarts(tmp_path) == []
    assert play(tmp_path, tasks, variables, "--skip-tags", "services")
    assert restarts(tmp_path) == [], "the image of a head runs no services"
    assert play(tmp_path, tasks, variables)
    assert restarts(tmp_path) == every
    assert play(tmp_path, tasks, variables)
    assert restarts(tmp_path) == []


def test_the_hub_restarts_in_the_run_after_a_failed_restart(tmp_path: Path) -> None:
    tasks = tasks_from(
        "vpn/tasks/service.yml", "By what the service ran at the end of the last run"
    )
    variables = {
        f"slurm_elastic_vpn_{name}": {"stat": {"checksum": name}}
        for name in ("yaml", "package", "unit")
    }
    for task in tasks:
        if task["name"] == RESTARTED_HUB:
            state = task.pop("ansible.builtin.systemd")["state"]
            task["ansible.builtin.shell"] = (
                f"echo {state} >>{tmp_path}/restarts; test ! -e {tmp_path}/bad"
            )
    (tmp_path / "bad").touch()
    assert not play(tmp_path, tasks, variables)
    (tmp_path / "bad").unlink()
    assert play(tmp_path, tasks, variables)
    assert play(tmp_path, tasks, variables)
    assert restarts(tmp_path) == ["restarted", "restarted", "started"]
