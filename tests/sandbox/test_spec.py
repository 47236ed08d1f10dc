"""The two configuration files of a sandbox, and what it refuses before it starts anything."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from pages import shown

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.cli.main import main
from slurm_elastic.config import configfile
from slurm_elastic.sandbox import build
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.layout import Layout, Saved
from slurm_elastic.sandbox.shell import fields
from slurm_elastic.sandbox.spec import (
    SandboxSpec,
    default_elastic,
    elastic,
    ports_from,
    ports_needed,
    site_conf,
)

PORTS = ports_from(21000)
DIR = Path("/tmp/se-x")


def test_the_default_configuration_is_valid_and_its_nodes_have_ports_of_their_own(tmp_path):
    import yaml

    path = tmp_path / "slurm-elastic.yaml"
    path.write_text(yaml.safe_dump(elastic(SandboxSpec(dir=DIR), PORTS)))
    config = configfile.load(path)
    assert [c.partition_name for c in config.clouds] == ["onprem", "aws"]
    assert [(p.nodes, p.slurmd_port) for p in config.pools] == [
        ("op[1-2]", 21006),
        ("pub[1-6]", 21008),
    ]
    assert ports_needed(SandboxSpec(dir=DIR)) == 4 + 2 + 2 + 6


def test_overrides_merge_by_name_and_drop_leaves_out():
    spec = SandboxSpec(
        dir=DIR,
        elastic={
            "timings": {"suspend_time": 5.0},
            "pools": [
                {"name": "op", "nodes": "op[1-4]"},
                {"name": "x", "cloud": "aws", "nodes": "x1"},
            ],
        },
        drop=("pub",),
    )
    config = elastic(spec, PORTS)
    assert config["timings"]["suspend_time"] == 5.0
    assert config["timings"]["reconcile_interval"] == 2.0
    assert [(p["name"], p["nodes"]) for p in config["pools"]] == [("op", "op[1-4]"), ("x", "x1")]
    assert config["pools"][0]["cpus"] == 2


def test_dropping_a_cloud_drops_its_pools():
    config = elastic(SandboxSpec(dir=DIR, drop=("aws",)), PORTS)
    assert [c["name"] for c in config["clouds"]] == ["onprem"]
    assert [p["name"] for p in config["pools"]] == ["op"]


def test_a_line_of_the_sites_own_replaces_the_sandboxs():
    spec = SandboxSpec(
        dir=DIR,
        slurm_conf=(
            "SchedulerType=sched/builtin",
            "PartitionName=debug Nodes=st1",
            "PrivateData=jobs",
        ),
    )
    lines = site_conf(spec, PORTS, "head").splitlines()
    assert [line for line in lines if line.startswith("SchedulerType")] == [
        "SchedulerType=sched/builtin"
    ]
    assert lines[-1] == "PartitionName=debug Nodes=st1"
    assert "PrivateData=jobs" in lines


@pytest.mark.parametrize("nodes", [0, 1, 2])
def test_any_number_of_static_nodes(nodes):
    text = site_conf(SandboxSpec(dir=DIR, static_nodes=nodes), PORTS, "head")
    assert ("PartitionName=batch" in text) == (nodes > 0)


def test_what_was_saved_is_read_again(tmp_path):
    saved = Saved(
        spec=SandboxSpec(dir=tmp_path, elastic={"timings": {"reconcile_interval": 1}}), ports=PORTS
    )
    layout = Layout(dir=tmp_path)
    layout.save(saved)
    assert layout.read() == saved


@pytest.mark.parametrize(
    "endpoint",
    ["https://ec2.us-east-1.amazonaws.com", "http://10.0.0.1:5000", "http://example.org"],
)
def test_an_endpoint_off_loopback_is_refused(tmp_path, endpoint):
    spec = SandboxSpec(dir=tmp_path, elastic={"clouds": [{"name": "aws", "endpoint": endpoint}]})
    layout = Layout(dir=tmp_path)
    (tmp_path / "etc").mkdir()
    with pytest.raises(SandboxError, match="loopback"):
        build.write_files(spec, PORTS, layout)


@pytest.mark.parametrize(
    ("conf", "serves"),
    [
        ("# directory = {dir}/images\ndirectory = /shared/slurm-elastic\n", False),
        ("# as in slurm-elastic.yaml\n directory={dir}/images\ncluster = sandbox\n", True),
        (None, False),
    ],
)
def test_images_are_the_sandboxs_if_the_hosts_root_part_says_so(tmp_path, conf, serves):
    root_part = tmp_path / "ckpt-root.conf"
    if conf is not None:
        root_part.write_text(conf.format(dir=tmp_path))
    assert build.serves_images(Layout(dir=tmp_path), root_part) is serves


@pytest.mark.skipif(os.getuid() != 0, reason="needs SlurmUser beside root")
def test_a_python_that_slurmuser_cannot_run_is_named(tmp_path, monkeypatch):
    hidden = tmp_path / "private"
    hidden.mkdir(mode=0o700)
    (hidden / "python").symlink_to(sys.executable)
    monkeypatch.setattr(build.sys, "executable", str(hidden / "python"))
    with pytest.raises(
        SandboxError, match=r"user 'slurm' cannot run slurm-elastic with .*/private"
    ):
        build.require_python(Layout(dir=tmp_path))


@pytest.mark.skipif(os.getuid() != 0, reason="needs SlurmUser beside root")
def test_a_python_that_slurmuser_reads_but_for_one_module_is_named(monkeypatch):
    """A module that the services import later, as of a Python below a private directory."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "mimetypes.py").touch(0o600)
        python = place / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH={place} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
        monkeypatch.setattr(build.sys, "executable", str(python))
        with pytest.raises(SandboxError, match=r"cannot run slurm-elastic .*mimetypes"):
            build.require_python(Layout(dir=place))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dir": Path("/tmp/" + "x" * 80)}, "at most 60"),
        ({"dir": Path("/tmp/a b")}, "plain characters"),
        ({"static_nodes": -1}, "positive"),
    ],
)
@pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("slurmctld", path="/usr/sbin"),
    reason="needs root and Slurm",
)
def test_what_cannot_be_is_refused_before_anything_is_made(change, said):
    spec = SandboxSpec(**{"dir": DIR} | change)
    with pytest.raises(SandboxError, match=said):
        Sandbox(spec).up()
    assert not spec.dir.exists()


