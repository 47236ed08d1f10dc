"""What a job asks for is read the same by Slurm, the submit filter, growth policies and ``price``.

Options of sbatch are generated and submitted, held, to a real slurmctld that refuses a job if one
partition of its list cannot hold it (EnforcePartLimits=ALL).
"""

from __future__ import annotations

import os
import random
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.submission_site import SubmissionSite
from msgspec import Struct

from slurm_elastic.base.hostlist import expand
from slurm_elastic.cli.jobs import price, why_not
from slurm_elastic.cli.operate.status import kept_of
from slurm_elastic.config import Cluster, Config, PoolSettings, SlurmSettings, domain_pools
from slurm_elastic.config.sections.access import Who
from slurm_elastic.model.cluster import Limits, Location, Market
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.launch.verdict import could_run, need
from slurm_elastic.providers.fake.settings import FakeCloud
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.commands import sbatch_test_only
from slurm_elastic.slurm.client.commands.sbatch_test_only import Submission
from slurm_elastic.slurm.client.requested_job import requested_job
from slurm_elastic.watch.door.questions import Chain
from slurm_elastic.watch.view.rows import Facts

pytestmark = pytest.mark.e2e

GPU_FORMS = (
    "--gres=gpu:{n}", "--gres=gpu:3090:{n}", "--gres=gpu:1g.5gb:{n}", "--gres=gpu:a100:{n}",
    "--gpus={n}", "--gpus=3090:{n}", "--gpus-per-node={n}", "--gpus-per-node=1g.5gb:{n}",
    "--gpus-per-task={n}", "--gpus-per-task=3090:{n}",
)  # fmt: skip
PER_GPU = ("--cpus-per-gpu={n}", "--mem-per-gpu={n}000")
OTHERS = ("-n{n}", "-N{n}", "-c{n}", "--mincpus={n}", "--exclusive", "--mem={n}000")
RULES = (
    "--no-requeue", "--requeue", "--contiguous", "--switches=1", "--tmp=5", "--reboot", "--prefer=x",
    "--bb=x", "--network=x", "--container=/x", "--sockets-per-node=1", "--cores-per-socket=1",
    "--ntasks-per-socket=1", "--ntasks-per-core=1", "--ntasks-per-core=2", "--threads-per-core=1",
    "--threads-per-core=2", "--hint=nomultithread", "--hint=memory_bound", "--hint=compute_bound",
    "-B1:1:1", "--core-spec=1", "--thread-spec=1", "--exclude=st1", "--nodelist=st1", "--batch=big",
    "--spread-job", "--use-min-nodes", "--overcommit", "--array=1-2", "--mincpus=1",
)  # fmt: skip
"""Options whose jobs the filter keeps from some or all clouds, or must not."""
FORMS = (
    *((option,) for option in RULES),
    *map(str.split, (
        "-n3", "-n8", "-n9", "-N2", "-N3", "-N2-4", "-N1 -n9", "-c4", "-c5", "-n2 -c3", "-n3 -c4",
        "--mem=7000", "--mem=9000", "--mem=0", "--mem-per-cpu=3000 -c4", "--mem-per-cpu=1000 -n8",
        "--exclusive -N2", "--ntasks-per-node=4", "--ntasks-per-node=5", "--ntasks-per-node=2 -N2",
        "--mincpus=5", "-n20 --overcommit", "-C old", "-C pl", "-C plain&pl", "-C plain|gpus", "-C nosuch",
        "-t 2-00:00:00", "-t 3-00:00:00", "--time-min=10 -t 3-00:00:00", "-p static", "-p other", "-p plain",
        "-p gpus,plain", "-p static,plain", "--gres=gpu:2", "--gres=gpu:3", "--gres=gpu:3090:1",
        "--gres=gpu:a100:1", "--gres=none", "--gpus=3", "--gpus=5", "--gpus=4 -N2", "--gpus-per-node=2 -N2",
        "--gpus-per-task=1 -n4", "--gpus-per-task=1 -n5", "--gpus=1 --cpus-per-gpu=5", "--gpus=1 --mem-per-gpu=9000",
        "--no-requeue --comment=spot=ok", "--no-requeue -n2", "--no-requeue --gres=gpu:1", "--no-requeue -C plain",
        "--licenses=nosuch", "--begin=now+1hour", "--dependency=singleton", "--array=1-4%2", "-A physics",
        "--qos=normal", "--deadline=now+2days", "--export=NONE", "--distribution=cyclic -n4",
    )),
)  # fmt: skip
"""Forms of sbatch: the rules, and requests of each kind that fit some, all or none of the clouds."""


