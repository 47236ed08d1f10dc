"""Keys of the configuration with a new name. A file with an old name is refused; the error names
the new one, and ``slurm-elastic conf upgrade`` writes it into the file.

CHANGELOG.md has the same table. Add a row here and there when a key gets another name.

``BIDS`` is no new name: the site's bid became a key of pools.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

_EVERYWHERE = ("clouds", "pools")
"""Lists whose entries may have a section of the first level, too."""


class RenamedKey(Struct, frozen=True, kw_only=True):
    """A key at the place ``old`` (``timings.grace``) that is now called ``new``.

    ``also_in``: the lists whose entries have the key at the same place below them. ``provider``:
    the kind of cloud that has the key, if only one has it.
    """

    old: str
    new: str
    also_in: tuple[str, ...] = ()
    provider: str = ""

    @property
    def old_key(self) -> str:
        """The old name alone."""
        return self.old.rpartition(".")[2]

    @property
    def new_place(self) -> str:
        """The place with the new name."""
        return _beside(self.old, self.new)

    @property
    def places(self) -> tuple[str, ...]:
        """All places that may have had the old name."""
        return (self.old, *(f"{section}.{self.old}" for section in self.also_in))


class FoundKey(Struct, frozen=True, kw_only=True):
    """An old key at ``path`` of a file. ``has_new``: its mapping has the new name, too."""

    path: tuple[str | int, ...]
    new: str
    has_new: bool


RENAMED = (
    RenamedKey(old="who", new="allow", also_in=("clouds",)),
    RenamedKey(old="books", new="accounting"),
    RenamedKey(old="slurm.machine_reasons", new="replace_reasons"),
    RenamedKey(old="timings.reconcile", new="reconcile_interval"),
    RenamedKey(old="timings.cooldown_max", new="max_cooldown"),
    RenamedKey(old="timings.grace", new="orphan_timeout"),
    RenamedKey(old="timings.boot_failures", new="max_boot_failures"),
    RenamedKey(old="timings.heartbeat_stale", new="daemon_timeout"),
    RenamedKey(old="policies.look", new="poll_interval"),
    RenamedKey(old="policies.order", new="machine_order", also_in=_EVERYWHERE),
    RenamedKey(old="policies.lease", new="billing_increment", also_in=_EVERYWHERE),
    RenamedKey(old="policies.boot", new="expected_boot_time", also_in=_EVERYWHERE),
    RenamedKey(old="policies.windows", new="start_windows", also_in=_EVERYWHERE),
    RenamedKey(old="pools.policies.min_idle", new="min_idle_machines"),
    RenamedKey(old="join.network.ports", new="head_ports"),
    RenamedKey(old="join.network.trusted", new="trusted_networks"),
    RenamedKey(old="checkpoint.at_limit", new="at_time_limit", also_in=("pools",)),
    RenamedKey(old="checkpoint.probe", new="probe_after"),
    RenamedKey(old="checkpoint.keep", new="keep_images"),
    RenamedKey(old="checkpoint.parallel", new="max_parallel"),
    RenamedKey(old="checkpoint.period", new="poll_interval"),
    RenamedKey(old="checkpoint.expected", new="expected_duration"),
    RenamedKey(old="checkpoint.slack", new="deadline_margin"),
    RenamedKey(old="checkpoint.notices.queue", new="queue_url"),
    RenamedKey(old="checkpoint.notices.cloud", new="queue_cloud"),
    RenamedKey(old="checkpoint.notices.clouds", new="poll_clouds"),
    RenamedKey(old="checkpoint.notices.every", new="poll_interval"),
    RenamedKey(old="checkpoint.prices.every", new="poll_interval"),
    RenamedKey(old="notify.again", new="repeat_interval"),
    RenamedKey(old="clouds.timeout", new="api_timeout"),
    RenamedKey(old="clouds.pending_limit", new="pending_timeout", provider="opennebula"),
    RenamedKey(old="clouds.auth", new="auth_file", provider="opennebula"),
    RenamedKey(old="clouds.schedule_wait", new="schedule_timeout", provider="openstack"),
    RenamedKey(old="clouds.storage", new="storage_pool", provider="libvirt"),
    RenamedKey(old="clouds.domain", new="domain_file", provider="libvirt"),
    RenamedKey(old="clouds.credentials", new="credentials_file", provider="redfish"),
    RenamedKey(old="clouds.claims", new="claims_file", provider="redfish"),
    RenamedKey(old="clouds.on_wait", new="power_on_timeout", provider="redfish"),
    RenamedKey(old="clouds.off_wait", new="power_off_timeout", provider="redfish"),
    RenamedKey(old="pools.stopped", new="max_stopped"),
    RenamedKey(old="pools.instance_types.most", new="max_types"),
)

BIDS = (("checkpoint", "prices", "bid_price"), ("checkpoint", "prices", "bid"))
"""The former places of one bid for all pools."""

_MISSING = object()
_BY_PLACE = {place: row for row in RENAMED for place in row.places}


def find(value: object, path: tuple[str | int, ...] = (), provider: str = "") -> Iterator[FoundKey]:
    """All old keys in the plain values of a file."""
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from find(item, (*path, number), provider)
    if not isinstance(value, dict):
        return
    if path[:1] == ("clouds",) and len(path) == len(("clouds", 0)):
        provider = str(value.get("provider", ""))
    for key, inner in value.items():
        row = _BY_PLACE.get(_place((*path, key)))
        if row is not None and row.provider in ("", provider):
            yield FoundKey(path=(*path, key), new=row.new, has_new=row.new in value)
        yield from find(inner, (*path, key), provider)


def bids_in(value: object) -> Iterator[tuple[str, str, str]]:
    """The places among ``BIDS`` that the plain values of a file have."""
    for path in BIDS:
        here = value
        for key in path:
            here = here.get(key, _MISSING) if isinstance(here, dict) else _MISSING
        if here is not _MISSING:
            yield path


def bid_sentence(place: str) -> str:
    """The error about a bid at a place in a file."""
    return (
        f"{place} is now max_price of each pool with spot machines, such as"
        " `max_price: {spot: 0.05}`; `slurm-elastic conf upgrade` rewrites the file"
    )


def sentence(place: str, new: str) -> str:
    """The error about an old key at a place in a file."""
    return f"{place} is now {_beside(place, new)}; `slurm-elastic conf upgrade` rewrites the file"


def _place(path: tuple[str | int, ...]) -> str:
    return ".".join(step for step in path if isinstance(step, str))


def _beside(place: str, key: str) -> str:
    section, dot, _ = place.rpartition(".")
    return f"{section}{dot}{key}"
