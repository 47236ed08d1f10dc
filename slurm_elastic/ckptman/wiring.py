"""Builds the service from the configuration: methods, clouds, sources of notices, prices."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from slurm_elastic.base.errors import ConfigError
from slurm_elastic.base.hostlist import expand
from slurm_elastic.base.processes.bounded import bound_boto
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
from slurm_elastic.config.method_kinds import table
from slurm_elastic.model.protocols import Checkpointer, Provider, Slurm
from slurm_elastic.policies.checkpoint.checkpoint import watches_prices
from slurm_elastic.providers import open_provider
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.providers.base.prices.book import FileFeed, PriceBook, PriceFeed
from slurm_elastic.providers.base.prices.ec2 import Ec2Feed, PoolSeller
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
    """The clouds, which are needed for their notices only. If a cloud cannot be opened, we lose
    just its notices.
    """
    providers: dict[str, Provider] = {}
    for cloud in config.clouds if config.checkpoint.notices.poll_clouds else ():
        try:
            providers[cloud.name] = open_provider(cloud, config.cluster, config)
        except ConfigError as error:
            log.warning("a cloud cannot be opened, its notices are not read: %s", error)
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
        account = _queue_account(site.config)
        queue = SqsQueue(settings.queue_url, client_maker(account, "sqs"))
        sources.append((queue, settings.poll_interval))
    # Not beside a queue, which reports the same interruptions without a call to Slurm.
    if settings.queue_url is None and _has_warning_agents(site.config):
        sources.append((NodeComments(site.slurm, service.reader.machines), settings.poll_interval))
    return [
        Poller(site, source, every, service.reader.machines, service.wake, service.orders)
        for source, every in sources
    ]


def _has_warning_agents(config: Config) -> bool:
    """Whether machines may run our agent that passes warnings on: only machines of EC2 do."""
    return config.join.head is not None and any(isinstance(c, AwsCloud) for c in config.clouds)


def open_prices(config: Config) -> PriceBook | None:
    """The book of spot prices; None if no policy uses prices."""
    texts = {config.checkpoint.policy, *(p.checkpoint.policy for p in config.pools)}
    if not any(watches_prices(policy_of(text)) for text in texts if text):
        return None
    settings = config.checkpoint.prices
    feed: PriceFeed
    if settings.source == "ec2":
        feed = Ec2Feed(_sellers(config))
    elif settings.source == "file" and settings.file is not None:
        feed = FileFeed(Path(settings.file))
    else:
        return None
    return PriceBook(feed, time.time)


def _sellers(config: Config) -> Mapping[str, PoolSeller]:
    """The seller of each pool of EC2."""
    # Imported here, because only this source of prices needs the extra `aws`.
    from slurm_elastic.providers.aws.client import AwsApi
    from slurm_elastic.providers.aws.images import AwsImages
    from slurm_elastic.providers.aws.rate_limit import pace_of

    sellers: dict[str, PoolSeller] = {}
    pools = domain_pools(config, expand)
    for cloud in (cloud for cloud in config.clouds if isinstance(cloud, AwsCloud)):
        images = AwsImages(AwsApi(cloud, pace_of(cloud)), cloud, time.monotonic)
        open_client = client_maker(cloud, "ec2")
        for pool in (pool for pool in pools if pool.cloud == cloud.name):
            sellers[pool.name] = PoolSeller(
                cloud=cloud.name, open_client=open_client, product=partial(images.product, pool)
            )
    return sellers


def _queue_account(config: Config) -> AwsCloud:
    """The cloud whose account reads the queue of notices."""
    cloud_name = config.checkpoint.notices.queue_cloud
    clouds = [c for c in config.clouds if isinstance(c, AwsCloud) and cloud_name in (None, c.name)]
    return clouds[0]


def client_maker(cloud: AwsCloud, service: str) -> Callable[[], Any]:
    """Return a function that makes boto3's client of that service for the cloud's account."""

    def make() -> Any:  # noqa: ANN401 - boto3's clients
        import boto3
        from botocore.config import Config as BotoConfig

        session = boto3.session.Session(profile_name=cloud.profile, region_name=cloud.region)
        limits = BotoConfig(
            connect_timeout=cloud.api_timeout, read_timeout=cloud.api_timeout,
            retries={"total_max_attempts": 2, "mode": "standard"},
        )  # fmt: skip
        endpoint = cloud.endpoint_of(service)
        client = session.client(service, endpoint_url=endpoint, config=limits)  # type: ignore[call-overload]
        bound_boto(client, cloud.api_timeout * 2)
        return client

    return make
