"""Two heads (``ha.directory``): whether slurm.conf names the same two as our configuration, and the
steps on the other head.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

from slurm_elastic.base.account import account
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.pages import page
from slurm_elastic.config import Config
from slurm_elastic.config.sections.copying import Data
from slurm_elastic.slurm.client.acting import controllers, takeover, timeout_of
from slurm_elastic.slurm.client.siteconf import SiteConf

_PAGE = page("two-heads")
_UNITS = "/etc/systemd/system"


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """Sentences for an admin. None with one head, or with two that fit slurm.conf."""
    heads = site.options("SlurmctldHost")
    names = ", ".join(head.value.partition("(")[0] for head in heads) or "none"
    if config.ha.directory is None:
        if len(heads) > 1:
            yield (
                f"{heads[1].location}: slurm.conf names {len(heads)} controllers ({names}), and"
                " ha.directory is not set: the services run on one of them; while another one is in"
                f" control nothing is launched or ended ({_PAGE})"
            )
        return
    if len(heads) < 2:
        yield (
            f"{heads[0].location if heads else site.path}: found SlurmctldHost {names}, expected"
            f" two such lines, as ha.directory is set: no head would take over ({_PAGE})"
        )
        return
    needed, grace = takeover(timeout_of(site)), config.timings.orphan_timeout
    if grace < needed:
        # The services wait that long in any case, so a smaller value in the key would be wrong.
        yield (
            f"timings.orphan_timeout: found {grace:g} s, expected {needed:g} s or more (2 x"
            f" SlurmctldTimeout of {site.path} + 60 s): for that long after a takeover Slurm"
            f" repeats forgotten requests, and no machine ends without a request ({_PAGE})"
        )


def steps(config: Config, config_path: Path, peer: str, restart: str | None) -> tuple[str, ...]:
    """The steps for root on the other head. ConfigError if ``peer`` is not that head."""
    if config.ha.directory is None:
        raise ConfigError(
            f"{config_path}: ha.directory: not set, expected the directory that this head and"
            f" {peer} share ({_PAGE})"
        )
    pair = controllers(config.slurm.conf)
    other_hosts = [host for place, host in enumerate(pair.hosts) if place != pair.place]
    if pair.place_of(peer) in (None, pair.place):
        expected = " or ".join(other_hosts) or "another host in a second line"
        raise ConfigError(
            f"--peer: found {peer}, expected {expected}, as {config.slurm.conf} has it for"
            f" SlurmctldHost; this host is {pair.hosts[pair.place]}"
        )
    commands = _commands(config, config_path.absolute(), pair.hosts[pair.place], restart)
    numbered = (f"{number}. {command}" for number, command in enumerate(commands, 1))
    return (f"then on {peer}, as root ({_PAGE}):", *numbered)


def _commands(config: Config, path: Path, here: str, restart: str | None) -> Iterator[str]:
    """The commands. Paths of a configuration have no characters that are special to a shell."""
    user, parent = config.slurm.user, shlex.quote(str(path.parent.parent))
    copied = f"-c --exclude=installed.json {shlex.quote(path.parent.name)}"
    restart_option = f" --restart {shlex.quote(restart)}" if restart else ""
    drop_in = f"{_UNITS}/$unit.service.d"
    write = f"'[Service]\\nReadWritePaths={config.ha.directory}\\n'"
    units = "slurm-elasticd slurm-elastic-ckptman"
    writers = f"{units} slurm-elastic-web"  # the page writes its visitors' orders
    yield f"install slurm-elastic {version('slurm-elastic')}; `id -u {user}` says {_uid(config)}"
    yield f"ssh {here} tar -C {parent} {copied} | tar -C {parent} -xp"
    yield f"scp -p {here}:/etc/default/slurm-elastic /etc/default/    # and credentials elsewhere"
    yield f"slurm-elastic --config {shlex.quote(str(path))} conf install{restart_option}"
    yield f"runuser -u {user} -- mkdir -p {config.ha.directory}"
    yield (
        f"for unit in {writers}; do mkdir -p {drop_in}; printf {write} >{drop_in}/ha.conf; done"
        f"    # on {here}, too"
    )
    # Before slurm-elasticd, which asks the hub and the copier.
    yield f"systemctl enable --now {' '.join(_helpers(config))}    # on {here}, too"
    yield (
        f"systemctl daemon-reload && systemctl enable {units} && systemctl restart {units}"
        f" && systemctl try-restart slurm-elastic-web"
        f"    # on {here}, too"
    )
    yield "slurm-elastic doctor --quick"


def _helpers(config: Config) -> Iterator[str]:
    """The services without which this configuration does not work, or is not watched."""
    if config.join.network is not None:
        yield "slurm-elastic-hub"
    if any(cloud.data is Data.COPY for cloud in config.clouds):
        yield "slurm-elastic-copier"
    yield "slurm-elastic-watchdog"


def _uid(config: Config) -> str:
    try:
        return str(account(config.slurm.user).pw_uid)
    except KeyError:
        return "the same as here"
