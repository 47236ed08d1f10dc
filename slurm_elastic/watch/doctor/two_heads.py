"""Two heads (``ha.directory``): whether each could act, and whether both would act alike."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_elastic.base import trust, writing
from slurm_elastic.base.account import trusted
from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes import service_remedies
from slurm_elastic.base.units import brief
from slurm_elastic.config import Config
from slurm_elastic.config.sections.joining import Ssh
from slurm_elastic.machine.ckptroot import mounts
from slurm_elastic.model.finding import Finding
from slurm_elastic.slurm.client.acting import Controllers, controllers
from slurm_elastic.slurm.client.siteconf import read
from slurm_elastic.state.heads import Epochs
from slurm_elastic.state.heartbeat import CKPTMAN, DAEMON
from slurm_elastic.state.presence import STALE, Seen, read_presences
from slurm_elastic.watch.door.acting_head import restart_both

MAX_WRITE_S = 0.05
"""Time until a write is on the disk. Each launch waits for several writes."""
MAX_SKEW_S = 5.0
"""Difference of the heads' clocks. The acting head is determined by comparing times."""
UNFIT = {
    "nocto": "a head may not see for a minute what the other one has written",
    "soft": "a server that is away for long makes writes fail, Slurm's too",
    "softerr": "a server that is away for long makes writes fail, Slurm's too",
}
"""Options of nfs(5) that the mount of the directory must not have, and the reasons."""
_PAGE = page("two-heads")