@pytest.mark.parametrize("command", [["sandbox", "up"], ["quickstart"]], ids=" ".join)
def test_without_the_sandboxs_package_one_sentence_names_it(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(build, "_EMULATOR", ("moto", "module_of_no_package"))
    assert main([*command, "--dir", str(tmp_path / "site")]) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "install slurm-elastic-sandbox (with pip, in a clone: pip install '.[sandbox]')" in told
    assert not (tmp_path / "site").exists()


def test_a_sandbox_says_how_other_users_submit_and_who_may_use_the_cloud(
    tmp_path, monkeypatch, capsys
):
    made = []
    monkeypatch.setattr(Sandbox, "up", lambda self, _report: made.append(self))
    assert main(["sandbox", "up", "--dir", str(tmp_path / "site"), "--group", "games"]) == 0
    told = capsys.readouterr().out
    assert "  runuser -u nobody -- sbatch -D /tmp --wrap hostname\n" in told
    assert "open to the groups nogroup, root, games (sandbox up --group GROUP adds one)" in told
    (sandbox,) = made
    assert default_elastic(sandbox.spec)["allow"]["groups"] == ["nogroup", "root", "games"]


def test_a_file_adds_clouds_to_those_of_the_sandbox(tmp_path, monkeypatch):
    import yaml

    made = []
    monkeypatch.setattr(Sandbox, "up", lambda self, _report: made.append(self))
    file = tmp_path / "more.yaml"
    file.write_text(shown("docs/sandbox.md", "clouds:").text)
    up = ["sandbox", "up", "--dir", str(tmp_path / "site"), "--elastic", str(file)]
    assert main(up) == 0
    (sandbox,) = made
    whole = tmp_path / "slurm-elastic.yaml"
    whole.write_text(yaml.safe_dump(elastic(sandbox.spec, PORTS)))
    config = configfile.load(whole)
    assert [cloud.name for cloud in config.clouds] == ["onprem", "aws", "west"]
    assert [pool.name for pool in config.pools] == ["op", "pub", "west"]


@pytest.mark.parametrize(
    "text", ["7", "clouds: [aws]", "clouds: [{name: x}]", "pools: [{nodes: 'x[1-2]'}]"]
)
def test_a_file_that_cannot_be_merged_is_refused_in_one_sentence(text, tmp_path, capsys):
    file = tmp_path / "more.yaml"
    file.write_text(text)
    up = ["sandbox", "up", "--dir", str(tmp_path / "site"), "--elastic", str(file)]
    assert main(up) == 2
    assert capsys.readouterr().err.startswith(f"slurm-elastic: {file}: ")


@pytest.mark.parametrize(
    ("line", "version", "fine"),
    [
        ("MULTIPLE_SLURMD         = Yes", (22, 5), True),
        ("MULTIPLE_SLURMD         = yes", (25, 11), True),
        ("MULTIPLE_SLURMD         = no", (25, 11), False),
        ("MpiParams               = (null)", (22, 5), False),
        ("MpiParams               = (null)", (26, 11), True),  # it no longer tells
    ],
)
def test_a_slurm_of_which_a_host_has_one_slurmd_is_refused(line, version, fine):
    told = f"MpiDefault              = none\n{line}\nNEXT_JOB_ID             = 1\n"
    with contextlib.nullcontext() if fine else pytest.raises(SandboxError, match="one host; Deb"):
        build.require_several_slurmds(told, version)


@pytest.mark.skipif(os.getuid() != 0, reason="needs another user")
def test_without_root_it_says_what_needs_it():
    code = (
        "import os; os.setgid(65534); os.setuid(65534)\n"
        "from slurm_elastic.cli.main import main; raise SystemExit(main(['sandbox', 'up']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "needs root" in done.stderr) == (2, True)


def test_another_users_directory_is_left_alone(tmp_path, monkeypatch):
    Layout(dir=tmp_path).save(Saved(spec=SandboxSpec(dir=tmp_path), ports=PORTS))
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.raises(SandboxError, match="belongs to another user"):
        Sandbox(SandboxSpec(dir=tmp_path)).down()


def test_a_directory_that_is_no_sandbox_is_neither_used_nor_removed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("data")
    sandbox = Sandbox(SandboxSpec(dir=tmp_path))
    with pytest.raises(SandboxError, match="is not a sandbox"):
        sandbox.down()
    assert precious.exists()


def test_an_empty_directory_is_no_sandbox_either(tmp_path):
    with pytest.raises(SandboxError, match="is not a sandbox: it has no"):
        Sandbox(SandboxSpec(dir=tmp_path)).down()
    assert tmp_path.is_dir()


def test_a_sandbox_that_cannot_be_marked_says_why(tmp_path, monkeypatch):
    def full(_layout, _saved):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Layout, "save", full)
    monkeypatch.setattr("slurm_elastic.sandbox.build.require_host", lambda *_: None)
    with pytest.raises(OSError, match="No space left on device"):
        Sandbox(SandboxSpec(dir=tmp_path / "box")).up()


def test_a_sandbox_that_was_never_there_goes_down_without_complaint(tmp_path):
    Sandbox(SandboxSpec(dir=tmp_path / "none")).down()


def test_a_sandbox_goes_down_with_the_agents_of_its_own_clouds(tmp_path, monkeypatch):
    types = {"small": {"cpus": 2, "memory": 2048, "price": 0.1}}
    cloud = {"name": "attic", "provider": "local", "location": "on-premises", "types": types}
    pool = {"name": "attic", "cloud": "attic", "nodes": "at[1-2]", "cpus": 2, "memory": 2048}
    box = tmp_path / "box"
    box.mkdir(mode=0o755)
    spec = SandboxSpec(dir=box, elastic={"clouds": [cloud], "pools": [pool]})
    Layout(dir=box).save(Saved(spec=spec, ports=PORTS))
    stopped = []
    monkeypatch.setattr(
        "slurm_elastic.sandbox.processes.Processes.stop", lambda _, name, _s: stopped.append(name)
    )
    assert main(["sandbox", "down", "--dir", str(box)]) == 0
    assert "local-agent-attic" in stopped
    assert not box.exists()


def test_the_environment_has_nobodys_credentials_but_the_emulators(tmp_path):
    layout = Layout(dir=tmp_path)
    base = {
        "AWS_ACCESS_KEY_ID": "AKIAREALLOOKING",
        "AWS_PROFILE": "production",
        "AWS_SESSION_TOKEN": "real",
        "OS_PASSWORD": "real",
        "HTTPS_PROXY": "http://proxy:3128",
        "SLURM_CONF": "/etc/slurm/slurm.conf",
        "SBATCH_PARTITION": "real",
        "PATH": "/opt/bin",
    }
    env = layout.user_env(base)
    assert not {"real", "production", "AKIAREALLOOKING"} & set(env.values())
    assert "HTTPS_PROXY" not in env
    assert "SBATCH_PARTITION" not in env
    assert env["SLURM_CONF"] == str(tmp_path / "etc" / "slurm.conf")
    assert env["PATH"].startswith("/opt/bin:")


def test_scontrols_fields_may_hold_blanks():
    line = "JobId=3 JobName=a b c UserId=nobody(65534) Reason=None TRES=cpu=1,mem=4 Command=(null)"
    assert fields(line) == {
        "JobId": "3",
        "JobName": "a b c",
        "UserId": "nobody(65534)",
        "Reason": "None",
        "TRES": "cpu=1,mem=4",
        "Command": "(null)",
    }
