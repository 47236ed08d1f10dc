"""Machines of a sandbox that share no directory with its head: each has a mount namespace, in which
the directory of the jobs is empty. The head gets into each by one real sshd.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from needs import missing

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.daemons import listens
from tests.e2e.world import PATIENCE
from tests.real_sshd import Sshd

NODE_DIR = Path("/var/lib/slurm-elastic-node")
"""Where a machine has its own files; here a place to mount over."""
_SLURMD = """#!/bin/sh
for word; do [ "$before" = -f ] && conf=$word; before=$word; done
exec unshare --mount --propagation private /bin/sh -c '
    mount -t tmpfs -o mode=1777,size={size} files "$0/work" && mount -t tmpfs own {node_dir} &&
    exec /usr/sbin/slurmd "$@"' "${{conf%/etc/slurm.conf}}" "$@"
"""
_GATE = """#!/bin/sh
case $SSH_ORIGINAL_COMMAND in
"jobfiles "*)
    node=${{SSH_ORIGINAL_COMMAND#jobfiles }} node=${{node%% *}}
    pid=$(pgrep -o -f "^/usr/sbin/slurmd -N $node .*$(cat {place}/root)/") || exit 7
    exec nsenter --target "$pid" --mount --uts {python} -I {place}/node/jobfiles.pyz node \
        "$SSH_ORIGINAL_COMMAND" ;;
*)
    exec unshare --mount --propagation private sh -c '
        mount --bind {place}/node {node_dir} && mount -t tmpfs home /root && mkdir /root/.ssh &&
        mount --bind {place}/home /root/.ssh && exec sh -c "$SSH_ORIGINAL_COMMAND"' ;;
esac
"""


def why_not() -> str | None:
    return missing("sshd", "unshare", "nsenter", "pgrep")


class Apart:
    """What the machines of one sandbox need. ``settings``: what its configuration has for them."""

    def __init__(self, place: Path, *, size: str = "64m") -> None:
        self.place = place
        place.chmod(0o755)
        self.sshd = Sshd(place / "sshd")
        NODE_DIR.mkdir(exist_ok=True)
        for name in ("node", "home", "sbin"):
            (place / name).mkdir()
        (place / "sbin" / "slurmctld").symlink_to("/usr/sbin/slurmctld")
        facts = {"place": place, "node_dir": NODE_DIR, "python": sys.executable, "size": size}
        for path, text in ((place / "sbin" / "slurmd", _SLURMD), (place / "gate", _GATE)):
            path.write_text(text.format_map(facts))
            path.chmod(0o755)
        config = self.sshd.place / "config"
        keys = f"{self.sshd.place}/authorized"
        config.write_text(
            config.read_text().replace(keys, f"{keys} {place}/home/authorized_keys")
            + f"ForceCommand {place}/gate\nMaxStartups 100\n"
        )
        for name in ("login", "munge.key"):
            path = place / name
            path.write_bytes(self.sshd.key.read_bytes() if name == "login" else b"k" * 64)
            shutil.chown(path, "slurm", "slurm")
            path.chmod(0o400)

    @property
    def settings(self) -> dict[str, Any]:
        ssh = {
            "key": f"{self.place}/login", "munge_key": f"{self.place}/munge.key",
            "host_key": self.sshd.host_key, "port": self.sshd.port,
        }  # fmt: skip
        return {
            "slurm": {"sbin_dir": f"{self.place}/sbin"},
            "join": {"head": "127.0.0.1", "ssh": ssh},
            "copy": {"socket": f"{self.place}/copier.sock", "outputs_every": "2s"},
        }

    def attach(self, site: Sandbox) -> None:
        """The sandbox is up: let the gate find its machines, and start the copier."""
        (self.place / "root").write_text(str(site.layout.dir))
        argv = [sys.executable, "-P", "-m", "slurm_elastic.cli.services.copier"]
        argv += ["--config", str(site.layout.config)]
        site.processes.start("copier", argv, site.layout.daemon_env())
        socket = self.place / "copier.sock"
        site.wait_for(lambda: listens(socket), PATIENCE, "the copier listens")


@contextmanager
def apart(
    sandbox: Callable[..., Sandbox], settings: Mapping[str, Any], *, size: str = "64m"
) -> Iterator[tuple[Sandbox, Apart]]:
    """A sandbox of local machines with ``data: copy``."""
    with tempfile.TemporaryDirectory(prefix="se-apart-", dir="/tmp") as directory:
        machines = Apart(Path(directory), size=size)
        elastic = dict(settings.get("elastic", {}))
        for name, section in machines.settings.items():
            elastic[name] = {**section, **elastic.get(name, {})}
        with machines.sshd.running():
            site = sandbox(**{**settings, "elastic": elastic})
            machines.attach(site)
            yield site, machines
