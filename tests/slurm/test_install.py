"""Install and uninstall on files alone: order, idempotence, roll-back, byte for byte."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from patience import eventually

from slurm_elastic.base.errors import ConfigError, SlurmElasticError
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.config import Config, HaSettings, configfile
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.exclusion import CAPACITY, Exclusion
from slurm_elastic.model.slurm import SlurmJob, SlurmNode
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.conf import check, conf_diff, our_lines, plan, removal
from slurm_elastic.slurm.conf.install import InstallResult, install, read_manifest
from slurm_elastic.slurm.conf.uninstall import uninstall
from slurm_elastic.state.ledger import Ledger
from tests import ledger_cases
from tests.slurm import site_cases

VERSION = (22, 5)


class Host:
    """A site whose slurmctld is not running: nothing answers at its port."""

    def __init__(self, name: str, root: Path) -> None:
        self.root = root
        self.conf = site_cases.copy(name, root)
        if name == "topology":
            site_cases.add_topology(self.conf)
        self.config_path = root / "elastic" / "slurm-elastic.yaml"
        self.config_path.parent.mkdir()
        self.config_path.write_text("# what install reads is `config`\n")
        config = site_cases.config(name, self.conf)
        settings = replace(
            config.slurm, programs_dir=f"{root}/libexec/elastic", bin_dir=f"{root}/bin"
        )
        self.config = replace(config, slurm=settings, state_dir=f"{root}/state")
        (root / "bin").mkdir()
        self.command(
            "scontrol", 'case "$1" in ping) echo "Slurmctld(primary) at head is DOWN";; esac'
        )

    def command(self, name: str, script: str) -> None:
        path = self.root / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def install(self, config: Config | None = None, **options: object) -> InstallResult:
        return install(
            config or self.config, self.config_path, version=VERSION, verify=False, **options
        )

    def uninstall(self, **options: object) -> InstallResult:
        options = {"force": True, "verify": False} | options
        return uninstall(self.config, self.config_path, version=VERSION, **options)

    def etc(self) -> dict[str, tuple[bytes, int]]:
        etc = self.conf.parent
        return {p.name: (p.read_bytes(), p.stat().st_mode) for p in etc.iterdir()}


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-install-") as name:
        # SlurmUser, as whom root works in the state directory, has to get through.
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def host(root: Path) -> Host:
    return Host("small", root)


@pytest.mark.parametrize("name", site_cases.NAMES)
def test_uninstall_restores_every_byte(name: str, root: Path) -> None:
    host = Host(name, root)
    before = host.etc()
    host.install()
    assert host.etc() != before
    host.uninstall()
    assert host.etc() == before
    assert not (root / "libexec" / "elastic").exists()
    assert (root / "state" / "requests").is_dir()
    assert configfile.read_uuid(host.config_path)
    assert read_manifest(host.config_path) is None


def test_a_copy_of_the_configuration_stays_until_the_uninstall(host: Host) -> None:
    """For screens while the file itself is wrong: nobody reads it who may not read the file."""
    copy = host.config_path.parent / configfile.INSTALLED_COPY
    host.config_path.chmod(0o640)
    host.install()
    assert copy.read_bytes() == host.config_path.read_bytes()
    assert copy.stat().st_mode & 0o777 == 0o640
    host.config_path.write_text("# changed\n")
    host.install()
    assert copy.read_text() == "# changed\n"
    host.uninstall()
    assert not copy.exists()


def test_what_an_install_leaves(host: Host) -> None:
    done = host.install()
    etc = host.conf.parent
    assert host.conf.read_text().endswith("\ninclude slurm-elastic.conf\n")
    assert (etc / "slurm-elastic.conf").stat().st_mode & 0o777 == 0o644
    programs = Path(host.config.slurm.programs_dir)
    assert {p.name for p in programs.iterdir()} == {"settings", *plan.PROGRAMS}
    assert (programs / "slurm-elastic-resume").stat().st_mode & 0o777 == 0o755
    assert (programs / "settings").read_text() == (
        f"state_dir={host.root}/state\npartitions=aws onprem\nsite_prolog=\nsite_epilog=\n"
        "prolog_timeout=420\npython=/usr/bin/python3\n"
    )
    assert (etc / "slurm.conf.before-slurm-elastic").exists()
    assert done.changed[-1] == host.conf  # last, when all that it names is there
    assert "slurmctld is not running; it will read this when it starts" in done.lines
    if os.geteuid() == 0:
        assert host.config.state.stat().st_uid == pwd.getpwnam("slurm").pw_uid
    for place in (host.config.state, host.config.state / "requests" / "bad"):
        assert place.stat().st_mode & 0o777 == 0o700


def running_on(host: Host, conf: Path) -> None:
    """Let slurmctld answer, and say that it has read this slurm.conf."""
    host.command(
        "scontrol",
        'case "$*" in ping) echo "Slurmctld(primary) at head is UP";;'
        f' "show config") echo "SLURM_CONF              = {conf}";; esac',
    )


def test_a_slurm_conf_that_slurmctld_does_not_read_is_refused(host: Host) -> None:
    linked = host.root / "slurm.conf"
    linked.symlink_to(host.conf)
    running_on(host, linked)
    before = host.etc()
    with pytest.raises(ConfigError) as refused:
        host.install()
    assert str(refused.value) == (
        f"slurm.conf: found {host.conf}, but the running slurmctld reads {linked}, and looks for"
        f" included files beside it; write conf: {linked}"
    )
    assert host.etc() == before


def test_a_link_to_the_directory_that_slurmctld_reads_is_no_difference(host: Host) -> None:
    linked = host.root / "linked"
    linked.symlink_to(host.conf.parent)
    running_on(host, linked / "slurm.conf")
    assert host.install().changed


def test_a_state_directory_of_an_earlier_release_is_closed_to_others(host: Host) -> None:
    host.install()
    state = host.config.state
    (state / "daemon.lock").touch(mode=0o644)
    if os.geteuid() == 0:
        os.chown(state / "daemon.lock", state.stat().st_uid, state.stat().st_gid)
    state.chmod(0o755)
    host.install()
    assert state.stat().st_mode & 0o777 == 0o700
    assert (state / "daemon.lock").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("version", "chained"), [((22, 5), True), ((23, 11), False)])
def test_a_sites_own_prolog_is_chained_where_ours_replaces_it(
    root: Path, version: tuple[int, int], chained: bool
) -> None:
    host = Host("own-lua", root)
    site = plan.make(host.config, version=version).site
    text = plan.settings_text(host.config, site, version)
    assert ("site_prolog=/etc/slurm/prolog_slurmctld\n" in text) is chained
    assert "site_epilog=\n" in text
    hooked = replace(host.config, slurm=replace(host.config.slurm, epilog_hook=True))
    text = plan.settings_text(hooked, site, version)
    assert ("site_epilog=/etc/slurm/epilog_slurmctld\n" in text) is chained


def test_a_change_of_the_sites_own_prolog_is_named_until_the_next_install(root: Path) -> None:
    host = Host("own-lua", root)
    host.install()
    before = plan.make(host.config, version=(22, 5))
    assert list(plan.outdated_site_programs(before)) == []
    (settings,) = (file for file in before.files if file.path.name == "settings")
    settings.path.write_bytes(settings.content)
    conf = host.conf.read_text()
    assert "prolog_slurmctld" in conf
    host.conf.write_text(conf.replace("prolog_slurmctld", "prolog_new"))
    (told,) = plan.outdated_site_programs(plan.make(host.config, version=(22, 5)))
    assert told.startswith("each job still runs /etc/slurm/prolog_slurmctld as PrologSlurmctld of")
    assert told.endswith("; slurm.conf has /etc/slurm/prolog_new")


def test_a_prologs_waits_share_the_sites_time(root: Path) -> None:
    """So do a site's own prolog and the boot, if no files are copied."""
    host = Host("own-lua", root)
    config = host.config
    site = plan.make(config).site
    assert "whole_timeout" not in plan.settings_text(config, site, (23, 11))
    host.conf.write_text(f"{host.conf.read_text()}\nPrologEpilogTimeout=300\n")
    text = plan.settings_text(config, plan.make(config).site, (23, 11))
    assert "\nwhole_timeout=295\n" in text


