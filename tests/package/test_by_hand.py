"""The installations of README.md, docs/install.md and docs/first-burst.md: every line typed at a head with a real systemd.

Its Slurm is Debian's, its cloud the emulated EC2 of a sandbox, whose machines become slurmd's there.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pages import ROOT, Block, replaced, shown
from patience import eventually

from tests.package.head import Head, head
from tests.playbook.bed import SETTINGS, debian

pytestmark = [
    pytest.mark.release,
    pytest.mark.e2e,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a head node"),
]
CLONE, SITE, PORT = "/srv/clone", "/srv/site", 17000
NODES = "burst[1-8]"
SANDBOX = f"""
from pathlib import Path
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import SandboxSpec
site = Sandbox(SandboxSpec(
    dir=Path("{SITE}"), bare=True, static_nodes=1, drop=("onprem",),
    slurm_conf=("ClusterName=alps", "SlurmctldPort=6817"),
    elastic={{"pools": [{{"name": "pub", "cloud": "aws", "nodes": "{NODES}"}}]}},
))
site.up(print)
site.ec2.price("*", "*", 0.02)
site.slurmctld_stop()
print(site.ec2.url)
"""
MADE = f"""
rm -rf /root/.config/pip /root/.pip
printf '%s' '{SETTINGS}' >/etc/pip.conf
apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge python3-venv nfs-ganesha-vfs >/dev/null
mount -t tmpfs homes /home  # an overlay cannot be exported
groupadd hpc-users
useradd --create-home --groups hpc-users ann
echo '127.0.0.1 head.example.org' >>/etc/hosts
cat >/etc/ganesha/ganesha.conf <<'END'
NFS_CORE_PARAM {{ Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ Only_Numeric_Owners = true; RecoveryBackend = fs; }}
EXPORT {{
  Export_Id = 1; Path = /home; Pseudo = /home; Protocols = 4; SecType = sys;
  Access_Type = RW; Squash = No_Root_Squash; FSAL {{ Name = VFS; }}
}}
END
systemctl restart nfs-ganesha
"""
UP = f"""
exec unshare --mount bash -ec 'mount --rbind /run/host-cgroup /sys/fs/cgroup
    cd /; PYTHONPATH={CLONE} exec /srv/packages/bin/python -c "$0"' "$1"
