"""Builds the service from the configuration: methods, clouds, sources of notices, prices."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.checkpointers import open_checkpointer
from slurm_elastic.ckptman.event_bridge import SqsQueue
from slurm_elastic.ckptman.executor import KeyedExecutor
from slurm_elastic.ckptman.poller import Poller
from slurm_elastic.ckptman.recorder import BufferedRecorder
from slurm_elastic.ckptman.service import Service
from slurm_elastic.ckptman.site import (
    OUTPUT_WRITERS,
    CheckpointSite,
    JobList,
    pools_by_node,
)
from slurm_elastic.ckptman.sources import CloudNotices, DropDirectory, NodeComments, NoticeSource
from slurm_elastic.config import Config, domain_pools
from slurm_elastic.config.checkpoint_kinds import policy_of
from slurm_elastic.config.cloud_kinds import table as kinds
from slurm_elastic.config.clouds import CloudSettings
from slurm_elastic.config.grants import cloud_of_queue
from slurm_elastic.config.method_kinds import table
from slurm_elastic.config.sections.checkpoint import CLOUD_PRICES
from slurm_elastic.model.price_feed import PriceFeed
from slurm_elastic.model.protocols import Checkpointer, Provider, Slurm
from slurm_elastic.policies.checkpoint.checkpoint import watches_prices
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.base.prices.book import FileFeed, PriceBook
from slurm_elastic.providers.base.refused import OpenedWhenRead
from slurm_elastic.state.ckptstate import CheckpointState
from slurm_elastic.state.ckptstate.orders import DROPS
from slurm_elastic.state.ckptstate.schema import FILE
from slurm_elastic.state.host import read_host
from slurm_elastic.state.ledger import Ledger

log = logging.getLogger(__name__)


def open_site(
    config: Config, slurm: Slurm, closing: contextlib.ExitStack, stop: threading.Event
) -> CheckpointSite:
    """Open ledger and state, all methods that can be used, and the clouds."""
    # Followed, not owned: only slurm-elasticd creates and repairs it, so it may be missing.
    ledger = Ledger.followed(config.state / "ledger.db")
    closing.callback(ledger.close)
    state = CheckpointState.enduring(config.state / FILE)
    closing.callback(state.close)
    jobs = JobList(slurm)
    return CheckpointSite(
        config=config,
        slurm=slurm,
        ledger=ledger,
        state=state,
        recorder=BufferedRecorder(ledger, state, time.time),
        jobs=jobs,
        checkpointers=_open_methods(config, slurm, jobs),
        providers=_open_providers(config),
        pool_of=pools_by_node(config),
        now=time.time,
        stop=stop,
        host=read_host() if config.ha.directory is None else None,
        output_writers=KeyedExecutor(OUTPUT_WRITERS),
    )


def _open_methods(config: Config, slurm: Slurm, jobs: JobList) -> Mapping[str, Checkpointer]:
    """The methods that can be opened. A job may name any of them."""
    configured = {config.checkpoint.method, *(p.checkpoint.method for p in config.pools)}
    methods: dict[str, Checkpointer] = {}
    for method in table().names():
        if method == "none":
            continue
        try:
            methods[method] = open_checkpointer(method, config, slurm, jobs.find)
        except ConfigError as error:
            # A built-in method named in the configuration must load. If a plug-in's method does not
            # load, only its jobs get an error.
            if method in configured and method in table().own_names:
                raise
            level = logging.ERROR if method in configured else logging.INFO
            log.log(level, "method %s cannot be used: %s", method, error)
    return methods


def _open_providers(config: Config) -> Mapping[str, Provider]:
    """The clouds, of which only notices and machines are read. A cloud that cannot be opened now is
    opened at a later reading; until then its source of notices fails.
    """
    providers: dict[str, Provider] = {}
    for cloud in config.clouds if config.checkpoint.notices.poll_clouds else ():
        open_cloud = partial(open_provider, cloud, config.cluster, config)
        try:
            providers[cloud.name] = open_cloud()
        except ConfigError as error:
            log.warning("a cloud cannot be opened, its notices are not read yet: %s", error)
            providers[cloud.name] = OpenedWhenRead(cloud.name, str(error), open_cloud)
    return providers


def open_pollers(site: CheckpointSite, service: Service) -> list[Poller]:
    """One poller for each source of notices."""
    settings = site.config.checkpoint.notices
    sources: list[tuple[NoticeSource, float]] = [
        (
            DropDirectory(site.config.state / DROPS, "operators", create=True),
            site.config.checkpoint.poll_interval,
        )
    ]
    sources += [
        (CloudNotices(provider), settings.poll_interval) for provider in site.providers.values()
    ]
    if settings.directory is not None:
        sources.append((DropDirectory(Path(settings.directory)), settings.poll_interval))
    if settings.queue_url is not None:
        queue = SqsQueue(settings.queue_url, _queue_client(site.config))
        sources.append((queue, settings.poll_interval))
    if _has_warning_agents(site.config):
        sources.append((NodeComments(site.slurm, service.reader.machines), settings.poll_interval))
    return [
        Poller(site, source, every, service.reader.machines, service.wake, service.orders)
        for source, every in sources
    ]


def _has_warning_agents(config: Config) -> bool:
    """Whether machines may run our agent that passes warnings on: machines that learn from us how
    to join, in a cloud whose metadata service gives warnings.
    """
    return config.join.head is not None and any(
        cloud.by_user_data and cloud.metadata.protocol and not _is_heard_by_queue(config, cloud)
        for cloud in config.clouds
    )


def _is_heard_by_queue(config: Config, cloud: CloudSettings) -> bool:
    """Whether the queue reports the interruptions of this cloud, without a call to Slurm. The queue
    has the events of one cloud only.
    """
    notices = config.checkpoint.notices
    is_cloud_of_queue = cloud.has_queue and notices.queue_cloud in (None, cloud.name)
    return notices.queue_url is not None and is_cloud_of_queue


def open_prices(config: Config) -> PriceBook | None:
    """The book of spot prices; None if no policy uses prices."""
    texts = {config.checkpoint.policy, *(p.checkpoint.policy for p in config.pools)}
    if not any(watches_prices(policy_of(text)) for text in texts if text):
        return None
    settings = config.checkpoint.prices
    feeds: Sequence[PriceFeed] = ()
    if settings.source == CLOUD_PRICES:
        feeds = _cloud_feeds(config)
    elif settings.source == "file" and settings.file is not None:
        feeds = [FileFeed(Path(settings.file))]
    return PriceBook(feeds, time.time) if feeds else None


def _cloud_feeds(config: Config) -> Sequence[PriceFeed]:
    """The feeds of all clouds that report their price history."""
    pools = domain_pools(config, expand)
    feeds: list[PriceFeed] = []
    for cloud in config.clouds:
        open_feed = kinds().kind(cloud.provider).spot_prices if cloud.has_spot_prices else None
        if open_feed is not None:
            feeds.append(open_feed(cloud, [pool for pool in pools if pool.cloud == cloud.name]))
    return feeds


def _queue_client(config: Config) -> Callable[[], Any]:
    """A function that opens a client of the queue, for the account that reads it."""
    account = cloud_of_queue(config)
    open_client = None if account is None else kinds().kind(account.provider).queue_client
    if open_client is None:
        name = config.checkpoint.notices.queue_cloud if account is None else account.name
        raise ConfigError(f"checkpoint.notices.queue_url: cloud {name} opens no queue")
    return partial(open_client, account)
