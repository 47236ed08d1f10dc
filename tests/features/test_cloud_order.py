"""The order of clouds follows prices and stock: published for the submit filter, and for jobs that
wait already.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from slurm_elastic.base.errors import SlurmError, TransientError
from slurm_elastic.config import PoolSettings
from slurm_elastic.config.clouds import InstanceType
from slurm_elastic.config.sections.access import Who
from slurm_elastic.features.growth.covered_jobs import CoveredJobs
from slurm_elastic.features.growth.observe import observe, pool_groups
from slurm_elastic.features.orders import cloud_order
from slurm_elastic.features.orders.cloud_order import CloudOrder
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.policies.launch.reorder import MAX_REORDERED_JOBS
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.hooks.order_file import FILE
from tests.controller.world import Inline, World

TYPES = {"small": InstanceType(cpus=2, memory=4096, price=0.50)}


def three_clouds() -> dict[str, Any]:
    """One cloud on the premises, and two public ones with the same machines at $0.50."""
    clouds = (
        FakeCloud(name="own", location=Location.ON_PREMISES, types=TYPES, stock=None),
        *(FakeCloud(name=name, location=Location.PUBLIC, types=TYPES) for name in ("a", "b")),
    )
    pools = tuple(
        PoolSettings(name=f"{cloud.name}pool", cloud=cloud.name, nodes=f"{cloud.name}[1-4]",
                     cpus=2, memory=4096)
        for cloud in clouds
    )  # fmt: skip
    return {"clouds": clouds, "pools": pools, "limits": Limits(nodes=9, dollars_per_hour=50.0)}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, **three_clouds())
    made.slurm.site_default = "batch"
    yield made
    made.close()


def job(world: World, number: int, *partitions: str, **fields: Any) -> None:
    world.slurm.set_job(
        number, "PENDING", partitions=partitions, reason="Resources", submit=world.now - 60,
        limit=3600, cpus=2, **fields,
    )  # fmt: skip
    world.slurm.comments[number] = f"by hand [slurm-elastic clouds={','.join(partitions[1:])}]"


def partitions(world: World, number: int) -> tuple[str, ...]:
    return next(row.partitions for row in world.slurm.jobs() if row.id == number)


def set_price(world: World, cloud: str, price: float) -> None:
    for zone in {
        offer.zone for offer in world.clouds[cloud].offers(world.site.pools[f"{cloud}pool"])
    }:
        world.clouds[cloud].set_price("small", zone, Market.ON_DEMAND, price)


def changes(world: World) -> list[dict[str, Any]]:
    return [dict(fields) for name, fields in world.slurm.updates if name == "change_pending"]


def look(world: World) -> CloudOrder:
    part = CloudOrder(world.site, Inline())
    part.look()
    return part


ALL = ("batch", "own", "a", "b")


def test_the_terms_are_published_in_the_order_of_use(site: World) -> None:
    set_price(site, "a", 0.40)
    look(site)
    lines = (site.dir / FILE).read_text().splitlines()
    assert lines[0] == "slurm-elastic-order 1"
    assert lines[2] == "keys location available market price waste"
    assert [line.split()[1] for line in lines if line.startswith("pool ")] == [
        "ownpool",
        "apool",
        "bpool",
    ]
    assert [line for line in lines if line.startswith("offer ")][1] == "offer 4 on-demand 0.4 0.0 -"
    assert lines[-1] == "end"


def test_a_waiting_job_moves_to_the_cloud_that_became_cheaper(site: World) -> None:
    job(site, 7, *ALL)
    part = look(site)
    assert partitions(site, 7) == ALL, "equal prices: the order of the file"
    set_price(site, "a", 0.80)
    part.look()
    assert partitions(site, 7) == ("batch", "own", "b", "a"), "on-premises stays first"
    (decision,) = site.ledger.decisions.about("job:7")
    assert decision.kind == "reordered"
    assert "tries cloud b before a: it costs about $0.51" in str(decision.reason)
    part.look()
    assert len(changes(site)) == 1, "nothing has changed since"


@pytest.mark.parametrize(("allowed", "moves"), [(("gpu",), True), (("big",), False), ((), False)])
def test_a_job_of_an_allowed_partition_moves_too(
    tmp_path: Path, allowed: tuple[str, ...], moves: bool
) -> None:
    setup = three_clouds()
    clouds = tuple(replace(cloud, allow=Who(partitions=allowed)) for cloud in setup["clouds"])
    made = World(tmp_path, **setup | {"clouds": clouds})
    made.slurm.site_default = "batch"
    try:
        job(made, 7, "gpu", "own", "a", "b")
        set_price(made, "a", 0.80)
        look(made)
        expected = ("gpu", "own", "b", "a") if moves else ("gpu", "own", "a", "b")
        assert partitions(made, 7) == expected
    finally:
        made.close()


def test_a_small_difference_changes_nothing(site: World) -> None:
    job(site, 7, *ALL)
    set_price(site, "a", 0.51)
    look(site)
    assert changes(site) == []


def test_a_sold_out_cloud_sinks_at_the_next_look(site: World) -> None:
    job(site, 7, *ALL)
    site.clouds["a"].limit("*", 0)
    look(site)
    assert partitions(site, 7) == ("batch", "own", "b", "a")
    (decision,) = site.ledger.decisions.about("job:7")
    assert "a cannot sell now" in str(decision.reason)


def test_a_cloud_that_does_not_answer_sinks_and_is_reported_once(
    site: World, caplog: pytest.LogCaptureFixture
) -> None:
    job(site, 7, *ALL)
    site.clouds["a"].fail_next(TransientError, 9, "offers")
    part = look(site)
    part.look()
    assert partitions(site, 7) == ("batch", "own", "b", "a")
    assert caplog.text.count("no offers pool=apool") == 1


@pytest.mark.parametrize("note", [True, False])
@pytest.mark.parametrize(
    "list_of_job",
    [("a", "b"), ("batch", "a"), ("batch", "a", "theirs"), ("other", "a", "b"), ("a",)],
)
def test_a_list_that_the_filter_never_makes_stays(
    site: World, list_of_job: tuple[str, ...], note: bool
) -> None:
    job(site, 7, *list_of_job)
    if not note:
        site.slurm.comments.clear()
    set_price(site, "a", 0.90)
    look(site)
    assert partitions(site, 7) == list_of_job
    assert changes(site) == []


def test_a_users_own_list_has_no_note_and_stays(site: World) -> None:
    for number, text in enumerate(("", "their text", "clouds=own,a,b"), 7):
        job(site, number, *ALL)
        site.slurm.comments[number] = text
    set_price(site, "a", 0.90)
    look(site)
    assert changes(site) == []


def test_the_note_says_the_order_where_slurm_shows_another(site: World) -> None:
    """slurmctld shows the partition that it tried last at the front."""
    job(site, 7, *ALL)
    site.slurm.set_job(7, "PENDING", partitions=("b", "batch", "own", "a"))
    look(site)
    assert changes(site) == [], "the order in force is still the filter's"
    set_price(site, "a", 0.90)
    look(site)
    assert partitions(site, 7) == ("batch", "own", "b", "a")
    assert site.slurm.comments[7] == "by hand [slurm-elastic clouds=own,b,a]"
    site.slurm.set_job(7, "PENDING", partitions=("a", "batch", "own", "b"))
    look(site)
    assert len(changes(site)) == 1, "a new slurm-elasticd reads the order from the note"


def test_few_jobs_change_in_one_look_the_most_urgent_first(site: World) -> None:
    for number in range(1, MAX_REORDERED_JOBS + 21):
        job(site, number, *ALL, priority=number)
    set_price(site, "a", 0.90)
    part = look(site)
    (first,) = changes(site)
    assert len(first["jobs"]) == MAX_REORDERED_JOBS
    assert min(first["jobs"]) == 21
    part.look()
    assert [len(change["jobs"]) for change in changes(site)] == [MAX_REORDERED_JOBS, 20]


def test_held_and_running_jobs_are_left_alone(site: World) -> None:
    job(site, 7, *ALL)
    site.slurm.set_job(7, "PENDING", reason="JobHeldUser", priority=0)
    job(site, 8, *ALL)
    site.slurm.set_job(8, "RUNNING", nodes=("a1",))
    set_price(site, "a", 0.90)
    look(site)
    assert changes(site) == []


def test_a_refused_change_leaves_the_order(site: World, caplog: pytest.LogCaptureFixture) -> None:
    job(site, 7, *ALL)
    part = look(site)
    set_price(site, "a", 0.90)
    site.slurm.change_pending = refuse  # type: ignore[method-assign,assignment]
    part.look()
    part.look()
    assert not site.ledger.decisions.about("job:7")
    assert caplog.text.count("job not changed job=7") == 1, "not asked again for the same list"


def refuse(*_: object, **__: object) -> None:
    raise SlurmError(("scontrol", "update"), 1, "Access/permission denied")


def test_growth_starts_machines_where_they_are_cheaper(site: World) -> None:
    def pools_in_use() -> list[str]:
        counted = {name: CoveredJobs() for name in site.site.pools}
        (group,) = pool_groups(site.site, observe(site.site), counted)
        return [pool.name for pool in group.now.pools]

    assert pools_in_use() == ["ownpool", "apool", "bpool"]
    set_price(site, "a", 0.90)
    part = look(site)
    assert pools_in_use() == ["ownpool", "bpool", "apool"]
    # Machines of several clouds would serve no job that needs them together.
    set_price(site, "a", 0.49)
    part.look()
    assert pools_in_use() == ["ownpool", "bpool", "apool"], "hardly cheaper"
    set_price(site, "a", 0.40)
    part.look()
    assert pools_in_use() == ["ownpool", "apool", "bpool"]


def test_only_sites_whose_order_can_change_look(site: World, tmp_path: Path) -> None:
    assert cloud_order.join(site.site) is not None
    small = World(tmp_path / "small")
    assert cloud_order.join(small.site) is None, "one public cloud"
    by_price = World(tmp_path / "price", ranking=("price",))
    assert cloud_order.join(by_price.site) is not None
    for world in (small, by_price):
        world.close()


def test_a_full_disk_is_reported_once_and_waiting_jobs_are_still_ordered(
    site: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    job(site, 7, *ALL)
    set_price(site, "a", 0.90)
    with monkeypatch.context() as patch:
        patch.setattr(cloud_order.writing, "replace", full)
        part = look(site)
        part.look()
    assert caplog.text.count("order not published") == 1
    assert partitions(site, 7) == ("batch", "own", "b", "a")
    part.look()
    assert (site.dir / FILE).exists()


def test_a_list_that_a_budget_has_narrowed_stays(site: World) -> None:
    job(site, 7, *ALL)
    part = look(site)
    site.slurm.set_job(7, "PENDING", partitions=("batch", "a", "b"))
    set_price(site, "a", 0.90)
    part.look()
    look(site)
    assert changes(site) == []


def test_a_comment_without_our_note_and_an_ended_job_are_left_alone(
    site: World, caplog: pytest.LogCaptureFixture
) -> None:
    for number in (7, 8, 9):
        job(site, number, *ALL)
    part = look(site)
    site.slurm.comments[7] = "somebody's text"
    set_price(site, "a", 0.90)
    write = site.slurm.set_admin_comment

    def ended(number: int, text: str) -> None:
        if number == 8:
            raise SlurmError(("scontrol", "update"), 1, "Invalid job id specified")
        write(number, text)

    site.slurm.set_admin_comment = ended  # type: ignore[method-assign]
    caplog.set_level("INFO")
    part.look()
    assert site.slurm.comments[7] == "somebody's text"
    assert "order not noted job=8" in caplog.text
    assert "clouds=own,b,a" in site.slurm.comments[9]
    assert [d.kind for d in site.ledger.decisions.about("job:7")] == ["reordered"]
