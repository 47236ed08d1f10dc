"""Reads the catalogues of clouds (types and prices) and keeps them in the state directory
(``config.catalogue``).

One thread of slurm-elasticd does this, as SlurmUser. If a cloud does not answer, its last catalogue
stays in use.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from slurm_elastic.base import writing
from slurm_elastic.base.backoff import Backoff
from slurm_elastic.base.errors import ProviderError
from slurm_elastic.base.processes.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.base.units import money
from slurm_elastic.config import Config
from slurm_elastic.config.catalogue import (
    CATALOGUE_TTL_S,
    Catalogue,
    filled,
    from_state,
    kept,
    path_of,
    plausible_types,
)
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.causes import Quoted
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Decision

log = logging.getLogger(__name__)

CHECK_EVERY_S = 3600.0
"""Seconds between two checks for old catalogues."""
RETRY_AFTER_S = 300.0
"""Seconds until the next check if a cloud did not answer."""


def ask(cloud: CloudSettings, now: float) -> Catalogue:
    """The cloud's catalogue as it is now. ProviderError if the cloud does not give it."""
    known_types = table().kind(cloud.provider).known_types
    if known_types is None:
        raise ProviderError(cloud.name, "NoCatalogue", f"{cloud.provider} has no catalogue")
    types = plausible_types(known_types(cloud))
    if not types:
        raise ProviderError(cloud.name, "NoCatalogue", "no type with sound values is in it")
    return Catalogue(cloud=cloud.name, at=now, types=types)


def keep(path: Path, catalogue: Catalogue) -> None:
    """Write the catalogue completely or not at all."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    writing.replace(path, msgspec.json.encode(catalogue))


def refresh(config: Config, now: float) -> Sequence[str]:
    """Read the missing and the old catalogues. Returns the names of the clouds that did not
    answer.
    """
    unanswered = []
    for cloud in (c for c in config.clouds if c.catalogued):
        path = path_of(config, cloud)
        kept_catalogue = kept(path)
        # A catalogue from the future (the clock was set back) counts as old.
        if kept_catalogue is not None and 0 <= now - kept_catalogue.at < CATALOGUE_TTL_S:
            continue
        try:
            catalogue = ask(cloud, now)
            keep(path, catalogue)
        except (ProviderError, OSError) as error:
            age = (
                f"{(now - kept_catalogue.at) / 3600:.0f} h old"
                if kept_catalogue
                else "none is kept"
            )
            log.warning("catalogue not read cloud=%s error=%s kept=%s", cloud.name, error, age)
            unanswered.append(cloud.name)
        else:
            log.info("catalogue read cloud=%s types=%d", cloud.name, len(catalogue.types))
    return unanswered


class CatalogueKeeper:
    """Keeps the catalogues of ``plain`` (the configuration as it was read) fresh. It calls
    ``changed`` once, when they lead to a configuration that differs from ``used``.
    """

    def __init__(
        self,
        plain: Config,
        used: Config,
        changed: Callable[[], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._plain, self._used, self._changed, self._clock = plain, used, changed, clock
        self._ended = threading.Event()
        retry = Backoff(RETRY_AFTER_S, RETRY_AFTER_S)
        self._task = PeriodicTask("catalogues", self._check, CHECK_EVERY_S, retry=retry)
        self._thread = PeriodicThread(self._task, self._ended)

    def start(self) -> None:
        """Start reading, until ``stop``."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the thread to end, at most ``timeout`` (s)."""
        self._thread.join(timeout)

    def _check(self) -> bool:
        """Refresh the catalogues. Returns whether all clouds answered."""
        try:
            is_whole = not refresh(self._plain, self._clock())
        # Deliberately broad: this thread must survive any defect of a plug-in's catalogue.
        except Exception:
            log.exception("catalogues cannot be read; will be retried")
            is_whole = False
        if from_state(self._plain, self._clock()) != self._used:
            self._changed()
            # The caller restarts the daemon with the new configuration, so this task has done its
            # work.
            self._task.end()
        return is_whole

    def stop(self) -> None:
        """End the thread, without waiting for a call to a cloud."""
        self._ended.set()


def gathered(plain: Config, now: float) -> dict[str, Catalogue | ProviderError]:
    """The catalogue of each cloud with ``catalogue: true``. A missing catalogue is read now and not
    kept; if the cloud does not answer, its error takes the place.
    """
    catalogues: dict[str, Catalogue | ProviderError] = {}
    for cloud in (c for c in plain.clouds if c.catalogued):
        try:
            catalogues[cloud.name] = kept(path_of(plain, cloud)) or ask(cloud, now)
        except ProviderError as error:
            # slurm-elasticd may have written a catalogue while we waited for the cloud.
            catalogues[cloud.name] = kept(path_of(plain, cloud)) or error
    return catalogues


def completed_by(
    plain: Config, catalogues: Mapping[str, Catalogue | ProviderError], now: float
) -> Config:
    """``plain`` with these catalogues. A cloud without a catalogue keeps the types of the file."""
    by_cloud = {
        name: catalogue
        for name, catalogue in catalogues.items()
        if isinstance(catalogue, Catalogue)
    }
    return filled(plain, by_cloud, now)


def completed(plain: Config, now: float) -> Config:
    """``plain`` with the catalogues that ``gathered`` returns. A cloud that does not answer is
    logged.
    """
    catalogues = gathered(plain, now)
    for name, catalogue in catalogues.items():
        if isinstance(catalogue, ProviderError):
            log.warning("catalogue not read cloud=%s error=%s", name, catalogue)
    return completed_by(plain, catalogues, now)


KIND = "catalogue"
"""The kind of decisions about the types and prices by which a pool's machines are bought."""


class DecisionReader(Protocol):
    """The methods of the ledger that read and store decisions."""

    def about(self, subject: str) -> Sequence[Decision]: ...

    def record(self, *decisions: Decision) -> None: ...


def tell_used(config: Config, decisions: DecisionReader, now: float) -> None:
    """Record the types and prices of the pools of catalogued clouds for ``explain``, if they have
    changed.
    """
    for cloud in (c for c in config.clouds if c.catalogued):
        catalogue = kept(path_of(config, cloud))
        for pool in (p for p in config.pools if p.cloud == cloud.name):
            types_text = "; ".join(_type_text(cloud, name) for name in pool.type_names)
            source_text = _source_text(catalogue)
            cause = Quoted(
                text=f"{len(pool.type_names)} types by {source_text}: {types_text or 'none fits'}"
            )
            subject = pool_subject(pool.name)
            newest_first = reversed(decisions.about(subject))
            earlier = (d for d in newest_first if d.kind == KIND)
            if cause != next((d.cause for d in earlier), None):
                decision = Decision(
                    at=now,
                    correlation=KIND,
                    kind=KIND,
                    subjects=(subject,),
                    cause=cause,
                )
                decisions.record(decision)


def _source_text(catalogue: Catalogue | None) -> str:
    if catalogue is None:
        return "the configuration alone (no catalogue yet)"
    when = time.strftime("%Y-%m-%d", time.gmtime(catalogue.at))
    return f"the catalogue of {when}"


def _type_text(cloud: CloudSettings, name: str) -> str:
    kind = cloud.shapes.get(name)
    if kind is None:
        return f"{name} (not sold: no price or not known)"
    return f"{name} ({kind.cpus} cpus, {kind.memory} MiB, {money(kind.price)}/h)"
