"""Doctor's findings about a cloud's hosts: libvirt, virtualization, storage, image, network."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import Any

from slurm_elastic.base.errors import ProviderError
from slurm_elastic.model.finding import Finding, FindingLevel
from slurm_elastic.providers.base.preflight import ANSWER, CheckRunner
from slurm_elastic.providers.libvirt import domains
from slurm_elastic.providers.libvirt.hosts import LibvirtHosts
from slurm_elastic.providers.libvirt.settings import LibvirtCloud


def examine(
    settings: LibvirtCloud, hosts: LibvirtHosts, away: Container[str] = ()
) -> Sequence[Finding]:
    """All findings. A host that does not answer does not stop the others. ``away``: hosts that we
    have switched off.
    """
    off = (_away(settings, host) for host in settings.hosts if host in away)
    present = [host for host in settings.hosts if host not in away]
    with hosts.limited():
        return (*off, *(f for host in present for f in _host(settings, hosts, host)))


def _away(settings: LibvirtCloud, host: str) -> Finding:
    text = "switched off by slurm-elastic, because it had no machine"
    if settings.hypervisors is not None and host in settings.hypervisors.bmcs:
        return Finding.note(f"host {host}", text)
    return Finding.wrong(
        f"host {host}",
        f"{text}, and 'hypervisors' no longer names it",
        expected="a host that slurm-elastic can switch on",
        advice="switch it on by hand (it is used when its libvirt answers), or name its BMC again",
    )


def _host(settings: LibvirtCloud, hosts: LibvirtHosts, host: str) -> Iterator[Finding]:
    def look(subject: str, ask: Callable[[Any], str], expected: str, otherwise: str) -> Finding:
        findings = CheckRunner(settings.reach_advice, otherwise).at(
            f"{subject} on {host}", expected, partial(hosts.call, host, ask)
        )
        return next(findings)

    yield (version_finding := look("libvirt", _version, ANSWER, settings.reach_advice))
    if version_finding.level is not FindingLevel.OK:
        return
    kind, advice = settings.virtualization, "look at /dev/kvm there, and at the BIOS"
    yield look("virtualization", partial(_kind, kind), f"domains of type {kind}", advice)
    advice = "copy it into the storage pool's directory, then virsh pool-refresh"
    image, storage = settings.image, settings.storage_pool
    yield look(f"image {image} of {storage}", partial(_image, settings), "there", advice)
    if settings.domain_file is None:
        advice = "virsh net-define, net-autostart, net-start, on that host"
        network = settings.network
        yield look(f"network {network}", partial(_network, network), "there, and active", advice)


def _kind(kind: str, connection: Any) -> str:  # noqa: ANN401
    if f"<domain type='{kind}'" not in connection.getCapabilities():
        # Without a cloud's name, because the finding shows only the refusal's text.
        raise ProviderError("", "NoVirtualization", "its libvirt has only other types")
    return kind


def _image(settings: LibvirtCloud, connection: Any) -> str:  # noqa: ANN401
    pool, _, form, size = domains.image(connection, settings)
    return f"{form}, {size >> 30} GiB; {pool.info()[3] >> 30} GiB are free"


def _network(name: str, connection: Any) -> str:  # noqa: ANN401
    if not connection.networkLookupByName(name).isActive():
        raise ProviderError("", "NotActive", "it is not active")
    return "active"


def _version(connection: Any) -> str:  # noqa: ANN401
    number, (_, memory, cpus, *_) = connection.getLibVersion(), connection.getInfo()
    release = f"{number // 1000000}.{number // 1000 % 1000}.{number % 1000}"
    return f"{release}, {cpus} cpus, {memory} MiB"
