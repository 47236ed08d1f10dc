"""Every key says when one would change it; keys that have gone are told of and do no harm."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.config import configfile
from slurm_elastic.config.reference import keys
from slurm_elastic.config.sections.timings import Timings

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


@pytest.fixture
def gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """timings.misses as a key that a later release has removed."""
    now = "a machine is gone after 3 lists in a row without it"
    monkeypatch.setattr(Timings, "gone", {"misses": now}, raising=False)


@pytest.mark.usefixtures("gone")
def test_a_key_that_has_gone_is_told_of_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever value it has: a file that was good under the last release is good."""
    text = GOOD.replace("timings:\n", "timings:\n  misses: many\n")
    with caplog.at_level(logging.WARNING):
        assert configfile.parse(text, "site.yaml") == configfile.parse(GOOD, "site.yaml")
    (warning,) = caplog.messages
    assert warning == (
        "site.yaml:11: timings.misses: the key misses was removed and does nothing: a machine is "
        "gone after 3 lists in a row without it; take it out"
    )


@pytest.mark.usefixtures("gone")
def test_commands_tell_of_it_and_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(GOOD.replace("timings:\n", "timings:\n  misses: 5\n"))
    assert main(["--config", str(path), "conf", "show"]) == 0
    assert "misses" not in capsys.readouterr().out
    assert [text.split(": ")[:2] for text in caplog.messages] == [[f"{path}:11", "timings.misses"]]


@pytest.mark.usefixtures("gone")
def test_it_is_told_of_beside_mistakes_too(caplog: pytest.LogCaptureFixture) -> None:
    text = GOOD.replace("timings:\n", "timings:\n  misses: 5\n  max_boot_failures: many\n")
    with pytest.raises(ConfigError, match="max_boot_failures"):
        configfile.parse(text, "site.yaml")
    assert [text.split(": ")[1] for text in caplog.messages] == ["timings.misses"]