def test_a_second_install_changes_nothing_and_says_so(host: Host) -> None:
    host.install()
    before = host.etc()
    done = host.install(restart="/bin/false")
    assert done.changed == ()
    assert done.lines[-1] == "already installed as configured: no change"
    assert host.etc() == before


def test_a_changed_configuration_is_rendered_again_and_still_comes_out(host: Host) -> None:
    before = host.etc()
    host.install()
    cloud = replace(host.config.clouds[0], suspend_time=77.0)
    changed = replace(host.config, clouds=(cloud, *host.config.clouds[1:]))
    done = host.install(changed)
    assert [path.name for path in done.changed] == ["slurm-elastic.conf"]
    assert "SuspendTime=77 " in (host.conf.parent / "slurm-elastic.conf").read_text()
    host.uninstall()
    assert host.etc() == before


def test_edits_after_the_install_stay(host: Host) -> None:
    host.install()
    text = host.conf.read_text()
    host.conf.write_text(text.replace("ReturnToService=1", "ReturnToService=2") + "MinJobAge=9\n")
    done = host.uninstall()
    left = host.conf.read_text()
    assert "ReturnToService=2" in left
    assert left.endswith("State=UP\nMinJobAge=9\n")
    assert "elastic" not in left
    assert any("was edited since the install" in line for line in done.lines)


def test_lines_below_ours_are_overtaken_at_the_next_install(host: Host) -> None:
    host.install()
    host.conf.write_text(host.conf.read_text() + "PrivateData=jobs\n")
    host.install()
    assert host.conf.read_text().endswith("include slurm-elastic.conf\n")
    assert "PrivateData=jobs,cloud" in (host.conf.parent / "slurm-elastic.conf").read_text()


def test_a_partition_below_our_lines_is_no_reason_to_install_again(host: Host) -> None:
    host.install()
    text = f"{host.conf.read_text()}\n# ours\nPartitionName=sim Nodes=n1,pub[1-2] State=UP\n"
    host.conf.write_text(text)
    assert host.install().changed == ()
    assert host.conf.read_text() == text


def test_a_linked_slurm_conf_stays_a_link(host: Host) -> None:
    real = host.root / "shared.conf"
    host.conf.rename(real)
    host.conf.symlink_to(real)
    real.chmod(0o640)
    before = real.read_bytes()
    host.install()
    assert host.conf.is_symlink()
    assert (host.conf.parent / "slurm-elastic.conf").exists()
    assert real.stat().st_mode & 0o777 == 0o640
    host.uninstall()
    assert (host.conf.is_symlink(), real.read_bytes()) == (True, before)


def test_a_failure_on_the_way_takes_everything_back(host: Host) -> None:
    (host.conf.parent / "slurm_elastic.lua").mkdir()  # cannot be replaced by a file
    (host.conf.parent / "slurm_elastic.lua" / "x").touch()
    before = host.conf.read_bytes()
    with pytest.raises(SlurmElasticError):
        host.install()
    assert host.conf.read_bytes() == before
    assert not (host.root / "libexec").exists()
    assert not host.config.state.exists()
    assert read_manifest(host.config_path) is None


