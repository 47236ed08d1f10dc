"""The service hears of interruptions by the SQS queue alone, on real Slurm."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml
from pages import shown

from slurm_elastic.config import configfile
from slurm_elastic.model.memory import Health
from slurm_elastic.providers.aws.service_client import service_client
from slurm_elastic.providers.aws.settings import AwsCloud
from slurm_elastic.sandbox.cluster import Sandbox
from tests.e2e.ckpt import (
    SITE,
    UNTIL_ENOUGH,
    announce,
    begun_at,
    counter,
    enough,
    kinds,
    machine_of,
    migrations,
    node_of,
    settled,
    wait_steps,
)
from tests.e2e.world import ledger

pytestmark = [pytest.mark.e2e, pytest.mark.release]
SOURCE = "notices in SQS"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    """Its ckptman asks no cloud for notices, and reads the queue of the emulated EC2."""
    up = sandbox(**SITE)
    document = yaml.safe_load(up.layout.config.read_text())
    page = shown("docs/sandbox.md", "checkpoint: {notices: {queue_url:").text
    told = yaml.safe_load(page.replace("PORT", str(up.layout.read().ports.ec2)))
    document["checkpoint"]["notices"] = {"poll_interval": 1, "poll_clouds": False} | told[
        "checkpoint"
    ]["notices"]
    up.layout.config.write_text(yaml.safe_dump(document))
    up.ckptman_stop()
    up.ckptman_start()
    return up


def health(site: Sandbox) -> dict[str, Health]:
    book = ledger(site)
    try:
        return {h.name: h for h in book.health.all()}
    finally:
        book.close()


def left(site: Sandbox) -> int:
    """Messages in the queue, those that somebody is reading too, by the service's own client."""
    config = configfile.load(site.layout.config)
    account = next(cloud for cloud in config.clouds if isinstance(cloud, AwsCloud))
    client = service_client(account, "sqs")
    try:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        url = config.checkpoint.notices.queue_url
        found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
        return sum(int(found[name]) for name in names)
    finally:
        client.close()


def test_a_notice_of_the_queue_saves_and_moves_the_job(
    site: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in site.layout.daemon_env().items():
        monkeypatch.setenv(name, value)
    job = counter(site, steps=UNTIL_ENOUGH)
    wait_steps(site, job, 8)
    node, taken = node_of(site, job), machine_of(site, job)
    announce(site, node)
    enough(site, job, runs=2)
    assert site.job(job)["Restarts"] == "1"
    assert machine_of(site, job) != taken, "its node may have got another one meanwhile"
    assert begun_at(site, job)[1] >= 8
    settled(site)
    (moved,) = [r for r in migrations(site) if r.run.job == job]
    assert moved.image is not None
    assert "ckpt-notice" in kinds(site, node)
    assert health(site)[SOURCE].error is None
    site.wait_for(lambda: left(site) == 0, 60, "what is known here is out of the queue")
