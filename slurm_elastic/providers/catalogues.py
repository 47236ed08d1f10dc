"""Asks clouds for their catalogues and keeps them in the state directory (``config.catalogue``).

One thread of slurm-elasticd does it, as SlurmUser; a cloud that does not answer keeps the catalogue
it has.
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
from slurm_elastic.base.periodic import PeriodicTask, PeriodicThread
from slurm_elastic.base.units import money
from slurm_elastic.config import Config
from slurm_elastic.config.catalogue import (
    FRESH,
    Catalogue,
    filled,
    from_state,
    kept,
    path_of,
    sound,
)
from slurm_elastic.config.cloud_kinds import table
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.model.causes import Quoted
from slurm_elastic.state.audit_trail import pool_subject
from slurm_elastic.state.ledger import Decision

log = logging.getLogger(__name__)

LOOK = 3600.0
"""Seconds between two looks for catalogues that have become old."""
AGAIN = 300.0
"""The same, after a cloud did not answer."""


def ask(cloud: CloudSettings, now: float) -> Catalogue:
    """The cloud's catalogue as it is now. ProviderError where it does not tell."""
    known_types = table().kind(cloud.provider).known_types
    if known_types is None:
        raise ProviderError(cloud.name, "NoCatalogue", f"{cloud.provider} has no catalogue")
    found = sound(known_types(cloud))
    if not found:
        raise ProviderError(cloud.name, "NoCatalogue", "no type with sound values is in it")
    return Catalogue(cloud=cloud.name, at=now, types=found)


def keep(path: Path, catalogue: Catalogue) -> None:
    """Write it whole or not at all."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    writing.replace(path, msgspec.json.encode(catalogue))


def refresh(config: Config, now: float) -> Sequence[str]:
    """Ask the clouds whose catalogues are old or missing; the names of those that gave none."""
    silent = []
    for cloud in (c for c in config.clouds if c.catalogued):
        path = path_of(config, cloud)
        before = kept(path)
        if before is not None and 0 <= now - before.at < FRESH:
            continue
        try:
            found = ask(cloud, now)
            keep(path, found)
        except (ProviderError, OSError) as error:
            age = f"{(now - before.at) / 3600:.0f} h old" if before else "none is kept"
            log.warning("catalogue not read cloud=%s error=%s kept=%s", cloud.name, error, age)
            silent.append(cloud.name)
        else:
            log.info("catalogue read cloud=%s types=%d", cloud.name, len(found.types))
    return silent


class Keeper:
    """Keeps the catalogues of ``plain`` (a configuration as it was read) fresh, and calls
    ``changed`` once they make another configuration than ``used``.
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
        retry = Backoff(AGAIN, AGAIN)
        self._task = PeriodicTask("catalogues", self._look, LOOK, retry=retry)
        self._thread = PeriodicThread(self._task, self._ended)

    def start(self) -> None:
        """Start asking, until ``stop``."""
        self._thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the end."""
        self._thread.join(timeout)

    def _look(self) -> bool:
        """Whether all clouds answered."""
        try:
            is_whole = not refresh(self._plain, self._clock())
        except Exception:
            log.exception("catalogues cannot be read, tried again later")
            is_whole = False
        if from_state(self._plain, self._clock()) != self._used:
            self._changed()
            self._task.end()
        return is_whole

    def stop(self) -> None:
        """End it; a cloud that is being asked is left to itself."""
        self._ended.set()


def gathered(plain: Config, now: float) -> dict[str, Catalogue | ProviderError]:
    """The kept catalogue of each cloud with ``catalogue: true``. A missing one is asked for now and
    not kept; where the cloud does not answer, the error stands in its place.
    """
    found: dict[str, Catalogue | ProviderError] = {}
    for cloud in (c for c in plain.clouds if c.catalogued):
        try:
            found[cloud.name] = kept(path_of(plain, cloud)) or ask(cloud, now)
        except ProviderError as error:
            # slurm-elasticd may have written one while we waited for the cloud.
            found[cloud.name] = kept(path_of(plain, cloud)) or error
    return found


def completed_by(
    plain: Config, catalogues: Mapping[str, Catalogue | ProviderError], now: float
) -> Config:
    """``plain`` with these catalogues; a cloud without one has the file's types."""
    read = {name: one for name, one in catalogues.items() if isinstance(one, Catalogue)}
    return filled(plain, read, now)


def completed(plain: Config, now: float) -> Config:
    """``plain`` with what ``gathered`` finds; a cloud that does not answer is logged."""
    found = gathered(plain, now)
    for name, one in found.items():
        if isinstance(one, ProviderError):
            log.warning("catalogue not read cloud=%s error=%s", name, one)
    return completed_by(plain, found, now)


KIND = "catalogue"
"""Decision: the types and prices that a pool's machines are bought by."""


class Decisions(Protocol):
    """The part of the ledger that keeps decisions."""

    def about(self, subject: str) -> Sequence[Decision]: ...

    def record(self, *decisions: Decision) -> None: ...


def tell_used(config: Config, decisions: Decisions, now: float) -> None:
    """For ``explain``: the types and prices of catalogued clouds' pools, where they are new."""
    for cloud in (c for c in config.clouds if c.catalogued):
        catalogue = kept(path_of(config, cloud))
        for pool in (p for p in config.pools if p.cloud == cloud.name):
            reason = f"{len(pool.type_names)} types by {_dated(catalogue)}: " + (
                "; ".join(_told(cloud, name) for name in pool.type_names) or "none fits"
            )
            subject = pool_subject(pool.name)
            told = reversed(decisions.about(subject))
            before = (d for d in told if d.kind == KIND)
            if reason != next((d.reason for d in before), None):
                one = Decision(
                    at=now,
                    correlation=KIND,
                    kind=KIND,
                    subjects=(subject,),
                    cause=Quoted(text=reason),
                )
                decisions.record(one)


def _dated(catalogue: Catalogue | None) -> str:
    if catalogue is None:
        return "the configuration alone (no catalogue yet)"
    when = time.strftime("%Y-%m-%d", time.gmtime(catalogue.at))
    return f"the catalogue of {when}"


def _told(cloud: CloudSettings, name: str) -> str:
    kind = cloud.shapes.get(name)
    if kind is None:
        return f"{name} (not sold: no price or not known)"
    return f"{name} ({kind.cpus} cpus, {kind.memory} MiB, {money(kind.price)}/h)"