def test_a_failure_at_the_last_file_takes_everything_back(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = host.etc()
    rename = os.replace

    def refuse(source: str, target: Path) -> None:
        if Path(target) == host.conf:
            raise OSError(28, "No space left on device", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(SlurmElasticError, match="No space left on device; everything is as before"):
        host.install()
    assert host.etc() == before
    assert not (host.root / "libexec").exists()


@pytest.fixture
def filters(host: Host, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The filters that slurmctld read, because job_submit.lua became newer than its last reading."""
    read: list[bytes] = []
    set_times = os.utime

    def newer(path: Path, times: tuple[float, float]) -> None:
        set_times(path, times)
        if Path(path).name == "job_submit.lua":
            read.append((host.conf.parent / "slurm_elastic.lua").read_bytes())

    monkeypatch.setattr(os, "utime", newer)
    return read


def test_slurmctld_reads_the_old_filter_again_when_an_install_fails_after_it(
    host: Host, filters: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.install()
    path = host.conf.parent / "slurm_elastic.lua"
    path.write_bytes(path.read_bytes() + b"-- of an earlier release\n")
    before, looks = path.read_bytes(), []

    def prepare_jobs(*_: object, **_options: object) -> None:
        looks.append(path.read_bytes())
        if len(looks) > 1:
            raise SlurmElasticError("slurmctld does not answer")

    monkeypatch.setattr("slurm_elastic.slurm.conf.install._prepare_jobs", prepare_jobs)
    monkeypatch.setattr(plan, "refuse_edited", lambda _: None)
    with pytest.raises(SlurmElasticError, match="slurmctld does not answer"):
        host.install()
    assert filters[-2:] == [looks[1], before]
    assert looks[1] != before


def test_slurmctld_reads_the_filter_again_when_an_uninstall_cannot_write_slurm_conf(
    host: Host, filters: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    host.install()
    before, rename = host.etc(), os.replace

    def refuse(source: str, target: Path) -> None:
        if Path(target) == host.conf:
            raise OSError(30, "Read-only file system", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(SlurmElasticError, match="Read-only file system; everything is as before"):
        host.uninstall()
    assert host.etc() == before
    assert filters[-1] == before["slurm_elastic.lua"][0]
    assert filters[-2] != filters[-1], "the inert filter"


def test_a_refused_check_changes_nothing(host: Host) -> None:
    host.conf.write_text(host.conf.read_text() + "\nResumeProgram=/opt/theirs\n")
    before = host.etc()
    with pytest.raises(ConfigError, match="ResumeProgram is /opt/theirs"):
        host.install()
    assert host.etc() == before
    assert not host.config.state.exists()


def test_a_state_directory_of_somebody_else_is_not_taken(host: Host) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    host.config.state.mkdir()
    with pytest.raises(ConfigError, match="state belongs to uid 0, not to slurm"):
        host.install()
    assert not (host.root / "libexec").exists()


def test_a_sites_own_lua_is_kept_and_told_what_to_call(root: Path) -> None:
    host = Host("own-lua", root)
    lua = host.conf.parent / "job_submit.lua"
    before = lua.read_bytes()
    done = host.install()
    assert lua.read_bytes() == before
    text = "\n".join(done.lines)
    assert f'pcall(dofile, "{host.conf.parent}/slurm_elastic.lua")' in text
    assert "slurm_elastic_wrap(slurm_job_submit)" in text

    last = "if slurm_elastic_wrap then slurm_job_submit = slurm_elastic_wrap(slurm_job_submit) end"
    lua.write_bytes(before + b'\ndofile("slurm_elastic.lua")\n' + last.encode() + b"\n")
    assert "dofile" not in "\n".join(host.install().lines)
    with pytest.raises(ConfigError, match=r"still loads slurm_elastic.lua; take its two lines out"):
        host.uninstall()
    lua.write_bytes(before)
    host.uninstall()
    assert lua.read_bytes() == before


def test_a_sleeping_job_submit_lua_is_not_woken(host: Host) -> None:
    (host.conf.parent / "job_submit.lua").write_text("-- an old experiment\n")
    with pytest.raises(ConfigError, match="JobSubmitPlugins has no lua: installing would switch"):
        host.install()


def test_a_slurm_without_lua_gets_the_documented_alternative(root: Path) -> None:
    host = Host("small", root)
    host.conf.write_text(f"PluginDir={root}\n{host.conf.read_text()}")
    done = host.install()
    assert "    sbatch --partition=batch,aws,onprem SCRIPT" in done.lines
    # A variable for all users would take jobs away from the partition that their scripts name.
    assert not any("export " in line for line in done.lines)
    assert not (host.conf.parent / "slurm_elastic.lua").exists()


def test_a_slurm_below_a_prefix_of_its_own_has_its_plugins_there(root: Path) -> None:
    host = Host("small", root)
    settings = replace(host.config.slurm, sbin_dir=f"{root}/opt/slurm/sbin")
    config = replace(host.config, slurm=settings)
    assert "JobSubmitPlugins" not in plan.make(config, version=VERSION).fragment
    plugins = root / "opt" / "slurm" / "lib" / "slurm"
    plugins.mkdir(parents=True)
    (plugins / "job_submit_lua.so").touch()
    assert "JobSubmitPlugins=lua" in plan.make(config, version=VERSION).fragment


def test_uninstall_removes_programs_of_an_earlier_directory(host: Host) -> None:
    """slurmctld may have called them until its restart, so the install leaves them there."""
    host.install()
    earlier = Path(host.config.slurm.programs_dir)
    settings = replace(host.config.slurm, programs_dir=f"{host.root}/elsewhere")
    host.config = replace(host.config, slurm=settings)
    host.install()
    assert (earlier / "slurm-elastic-resume").exists()
    host.uninstall()
    assert not earlier.exists()
    assert not (host.root / "elsewhere").exists()


def test_uninstall_takes_no_files_from_another_slurm_conf_that_has_our_lines(host: Host) -> None:
    """slurmctld would not start on it: its include would lead to nothing."""
    host.install()
    moved = shutil.copytree(host.conf.parent, host.root / "moved")
    (moved / "slurm.conf").write_bytes(our_lines.without_include(host.conf.read_bytes()))
    own = host.config
    host.config = replace(own, slurm=replace(own.slurm, conf=str(moved / "slurm.conf")))
    with pytest.raises(ConfigError, match=f"expected {host.conf}: the install put its lines"):
        host.uninstall()
    assert (host.conf.parent / "slurm-elastic.conf").exists()
    host.config = own
    host.uninstall()
    assert not (host.conf.parent / "slurm-elastic.conf").exists()


def test_a_damaged_record_is_written_again_by_an_install(host: Host) -> None:
    before = host.etc()
    host.install()
    (host.config_path.parent / "installed.json").write_bytes(b'{"slurm_conf": ')
    with pytest.raises(ConfigError, match="`slurm-elastic conf install` writes it again"):
        host.uninstall()
    host.install()
    host.uninstall()
    assert host.etc() == before


def test_uninstall_keeps_a_file_that_was_changed(host: Host) -> None:
    host.install()
    lua = host.conf.parent / "job_submit.lua"
    lua.write_text(lua.read_text() + "-- our own addition\n")
    done = host.uninstall()
    assert f"{lua} was changed since the install and stays" in done.lines
    assert lua.exists()


def test_uninstall_names_what_it_leaves(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, nowhere = host.root / "default", host.root / "nowhere"
    ours.write_text("AWS_PROFILE=x\n")
    monkeypatch.setattr(
        "slurm_elastic.slurm.conf.uninstall.FOREIGN_PLACES", (str(ours), str(nowhere))
    )
    host.install()
    (said,) = [line for line in host.uninstall().lines if line.startswith("left as they are")]
    for path in (host.config_path.parent, host.config.state, ours):
        assert str(path) in said
    assert str(nowhere) not in said


def test_uninstall_names_each_place_once_and_the_services_that_still_run(host: Host) -> None:
    host.install()
    lines = host.uninstall().lines
    assert sum(str(host.config.state) in line for line in lines) == 1
    assert "slurm-elasticd slurm-elastic-ckptman" in lines[-1]


def test_a_dry_run_of_uninstall_changes_nothing_and_names_the_files(host: Host) -> None:
    host.install()
    before = host.etc()
    lines = host.uninstall(dry_run=True).lines
    assert f"would take slurm-elastic's two lines out of {host.conf}" in lines
    assert f"would remove {host.conf.parent / 'slurm-elastic.conf'}" in lines
    assert lines[-1] == "nothing is changed, because of --dry-run"
    assert host.etc() == before
    done = host.uninstall().lines
    would = {line.removeprefix("would remove ") for line in lines if "would remove" in line}
    assert would == {line.removeprefix("removed ") for line in done if "removed " in line}


def test_uninstall_names_all_hindrances_at_once(host: Host) -> None:
    host.install()
    directory = host.conf.parent
    (directory / "job_submit.lua").write_text(f'dofile("{directory}/slurm_elastic.lua")\n')
    host.conf.write_text(f"{host.conf.read_text()}SuspendExcParts=aws\n")
    with pytest.raises(ConfigError) as refused:
        host.uninstall(force=False)
    lua, mention, jobs = refused.value.problems
    assert "still loads slurm_elastic.lua" in lua
    assert "SuspendExcParts has aws" in mention
    assert "slurmctld does not answer" in jobs


def test_uninstall_without_an_install_says_so(host: Host) -> None:
    before = host.etc()
    assert host.uninstall().lines == ("nothing is installed",)
    assert host.etc() == before


def test_uninstall_asks_for_force_where_slurmctld_does_not_answer(host: Host) -> None:
    host.install()
    before = host.etc()
    with pytest.raises(
        ConfigError,
        match="there may be jobs on cloud nodes that leave or change; start it, or use --force",
    ):
        host.uninstall(force=False)
    assert host.etc() == before


def test_diff_is_what_install_would_change(host: Host) -> None:
    planned = plan.make(host.config, version=VERSION)
    text = conf_diff.whole(planned)
    assert f"+++ {host.conf}\n" in text
    assert "\\ No newline at end of file" in text
    assert "+include slurm-elastic.conf\n" in text
    assert "+PartitionName=onprem " in text
    assert host.conf.read_bytes() == (site_cases.SITES / "small" / "slurm.conf").read_bytes()
    host.install()
    installed = plan.make(host.config, version=VERSION)
    assert conf_diff.whole(installed) == conf_diff.short(installed) == ""


@pytest.mark.parametrize(
    ("version", "up", "expected", "called"),
    [
        ((24, 11), True, "slurmctld was reconfigured", True),
        ((23, 11), True, "stop and start slurmctld now", False),
        ((22, 5), True, "Do NOT run `scontrol reconfigure`: on Slurm 22.05 it ends", False),
        ((24, 11), False, "slurmctld is not running", False),
    ],
)
def test_slurmctld_is_told_as_its_version_can(
    host: Host, version: tuple[int, int], up: bool, expected: str, called: bool
) -> None:
    calls = host.root / "calls"
    state = "UP" if up else "DOWN"
    host.command("scontrol", f'echo "$*" >>{calls}; echo "Slurmctld(primary) at head is {state}"')
    done = install(host.config, host.config_path, version=version, verify=False)
    assert expected in done.lines[-1]
    assert ("reconfigure" in calls.read_text()) is called
    assert done.restart_needed is (up and not called)


SERVING = """\
case "$*" in
  ping) echo "Slurmctld(primary) at head is UP";;
  "show config") echo "BOOT_TIME = {boot}";;
  *nodes) for i in {nodes}; do echo "NodeName=$i CPUTot=2"; done;;
  *partitions) for i in batch {partitions}; do echo "PartitionName=$i Default=NO"; done;;
