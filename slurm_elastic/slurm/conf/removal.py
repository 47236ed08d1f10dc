"""Proves, before anything is changed, that slurmctld starts without our nodes and partitions.

First the places that still name them are refused, with file, line and names. Then a throw-away
slurmctld reads slurm.conf without our part, as in ``check``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.model.slurm import Reservation
from slurm_elastic.slurm.client import controller
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.siteconf import SiteConf
from slurm_elastic.slurm.conf import check, dryrun, fragment, gresconf, topology
from slurm_elastic.slurm.conf.checks.mentions import Mention, mentions
from slurm_elastic.slurm.conf.leaving import NodesAndPartitions


def refuse_mentions(
    settings: SlurmSettings,
    site: SiteConf,
    version: tuple[int, int],
    departing: NodesAndPartitions,
    *,
    force: bool,
) -> None:
    """Raise ConfigError for each place that names a node or partition of ``departing``.

    With ``force`` only for the places because of which slurmctld would not start.
    """
    if problems := problem_mentions(settings, site, version, departing, force=force):
        raise ConfigError(*problems)


def problem_mentions(
    settings: SlurmSettings,
    site: SiteConf,
    version: tuple[int, int],
    departing: NodesAndPartitions,
    *,
    force: bool,
) -> tuple[str, ...]:
    """The sentences of ``refuse_mentions``."""
    switches = topology.switches_of(site, version)
    places = mentions(site, switches, _reservations(settings), departing)
    return tuple(_sentence(place) for place in places if place.is_fatal or not force)


def prove(settings: SlurmSettings, site: SiteConf, *, force: bool) -> Iterator[str]:
    """Yield sentences about the proven facts. ConfigError if slurmctld would not start without
    us.
    """
    isolation = dryrun.isolation()
    if isolation is None:
        yield "not proven by a throw-away slurmctld: unshare may not make a network namespace here"
        return
    failure = dryrun.run(settings, site, None, isolation).failure
    if failure is None:
        yield "a throw-away slurmctld starts on slurm.conf without slurm-elastic's part"
        return
    current = _current_failure(settings, site, isolation)
    # If it does not start now either, for example without a plug-in, the failure proves nothing.
    if current is not None:
        check.require_restartable(settings, current, force=force)
        yield f"not proven by a throw-away slurmctld: it does not start now either: {current}"
    elif not force:
        raise ConfigError(
            f"{settings.conf}: slurmctld does not start without slurm-elastic's part: {failure};"
            " mend that first, or use --force"
        )
    else:
        yield f"slurmctld will not start on {settings.conf}: {failure}"


def _current_failure(
    settings: SlurmSettings, site: SiteConf, isolation: Sequence[str]
) -> str | None:
    """Why a throw-away slurmctld does not start on the installed files. None if it does."""
    paths = [site.directory / name for name in (fragment.FILE_NAME, gresconf.FILE_NAME)]
    texts = [path.read_text(errors="surrogateescape") if path.exists() else "" for path in paths]
    return dryrun.run(settings, site, texts[0], isolation, gres=texts[1]).failure


def _reservations(settings: SlurmSettings) -> Sequence[Reservation]:
    return SlurmCli(settings).reservations() if controller.is_up(settings) else ()


def _sentence(place: Mention) -> str:
    prefix = f"{place.location}: " if place.location else ""
    if place.is_fatal:
        effect = "slurmctld does not start with nodes that it does not know"
    elif place.location:
        effect = "slurmctld does not know them afterwards"
    else:
        effect = "slurmctld deletes a reservation with nodes that it does not know"
    force = "" if place.is_fatal else ", or use --force"
    return f"{prefix}{place.holder} has {place.listed}: {effect}; take them out first{force}"
