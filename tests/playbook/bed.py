"""Machines with a systemd of their own, and ansible-playbook over SSH to each: no network, no cloud."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from needs import missing
from patience import patience

from tests.package.head import Head

REPO = Path(__file__).parents[2]
SETTINGS = "[global]\nno-index = true\nfind-links = /srv/wheels\n"
_RECAP = re.compile(r"^(\S+) +: ok=\d+ +changed=(\d+) +unreachable=(\d+) +failed=(\d+)", re.M)
_PREPARE = """
usermod -p '*' root
mkdir -p /root/.ssh /run/sshd
printf '%s' '{key}' >/root/.ssh/authorized_keys
rm -rf /root/.config/pip /root/.pip
printf '%s' '{pip}' >/etc/pip.conf
hostname {name}; echo {name} >/etc/hostname
printf '10.88.1.1 head1\\n10.88.1.2 n1\\n10.88.2.1 head1\\n10.88.2.2 head2\\n' >>/etc/hosts
"""


def debian(python: str) -> Path:
    """The root that machines boot from, with what the roles install in reach."""
    project = tomllib.loads((REPO / "pyproject.toml").read_text())
    needs = [
        "wheel", *project["build-system"]["requires"], *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["aws"],
    ]  # fmt: skip
    told = subprocess.run(
        [Path(__file__).parent / "root", python, *sorted(set(needs))],
        capture_output=True, text=True, check=False, timeout=patience(900),
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return Path(told.stdout.strip())


class Bed:
    """The machines by name, and who may log in to them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.machines: dict[str, Head] = {}
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place / "key"], check=True
        )

    def add(self, name: str, machine: Head) -> None:
        """``name`` can be reached by ansible from now on."""
        key = (self.place / "key.pub").read_text()
        machine.shell(_PREPARE.format(key=key, pip=SETTINGS, name=name))
        self.machines[name] = machine

    def link(self, one: str, other: str, subnet: str) -> None:
        """A cable: ``one`` has the first address of the subnet (10.88.1), ``other`` the second."""
        pids = [self.machines[name].init() for name in (one, other)]
        ends = [f"se{subnet.rpartition('.')[2]}{end}-{pids[0]}" for end in "ab"]
        _run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for number, (end, pid) in enumerate(zip(ends, pids, strict=True), start=1):
            _run("ip", "link", "set", end, "netns", pid)
            machine = self.machines[(one, other)[number - 1]]
            machine.run("ip", "address", "add", f"{subnet}.{number}/24", "dev", end)
            machine.run("ip", "link", "set", end, "up")

    def play(
        self, groups: Mapping[str, Sequence[str]], variables: Mapping[str, str], *options: str
    ) -> subprocess.CompletedProcess[str]:
        """ansible/site.yml on these machines."""
        inventory = self.place / "inventory"
        lines = [line for group, names in groups.items() for line in self._lines(group, names)]
        lines += ["[all:vars]", *(f"{key}={value}" for key, value in variables.items())]
        inventory.write_text("\n".join((*lines, "")))
        env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(self.place), "LANG": "C.UTF-8",
            "ANSIBLE_PIPELINING": "1", "ANSIBLE_HOST_KEY_CHECKING": "0", "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.place / "temporary"), "ANSIBLE_RETRY_FILES_ENABLED": "0",
            "ANSIBLE_SSH_ARGS": "-o ControlMaster=auto -o ControlPersist=5s",
        }  # fmt: skip
        return subprocess.run(
            ["ansible-playbook", "-i", inventory, REPO / "ansible" / "site.yml", *options],
            env=env, cwd=self.place, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=patience(900),
        )  # fmt: skip

    def played(
        self, groups: Mapping[str, Sequence[str]], variables: Mapping[str, str], *options: str
    ) -> dict[str, int]:
        """The same where it has to end well; how much it changed, by machine."""
        done = self.play(groups, variables, *options)
        assert done.returncode == 0, done.stdout + self._journals()
        return {name: int(changed) for name, changed, _, _ in _RECAP.findall(done.stdout)}

    def _journals(self) -> str:
        """The last log lines of each machine's services."""
        last = ("journalctl", "--no-pager", "-n", "40")
        return "\n".join(f"--- {n}\n{m.run(*last, check=False)}" for n, m in self.machines.items())

    def _lines(self, group: str, names: Sequence[str]) -> list[str]:
        return [f"[{group}]", *(f"{name} {self._connection(name)}" for name in names)]

    def _connection(self, name: str) -> str:
        """SSH's own protocol to an sshd in there, by its standard input and output."""
        enter = (
            f"nsenter --target {self.machines[name].init()} --mount --pid --ipc --uts --net"
            " /usr/sbin/sshd -i -o UsePAM=no"
        )
        return (
            f"ansible_user=root ansible_ssh_private_key_file={self.place}/key"
            f" ansible_python_interpreter=/usr/bin/python3 ansible_ssh_common_args='"
            f'-o ProxyCommand="{enter}" -o UserKnownHostsFile=/dev/null\''
        )


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=patience(60))


def tools() -> str:
    """Why this machine cannot run the playbook; '' where it can."""
    if os.geteuid() != 0:
        return "only root can make machines"
    if not (REPO / ".git").exists():
        return "the role packs a clone's commit"
    return missing("ansible-playbook", "ip", "git")