esac"""
PUB = "pub1 pub2 pub3 pub4 pub5 pub6 pub7 pub8"
NODES = f"n1 {PUB} pubgpu1 pubgpu2 op1 op2"


@pytest.mark.parametrize(
    ("boot", "nodes", "partitions", "served"),
    [
        ("2040-01-01T00:00:00", NODES, "aws onprem", True),
        ("2020-01-01T00:00:00", NODES, "aws onprem", False),
        ("2040-01-01T00:00:00", PUB, "aws onprem", False),
        ("2040-01-01T00:00:00", NODES, "onprem", False),
    ],
)
@pytest.mark.parametrize("restarts", [True, False])
def test_a_second_install_has_slurmctld_serve_what_is_installed(
    host: Host, boot: str, nodes: str, partitions: str, served: bool, restarts: bool
) -> None:
    host.install()
    host.command("scontrol", SERVING.format(boot=boot, nodes=nodes, partitions=partitions))
    host.command("restart", f"touch {host.root}/restarted")
    done = host.install(restart=f"{host.root}/bin/restart" if restarts else None)
    assert done.changed == ()
    assert "already installed as configured: no change" in done.lines
    assert (host.root / "restarted").exists() is (restarts and not served)
    assert done.restart_needed is (not restarts and not served)
    told = "slurmctld does not serve yet what is installed" in done.lines
    assert told is done.restart_needed


def test_a_second_install_where_slurmctld_stands_by_does_not_fail(host: Host) -> None:
    """As on the second head while the first one acts and cannot be reached from there."""
    host.install()
    standing_by = """\
