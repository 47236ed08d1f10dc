"""``slurm-elastic conf ...`` as an admin types it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from msgspec.structs import replace
from needs import unless

from slurm_elastic.cli.main import main
from slurm_elastic.config import configfile
from slurm_elastic.config.resolve import effective
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.config.sections.joining import Network
from slurm_elastic.model.copying import CopyState, JobCopy
from slurm_elastic.model.finding import FindingLevel
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.conf import install, pair, uninstall
from slurm_elastic.slurm.conf.checks import cloud_prices
from slurm_elastic.slurm.conf.checks.overridden import overridden
from slurm_elastic.state.ledger import Ledger
from slurm_elastic.watch.doctor import head
from tests.ports import free_ports
from tests.slurm import site_cases

pytestmark = unless("slurmctld")


class Admin:
    def __init__(self, root: Path, name: str = "small") -> None:
        self.conf = site_cases.copy(name, root)
        # A slurmctld of this host must neither be asked nor told.
        here = f"SlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort={free_ports(1)[0]}"
        self.conf.write_text(self.conf.read_text().replace("SlurmctldHost=head", here))
        text = site_cases.config_text(name).replace(
            "CONF", f"{self.conf}\n  programs_dir: {root}/libexec"
        )
        self.yaml = root / "slurm-elastic.yaml"
        self.yaml.write_text(f"{text}state_dir: {root}/state\n")

    def __call__(self, *arguments: str) -> int:
        return main(["--config", str(self.yaml), "conf", *arguments])


@pytest.fixture
def admin() -> Iterator[Admin]:
    with tempfile.TemporaryDirectory(prefix="se-conf-") as name:
        Path(name).chmod(0o755)
        yield Admin(Path(name))


def test_show_is_a_configuration_again(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert admin("show") == 0
    text = capsys.readouterr().out
    assert configfile.parse(text, "shown") == effective(configfile.load(admin.yaml))


def test_show_names_clouds_that_are_not_in_use(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.yaml.write_text(admin.yaml.read_text().replace(", dollars_per_hour: 20", ""))
    assert admin("show") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("# not in use: cloud aws costs money: it has no spending cap")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_an_end_of_the_connection_takes_back_what_was_done(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, command: str, number: signal.Signals
) -> None:
    """As Ctrl-C does: what is done inside is taken back by an exception."""
    program = install if command == "install" else uninstall
    monkeypatch.setattr(program, command, lambda *_, **__: os.kill(os.getpid(), number))
    assert admin(command) == 130


def test_join_prints_what_machines_run(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert admin("join", "aws") == 0
    assert capsys.readouterr().out == ""
    admin.yaml.write_text(admin.yaml.read_text() + "join: {head: head.example.org}\n")
    assert admin("join", "aws") == 0
    assert "--conf-server head.example.org" in capsys.readouterr().out
    assert admin("join", "nobody") == 2
    assert "there is no cloud 'nobody', only" in capsys.readouterr().err


def pair_of(admin: Admin) -> None:
    """Have slurm.conf name this host and headb, and the configuration what they share."""
    own = os.uname().nodename
    text = admin.conf.read_text().replace("SlurmctldHost=localhost", f"SlurmctldHost={own}")
    admin.conf.write_text(f"{text}\nSlurmctldHost=headb(10.0.0.2)\n")
    admin.yaml.write_text(f"{admin.yaml.read_text()}ha: {{directory: /shared/slurm-elastic}}\n")


def test_install_tells_what_is_to_be_done_on_the_other_head(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    pair_of(admin)
    assert admin("install", "--peer", "headb") == 0
    told = capsys.readouterr().out.partition(
        "then on headb, as root (slurm-elastic help two-heads):\n"
    )[2]
    lines = told.splitlines()
    assert [line.partition(".")[0] for line in lines] == [str(n) for n in range(1, len(lines) + 1)]
    assert f"slurm-elastic {version('slurm-elastic')}; `id -u slurm` says" in lines[0]
    assert f"--exclude=installed.json {admin.yaml.parent.name} | tar -C /tmp -xp" in lines[1]
    assert lines[3] == f"4. slurm-elastic --config {admin.yaml} conf install"
    assert "mkdir -p /shared/slurm-elastic" in lines[4]
    enabled = "7. systemctl enable --now slurm-elastic-watchdog    # on "
    assert lines[6].startswith(enabled)
    for line in lines[1:]:
        subprocess.run(["sh", "-n", "-c", line.partition(". ")[2]], check=True)
    parts = lines[5].partition(". ")[2].replace("/etc/systemd/system", str(admin.yaml.parent))
    subprocess.run(["sh", "-c", parts], check=True)
    for unit in ("slurm-elasticd", "slurm-elastic-ckptman", "slurm-elastic-web"):
        made = admin.yaml.parent / f"{unit}.service.d" / "ha.conf"
        assert made.read_text() == "[Service]\nReadWritePaths=/shared/slurm-elastic\n"


def test_the_other_head_gets_the_services_that_the_configuration_needs(
    admin: Admin,
) -> None:
    config = configfile.load(admin.yaml)
    network = Network(endpoint="192.0.2.1:51820")
    tunnelled = replace(config, join=replace(config.join, network=network))
    clouds = tuple(replace(cloud, data=Data.COPY) for cloud in config.clouds)
    names = [list(pair._helpers(c)) for c in (tunnelled, replace(config, clouds=clouds))]
    assert names == [
        ["slurm-elastic-hub", "slurm-elastic-watchdog"],
        ["slurm-elastic-copier", "slurm-elastic-watchdog"],
    ]


@pytest.mark.parametrize("peer", ["headc", os.uname().nodename])
def test_a_peer_that_is_not_the_other_head_changes_nothing(
    admin: Admin, capsys: pytest.CaptureFixture[str], peer: str
) -> None:
    pair_of(admin)
    before = admin.conf.read_bytes()
    assert admin("install", "--peer", peer) == 2
    said = capsys.readouterr().err
    assert f"--peer: found {peer}, expected headb, as {admin.conf} has it" in said
    assert admin.conf.read_bytes() == before
    assert not (admin.yaml.parent / "installed.json").exists()


def test_a_peer_without_a_directory_is_refused(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    assert admin("install", "--peer", "headb") == 2
    assert f"{admin.yaml}: ha.directory: not set, expected the directory" in capsys.readouterr().err


def test_a_wrong_template_is_told_by_show_and_check(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    template = admin.yaml.with_name("template")
    template.write_text("#!/bin/sh\necho @{nonsense}\n")
    template.chmod(0o644)
    text = f"join: {{head: head.example.org, template: {template}}}\n"
    admin.yaml.write_text(admin.yaml.read_text() + text)
    for action in ("show", "check"):
        assert admin(action) == 2
        assert "has the placeholder @{nonsense}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("PrivateData=jobs", ""),
        pytest.param("SlurmctldParameters=enable_configless", "", marks=pytest.mark.release),
        pytest.param("PrivateData=jobs", "local.conf", marks=pytest.mark.release),
    ],
)
def test_check_names_a_line_that_undoes_ours(
    admin: Admin, capsys: pytest.CaptureFixture[str], line: str, file: str
) -> None:
    """slurmctld silently uses the last of two lines, and only the installed order shows that."""
    assert admin("install") == 0
    assert admin("check") == 0
    assert "behind our include line" not in capsys.readouterr().out
    place = admin.conf.parent / file if file else admin.conf
    with place.open("a") as text:
        text.write(f"{line}\n")
    if file:
        admin.conf.write_text(f"{admin.conf.read_text()}include {file}\n")
    number = len(place.read_text().splitlines())
    assert admin("check") == 0
    told = capsys.readouterr().out
    assert f"{place}:{number}: {line} stands behind our include line" in told
    (wrong, *_) = head.slurm_conf(configfile.load(admin.yaml))
    assert (wrong.level, wrong.observed in told) == (FindingLevel.WRONG, True)
    assert admin("install") == 0
    capsys.readouterr()
    assert admin("check") == 0
    assert "behind our include line" not in capsys.readouterr().out


def test_a_line_that_repeats_ours_and_added_programs_undo_nothing(admin: Admin) -> None:
    assert admin("install") == 0
    config = configfile.load(admin.yaml)
    ours = next(
        row
        for row in (admin.conf.parent / "slurm-elastic.conf").read_text().splitlines()
        if row.startswith("SlurmctldParameters=")
    )
    with admin.conf.open("a") as text:
        text.write(f"{ours},max_dbd_msg_action=exit\nPrologSlurmctld=/site/prolog\n")
    assert list(overridden(config, (24, 11))) == []
    (older,) = overridden(config, (22, 5))
    assert "PrologSlurmctld=/site/prolog stands behind" in older


def test_check_notes_prices_that_disagree_with_the_order_and_unused_settings(
    admin: Admin, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_prices, "notices", lambda _config: ["clouds: a stands before b"])
    admin.yaml.write_text(f"{admin.yaml.read_text()}copy: {{size_limit: 20G}}\n")
    assert admin("check") == 0
    said = capsys.readouterr().out
    assert "clouds: a stands before b" in said
    assert "copy.size_limit: no effect, because no cloud has `data: copy`" in said


def test_check_names_files_that_have_no_way_back(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    state = configfile.load(admin.yaml).state
    state.mkdir(mode=0o700, exist_ok=True)
    ledger = Ledger(state / "ledger.db")
    ledger.copies.put(
        JobCopy(job=7, restarts=0, node="aws1", machine="i-1", uid=1, directory="/home/a/w",
                outputs={}, state=CopyState.OWED, since=1.0)
    )  # fmt: skip
    ledger.close()
    assert admin("check") == 0
    said = capsys.readouterr().out
    assert "join.ssh is missing, and files of job 7 are on aws1: they are lost when" in said


def test_render_check_diff_install_uninstall(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    before = admin.conf.read_bytes()
    assert admin("render") == 0
    rendered = capsys.readouterr().out
    assert "PartitionName=aws" in rendered
    assert admin("check") == 0
    checked = capsys.readouterr().out
    assert "Slurm's parser reads slurm.conf with the fragment" in checked
    assert "a job that names no time ends after 1h in cloud aws, 1h in cloud onprem, and" in checked
    assert admin("diff") == 0
    short = capsys.readouterr().out
    assert "  + include slurm-elastic.conf\n" in short
    assert "  settings, slurm-elastic-resume," in short
    assert len(short.splitlines()) < 60
    assert admin("diff", "--all") == 0
    whole = capsys.readouterr().out
    assert "+include slurm-elastic.conf\n" in whole
    assert len(whole.splitlines()) > 3 * len(short.splitlines())
    assert admin.conf.read_bytes() == before

    assert admin("install") == 0
    assert "slurmctld is not running" in capsys.readouterr().out
    assert (admin.conf.parent / "slurm-elastic.conf").read_text() == rendered
    assert admin("diff") == 0
    assert capsys.readouterr().out == ""
    assert admin("uninstall", "--force") == 0
    assert admin.conf.read_bytes() == before


@pytest.mark.parametrize("action", ["render", "check", "diff", "install"])
def test_a_conflict_is_one_sentence_and_exit_2(
    admin: Admin, action: str, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.conf.write_text(admin.conf.read_text() + "\nSuspendTime=60\n")
    before = sorted(admin.conf.parent.iterdir())
    assert admin(action) == 2
    captured = capsys.readouterr()
    assert f"{admin.conf}:17: SuspendTime is 60" in captured.err
    assert "Traceback" not in captured.err
    assert sorted(admin.conf.parent.iterdir()) == before


def test_a_missing_slurm_is_named(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    text = admin.yaml.read_text()
    admin.yaml.write_text(
        text.replace(
            "  programs_dir:", "  sbin_dir: /nowhere\n  bin_dir: /nowhere\n  programs_dir:"
        )
    )
    assert admin("check") == 2
    assert "cannot find out Slurm's version: /nowhere/slurmctld -V" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["install", "uninstall"])
@pytest.mark.parametrize("command", ["", "  ", 'a "b', "''"])
def test_a_restart_command_that_is_none_is_told_before_anything(
    admin: Admin, action: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(admin.yaml.parent.rglob("*"))
    with pytest.raises(SystemExit) as end:
        admin(action, "--restart", command)
    assert end.value.code == 2
    assert f"argument --restart: {command!r} is no command: " in capsys.readouterr().err
    assert sorted(admin.yaml.parent.rglob("*")) == before


def test_a_restart_that_fails_says_that_all_is_as_before(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    before = admin.conf.read_bytes()
    assert admin("install", "--restart", "/bin/false") == 1
    assert capsys.readouterr().err == (
        "slurm-elastic: /bin/false: exit 1: no message;"
        " all files are as before, and slurmctld does not answer\n"
    )
    assert admin.conf.read_bytes() == before


def test_a_repeated_install_that_slurmctld_does_not_serve_ends_with_2(
    admin: Admin, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(controller, "is_up", lambda _: True)
    monkeypatch.setattr(controller, "serves", lambda *_: False)
    # 0, although a restart is left to do: a playbook would take the configuration back.
    assert admin("install") == 0
    assert "stop and start slurmctld now" in capsys.readouterr().out
    assert admin("install") == 2
    *_, before, last = capsys.readouterr().out.splitlines()
    assert before == "slurmctld does not serve yet what is installed"
    assert last.startswith("stop and start slurmctld now (systemctl restart slurmctld")
    monkeypatch.setattr(controller, "serves", lambda *_: True)
    assert admin("install") == 0


def test_values_of_the_site_that_are_no_utf8_are_repeated_byte_for_byte(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    before = admin.conf.read_bytes() + (
        b"\nPartitionName=DEFAULT AllowAccounts=m\xfcller\nPrologSlurmctld=/opt/m\xfcller\n"
    )
    admin.conf.write_bytes(before)
    for action in ("render", "check", "diff"):
        assert admin(action) == 0, capsys.readouterr().err
    capsys.readouterr()
    main(["--config", str(admin.yaml), "doctor", "--json"])
    assert json.loads(capsys.readouterr().out)["parts"]
    assert admin("install") == 0
    fragment = (admin.conf.parent / "slurm-elastic.conf").read_bytes()
    assert b"AllowAccounts=m\xfcller" in fragment
    settings = (admin.yaml.parent / "libexec" / "settings").read_bytes()
    assert b"site_prolog=/opt/m\xfcller\n" in settings
    capsys.readouterr()
    assert admin("diff") == 0
    assert capsys.readouterr().out == ""
    assert admin("uninstall", "--force") == 0
    assert admin.conf.read_bytes() == before


def test_a_refused_check_also_prints_what_remains_to_be_done(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.yaml.write_text(admin.yaml.read_text().replace("groups: [users]", "accounts: [phys]"))
    lua = admin.conf.parent / "job_submit.lua"
    lua.write_text("function slurm_job_submit() return 0 end\n")
    admin.conf.write_text(f"{admin.conf.read_text()}\nJobSubmitPlugins=lua\n")
    assert admin("check") == 2
    shown = capsys.readouterr()
    assert "allow.accounts: phys" in shown.err
    assert "put these two lines" in shown.out


def test_a_dry_run_of_install_is_diff(admin: Admin, capsys: pytest.CaptureFixture[str]) -> None:
    assert admin("diff") == 0
    changes = capsys.readouterr().out
    assert admin("install", "--dry-run") == 0
    assert capsys.readouterr().out == changes
    assert not (admin.conf.parent / "slurm-elastic.conf").exists()


@site_cases.ISOLATED
def test_check_fails_for_a_site_on_which_slurmctld_does_not_start(
    admin: Admin, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.conf.write_text(f"{admin.conf.read_text()}\nPartitionName=odd Nodes=nowhere\n")
    assert admin("check") == 1
    assert "it does not start on slurm.conf as it is" in capsys.readouterr().out