CLOUDS = {"plain", "gpus", "parts"}


class Submitted(Struct, frozen=True, kw_only=True):
    """A held job. ``listed``: the partitions that the filter gave it, empty if none."""

    options: tuple[str, ...]
    listed: tuple[str, ...]
    job: SlurmJob | None
    refused: str


@pytest.fixture(scope="module")
def site() -> Iterator[SubmissionSite]:
    with tempfile.TemporaryDirectory(prefix="grammar-") as directory:
        os.chmod(directory, 0o755)
        running = SubmissionSite(Path(directory), enforce="ALL")
        try:
            running.start()
            running.install(config(running))
            running.restart()
            yield running
        finally:
            running.stop()


def config(site: SubmissionSite) -> Config:
    def pool(name: str, cloud: str, gres: dict[str, int], market: Market) -> PoolSettings:
        return PoolSettings(
            name=name, cloud=cloud, nodes=f"{name}[1-2]", slurmd_port=1, cpus=4, memory=9000,
            real_memory=8000, gres=gres, markets=(market,),
            devices={key: ("/dev/null", "/dev/zero")[:count] for key, count in gres.items()},
        )  # fmt: skip

    return Config(
        cluster=Cluster(name="submissions"),
        state_dir=str(site.root / "state"),
        slurm=SlurmSettings(conf=str(site.conf), programs_dir=str(site.root / "programs")),
        clouds=tuple(
            FakeCloud(name=name, location=location, allow=Who(groups=("root",)))
            for name, location in (
                ("plain", Location.PUBLIC),
                ("gpus", Location.ON_PREMISES),
                ("parts", Location.ON_PREMISES),
            )
        ),
        limits=Limits(dollars_per_hour=10.0),
        pools=(
            pool("pl", "plain", {}, Market.SPOT),
            pool("gp", "gpus", {"gpu:3090": 2}, Market.ON_DEMAND),
            pool("mig", "parts", {"gpu:1g.5gb": 2}, Market.ON_DEMAND),
        ),
    )


def drawn(seed: int) -> tuple[str, ...]:
    draw = random.Random(seed)

    def some(forms: tuple[str, ...], most: int) -> list[str]:
        chosen = draw.sample(forms, draw.randint(0, most))
        return [form.format(n=draw.randint(1, 4)) for form in chosen]

    return (*some(GPU_FORMS, 2), *some(PER_GPU, 2), *some(OTHERS, 2))


def submit(site: SubmissionSite, options: tuple[str, ...]) -> Submitted:
    since = site.log_size
    done = site.run("sbatch", "-H", "--parsable", "-o", "/dev/null", *options, "--wrap", "true")
    given = re.findall(r"slurm-elastic: uid=\S+ partition=(\S+)", site.log(since))
    listed = tuple(given[-1].split(",")) if given else ()
    if done.code != 0:
        return Submitted(options=options, listed=listed, job=None, refused=done.err)
    number = int(done.out.split(";")[0])
    jobs = SlurmCli(SlurmSettings(conf=str(site.conf))).jobs()
    site.run("scancel", str(number))
    # The record of an array that waits has the number of the whole.
    job = next(job for job in jobs if number in (job.id, job.array))
    return Submitted(options=options, listed=listed, job=job, refused="")


def options_of(site: SubmissionSite, options: tuple[str, ...]) -> dict[str, str]:
    """The options by their long names, as sbatch prints them for ``price``."""
    done = site.run("sbatch", "--verbose", "--test-only", *options, "--wrap", "true")
    return dict(sbatch_test_only.understood(done.err).options)


