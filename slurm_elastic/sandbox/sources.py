"""Where the runner learns which machines the clouds of a sandbox have.

The emulators of our own show the machines of all owners. Any other cloud whose machines join by
user data is listed by its own provider, also a cloud of an outside package at an endpoint on
loopback. Machines of the remaining kinds, such as ``local``, run without us.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from urllib.parse import urlsplit

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import Config, configfile
from slurm_elastic.config.basics.metadata_service import WarningProtocol
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.cluster import Instance, InstanceState
from slurm_elastic.providers import open_provider
from slurm_elastic.sandbox import control
from slurm_elastic.sandbox.layout import Layout, Saved
from slurm_elastic.sandbox.seen import CloudMachine
from slurm_elastic.sandbox.spec import cloud_of

Source = tuple[str, Callable[[], Iterable[CloudMachine]]]
"""The prefix of the ids of a cloud's machines, and a function that lists them."""
EC2_PREFIX = "i-"


def _ec2(layout: Layout, saved: Saved) -> Iterator[Source]:
    del layout
    ec2 = control.control(saved)
    yield EC2_PREFIX, lambda: control.seen(ec2)


def _opennebula(layout: Layout, saved: Saved) -> Iterator[Source]:
    del layout
    opennebula = control.one_control(saved)
    yield control.ONE_PREFIX, lambda: control.opennebula_machines(opennebula)


def _openstack(layout: Layout, saved: Saved) -> Iterator[Source]:
    del saved
    # Imported here, because most sandboxes do not need it.
    from slurm_elastic.sandbox import stack

    yield from stack.sources(layout)


_OF_OUR_KINDS: Mapping[str, Callable[[Layout, Saved], Iterator[Source]]] = {
    "aws": _ec2, "opennebula": _opennebula, "openstack": _openstack,
}  # fmt: skip


def sources(layout: Layout, saved: Saved) -> Iterator[Source]:
    """Yield the sources of all clouds whose machines the runner runs."""
    for provider, of_kind in _OF_OUR_KINDS.items():
        if cloud_of(saved.spec, provider):
            yield from of_kind(layout, saved)
    if not layout.config.exists():
        return  # a sandbox of a site that has no slurm-elastic yet
    config = configfile.load(layout.config)
    for cloud in config.clouds:
        if is_asked(cloud.provider):
            yield prefix_of(cloud), _source(cloud, config)


def needs_runner(providers: Iterable[str]) -> bool:
    """Whether the runner must run machines for clouds of these kinds."""
    return any(provider in _OF_OUR_KINDS or is_asked(provider) for provider in providers)


def is_asked(provider: str) -> bool:
    """Whether clouds of the kind list their machines for the runner. Machines on hosts of a site
    boot by themselves.
    """
    if provider in _OF_OUR_KINDS:
        return False
    try:
        settings = table().kind(provider).settings
    except ConfigError:  # conf check reports it
        return False
    return settings.by_user_data and not settings.zones_are_hosts


def prefix_of(cloud: CloudSettings) -> str:
    """The prefix of the runner's ids. The equals sign, which no cloud's name contains, keeps it
    from matching another cloud with a longer name.
    """
    return f"{cloud.provider}={cloud.name}="


def _source(cloud: CloudSettings, config: Config) -> Callable[[], Sequence[CloudMachine]]:
    provider = open_provider(cloud, config.cluster, config)
    return lambda: tuple(_seen(cloud, machine) for machine in provider.instances())


def _seen(cloud: CloudSettings, machine: Instance) -> CloudMachine:
    is_on = machine.state in (InstanceState.PENDING, InstanceState.RUNNING)
    return CloudMachine(
        id=prefix_of(cloud) + machine.id,
        node=machine.node,
        state="running" if is_on else "off",
        launched=machine.launched,
        generation=machine.generation,
        metadata=_metadata_of(cloud, machine.id),
    )


def _metadata_of(cloud: CloudSettings, machine: str) -> str:
    """The setting of a machine's agent. All machines share this host, so an emulator has a metadata
    service for each of them below its own endpoint.
    """
    protocol, endpoint = cloud.metadata.protocol, getattr(cloud, "endpoint", None)
    if protocol not in (WarningProtocol.AZURE, WarningProtocol.GCE) or not endpoint:
        return ""
    path = urlsplit(cloud.metadata.url).path
    return f"{protocol} {endpoint.rstrip('/')}/machines/{machine}{path}"


def end(layout: Layout, name: str) -> bool:
    """End a machine that ends itself, by its cloud's provider. False if the id, which has the
    cloud's prefix, is of another cloud.
    """
    if "=" not in name:
        return False
    config = configfile.load(layout.config)
    for cloud in config.clouds:
        prefix = prefix_of(cloud)
        if is_asked(cloud.provider) and name.startswith(prefix):
            provider = open_provider(cloud, config.cluster, config)
            provider.terminate([name.removeprefix(prefix)])
            return True
    return False
