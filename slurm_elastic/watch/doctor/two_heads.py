"""Two heads: whether both could act, and would act alike (``ha.directory``)."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.base import trust, writing
from slurm_elastic.base.account import trusted
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.units import brief
from slurm_elastic.config import Config
from slurm_elastic.machine.ckptroot import mounts
from slurm_elastic.model.finding import Finding
from slurm_elastic.slurm.client.acting import Controllers, controllers
from slurm_elastic.slurm.client.siteconf import read
from slurm_elastic.state.heads import Epochs
from slurm_elastic.state.heartbeat import CKPTMAN, DAEMON
from slurm_elastic.state.presence import STALE, Seen, told
from slurm_elastic.watch.door.acting_head import RESTART

SLOW = 0.05
"""Seconds that a write may take until it is on the disk: each launch waits for some."""
SKEW = 5.0
"""Seconds by which the clocks of both heads may differ: who acts is told by them."""
UNFIT = {
    "nocto": "a head may not see for a minute what the other one has written",
    "soft": "a server that is away for long makes writes fail, Slurm's too",
    "softerr": "a server that is away for long makes writes fail, Slurm's too",
}
"""Options of nfs(5) with which the directory is not to be mounted, and why."""
_PAGE = "docs/two-heads.md"


def examine(config: Config, now: float) -> Iterator[Finding]:
    """Nothing where there is one head."""
    if config.ha.directory is None:
        return
    directory = Path(config.ha.directory)
    try:
        pair = controllers(config.slurm.conf)
        last = Epochs(directory).newest()
        flaw = trust.flaw(directory, {*trust.roots(), *trusted(config.slurm.user)})
        acting, took = pair.acting_host(now), _sync(directory)
    except (OSError, ConfigError) as error:
        what = f"ha.directory {directory}"
        expected = f"a directory of {config.slurm.user}'s that both heads see"
        yield Finding.wrong(what, str(error), expected=expected, advice=_PAGE)
        return
    if flaw:
        found, _, advice = flaw.partition("; ")
        expected = "a directory that only SlurmUser and root can change"
        yield Finding.wrong(f"ha.directory {directory}", found, expected=expected, advice=advice)
    yield from _addresses(config.slurm.conf)
    acts = f"{acting or 'no slurmctld'} acts"
    if acting and last is not None and pair.place_of(last.host) != pair.place_of(acting):
        yield Finding.wrong(
            "two heads",
            f"Slurm acts on {acting}, and epoch {last.number} is of {last.holder}",
            expected=f"services on {acting} that have taken over within a minute",
            advice=f"on {acting}: {RESTART}",
        )
    else:
        yield Finding.ok("two heads", f"{acts}, epoch {last.number if last else 'none yet'}")
    if took > SLOW:
        yield Finding.note(
            f"ha.directory {directory}",
            f"{took * 1000:.0f} ms until a write is on its disk",
            expected=f"at most {SLOW * 1000:.0f} ms: each launch waits for some",
        )
    options = mounts.nfs_options(str(directory.resolve()), mounts.mounts())
    for name in sorted(options & UNFIT.keys()):
        yield Finding.wrong(
            f"ha.directory {directory}",
            f"mounted with {name}: {UNFIT[name]}",
            expected=f"a mount of NFS without {name}",
            advice=_PAGE,
        )
    for service in (DAEMON, CKPTMAN):
        yield from _service(pair, service, told(directory, service), now)


def _addresses(conf: str) -> Iterator[Finding]:
    """Of what slurm.conf says itself: names may mean something else on the other hosts."""
    seen: dict[str, str] = {}
    for entry in read(conf).options("SlurmctldHost"):
        name, _, inside = entry.value.partition("(")
        address = inside.rstrip(")") or name
        what = f"{entry.where}: SlurmctldHost {name}"
        if address in seen:
            found = f"{address}, the address of {seen[address]}, too"
            expected = "an address of its own: nobody would reach it when it takes over"
            yield Finding.wrong(what, found, expected=expected, advice=_PAGE)
        elif _is_loopback(address):
            expected = "an address that the other head and machines reach"
            yield Finding.note(what, f"{address}, which is each host itself", expected=expected)
        seen[address] = name


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _service(
    pair: Controllers, service: str, found: Mapping[str, Seen], now: float
) -> Iterator[Finding]:
    """Whether it runs on both, with one configuration and by one clock."""
    seen = {host: one for host, one in found.items() if pair.place_of(host) is not None}
    there = {pair.place_of(host) for host in seen}
    for place, host in enumerate(pair.hosts):
        if place not in there:
            yield _not_there(service, host, "it has never run there")
    for host, one in seen.items():
        if now - one.presence.at > STALE:
            silent = f"no sign of life for {brief(now - one.presence.at)}"
            yield _not_there(service, host, silent)
    alive = {host: one for host, one in seen.items() if now - one.presence.at <= STALE}
    if len({one.presence.config for one in alive.values()}) > 1:
        yield Finding.wrong(
            f"{service} on {' and '.join(alive)}",
            "their configurations differ",
            expected="the same on both: the one that takes over must go on alike",
            advice="copy /etc/slurm-elastic to the other head, and restart the services there",
        )
    if len({one.presence.tunnel for one in alive.values()}) > 1:
        yield Finding.wrong(
            f"slurm-elastic-hub on {' and '.join(alive)}",
            "not the same key on both, or none on one",
            expected="the same key: machines speak only to the one that they were told",
            advice=f"{_PAGE}, The hub",
        )
    if len({one.presence.version for one in alive.values()}) > 1:
        versions = ", ".join(f"{one.presence.version} on {host}" for host, one in alive.items())
        yield Finding.wrong(f"{service}", versions, expected="the same release on both heads")
    ahead = [one.ahead for one in alive.values()]
    if ahead and max(ahead) - min(ahead) > SKEW:
        yield Finding.wrong(
            f"clocks of {' and '.join(alive)}",
            f"{max(ahead) - min(ahead):.0f} s apart",
            expected=f"at most {SKEW:g} s: by them Slurm and we tell who acts",
            advice="chrony or the like on both",
        )


def _not_there(service: str, host: str, found: str) -> Finding:
    return Finding.wrong(
        f"{service} on {host}",
        found,
        expected="it runs on both heads: nobody would go on when the other one dies",
        advice=f"on {host}: systemctl restart {service}; {_PAGE}",
    )


def _sync(directory: Path) -> float:
    """Seconds until what is written there is on the disk."""
    begun = time.monotonic()
    with writing.draft(directory / "probe", b"x"):
        return time.monotonic() - begun