def check_reading(site: SubmissionSite, made: Submitted) -> None:
    """Slurm accepts the list, and each reader of ours takes the job for one of its clouds."""
    clouds = set(made.listed) & CLOUDS
    assert not (clouds and made.refused), made
    if made.job is None:
        return
    asked = requested_job(options_of(site, made.options), made.listed)
    pools = domain_pools(config(site), expand)
    for job in (made.job, asked):
        fitting = {pool.cloud for pool in pools if could_run(job, pool)}
        assert clouds <= fitting, (made, job)
    # No machine without GPUs is bought for a job that asks for some.
    with_gpus = [pool for pool in pools if pool.gres]
    if any(option.startswith(("--gres=gpu", "--gpus")) for option in made.options):
        for job in (made.job, asked):
            assert not any(could_run(job, pool) for pool in pools if pool not in with_gpus), made


@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.release)])
def test_generated_requests_are_read_as_slurm_reads_them(site: SubmissionSite, first: int) -> None:
    made = [submit(site, drawn(seed)) for seed in range(first, first + (40 if not first else 400))]
    for one in made:
        check_reading(site, one)
    listed = [one for one in made if one.job is not None and set(one.listed) & {"gpus", "parts"}]
    assert listed, "no request with GPUs got a cloud"


@pytest.mark.parametrize(
    ("options", "cloud"),
    [
        (("--gpus=1", "--cpus-per-gpu=3"), "gpus"),
        (("--gpus=2", "--mem-per-gpu=2000"), "gpus"),
        (("--gpus-per-task=1", "-n1", "--cpus-per-gpu=2"), "gpus"),
        (("-G1", "-N1", "--cpus-per-gpu=2"), "gpus"),
        (("--gres=gpu:3090:1",), "gpus"),
        (("--gres=gpu:1g.5gb:2",), "parts"),
    ],
)
def test_gpus_in_any_form_get_their_cloud(
    site: SubmissionSite, options: tuple[str, ...], cloud: str
) -> None:
    made = submit(site, options)
    assert cloud in made.listed, made
    assert not made.refused
    check_reading(site, made)


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (("--gpus=1", "--cpus-per-gpu=4"), 1),
        (("--gpus=1", "--cpus-per-gpu=5"), 0),
        (("--gpus=2", "--cpus-per-gpu=3"), 2),
        (("--gpus=2", "--mem-per-gpu=5000"), 2),
        (("--gpus-per-node=2", "--mem-per-gpu=5000"), 0),
        (("--gres=gpu:2", "--cpus-per-gpu=3"), 0),
        (("--gpus-per-task=3090:1", "-n1", "--mem-per-gpu=9000"), 0),
    ],
)
def test_the_record_of_a_job_says_what_each_of_its_gpus_needs(
    site: SubmissionSite, options: tuple[str, ...], nodes: int
) -> None:
    """Otherwise growth policies buy machines of this pool for ever, and the job starts on none."""
    made = submit(site, ("-p", "static", *options))
    assert made.job is not None, made
    (pool,) = (pool for pool in domain_pools(config(site), expand) if pool.name == "gp")
    assert could_run(made.job, pool) is (nodes > 0), made.job
    assert not nodes or need(made.job, pool) == nodes


def possible(site: SubmissionSite, job: SlurmJob, facts: Facts) -> set[str]:
    """The clouds that may run the job by the verdicts, which price and explain print."""
    verdicts = why_not.waits_now(config(site), job, Chain(), facts).of_all_pools(job)
    barred = price.barred_pools(verdicts)
    return {verdict.cloud for verdict in verdicts if verdict.pool not in barred}


def test_price_and_explain_name_the_clouds_that_the_filter_lists(site: SubmissionSite) -> None:
    facts = kept_of(SlurmCli(SlurmSettings(conf=str(site.conf))), time.time())
    assert facts.nodes
    assert facts.max_times, "slurmctld gave no answer, and kept_of bears that"
    wrong = []
    for form in FORMS:
        made = submit(site, tuple(form))
        asked = Submission(options=options_of(site, tuple(form)))
        by_slurm = set(made.job.partitions if made.job else made.listed) & CLOUDS
        by_price = possible(site, price.submitted_job(config(site), asked), facts)
        by_explain = possible(site, made.job, facts) if made.job else by_slurm
        if not by_slurm == by_price == by_explain:
            wrong.append((form, by_slurm, by_price, by_explain))
    assert wrong == []
