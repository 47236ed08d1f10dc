"""The commands that ``sandbox`` prints work as they stand, in a clone and for any directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.processes.service_remedies import SANDBOX_OF_SHELL
from slurm_elastic.cli import helptext
from slurm_elastic.cli.main import main
from slurm_elastic.cli.setting_up import sandbox
from slurm_elastic.sandbox.layout import Layout
from slurm_elastic.sandbox.shell import Shell
from slurm_elastic.sandbox.spec import DEFAULT_DIR
from slurm_elastic.slurm.conf import install

CLONE = Path(__file__).parents[2]
OURS = Path(sys.executable).parent / "slurm-elastic"


class Cloud:
    """Accepts failures."""

    def fail(self, fault: object) -> None:
        pass


class Site(Shell):
    """A sandbox that does not run."""

    ec2 = Cloud()


@pytest.fixture(autouse=True)
def attached(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (SANDBOX_OF_SHELL, helptext.COMMAND_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sandbox, "_attached", lambda arguments: Site(Layout(dir=arguments.dir)))


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["sandbox", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(not OURS.exists(), reason="slurm-elastic is not installed beside Python")
def test_env_makes_a_shell_that_finds_this_program_and_knows_its_sandbox(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv(helptext.COMMAND_VARIABLE, "/clone/slurm-elastic")
    lines = printed(capsys, "env", "--dir", str(tmp_path))
    look = 'command -v slurm-elastic; echo "$SLURM_ELASTIC_SANDBOX"'
    done = subprocess.run(
        ["/bin/sh", "-c", f"{lines}{look}"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(OURS), str(tmp_path)]
    assert helptext.COMMAND_VARIABLE not in lines


def test_env_of_a_shell_that_has_it_already_is_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def exported() -> dict[str, str]:
        lines = printed(capsys, "env", "--dir", str(tmp_path)).splitlines()
        pairs = (line.removeprefix("export ").rstrip(";").partition("=") for line in lines)
        return {name: value for name, _, value in pairs if not name.startswith("unset ")}

    first = exported()
    for name, value in first.items():
        monkeypatch.setenv(name, value)
    assert exported().keys() == first.keys()
    assert {"PATH", "SLURM_CONF", SANDBOX_OF_SHELL} <= first.keys()


def test_a_path_that_has_this_program_is_not_made_longer(tmp_path: Path) -> None:
    path = f"{OURS.parent}:/usr/bin"
    assert sandbox._with_our_program(path) == path


def test_fail_names_the_directory_of_another_sandbox_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = printed(capsys, "fail", "capacity", "--dir", str(tmp_path))
    assert f"sandbox heal --dir {tmp_path} ends that" in other
    monkeypatch.setenv(SANDBOX_OF_SHELL, str(tmp_path))
    assert "sandbox heal ends that" in printed(capsys, "fail", "capacity")
    usual = printed(capsys, "fail", "capacity", "--dir", str(DEFAULT_DIR))
    assert f"sandbox heal --dir {DEFAULT_DIR} ends that" in usual


def test_commands_without_dir_mean_the_sandbox_of_the_shell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SANDBOX_OF_SHELL, str(tmp_path))
    assert f"SLURM_CONF={tmp_path}/etc/slurm.conf" in printed(capsys, "env")


def test_a_clone_prints_its_own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(helptext.COMMAND_VARIABLE, "/my clone/slurm-elastic")
    assert helptext.command_name() == "'/my clone/slurm-elastic'"


def test_the_name_is_printed_only_if_a_shell_finds_this_program_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, other = tmp_path / "ours" / "slurm-elastic", tmp_path / "other" / "slurm-elastic"
    for program in (ours, other):
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(ours)])
    monkeypatch.setenv("PATH", str(ours.parent))
    assert helptext.command_name() == "slurm-elastic"
    for path in (str(other.parent), "/nonexistent"):
        monkeypatch.setenv("PATH", path)
        assert helptext.command_name() == str(ours)


def test_the_wrapper_of_the_clone_exports_its_path(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    (clone / "scripts").mkdir(parents=True)
    (clone / ".venv" / "bin").mkdir(parents=True)
    wrapper, program = clone / "slurm-elastic", clone / ".venv" / "bin" / "slurm-elastic"
    wrapper.write_text((CLONE / "slurm-elastic").read_text())
    (clone / "scripts" / "lib.sh").write_text(
        f"REPO={clone}; find_venv() {{ VENV=$REPO/.venv; }}; cached_venv() {{ :; }}\n"
    )
    program.write_text(f'#!/bin/sh\necho "${helptext.COMMAND_VARIABLE}"\n')
    for path in (wrapper, program):
        path.chmod(0o755)
    done = subprocess.run(
        ["./slurm-elastic", "status"], cwd=clone, capture_output=True, text=True, check=True,
        env={"PATH": os.defpath},
    )  # fmt: skip
    assert done.stdout.strip() == str(wrapper)


def test_remedies_name_the_sandbox_and_not_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert service_remedies.start("slurm-elasticd") == "systemctl start slurm-elasticd"
    assert service_remedies.start_or_log("slurm-elasticd").startswith("systemctl start")
    both = ("slurm-elasticd", "slurm-elastic-ckptman")
    assert service_remedies.restart(*both) == f"systemctl restart {' '.join(both)}"
    monkeypatch.setenv(SANDBOX_OF_SHELL, str(tmp_path))
    start = f"slurm-elastic sandbox start slurmctld --dir {tmp_path}"
    assert service_remedies.start("slurmctld") == start
    for service in sandbox.SERVICES:
        assert service_remedies.start_or_log(service).endswith(f"its log is in {tmp_path}/log")
    assert start in service_remedies.slurmctld_state()
    texts = remedies()
    assert not any("systemctl" in text or "journalctl" in text for text in texts)
    assert service_remedies.restart("slurmctld") == f"{start.replace('start', 'stop')}; {start}"


def test_remedies_on_a_head_without_systemd_name_no_command_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(service_remedies, "has_systemd", lambda: False)
    assert service_remedies.start("slurm-elasticd") == "start slurm-elasticd (no systemd runs here)"
    assert not any("ctl " in text.replace("slurmctld", "") for text in remedies())
    config_path = tmp_path / "slurm-elastic.yaml"
    assert "start slurm-elasticd slurm-elastic-ckptman" in install._next_step(config_path)
    install.manifest_path(config_path).touch()
    restart = " restart slurm-elasticd (no systemd runs here)"
    assert install._next_step(config_path).endswith(restart)


def remedies() -> list[str]:
    name = "slurm-elasticd"
    return [
        service_remedies.start(name), service_remedies.stop(name), service_remedies.state(name),
        service_remedies.restart(name, "slurmctld"), service_remedies.start_or_log(name),
        service_remedies.slurmctld_state(), service_remedies.install_and_restart(),
        service_remedies.enable_or_log(name), service_remedies.enable(name),
    ]  # fmt: skip