case "$*" in
  ping) echo "Slurmctld(primary) at head1 is DOWN"; echo "Slurmctld(backup) at head2 is UP";;
  *) echo "Unable to contact slurm controller" >&2; exit 1;;
esac"""
    host.command("scontrol", standing_by)
    done = host.install(restart="false")
    assert done.changed == ()
    assert not done.restart_needed
    assert "does not say whether it serves what is installed" in done.lines[-1]
    assert "Unable to contact slurm controller" in done.lines[-1]


def test_a_second_install_looks_at_jobs_on_nodes_that_slurmctld_still_has(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first install has taken a cloud out of the files, and slurmctld was not restarted."""
    host.install()
    host.command("scontrol", SERVING.format(boot="2020-01-01T00:00:00", nodes=NODES, partitions=""))
    host.command("restart", f"touch {host.root}/restarted")
    shown = [
        SlurmNode(name="op1", states=frozenset({"CLOUD"}), partitions=("onprem",)),
        SlurmNode(name="old1", states=frozenset({"CLOUD"}), partitions=("old", "batch")),
        SlurmNode(name="dyn1", states=frozenset({"CLOUD", "DYNAMIC_NORM"}), partitions=("dyn",)),
        SlurmNode(name="n1", states=frozenset({"IDLE"}), partitions=("batch",)),
    ]
    jobs = [
        SlurmJob(
            id=number, states=frozenset({"RUNNING"}), nodes=(node.name,),
            partitions=node.partitions[:1],
        )
        for number, node in enumerate(shown, 1)
    ]  # fmt: skip
    monkeypatch.setattr(SlurmCli, "nodes", lambda *_: {node.name: node for node in shown})
    monkeypatch.setattr(SlurmCli, "jobs", lambda *_: jobs)
    restart = f"{host.root}/bin/restart"
    with pytest.raises(ConfigError) as refused:
        host.install(restart=restart)
    assert refused.value.problems == (
        (
            "job 2 is on cloud nodes or in cloud partitions that leave (old1); wait for the end,"
            " or use --force"
        ),
    )
    assert not (host.root / "restarted").exists()
    host.install(restart=restart, force=True)
    assert (host.root / "restarted").exists()


def edit(host: Host) -> None:
    with host.conf.open("a") as file:
        file.write("\nNodeName=n[90-99]\n")