"""
"""The sandbox's slurmd's want the kind of control groups that this host has."""
UNDER_SYSTEMD = f"""
mkdir -p /etc/slurm
mount --bind {SITE}/etc /etc/slurm
rm /etc/systemd/system/slurmctld.service
systemctl daemon-reload
systemctl start slurmctld
"""
EDITOR = """\
#!/bin/sh -e
# What docs/install.md says of credentials, by somebody who types fast.
[ "$1" = /etc/default/slurm-elastic ]
echo AWS_SHARED_CREDENTIALS_FILE=/etc/slurm-elastic/aws-credentials >"$1"
printf '[default]\\naws_access_key_id=testing\\naws_secret_access_key=testing\\n' >/etc/slurm-elastic/aws-credentials
chown slurm: /etc/slurm-elastic/aws-credentials
chmod 600 /etc/slurm-elastic/aws-credentials
"""
SHELL = f"cd {CLONE}; export PATH=/usr/local/sbin:/usr/local/bin:$PATH; "


@contextmanager
def site() -> Iterator[tuple[Head, str]]:
    """A head with a slurmctld under systemd, a clone, and nothing of ours; where its cloud answers."""
    with head(debian(sys.executable), Path(sys.prefix)) as machine:
        leave = shutil.ignore_patterns(
            ".git", ".venv", "__pycache__", ".*_cache", "build", "*-info"
        )
        shutil.copytree(ROOT, machine.path(CLONE), ignore=leave)
        machine.shell(MADE, seconds=300)
        url = machine.run("/bin/bash", "-ec", UP, "up", SANDBOX, seconds=300).splitlines()[-1]
        machine.shell(UNDER_SYSTEMD)
        editor = machine.path("/usr/local/bin/editor")
        editor.write_text(EDITOR)
        editor.chmod(0o755)
        yield machine, url


def configuration(url: str) -> str:
    """That of docs/first-burst.md for EC2, with what only a site knows: its region, image and network."""
    text = shown("docs/first-burst.md", "    provider: aws").text
    mine = {
        "region: eu-central-1": f"region: us-east-1\n    endpoint: {url}",
        "ami-0123456789abcdef0": "ami-12c6146b",
        "subnets: {eu-central-1a: subnet-0aa}": "zones: [us-east-1a, us-east-1b]",
        f"nodes: {NODES}": f"nodes: {NODES}\n    slurmd_port: {PORT}",  # its machines are one host
    }
    assert [word for word in mine if text.count(word) != 1] == []
    return (
        replaced(text, mine)
        + "timings: {suspend_time: 10, suspend_timeout: 5, reconcile_interval: 2}\n"
    )


def types(machine: Head, line: str, user: str = "") -> str:
    """A line in a shell at the clone; its output."""
    become = f"setpriv --reuid={user} --regid=users --init-groups " if user else ""
    said = machine.shell(SHELL + become + line, seconds=400)
    print(f"# {line}\n{said}")
    return said


def in_one_shell(machine: Head, block: Block) -> None:
    lines: list[str] = []
    block.run(lines.append, {"./scripts/install ": "./scripts/install --extras aws "})  # its wheels
    print(machine.shell("\n".join([SHELL, *lines]), seconds=400))


def runs(machine: Head) -> None:
    """The services are up, and will be after a boot; slurm.conf has our nodes."""
    units = ("slurm-elasticd", "slurm-elastic-ckptman", "slurm-elastic-watchdog")
    for word, state in (("is-active", "active"), ("is-enabled", "enabled")):
        assert machine.run("systemctl", word, *units).split() == [state] * 3
    assert "burst" in machine.shell("sinfo --noheader --Node --format=%N")


def test_the_first_burst() -> None:
    with site() as (machine, url):
        in_one_shell(machine, shown("docs/install.md", "./scripts/install"))
        machine.path("/etc/slurm-elastic/slurm-elastic.yaml").write_text(configuration(url))
        machine.shell("/usr/local/bin/editor /etc/default/slurm-elastic")

        agreed = {
            "slurm-elastic try aws ": "slurm-elastic try aws --yes "
        }  # nobody is there to ask
        shown("docs/first-burst.md", "slurm-elastic conf show").run(
            lambda line: types(machine, line), agreed
        )
        runs(machine)
        bursts(machine)


def bursts(machine: Head) -> None:
    look = "timeout --signal=INT 20 slurm-elastic status --watch || [ $? = 124 ];"
    words = {"42": "", "slurm-elastic status --watch": look, "--wrap": "-D /tmp --wrap"}

    def typed(line: str) -> None:
        if line.startswith("sbatch"):
            words["42"] = types(machine, line, "ann").split()[-1]
        else:
            types(machine, line)

    shown("docs/first-burst.md", "sbatch --partition=aws").run(typed, words)
    show = f"scontrol show job {words['42']}"
    eventually(
        lambda: "JobState=COMPLETED" in machine.shell(show),
        180, lambda: machine.shell("sinfo; squeue; journalctl -n 60 -u 'slurm-elastic*'"),
    )  # fmt: skip
    assert "NodeList=burst" in machine.shell(show)


def test_the_readmes_installation() -> None:
    """test_deb.py installs the packages; here the installation by hand stands for the first two lines."""
    with site() as (machine, url):
        in_one_shell(machine, shown("docs/install.md", "./scripts/install"))
        assert machine.path("/usr/local/share/man/man1/slurm-elastic.1").exists()

        def typed(line: str) -> None:
            if line.startswith(
                "slurm-elastic init"
            ):  # it finds no cloud that is emulated elsewhere
                machine.path("/etc/slurm-elastic/slurm-elastic.yaml").write_text(configuration(url))
                machine.shell("/usr/local/bin/editor /etc/default/slurm-elastic")
            elif not line.startswith(("./scripts/package deb", "apt install ")):
                types(machine, line)

        shown("README.md", "./scripts/package deb").run(typed)
        runs(machine)
