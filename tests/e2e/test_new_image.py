"""``replace: when_changed`` on real Slurm: the configured image changes, and machines follow."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.sandbox.spec import IMAGE
from tests.e2e.world import PATIENCE, ledger, live_machines

pytestmark = [pytest.mark.e2e, pytest.mark.release]

NODES = ("pub1", "pub2")
NEW = "ami-0000000000000002"


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Sandbox:
    pool = {
        "name": "pub", "nodes": "pub[1-2]", "markets": ["on-demand"], "replace": "when_changed",
        "image": {"id": IMAGE},
    }  # fmt: skip
    # No machine ends because it is idle, so each machine that goes goes for the image.
    return sandbox(static_nodes=1, drop=("onprem",), elastic={"pools": [pool]}, suspend_time=3600.0)


def images(site: Sandbox) -> dict[str, str]:
    """By node, the image of its machine."""
    return {machine.node: machine.image for machine in live_machines(site)}


def run(site: Sandbox, node: str) -> None:
    fields = site.wait_job(site.submit("hostname", "--partition=aws", f"--nodelist={node}"))
    assert fields["JobState"] == "COMPLETED"


def kinds(site: Sandbox) -> list[str]:
    book = ledger(site)
    try:
        return [d.kind for d in book.decisions.about("pool:pub")]
    finally:
        book.close()


def test_machines_of_the_old_image_make_room_one_after_another(site: Sandbox) -> None:
    for node in NODES:
        run(site, node)
    assert images(site) == dict.fromkeys(NODES, IMAGE)
    path = site.layout.config
    plain = yaml.safe_load(path.read_text())
    plain["pools"][0]["image"] = {"id": NEW}
    path.write_text(yaml.safe_dump(plain))
    site.daemon_stop()
    site.daemon_start()
    site.wait_for(lambda: len(live_machines(site)) == 1, PATIENCE, "the first machine leaves")
    (kept,) = images(site)
    first = next(node for node in NODES if node != kept)
    assert kinds(site).count("replaced") == 1
    run(site, first)
    site.wait_for(lambda: "image-works" in kinds(site), PATIENCE, "the new image has proved itself")
    site.wait_for(lambda: kept not in images(site), PATIENCE, "the other machine leaves")
    run(site, kept)
    assert images(site) == dict.fromkeys(NODES, NEW)
