"""The site's partitions whose jobs may use a cloud: ``allow.partitions``, else the default one.

The submit filter puts the job's partition before the clouds, so that the site's own nodes come
first. Slurm follows this order only if that partition has at least the PriorityTier and the
PriorityJobFactor of the cloud partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slurm_elastic.config import Config
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.decode import nearest
from slurm_elastic.policies.launch.open_partitions import DEFAULT_PARTITION, is_open
from slurm_elastic.slurm.client import confvalues
from slurm_elastic.slurm.client.siteconf import ConfRecord, SiteConf, priority


def partitions_of(config: Config, cloud: CloudSettings, site: SiteConf) -> tuple[ConfRecord, ...]:
    """The site's partitions whose jobs may use the cloud: the default one first, then in the order
    of ``allow.partitions``.
    """
    allowed, default = config.who_of(cloud).partitions, site.default_partition
    last_records = {name: record for record in site.partitions for name in record.names}

    def is_listed(record: ConfRecord, name: str) -> bool:
        is_valid, is_default = last_records[name] is record, record is default
        return is_valid and is_open(allowed, name, is_named=not is_default, is_default=is_default)

    def place(record: ConfRecord) -> tuple[bool, int]:
        # The cloud takes the time limit of the first one, and most jobs name no partition.
        places = [allowed.index(name) for name in record.names if name in allowed]
        return record is not default, min(places, default=0)

    records = [r for r in site.partitions if any(is_listed(r, name) for name in r.names)]
    return tuple(sorted(records, key=place))


def clouds_by_partition(
    config: Config, site: SiteConf
) -> list[tuple[ConfRecord, tuple[CloudSettings, ...]]]:
    """The site's partitions whose jobs may use clouds, each with its clouds; the default first."""
    default = site.default_partition
    later = [record for record in site.partitions if record is not default]
    rows = []
    for record in (*([default] if default else []), *later):
        clouds = tuple(c for c in config.clouds if record in partitions_of(config, c, site))
        if clouds:
            rows.append((record, clouds))
    return rows


def jobs_of(record: ConfRecord, site: SiteConf) -> str:
    """The jobs that go to this partition of the site, for a sentence."""
    is_default = record is site.default_partition
    return "plain jobs" if is_default else f"jobs of partition {record.names[0]}"


def conflicts(config: Config, site: SiteConf) -> Iterator[str]:
    """Report partitions of ``allow.partitions`` that the site does not have. Report a partition if
    Slurm would start its jobs in a cloud first.
    """
    names = [name for record in site.partitions for name in record.names]
    yield from _unknown("allow", config.allow.partitions, names, site)
    for i, cloud in enumerate(config.clouds):
        place = f"clouds[{i}] ({cloud.name}).allow"
        yield from _unknown(place, cloud.allow.partitions if cloud.allow else (), names, site)
    for record, clouds in clouds_by_partition(config, site):
        yield from _behind_clouds(record, clouds, site)


def _unknown(
    place: str, partitions: tuple[str, ...], names: list[str], site: SiteConf
) -> Iterator[str]:
    for n, name in enumerate(partitions):
        # Slurm compares names of partitions with their case (list_find_part).
        if name not in (*names, DEFAULT_PARTITION):
            hint = nearest(name, [*names, DEFAULT_PARTITION])
            yield (
                f"slurm-elastic.yaml: {place}.partitions[{n}]: found '{name}', expected a partition"
                f" of {site.path}: {', '.join(names)}{f'; did you mean {hint}?' if hint else ''}"
            )


def _behind_clouds(
    record: ConfRecord, clouds: tuple[CloudSettings, ...], site: SiteConf
) -> Iterator[str]:
    tier, factor = priority(record, "prioritytier"), priority(record, "priorityjobfactor")
    weight = site.option("PriorityWeightPartition")
    # Slurm compares tiers first. The factor is a part of a job's priority, which decides in a tier.
    if tier < site.priority_tier:
        name, value, least = "PriorityTier", tier, site.priority_tier
    elif (
        tier == site.priority_tier
        and factor < site.priority_job_factor
        and weight is not None
        and confvalues.number(weight.value)
    ):
        name, value, least = "PriorityJobFactor", factor, site.priority_job_factor
    else:
        return
    listed = ", ".join(cloud.name for cloud in clouds)
    yield (
        f"{record.location}: partition {record.names[0]} has {name}={value}, the partitions of its"
        f" clouds ({listed}) have {least} as the default partition: Slurm would try the clouds"
        f" before your nodes; write {name}={least} there, or take {record.names[0]} out of"
        " allow.partitions"
    )


def notices(config: Config, site: SiteConf) -> Iterator[str]:
    """The site's partitions that take users' jobs, from which jobs do not burst. Partitions whose
    jobs get the time limit of another one in a cloud.
    """
    with_clouds = [record for record, _ in clouds_by_partition(config, site)]
    default = site.default_partition
    if config.clouds and default is not None and default not in with_clouds:
        yield (
            f"jobs that name no partition do not burst; add {default.names[0]} to allow.partitions"
        )
    if default is not None and any(
        default in partitions_of(config, cloud, site) and not config.who_of(cloud).partitions
        for cloud in config.clouds
    ):
        yield (
            f"jobs that name partition {default.names[0]}, as workflow tools such as Snakemake do,"
            " stay on your own nodes, though jobs that name none burst; to let them burst, too:"
            f" allow: {{partitions: [{DEFAULT_PARTITION}]}}"
        )
    names = [
        record.names[0]
        for record in site.partitions
        if record not in with_clouds
        and record is not site.default_partition
        and record.get("state", "UP").upper() == "UP"
        and not confvalues.is_true(record.get("rootonly"))
    ]
    if names:
        yield (
            f"jobs that name partition {' or '.join(names)} do not burst"
            " (clouds[].allow.partitions)"
        )
    for cloud in config.clouds:
        if config.who_of(cloud).default_time is None:
            yield from _other_limits(cloud.name, partitions_of(config, cloud, site))


def _other_limits(cloud: str, records: Sequence[ConfRecord]) -> Iterator[str]:
    limits = [
        confvalues.seconds(record.get("defaulttime") or record.get("maxtime")) for record in records
    ]
    # A job of a partition with DefaultTime gets its limit there, also for the cloud.
    names = [
        record.names[0]
        for record, limit in zip(records, limits, strict=True)
        if limit != limits[0] and not record.get("defaulttime")
    ]
    if names:
        listed = " and ".join(names)
        yield (
            f"cloud {cloud} sets a time limit for jobs without --time by partition"
            f" {records[0].names[0]}, but partition {listed} has another MaxTime: without --time"
            f" arrays of partition {listed} do not burst, and other jobs of it may end sooner in"
            " the cloud; set the same MaxTime, or give each partition a cloud of its own"
        )
