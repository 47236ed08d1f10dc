"""A key with a new name: the error says it, and ``conf upgrade`` writes it and nothing else."""

from __future__ import annotations

import os
import random
import re
import stat
from pathlib import Path

import pytest
import yaml

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.cli.main import main
from slurm_elastic.config import configfile
from slurm_elastic.config.basics import renamed_keys
from slurm_elastic.config.basics.renamed_keys import RenamedKey
from slurm_elastic.setup.upgrade import UpgradedText, upgraded

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "etc" / "slurm-elastic.yaml").read_text()
LISTS = ("clouds", "pools")
RENAMED = (
    RenamedKey(old="who", new="allow", also_in=("clouds",)),
    RenamedKey(old="timings.grace", new="orphan_timeout"),
    RenamedKey(old="policies.lease", new="billing_increment", also_in=LISTS),
    RenamedKey(old="clouds.timeout", new="api_timeout"),
    RenamedKey(old="clouds.auth", new="auth_file", provider="opennebula"),
)
"""Names as a later release may have them. The first release has no old ones."""


@pytest.fixture(autouse=True)
def _renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(renamed_keys, "RENAMED", RENAMED)


def with_old_key(row: RenamedKey, place: str, *, with_new: bool = False) -> str:
    """A file that has the old key at a place, in the first entry of each list on the way."""
    *above, key = place.split(".")
    value: object = {key: "1"} | ({row.new: "1"} if with_new else {})
    for step in reversed(above):
        provider = {"provider": row.provider} if row.provider and step in LISTS else {}
        value = {step: [{"name": "x"} | provider | value]} if step in LISTS else {step: value}  # type: ignore[operator]
    return yaml.safe_dump(value, sort_keys=False)


PLACES = [(row, place) for row in RENAMED for place in row.places]
EACH_PLACE = pytest.mark.parametrize(("row", "place"), PLACES, ids=[place for _, place in PLACES])