def examine(config: Config, now: float) -> Iterator[Finding]:
    """Yield the findings; none if there is one head."""
    if config.ha.directory is None:
        return
    directory = Path(config.ha.directory)
    try:
        pair = controllers(config.slurm.conf)
        newest_epoch = Epochs(directory).newest()
        rights_flaw = trust.flaw(directory, {*trust.roots(), *trusted(config.slurm.user)})
        acting, write_s = pair.acting_host(now), _write_time(directory)
    except (OSError, ConfigError) as error:
        subject = f"ha.directory {directory}"
        expected = f"a directory of {config.slurm.user}'s that both heads see"
        yield Finding.wrong(subject, str(error), expected=expected, advice=_PAGE)
        return
    if rights_flaw:
        finding_text, _, advice = rights_flaw.partition("; ")
        expected = "a directory that only SlurmUser and root can change"
        yield Finding.wrong(
            f"ha.directory {directory}", finding_text, expected=expected, advice=advice
        )
    yield from _addresses(config.slurm.conf)
    acts = f"{acting or 'no slurmctld'} acts"
    if (
        acting
        and newest_epoch is not None
        and pair.place_of(newest_epoch.host) != pair.place_of(acting)
    ):
        yield Finding.wrong(
            "two heads",
            f"Slurm acts on {acting}, and epoch {newest_epoch.number} is of {newest_epoch.holder}",
            expected=f"services on {acting} that have taken over within a minute",
            advice=f"on {acting}: {restart_both()}",
        )
    else:
        yield Finding.ok(
            "two heads", f"{acts}, epoch {newest_epoch.number if newest_epoch else 'none yet'}"
        )
    if write_s > MAX_WRITE_S:
        yield Finding.note(
            f"ha.directory {directory}",
            f"{write_s * 1000:.0f} ms until a write is on its disk",
            expected=f"at most {MAX_WRITE_S * 1000:.0f} ms: each launch waits for several writes",
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
        yield from _service(pair, service, read_presences(directory, service), now)
    if config.join.ssh is not None:
        yield from _secrets(pair, config.join.ssh, read_presences(directory, DAEMON), now)


def _addresses(conf: str) -> Iterator[Finding]:
    """Yield SlurmctldHost entries of slurm.conf whose address cannot work on the other host."""
    host_by_address: dict[str, str] = {}
    for entry in read(conf).options("SlurmctldHost"):
        name, _, in_brackets = entry.value.partition("(")
        address = in_brackets.rstrip(")") or name
        subject = f"{entry.location}: SlurmctldHost {name}"
        if address in host_by_address:
            finding_text = f"{address}, the address of {host_by_address[address]}, too"
            expected = "an address of its own: else no machine reaches it after it took over"
            yield Finding.wrong(subject, finding_text, expected=expected, advice=_PAGE)
        elif _is_loopback(address):
            expected = "an address that the other head and machines reach"
            yield Finding.note(subject, f"{address}, which is each host itself", expected=expected)
        host_by_address[address] = name


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def _service(
    pair: Controllers, service: str, seen_by_host: Mapping[str, Seen], now: float
) -> Iterator[Finding]:
    """Check that a service runs on both heads, with one configuration and one clock."""
    services = {
        host: seen for host, seen in seen_by_host.items() if pair.place_of(host) is not None
    }
    places = {pair.place_of(host) for host in services}
    for place, host in enumerate(pair.hosts):
        if place not in places:
            yield _not_there(service, host, "it has never run there")
    for host, seen in services.items():
        if now - seen.presence.at > STALE:
            silent = f"no sign of life for {brief(now - seen.presence.at)}"
            yield _not_there(service, host, silent)
    alive = {host: seen for host, seen in services.items() if now - seen.presence.at <= STALE}
    if len({seen.presence.config for seen in alive.values()}) > 1:
        yield Finding.wrong(
            f"{service} on {' and '.join(alive)}",
            "their configurations differ",
            expected="the same on both: the head that takes over must decide by the same rules",
            advice="copy /etc/slurm-elastic to the other head, and restart the services there",
        )
    if len({seen.presence.tunnel for seen in alive.values()}) > 1:
        yield Finding.wrong(
            f"slurm-elastic-hub on {' and '.join(alive)}",
            "the keys on the two heads differ, or one head has no key",
            expected="the same key: machines accept only the key that they were given",
            advice=f"{_PAGE}, The hub",
        )
    if len({seen.presence.version for seen in alive.values()}) > 1:
        versions = ", ".join(f"{seen.presence.version} on {host}" for host, seen in alive.items())
        yield Finding.wrong(f"{service}", versions, expected="the same release on both heads")
    clock_leads = [seen.ahead for seen in alive.values()]
    if clock_leads and max(clock_leads) - min(clock_leads) > MAX_SKEW_S:
        yield Finding.wrong(
            f"clocks of {' and '.join(alive)}",
            f"{max(clock_leads) - min(clock_leads):.0f} s apart",
            expected=f"at most {MAX_SKEW_S:g} s: the acting head is found by comparing times",
            advice="run chrony or another NTP client on both",
        )


def _secrets(
    pair: Controllers, ssh: Ssh, seen_by_host: Mapping[str, Seen], now: float
) -> Iterator[Finding]:
    """Check that both heads would bring the same secret of Slurm's to new machines.

    If a key is changed on only one head, nothing fails until the other head acts.
    """
    digests = {
        host: head.presence.secret
        for host, head in seen_by_host.items()
        if pair.place_of(host) is not None
        and now - head.presence.at <= STALE
        and head.presence.secret is not None
    }
    if len(set(digests.values())) <= 1:
        return
    unread = [host for host, digest in digests.items() if not digest]
    service = "slurmctld" if ssh.slurm_keys else "munged"
    yield Finding.wrong(
        f"{ssh.secret} on {' and '.join(digests)}",
        f"slurm-elasticd cannot read it on {', '.join(unread)}" if unread else "the files differ",
        expected="the same on both: after a takeover new machines get the file of the other head",
        advice=f"copy {ssh.secret}, and the key that {service} uses, from the head whose nodes"
        f" answer to the other one, and restart {service} there ({page('keys')})",
    )


def _not_there(service: str, host: str, finding_text: str) -> Finding:
    return Finding.wrong(
        f"{service} on {host}",
        finding_text,
        expected="it runs on both heads, so that one continues if the other head fails",
        advice=f"on {host}: {service_remedies.restart(service)}; {_PAGE}",
    )


def _write_time(directory: Path) -> float:
    """Return how many seconds a write takes until it is on the disk."""
    started_at = time.monotonic()
    with writing.draft(directory / "probe", b"x"):
        return time.monotonic() - started_at