def test_an_edit_of_slurm_conf_during_the_check_is_kept(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    def checked(_: object) -> check.Report:
        edit(host)
        return check.Report(full=False, lines=())

    monkeypatch.setattr(check, "check", checked)
    with pytest.raises(ConfigError, match="was edited during the check; nothing was changed"):
        install(host.config, host.config_path, version=VERSION)
    assert "NodeName=n[90-99]" in host.conf.read_text()
    assert not our_lines.has_include(host.conf.read_bytes())


def test_an_edit_of_slurm_conf_during_the_check_of_an_uninstall_is_kept(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.install()

    def proven(*_: object, **_options: object) -> list[str]:
        edit(host)
        return []

    monkeypatch.setattr(removal, "prove", proven)
    with pytest.raises(ConfigError, match="was edited during the check; nothing was changed"):
        host.uninstall(verify=True)
    assert "NodeName=n[90-99]" in host.conf.read_text()
    assert our_lines.has_include(host.conf.read_bytes())


LATE = """case "$*" in
  ping) echo "Slurmctld(primary) at head is UP";;
  --version) echo "slurm-wlm 24.11.0";;
  reconfigure) {read}; exit 1;;
  "show config") cat {loaded};;
esac"""
READ = (
    'if grep -q "^include.*elastic" {conf}; then echo "Prolog={programs}/x" >{loaded};'
    " else : >{loaded}; fi"
)


@pytest.mark.parametrize("reads_again", [True, False])
def test_the_programs_stay_while_slurmctld_may_call_them(host: Host, reads_again: bool) -> None:
    """`scontrol reconfigure` takes effect, but does not answer in time."""
    before, loaded = host.etc(), host.root / "loaded"
    loaded.touch()
    programs = Path(host.config.slurm.programs_dir)
    read = READ.format(conf=host.conf, programs=programs, loaded=loaded)
    if not reads_again:
        read = f"[ -s {loaded} ] || {{ {read}; }}"
    host.command("scontrol", LATE.format(read=read, loaded=loaded))
    host.command("sinfo", "true")
    with pytest.raises(SlurmElasticError) as failed:
        install(host.config, host.config_path, version=(24, 11), verify=False)
    assert host.etc().keys() == before.keys()
    assert host.conf.read_bytes() == before[host.conf.name][0]
    assert programs.exists() is not reads_again
    assert (f"{programs} stays" in str(failed.value)) is not reads_again
    assert programs.exists() is bool(loaded.read_text())


UP = (
    'case "$1" in ping) echo "Slurmctld(primary) at head is UP";;'
    ' --version) echo "slurm-wlm 22.05.8";; esac'
)


def paid(host: Host, *instances: tuple[str, str]) -> None:
    """The cloud answered a launch with these machines (id, node)."""
    spec = ledger_cases.spec(nodes=tuple(node for _, node in instances))
    with contextlib.closing(Ledger(host.config.state / "ledger.db")) as ledger:
        ledger.launches.record_intent(spec, "r1", ledger_cases.T0)
        made = [ledger_cases.instance(id_, node) for id_, node in instances]
        ledger.machines.record_launch(spec.generation, made, ledger_cases.T0)


def all_ended(host: Host) -> None:
    with contextlib.closing(Ledger(host.config.state / "ledger.db")) as ledger:
        ids = [m.instance.id for m in ledger.machines.live()]
        ledger.machines.record_end("aws", ids, Quoted(text="gone"), ledger_cases.T0)


def answering(host: Host) -> None:
    """A slurmctld that answers, without jobs."""
    host.command("scontrol", UP)
    host.command("squeue", "true")


def test_uninstall_refuses_while_machines_are_paid(host: Host) -> None:
    host.install()
    answering(host)
    paid(host, ("i-1", "pub1"), ("i-2", "pub2"))
    before = host.etc()
    with pytest.raises(ConfigError) as refused:
        host.uninstall(force=False)
    assert refused.value.problems[0] == "machines of clouds: i-1 of pub1, i-2 of pub2"
    assert "scontrol update nodename=pub[1-2] state=power_down" in refused.value.problems[1]
    assert host.etc() == before

    all_ended(host)
    host.uninstall(force=False)
    assert b"elastic" not in host.conf.read_bytes()


def test_uninstall_names_the_order_that_ends_the_boot_of_a_machine(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.install()
    answering(host)
    paid(host, ("i-1", "pub1"), ("i-2", "pub2"))
    states = {"pub1": {"IDLE", "CLOUD", "POWERING_UP"}, "pub2": {"IDLE", "CLOUD"}}
    nodes = {name: SlurmNode(name=name, states=frozenset(flags)) for name, flags in states.items()}
    monkeypatch.setattr(SlurmCli, "nodes", lambda *_: nodes)
    with pytest.raises(ConfigError) as refused:
        host.uninstall(force=False)
    assert (
        "`scontrol update nodename=pub2 state=power_down`, then `scontrol update nodename=pub1"
        " state=power_down_force`, then leave slurm-elasticd running" in refused.value.problems[1]
    )


def test_stopped_machines_are_paid_too(host: Host) -> None:
    host.install()
    answering(host)
    paid(host, ("i-1", "pub1"))
    with contextlib.closing(Ledger(host.config.state / "ledger.db")) as ledger:
        ledger.stops.record_stopping("aws", ["i-1"], Quoted(text="idle"), ledger_cases.T0)
        ledger.stops.record_stopped("aws", {"i-1": 0.01}, ledger_cases.T0)
    small = replace(
        host.config,
        clouds=tuple(c for c in host.config.clouds if c.name != "aws"),
        pools=tuple(p for p in host.config.pools if p.cloud != "aws"),
    )
    for change in (lambda: host.uninstall(force=False), lambda: host.install(small)):
        with pytest.raises(ConfigError) as refused:
            change()
        assert refused.value.problems[0] == "stopped machines of clouds: i-1 of pub1"
        assert "`slurm-elastic drain aws`, then leave slurm-elasticd" in refused.value.problems[1]


def test_after_an_uninstall_no_node_is_held_any_more(host: Host) -> None:
    host.install()
    row = Exclusion(
        kind=CAPACITY,
        scope="pub1",
        pool="burst",
        cause=Quoted(text="x"),
        since=ledger_cases.T0,
        until=ledger_cases.T0,
    )
    with contextlib.closing(Ledger(host.config.state / "ledger.db")) as ledger:
        ledger.exclusions.add(
            *[row, replace(row, kind="policy"), replace(row, scope="pub2", kind="policy")]
        )
        host.uninstall()
        assert ledger.exclusions.holds() == ()


def test_a_launch_without_an_answer_counts_as_paid(host: Host) -> None:
    host.install()
    answering(host)
    with contextlib.closing(Ledger(host.config.state / "ledger.db")) as ledger:
        ledger.launches.record_intent(ledger_cases.spec(), "r1", ledger_cases.T0)
    with pytest.raises(ConfigError, match=r"a launch at aws for pub\[1-2\] has no answer yet"):
        host.uninstall(force=False)


def test_a_forced_uninstall_names_what_stays_paid(host: Host) -> None:
    host.install()
    paid(host, ("i-1", "pub1"))
    assert "machines of clouds: i-1 of pub1" in host.uninstall().lines
    assert b"elastic" not in host.conf.read_bytes()


@contextlib.contextmanager
def slurmctld(host: Host, conf: Path) -> Iterator[None]:
    """A process that looks like the slurmctld of this slurm.conf."""
    program = host.root / "slurmctld"
    program.write_text("#!/bin/sh\nread -r line\n")
    program.chmod(0o755)
    with subprocess.Popen(
        [program, "-f", conf], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        comm = Path(f"/proc/{process.pid}/comm")
        eventually(lambda: comm.read_text() == "slurmctld\n")
        try:
            yield
        finally:
            process.kill()


def test_an_uninstall_leaves_the_programs_to_a_slurmctld_that_does_not_answer(host: Host) -> None:
    """Without its PrologSlurmctld it would requeue each job of the cluster."""
    host.install()
    programs = Path(host.config.slurm.programs_dir)
    for _ in ("first step", "second step"):
        with slurmctld(host, host.conf):
            done = host.uninstall()
        assert done.restart_needed
        assert (programs / "slurm-elastic-prolog").exists()
        assert any("run `slurm-elastic conf uninstall` again" in line for line in done.lines)
    with slurmctld(host, host.root / "of-another-cluster.conf"):
        assert not host.uninstall().restart_needed
    assert not programs.exists()


def test_an_install_says_how_to_restart_a_slurmctld_that_does_not_answer(host: Host) -> None:
    with slurmctld(host, host.conf):
        done = host.install()
    assert done.restart_needed
    (sentence,) = [line for line in done.lines if "does not answer now" in line]
    assert "Do NOT run `scontrol reconfigure`" in sentence


def test_an_uninstall_leaves_programs_of_an_earlier_directory_that_slurmctld_calls(
    host: Host,
) -> None:
    host.install()
    earlier = Path(host.config.slurm.programs_dir)
    settings = replace(host.config.slurm, programs_dir=f"{host.root}/elsewhere")
    host.config = replace(host.config, slurm=settings)
    host.install()
    answering(host)
    program = f"{earlier}/slurm-elastic-prolog"
    host.command("scontrol", f'{UP}; if [ "$1" = show ]; then echo PrologSlurmctld={program}; fi')
    for _ in ("first step", "second step"):
        assert host.uninstall().restart_needed
        assert Path(program).exists()


def test_machines_that_came_between_the_two_steps_are_refused_too(host: Host) -> None:
    host.install()
    answering(host)
    program = f"{host.config.slurm.programs_dir}/slurm-elastic-prolog"
    host.command("scontrol", f'{UP}; if [ "$1" = show ]; then echo PrologSlurmctld={program}; fi')
    assert host.uninstall(force=False).restart_needed
    paid(host, ("i-1", "pub1"))
    answering(host)
    with pytest.raises(ConfigError, match="machines of clouds: i-1 of pub1"):
        host.uninstall(force=False)
    assert Path(host.config.slurm.programs_dir).exists()


def test_a_ledger_that_cannot_be_read_rules_out_nothing(host: Host) -> None:
    host.install()
    answering(host)
    (host.config.state / "ledger.db").write_bytes(b"broken" * 1000)
    with pytest.raises(ConfigError, match=r"there may be machines of clouds: .*ledger\.db"):
        host.uninstall(force=False)


@pytest.mark.parametrize("what", ["pool", "cloud"])
def test_a_pool_or_cloud_does_not_leave_while_its_machines_are_paid(host: Host, what: str) -> None:
    host.install()
    answering(host)
    paid(host, ("i-1", "pub1"))
    config = host.config
    aws_pools = [pool.name for pool in config.pools if pool.cloud == "aws"]
    gone = aws_pools[:1] if what == "pool" else aws_pools
    clouds = tuple(c for c in config.clouds if what == "pool" or c.name != "aws")
    pools = tuple(pool for pool in config.pools if pool.name not in gone)
    smaller = replace(config, clouds=clouds, pools=pools)
    before = host.etc()
    with pytest.raises(ConfigError, match="machines of clouds: i-1 of pub1"):
        host.install(smaller)
    assert host.etc() == before
    assert "machines of clouds: i-1 of pub1" in host.install(smaller, force=True).lines


def test_machines_of_nodes_that_stay_are_no_reason_to_refuse(host: Host) -> None:
    host.install()
    answering(host)
    paid(host, ("i-1", "pub1"))
    cloud = replace(host.config.clouds[0], suspend_time=77.0)
    done = host.install(replace(host.config, clouds=(cloud, *host.config.clouds[1:])))
    assert done.changed
    assert not any("paid" in line for line in done.lines)


@pytest.mark.parametrize(("timeout", "told"), [("0", True), ("3600", True), ("300", False)])
def test_install_says_where_slurmctld_does_not_ping(host: Host, timeout: str, told: bool) -> None:
    conf = Path(host.config.slurm.conf)
    conf.write_text(f"{conf.read_text()}\nSlurmdTimeout={timeout}\n")
    notices = plan.make(host.config, version=VERSION).notices
    assert any(f"SlurmdTimeout is {timeout}: slurmctld finds" in n for n in notices) is told


def told_of_two_heads(host: Host, directory: str | None, grace: float = 120.0) -> list[str]:
    timings = replace(host.config.timings, orphan_timeout=grace)
    config = replace(host.config, ha=HaSettings(directory=directory), timings=timings)
    notices = plan.make(config, version=VERSION).notices
    return [n for n in notices if "slurm-elastic help two-heads" in n]


def test_more_than_one_controller_is_warned_of(host: Host) -> None:
    assert told_of_two_heads(host, None) == []
    conf = Path(host.config.slurm.conf)
    conf.write_text(f"{conf.read_text()}\nSlurmctldHost=spare(10.0.0.2)\n")
    (notice,) = told_of_two_heads(host, None)
    assert "names 2 controllers (" in notice
    assert ", spare), and ha.directory is not set" in notice
    assert "nothing is launched or ended" in notice


def test_a_shared_directory_with_one_controller_is_warned_of(host: Host) -> None:
    (notice,) = told_of_two_heads(host, "/shared/slurm-elastic")
    assert notice.startswith(f"{host.conf}:3: found SlurmctldHost head, expected two such lines")


@pytest.mark.parametrize(("timeout", "needed"), [("", 300), ("SlurmctldTimeout=30\n", 120)])
def test_a_grace_shorter_than_a_takeover_is_warned_of(
    host: Host, timeout: str, needed: int
) -> None:
    host.conf.write_text(f"{host.conf.read_text()}\nSlurmctldHost=spare\n{timeout}")
    assert told_of_two_heads(host, "/shared/slurm-elastic", needed) == []
    (notice,) = told_of_two_heads(host, "/shared/slurm-elastic", needed - 1)
    assert notice.startswith(
        f"timings.orphan_timeout: found {needed - 1} s, expected {needed} s or more"
    )
    assert f"2 x SlurmctldTimeout of {host.conf}" in notice


def test_the_first_install_names_the_services_to_start_and_later_ones_those_to_restart(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_remedies, "has_systemd", lambda: True)
    text = "\n".join(host.install().lines)
    assert "systemctl enable --now slurm-elasticd slurm-elastic-ckptman" in text
    assert "Restart the running ones" not in text
    for _ in range(2):
        text = "\n".join(host.install().lines)
        assert "only when they start. Restart the running ones: slurm-elastic doctor " in text
        assert "systemctl restart slurm-elasticd" in text


def test_a_link_in_place_of_a_file_of_ours_is_replaced_not_written_through(host: Host) -> None:
    victim = host.root / "victim"
    victim.write_text("# precious\n")
    ours = [host.conf.parent / "slurm-elastic.conf", host.config_path.parent / "installed.json"]
    programs = Path(host.config.slurm.programs_dir)
    programs.mkdir(parents=True)
    for path in (*ours, programs / "settings"):
        path.symlink_to(victim)
    host.install()
    assert victim.read_text() == "# precious\n"
    assert not any(path.is_symlink() for path in (*ours, programs / "settings"))
    # Also where what lies behind the link is as planned.
    copy = host.root / "copy"
    ours[0].rename(copy)
    ours[0].symlink_to(copy)
    host.install()
    assert not ours[0].is_symlink()


def test_a_replaced_link_comes_back_when_an_install_fails(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = host.conf.parent / "slurm-elastic.conf"
    link.symlink_to(host.root / "victim")
    (host.root / "victim").write_text("# precious\n")
    rename = os.replace

    def refuse(source: str, target: Path) -> None:
        if Path(target) == host.conf:
            raise OSError(28, "No space left on device", str(target))
        rename(source, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(SlurmElasticError, match="everything is as before"):
        host.install()
    assert link.readlink() == host.root / "victim"
    assert (host.root / "victim").read_text() == "# precious\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_ours_is_not_left_to_its_earlier_owner(host: Host) -> None:
    manifest = host.config_path.parent / "installed.json"
    manifest.write_text("{}")
    os.chown(manifest, pwd.getpwnam("slurm").pw_uid, -1)
    host.install()
    assert manifest.stat().st_uid == 0


@pytest.mark.parametrize("again", [False, True])
def test_nothing_is_made_behind_a_link_in_the_state_directory(host: Host, again: bool) -> None:
    """SlurmUser owns it and may put there what it likes."""
    elsewhere = host.root / "elsewhere"
    elsewhere.mkdir()
    if again:
        host.install()
        (host.config.state / "requests" / "bad").rmdir()
        (host.config.state / "requests").rmdir()
    else:
        host.config.state.mkdir()
        if os.geteuid() == 0:
            os.chown(host.config.state, pwd.getpwnam("slurm").pw_uid, -1)
    (host.config.state / "requests").symlink_to(elsewhere)
    with pytest.raises(SlurmElasticError, match="requests: Not a directory; everything is as"):
        host.install()
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_that_becomes_a_link_before_it_is_given_away_changes_nothing_else(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = host.root / "victim"
    victim.mkdir(mode=0o700)
    make = os.mkdir

    def swapped(path: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        make(path, mode, dir_fd=dir_fd)
        made = host.config.state / "requests"
        if made.exists() and not made.is_symlink():
            made.rmdir()
            made.symlink_to(victim)

    monkeypatch.setattr(os, "mkdir", swapped)
    with pytest.raises(SlurmElasticError):
        host.install()
    assert (victim.stat().st_uid, victim.stat().st_mode & 0o777) == (0, 0o700)


PIECES = [b"Key=value", b"\n", b"\r\n", b"\\", b"# comment", b" ", b"\r", b"include x", b"\n\n"]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map(b"".join))
def test_our_lines_come_and_go_without_a_trace(text: bytes) -> None:
    added = our_lines.with_include(text)
    assert our_lines.has_include(added)
    assert our_lines.with_include(added) == added
    assert our_lines.without_include(added) == text


@given(
    st.lists(st.sampled_from(PIECES), max_size=8).map(b"".join),
    st.lists(st.sampled_from([b"New=1", b"\n", b"# more"]), min_size=1, max_size=4).map(b"".join),
)
def test_what_is_written_below_our_lines_stays(text: bytes, more: bytes) -> None:
    left = our_lines.without_include(our_lines.with_include(text) + more)
    assert left.startswith(text)
    assert left.endswith(more)
    assert b"elastic" not in left


def test_a_continued_last_line_does_not_swallow_ours() -> None:
    added = our_lines.with_include(b"SchedulerParameters=a,\\")
    assert b"\\\n\n# slurm-elastic" in added


def test_what_cannot_be_made_is_named_with_its_whole_path(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for somebody else than root and SlurmUser."""
    made = os.mkdir

    def mkdir(path: str | Path, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        if dir_fd is not None:
            raise PermissionError(13, "Permission denied", path)
        made(path, mode)

    monkeypatch.setattr(os, "mkdir", mkdir)
    said = f"{host.root}/state/requests: Permission denied; everything is as before"
    with pytest.raises(SlurmElasticError, match=f"^{said}$"):
        host.install()


def test_slurms_user_may_be_given_by_number(host: Host) -> None:
    text = host.conf.read_text()
    user = pwd.getpwnam("slurm") if os.geteuid() == 0 else pwd.getpwuid(os.geteuid())
    host.conf.write_text(text.replace("SlurmUser=slurm", f"SlurmUser={user.pw_uid}"))
    settings = replace(host.config.slurm, user=str(user.pw_uid))
    host.install(replace(host.config, slurm=settings))
    assert host.config.state.stat().st_uid == user.pw_uid