@EACH_PLACE
def test_an_old_key_is_refused_with_its_new_name(
    row: RenamedKey, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.yaml"
    text = with_old_key(row, place)
    file.write_text(text)
    assert main(["--config", str(file), "conf", "show"]) == 2
    message = capsys.readouterr().err
    line = next(n for n, t in enumerate(text.splitlines(), 1) if f"{row.old_key}:" in t)
    pattern = (
        rf"site\.yaml:{line}: (\S.*)?\b{row.old_key} is now .*\b{row.new}; `slurm-elastic conf upg"
    )
    assert re.search(pattern, message), message
    assert len(message.splitlines()) == 1, "its value is not read, so nothing else is reported"
    assert file.read_text() == text


@EACH_PLACE
def test_upgrade_renames_it(row: RenamedKey, place: str) -> None:
    old = with_old_key(row, place)
    new = upgraded(old, "site.yaml")
    assert new.text == re.sub(rf"(^|[ -]){row.old_key}:", rf"\g<1>{row.new}:", old, flags=re.M)
    assert len(new.changes) == 1
    assert f"{row.old_key} is now {row.new}" in new.changes[0]
    assert upgraded(new.text, "site.yaml").changes == ()


@EACH_PLACE
def test_a_file_with_both_names_is_not_changed(
    row: RenamedKey, place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.yaml"
    text = with_old_key(row, place, with_new=True)
    file.write_text(text)
    assert main(["--config", str(file), "conf", "upgrade"]) == 2
    message = capsys.readouterr().err
    assert f"{row.old_key} is now {row.new}, which is there, too; take out one" in message
    assert (file.read_text(), [f.name for f in tmp_path.iterdir()]) == (text, ["site.yaml"])


# Whole files

OLD = ROOT / "tests" / "data" / "config" / "old-keys.yaml"


def comments(text: str) -> list[str]:
    return re.findall(r"#.*", text)


def test_upgrade_makes_a_whole_file_valid_and_keeps_the_rest_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.yaml"
    old = OLD.read_text()
    file.write_text(old)
    file.chmod(0o640)
    command = ["--config", str(file), "conf"]
    assert main([*command, "show"]) == 2
    assert main([*command, "upgrade", "--dry-run"]) == 0
    assert (file.read_text(), [f.name for f in tmp_path.iterdir()]) == (old, ["site.yaml"])
    capsys.readouterr()
    assert main([*command, "upgrade"]) == 0
    output = capsys.readouterr().out
    for row in RENAMED:
        assert f"{row.old_key} is now {row.new}\n" in output
    new = file.read_text()
    assert comments(new) == comments(old)
    assert len(new.splitlines()) == len(old.splitlines())
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    backup = tmp_path / "site.yaml.before-upgrade"
    assert (backup.read_text(), stat.S_IMODE(backup.stat().st_mode)) == (old, 0o640)
    assert main([*command, "show"]) == 0
    assert main([*command, "upgrade"]) == 0
    assert (file.read_text(), backup.read_text()) == (new, old), "a second time changes nothing"


def test_upgrade_of_the_shipped_file_changes_nothing() -> None:
    assert upgraded(EXAMPLE, "site.yaml") == UpgradedText(text=EXAMPLE, changes=())


@pytest.mark.parametrize("seed", range(40))
def test_upgrade_keeps_comments_order_and_spelling(seed: int) -> None:
    rng = random.Random(seed)
    written: list[str] = []
    for line in OLD.read_text().splitlines():
        while rng.random() < 0.2:
            written.append(rng.choice(["", "#", "   # lease: 5s", "# \u00fcber 'who:' {"]))
        quoted = re.sub(r"^( *)(\w+):", rng.choice([r"\1\2:", r'\1"\2":', r"\1'\2' :"]), line)
        written.append(quoted + rng.choice(["", " ", "   # grace: 1"]) * bool(line))
    old = rng.choice(["\n", "\r\n"]).join(written)
    new = upgraded(old, "site.yaml").text
    assert configfile.parse(new, "site.yaml") == configfile.parse(
        upgraded(OLD.read_text(), "site.yaml").text, "site.yaml"
    )
    assert comments(new) == comments(old)
    names = {row.old_key: row.new for row in RENAMED}
    word = re.compile(r"\w+|\W+")
    for before, after in zip(word.findall(old), word.findall(new), strict=True):
        assert after in (before, names.get(before))


def test_a_link_stays_a_link_and_a_byte_order_mark_stays(tmp_path: Path) -> None:
    (tmp_path / "real.yaml").write_bytes(b"\xef\xbb\xbf" + OLD.read_bytes())
    link = tmp_path / "site.yaml"
    link.symlink_to("real.yaml")
    assert main(["--config", str(link), "conf", "upgrade"]) == 0
    assert os.readlink(link) == "real.yaml"
    assert (tmp_path / "real.yaml").read_bytes().startswith(b"\xef\xbb\xbf# Some keys")
    configfile.load(link)


def test_a_key_that_an_anchor_shares_is_renamed_once() -> None:
    text = "clouds:\n- &a {name: a, timeout: 5s}\n- <<: *a\n  name: b\n"
    assert upgraded(text, "site.yaml").text == text.replace("timeout", "api_timeout")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("timings: &t {grace: 1m}\nlimits: *t\n", "the key grace cannot be renamed here"),
        ('timings: {"gr\\x61ce": 1m}\n', "the key grace cannot be renamed here"),
        ("timings: {grace", "not YAML"),
    ],
    ids=["shared by an anchor", "unusual spelling", "no YAML"],
)
def test_a_file_that_cannot_be_rewritten_stays(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "site.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=told):
        upgraded(text, "site.yaml")
    assert main(["--config", str(file), "conf", "upgrade"]) == 2
    assert (file.read_text(), [f.name for f in tmp_path.iterdir()]) == (text, ["site.yaml"])


def test_another_packages_cloud_keeps_its_own_key_of_that_name() -> None:
    text = "clouds:\n- {name: far, provider: libcloud, auth: /etc/far.json}\n"
    assert upgraded(text, "site.yaml").changes == ()


def test_a_file_that_the_services_would_still_refuse_is_not_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "site.yaml"
    text = OLD.read_text() + "no_such_key: 1\n"
    file.write_text(text)
    assert main(["--config", str(file), "conf", "upgrade"]) == 2
    message = capsys.readouterr().err
    assert "no_such_key" in message
    assert "site.yaml is unchanged: mend this first, then upgrade it" in message
    assert (file.read_text(), [f.name for f in tmp_path.iterdir()]) == (text, ["site.yaml"])
