"""The playbook's tasks that write a secret, read as YAML: `--diff` and `-v` must not print it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROLES = Path(__file__).parents[2] / "ansible" / "roles"
WRITERS = ("assemble", "blockinfile", "copy", "get_url", "lineinfile", "replace", "template")
"""Modules that put text into a file, and print it under `--diff`."""
SECRET = re.compile(r"credential|enrol|key|passw|private|secret|token", re.IGNORECASE)
EXPECTED = {
    "head": {"Credentials of clouds, the same on all heads"},
    "node": {
        "The cluster's munge key, where the image is to have it",
        "The key that seals images, the same on all nodes",
    },
}


def tasks(entries: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """All tasks, with those of blocks, which inherit `no_log` and `diff`."""
    for entry in entries:
        yield entry
        kept = {name: entry[name] for name in ("no_log", "diff") if name in entry}
        for part in ("block", "rescue", "always"):
            yield from tasks([kept | dict(inner) for inner in entry.get(part, ())])


def of_role(role: Path) -> list[Mapping[str, Any]]:
    files = sorted(path for part in ("tasks", "handlers") for path in role.glob(f"{part}/*.yml"))
    return [task for file in files for task in tasks(yaml.safe_load(file.read_text()))]


def writes_secret(task: Mapping[str, Any]) -> bool:
    """Whether it writes a file of the site's that others must not read, or one named as secret."""
    for module in WRITERS:
        fields = task.get(f"ansible.builtin.{module}", task.get(module))
        if not isinstance(fields, Mapping):
            continue
        source = str(fields.get("src", "")) + str(fields.get("content", fields.get("line", "")))
        # The repository's own files are no secret, whatever their mode is.
        from_site = "{{" in source and not re.search(r"{{ (playbook_dir|role_path) }}", source)
        is_closed = "mode" in fields and not str(fields["mode"]).endswith(("4", "5", "6", "7"))
        names = source + str(fields.get("dest", ""))
        if from_site and "public" not in names and (is_closed or SECRET.search(names)):
            return True
    return False


def is_silent(task: Mapping[str, Any]) -> bool:
    return task.get("no_log") is True or task.get("diff") is False


@pytest.mark.parametrize("role", sorted(path.name for path in ROLES.iterdir()))
def test_no_task_prints_the_secret_that_it_writes(role: str) -> None:
    secret = [task for task in of_role(ROLES / role) if writes_secret(task)]
    assert {task["name"] for task in secret} == EXPECTED.get(role, set())
    assert [task["name"] for task in secret if not is_silent(task)] == []


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({"src": "{{ item }}", "dest": "/etc/slurm-elastic/cloud", "mode": "0600"}, True),
        ({"src": "{{ slurm_elastic_console_keys }}", "dest": "/etc/x", "mode": "0644"}, True),
        ({"content": "{{ shown.stdout }}", "dest": "/etc/slurm-elastic/enrolment"}, True),
        ({"src": "{{ slurm_elastic_config }}", "dest": "/etc/x.yaml", "mode": "0644"}, False),
        ({"src": "{{ playbook_dir }}/../etc/sudoers", "dest": "/etc/s", "mode": "0440"}, False),
        ({"content": "{{ shown.stdout }}", "dest": "/etc/public.key", "mode": "0644"}, False),
    ],
)
def test_a_secret_is_known_by_its_mode_or_its_name(fields: dict[str, str], *, found: bool) -> None:
    inner = {"name": "x", "ansible.builtin.copy": fields}
    (_, task) = tasks([{"name": "outer", "block": [inner]}])
    assert writes_secret(task) == found
    assert not is_silent(task)
    (_, task) = tasks([{"name": "outer", "block": [inner], "no_log": True}])
    assert is_silent(task)
