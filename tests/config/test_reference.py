"""Every key says when one would change it; keys that have gone are told of and do no harm."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.config import configfile
from slurm_elastic.config.checkpoint import BlcrSettings, CheckpointSettings
from slurm_elastic.config.joining import Ssh
from slurm_elastic.config.reference import keys

ROOT = Path(__file__).parents[2]
GOOD = (ROOT / "tests" / "data" / "config" / "good.yaml").read_text()


def test_every_key_says_when_one_would_change_it() -> None:
    found = keys()
    assert len(found) > 200
    silent = [k.place for k in found if not k.when.startswith("Change it when ")]
    assert silent == [], "say it below the key in its struct, or make it a constant"
    assert [k.place for k in found if not k.when.endswith(".") or "\n" in k.when] == []


def test_a_word_chooses_among_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["conf", "keys", "suspend_timeout"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "timings.suspend_timeout (1m)"
    assert lines[1].startswith("    Change it when ")
    assert main(["conf", "keys", "no such"]) == 2
    assert "no key has 'no such' in its name" in capsys.readouterr().err


SSH = {"key": "/etc/slurm-elastic/ssh_key", "munge_key": "/etc/slurm-elastic/munge.key"}
STACK = {
    "name": "stack", "provider": "openstack", "location": "on-premises", "cloud": "hpc",
    "image": "slurm-node", "types": {"m1": {"cpus": 4, "memory": "8G"}},
}  # fmt: skip
NEBULA = {
    "name": "nebula", "provider": "opennebula", "location": "on-premises",
    "endpoint": "http://one:2633/RPC2", "types": {"m1": {"cpus": 4, "memory": "8G", "template": 1}},
}  # fmt: skip
BOXES = {
    "name": "boxes", "provider": "docker", "location": "on-premises", "hosts": {"box": {}},
    "image": "node", "network": "slurm", "types": {"m1": {"cpus": 4, "memory": "8G"}},
}  # fmt: skip
RACK = {
    "name": "rack", "provider": "redfish", "location": "on-premises", "command": ["/bin/power"],
    "hosts": {"h1": "h1"}, "types": {"m1": {"cpus": 4, "memory": "8G", "price": 0.1}},
}  # fmt: skip
GONE: tuple[tuple[str, str, object], ...] = (
    ("timings", "misses", 0),
    ("timings", "transient_deadline", "15m"),
    ("join.ssh", "timeout", "1m"),
    ("join.ssh", "at_once", 1000),
    ("checkpoint", "patience", "1h"),
    ("checkpoint.blcr", "timeout", "1m"),
    ("checkpoint.blcr", "connections", "many"),
    ("clouds[2] (stack)", "threads", 30),
    ("clouds[2] (nebula)", "threads", 20),
    ("clouds[2] (boxes)", "threads", 99),
    ("clouds[2] (rack)", "threads", 99),
    ("", "metrics", {"listen": "127.0.0.1:9817"}),
)


def place(document: dict[str, Any], at: str) -> dict[str, Any]:
    """The mapping there, made where the good file has none."""
    for cloud in (STACK, NEBULA, BOXES, RACK):
        if f"({cloud['name']})" in at:
            document["clouds"].append(dict(cloud))
            return document["clouds"][-1]  # type: ignore[no-any-return]
    if at == "join.ssh":
        document["join"] = {"head": "head", "ssh": dict(SSH)}
        return document["join"]["ssh"]  # type: ignore[no-any-return]
    here = document
    for step in filter(None, at.split(".")):
        here = here.setdefault(step, {})
    return here


@pytest.mark.parametrize(("at", "key", "value"), GONE, ids=[f"{at}.{key}" for at, key, _ in GONE])
def test_a_key_that_has_gone_is_told_of_and_changes_nothing(
    caplog: pytest.LogCaptureFixture, at: str, key: str, value: object
) -> None:
    """Whatever value it has: a file that was good under the last release is good."""
    without, document = yaml.safe_load(GOOD), yaml.safe_load(GOOD)
    place(without, at)
    place(document, at)[key] = value
    expected = configfile.parse(yaml.safe_dump(without), "site.yaml")
    with caplog.at_level(logging.WARNING):
        assert configfile.parse(yaml.safe_dump(document), "site.yaml") == expected
    (told,) = caplog.messages
    assert told.startswith("site.yaml:")
    assert (
        f": {at + '.' if at else ''}{key}: the key {key} was removed in release 0.1.0 and does"
        " nothing: " in told
    )
    decision = (ROOT / "docs/design/21-a-key-says-when-to-change-it.md").read_text()
    table = (
        decision.partition("### Keys that are gone")[2].partition("\n\n|")[2].partition("\n\n")[0]
    )
    assert re.search(rf"^\| .*`([a-z.]+\.)?{key}`", table, re.MULTILINE)


def test_commands_tell_of_it_and_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(GOOD.replace("timings:\n", "timings:\n  misses: 5\n"))
    assert main(["--config", str(path), "conf", "show"]) == 0
    assert "misses" not in capsys.readouterr().out
    assert [text.split(": ")[:2] for text in caplog.messages] == [[f"{path}:11", "timings.misses"]]


def test_what_holds_in_their_place() -> None:
    assert (Ssh(key="/k").timeout, Ssh(key="/k").at_once) == (20.0, 10)
    assert (BlcrSettings().timeout, BlcrSettings().connections) == (10.0, 32)
    assert not hasattr(CheckpointSettings(), "patience")


def test_it_is_told_of_beside_mistakes_too(caplog: pytest.LogCaptureFixture) -> None:
    text = GOOD.replace("timings:\n", "timings:\n  misses: 5\n  max_boot_failures: many\n")
    with pytest.raises(ConfigError, match="max_boot_failures"):
        configfile.parse(text, "site.yaml")
    assert [text.split(": ")[1] for text in caplog.messages] == ["timings.misses"]
