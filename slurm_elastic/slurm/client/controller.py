"""The running slurmctld for install and uninstall: whether it is up, and how it reads its files."""

from __future__ import annotations

import logging
import os
import re
import shlex
import time
from collections.abc import Set
from itertools import pairwise
from pathlib import Path

from slurm_elastic.base.errors import ConfigError, SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client.command import output, output_in, unix_time

log = logging.getLogger(__name__)

RECONFIGURES_NODES = (24, 11)
"""Since this release `scontrol reconfigure` accepts a changed node set. 22.05's slurmctld ends
itself ("MaxNodeCount has changed ... slurmctld must be restarted"). Versions between were not
measured.
"""

_UP_TIMEOUT_S = 120.0
_CONF = re.compile(r"^SLURM_CONF\s*=\s*(/\S+)", re.MULTILINE)
_CONF_VARIABLE = b"SLURM_CONF="
_BOOT_TIME = re.compile(r"^BOOT_TIME\s*=\s*(\d{4}-\S+)", re.MULTILINE)


def is_up(settings: SlurmSettings) -> bool:
    """Whether slurmctld answers."""
    try:
        return " is UP" in _scontrol(settings, "ping")
    except SlurmError:
        return False


def may_run_here(settings: SlurmSettings) -> bool:
    """Whether a slurmctld of this host may run with this slurm.conf. An answer that does not come
    proves nothing, because slurmctld may be busy.
    """
    return any(_may_serve(process, settings) for process in Path("/proc").glob("[0-9]*"))


def _may_serve(process: Path, settings: SlurmSettings) -> bool:
    """Whether this process may be a slurmctld that has read our slurm.conf."""
    try:
        # Debian's program is slurmctld-wlm.
        if not (process / "comm").read_text(errors="replace").startswith("slurmctld"):
            return False
        # A container on this host may be the head of another cluster.
        if os.readlink(process / "ns" / "pid") != os.readlink("/proc/self/ns/pid"):
            return False
        conf = _conf_of(process)
    except (FileNotFoundError, ProcessLookupError):  # it has ended
        return False
    except OSError:  # another user's process: it may be ours
        return True
    return conf is None or _place(conf) == _place(settings.conf)


def _conf_of(process: Path) -> str | None:
    """The slurm.conf that this slurmctld was started with. None: the one of its own default."""
    arguments = (process / "cmdline").read_bytes().split(b"\0")
    named = [value for flag, value in pairwise(arguments) if flag == b"-f"]
    variables = (process / "environ").read_bytes().split(b"\0")
    named += [v.removeprefix(_CONF_VARIABLE) for v in variables if v.startswith(_CONF_VARIABLE)]
    return os.fsdecode(named[0]) if named else None


def uses(settings: SlurmSettings, directory: str) -> bool:
    """Whether the running slurmctld's configuration names a program in ``directory``."""
    return f"{directory.rstrip('/')}/" in _scontrol(settings, "show", "config")


def serves(
    settings: SlurmSettings, nodes: Set[str], partitions: Set[str], written_at: float
) -> bool:
    """Whether slurmctld has these nodes and partitions, and has read files of ``written_at``."""
    shown = _BOOT_TIME.search(_scontrol(settings, "show", "config"))
    # Slurm shows whole seconds, so the file's time is cut as well.
    if shown is None or unix_time(shown[1]) < int(written_at):
        return False
    return nodes <= _names(settings, "nodes") and partitions <= _names(settings, "partitions")


def require_own_conf(settings: SlurmSettings) -> None:
    """ConfigError if the running slurmctld reads another slurm.conf, or the same through a link
    beside which our include is not.
    """
    try:
        shown = _CONF.search(_scontrol(settings, "show", "config")) if is_up(settings) else None
    except SlurmError:  # a controller that stands by answers pings and nothing else
        return
    if shown is not None and _place(shown[1]) != _place(settings.conf):
        raise ConfigError(
            f"slurm.conf: found {settings.conf}, but the running slurmctld reads {shown[1]}, and"
            f" looks for included files beside it; write conf: {shown[1]}"
        )


def _place(conf: str) -> Path:
    # Links to the directory are followed, and a link to the file is not, as Slurm does.
    return Path(conf).parent.resolve() / Path(conf).name


def _names(settings: SlurmSettings, kind: str) -> Set[str]:
    # --all includes hidden partitions (scontrol(1)).
    shown = _scontrol(settings, "--all", "--oneliner", "show", kind)
    return {line.split(maxsplit=1)[0].partition("=")[2] for line in shown.splitlines() if line}


def node_values(settings: SlurmSettings) -> dict[str, dict[str, str]]:
    """The values that the running slurmctld has for each node, by node and by scontrol's name."""
    nodes = {}
    for line in _scontrol(settings, "--all", "--oneliner", "show", "node").splitlines():
        # The first of a name: people write the texts at the end, such as the reason of a drain.
        pairs = [word.partition("=")[::2] for word in reversed(line.split()) if "=" in word]
        values = dict(pairs)
        nodes[values.get("NodeName", "")] = values
    return nodes


def reconfigure(settings: SlurmSettings) -> None:
    """``scontrol reconfigure``. SlurmError if slurmctld does not answer afterwards."""
    _scontrol(settings, "reconfigure")
    wait_up(settings)


def restart(settings: SlurmSettings, command: str) -> None:
    """Run the site's restart command (no shell) and wait until slurmctld answers."""
    log.info("slurmctld restart command=%s", command)
    # Without TZ: a slurmctld that the command itself starts must log in the zone of its host.
    # Sites have programs of their own in /usr/local.
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    variables = {"SLURM_CONF": settings.conf, "PATH": path}
    output_in(split_command(command), variables, settings.command_timeout)
    wait_up(settings)


def split_command(command: str) -> tuple[str, ...]:
    """The program and its arguments, as a shell would split them. Raises ConfigError."""
    try:
        arguments = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"{command!r} is no command: {str(error).lower()}") from None
    if not arguments or not arguments[0]:
        raise ConfigError(f"{command!r} is no command: it names no program")
    return arguments


def wait_up(settings: SlurmSettings) -> None:
    """Return when slurmctld answers. SlurmError after two minutes."""
    deadline = time.monotonic() + _UP_TIMEOUT_S
    while not is_up(settings):
        if time.monotonic() > deadline:
            raise SlurmError(("scontrol", "ping"), None, "slurmctld did not come up again")
        time.sleep(0.2)


def _scontrol(settings: SlurmSettings, *arguments: str) -> str:
    return output((f"{settings.bin_dir}/scontrol", *arguments), settings)
