"""The contract suite over the fake and over a real slurmctld, by commands and by pyslurm."""

from __future__ import annotations

import pwd
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path

import pytest
from msgspec import Struct, structs

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import SlurmClientKind, SlurmSettings
from slurm_elastic.model.protocols import Slurm
from slurm_elastic.model.slurm import JobMail, Reservation
from slurm_elastic.model.slurm_words.dependencies import jobs_to_end, waits_for_name
from slurm_elastic.sandbox.cluster import Sandbox
from slurm_elastic.slurm.client.cli import SlurmCli
from slurm_elastic.slurm.client.fake import FakeSlurm
from slurm_elastic.slurm.client.job_files import read_job_files
from slurm_elastic.slurm.client.pyslurm_client import PyslurmClient, unusable
from tests.e2e.conftest import sandbox  # noqa: F401 - a fixture
from tests.e2e.world import AT_ONCE, slurmctld_away
from tests.slurm.contract import Contract, until
from tests.slurm.test_pyslurm_client import STANDIN


class FakeBed:
    version = (22, 5)

    def __init__(self) -> None:
        self.fake = FakeSlurm()
        for number, name in enumerate(("st1", "st2", "op1", "op2")):
            cloud = ("CLOUD", "POWERED_DOWN") if name.startswith("op") else ()
            self.fake.set_node(
                name, "IDLE", *cloud, cpus=2, memory=1000, port=7001 + number,
                partitions=("onprem" if cloud else "batch",),
            )  # fmt: skip
        self.fake.partition_default_times = {"batch": 600.0, "onprem": 600.0}
        self.fake.site_default = "batch"
        self.fake.partition_max_times = {"batch": None, "onprem": 3600.0}
        self.slurm: Slurm = self.fake

    def run(self) -> int:
        self.fake.set_job(7, "RUNNING", nodes=("st1",), user="nobody")
        return 7

    def end(self, job: int) -> None:
        self.fake.set_job(job, "CANCELLED")

    @contextmanager
    def reserved(self, name: str, begin: float, node: str) -> Iterator[None]:
        flags = frozenset({"MAINT", "IGNORE_JOBS", "SPEC_NODES"})
        self.fake.reserved.append(
            Reservation(name=name, start=begin, end=begin + 60, nodes=(node,), flags=flags)
        )
        yield
        self.fake.reserved.clear()

    def words(self, job: int) -> str:
        return " ".join(
            str(value)
            for _, fields in self.fake.updates
            if fields.get("job") == job
            for value in fields.values()
        )

    @contextmanager
    def away(self, how: str) -> Iterator[None]:
        code, words = {
            "stopped": (1, "Unable to contact slurm controller"),
            "unauthenticated": (1, "slurm_load_jobs error: Protocol authentication error"),
        }.get(how, (None, "no answer in 60 s"))
        self.fake.broken = SlurmError(("sinfo",), code, words)
        yield
        self.fake.broken = None


class LiveBed:
    def __init__(self, site: Sandbox, slurm: Slurm) -> None:
        self.site = site
        self.slurm = slurm
        self.version = site.slurm.version()

    def run(self) -> int:
        return self.site.submit("sleep 600", "--nodelist=st1")

    def end(self, job: int) -> None:
        self.site.run(["scancel", str(job)])

    @contextmanager
    def reserved(self, name: str, begin: float, node: str) -> Iterator[None]:
        own = name.replace(" ", "_")
        start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(begin))
        self.site.run([
            "scontrol", "create", f"reservation={own}", f"starttime={start}",
            "duration=60", f"nodes={node}", "flags=maint,ignore_jobs", "users=root",
        ])  # fmt: skip
        yield
        self.site.run(["scontrol", "delete", f"reservation={own}"])

    def words(self, job: int) -> str:
        shown = self.site.run(["scontrol", "show", "job", str(job)]).stdout
        read = self.slurm.job(job)
        path = Path(read.output if read else "")
        return shown + (path.read_text() if path.is_file() else "")

    @contextmanager
    def away(self, how: str) -> Iterator[None]:
        with slurmctld_away(self.site, how):
            yield


class TestFake(Contract):
    @pytest.fixture
    def bed(self) -> FakeBed:
        return FakeBed()


@pytest.fixture(scope="module")
def site(sandbox: Callable[..., Sandbox]) -> Iterator[Sandbox]:  # noqa: F811
    """A cluster whose cloud nodes nobody serves."""
    up = sandbox(static_nodes=2, drop=("aws",), slurm_conf=AT_ONCE)
    up.daemon_stop()
    return up


def settings(site: Sandbox) -> SlurmSettings:
    return SlurmSettings(conf=str(site.layout.slurm_conf))


@pytest.mark.e2e
class TestCommandLine(Contract):
    @pytest.fixture
    def bed(self, site: Sandbox) -> LiveBed:
        return LiveBed(site, SlurmCli(settings(site)))

    def test_every_form_of_json_that_slurm_has_says_the_same(self, site: Sandbox) -> None:
        """22.05 has none to choose from."""
        plain = SlurmCli(settings(site))
        forms = ("scontrol", "show", "nodes", "--json=list")
        for form in re.findall(r"v[\d.]+", site.run(forms, check=False).stdout):
            client = SlurmCli(settings(site))
            client._json = f"--json={form}"
            same(client.nodes, plain.nodes)
            same(partial(client.jobs, ended=True), partial(plain.jobs, ended=True))

    @pytest.mark.parametrize("end", ["", "\n", "\nJobId={job} JobName=y\n   ", "\v", "\u2028"])
    def test_no_name_of_a_job_stands_for_its_user_or_its_files(
        self, site: Sandbox, end: str
    ) -> None:
        """Root copies files as the user of this record. A name with a line feed begins new lines in
        the answers of scontrol.
        """
        slurm, nobody = SlurmCli(settings(site)), pwd.getpwnam("nobody").pw_uid
        number = 1 + site.submit("true", "--hold")
        forged = f"x UserId=slurm(1){end} UserId=slurm(1) Restarts=9 ExcNodeList=st1 WorkDir=/root"
        forged = f"{forged}{end}   StdOut=/root/x{end}   StdErr=/root/x".replace(
            "{job}", str(number)
        )
        job = site.submit("true", "--hold", "--chdir=/tmp", "-o", "a b-%j", "-e", "e", "-J", forged)
        assert job == number
        files = read_job_files(slurm, job)
        assert files is not None
        assert (files.job, files.label, files.uid, files.restarts) == (job, str(job), nobody, 0)
        assert (files.directory, files.outputs) == ("/tmp", (f"/tmp/a b-{job}", "/tmp/e"))
        assert (files.nodes, files.states) == ((), frozenset({"PENDING"}))
        assert slurm.excluded_nodes(job) == ()
        site.run(["scancel", str(job), str(job - 1)])

    def test_a_task_of_an_array_is_read_alone(self, site: Sandbox) -> None:
        slurm = SlurmCli(settings(site))
        array = site.submit("sleep 600", "--hold", "--array=0-2", "--chdir=/tmp")
        site.run(["scontrol", "update", f"jobid={array}_1", "name=apart"])
        tasks = [job for job in slurm.jobs() if job.array == array]
        assert [slurm.job(task.id) for task in tasks] == tasks
        (apart,) = (task for task in tasks if task.name == "apart")
        files = read_job_files(slurm, apart.id)
        assert files is not None
        assert (files.job, files.label) == (apart.id, f"{array}_1")
        assert files.outputs == (f"/tmp/slurm-{array}_1.out",)
        site.run(["scancel", str(array)])

    def test_what_waiting_jobs_depend_on_is_read(self, site: Sandbox) -> None:
        slurm = SlurmCli(settings(site))
        job = site.submit("sleep 600", "--hold")
        array = site.submit("sleep 600", "--hold", "--array=0-2")
        of_all = site.submit("true", f"--dependency=afterok:{job}:{array}")
        of_task = site.submit("true", f"--dependency=afterany:{array}_1?afternotok:{job}")
        of_start = site.submit("true", f"--dependency=after:{job}+5")
        of_name = site.submit("true", "--dependency=singleton")
        read = slurm.dependencies()
        assert read.keys() == {of_all, of_task, of_start, of_name}
        assert jobs_to_end(read[of_all]) == {str(job), f"{array}_*"}
        assert jobs_to_end(read[of_task]) == {str(job), f"{array}_1"}
        assert jobs_to_end(read[of_start]) == jobs_to_end(read[of_name]) == set()
        assert [n for n, words in read.items() if waits_for_name(words)] == [of_name]
        site.run(["scancel", *map(str, (job, array, *read))])

    def test_the_mail_that_a_job_asks_for_is_read(self, site: Sandbox) -> None:
        slurm = SlurmCli(settings(site))
        job = site.submit("sleep 600", "--hold", "--mail-type=REQUEUE,TIME_LIMIT_80")
        wants = JobMail(address="nobody", types=frozenset({"REQUEUE", "TIME_LIMIT_80"}))
        assert slurm.mail_of(job) == wants
        site.run(["scontrol", "update", f"jobid={job}", "mailtype=ALL", "mailuser=ann@example.org"])
        mail = slurm.mail_of(job)
        assert mail is not None
        assert mail.address == "ann@example.org"
        assert mail.types >= {"REQUEUE", "FAIL"}
        site.run(["scancel", str(job)])


@pytest.mark.e2e
class TestPyslurm(Contract):
    @pytest.fixture
    def bed(self, site: Sandbox) -> Iterator[LiveBed]:
        if why := unusable(settings(site), site.slurm.version()):
            pytest.skip(f"pyslurm did not run here: {why}")
        client = PyslurmClient(settings(site))
        yield LiveBed(site, client)
        client.close()

    def test_nodes_are_as_commands_tell_them(self, bed: LiveBed, site: Sandbox) -> None:
        same(bed.slurm.nodes, SlurmCli(settings(site)).nodes)

    def test_what_the_standin_has_pyslurm_has(self, bed: LiveBed, site: Sandbox) -> None:
        done = site.run([sys.executable, "-c", LACKING, str(STANDIN / "pyslurm.py")])
        assert done.stdout.split() == []


def same(one: Callable[[], object], other: Callable[[], object]) -> None:
    """Jobs may end between two readings."""
    until(lambda: differences(one(), other()), lambda different: not different)


def differences(one: object, other: object) -> list[str]:
    """What differs, each object's fields by themselves: a site's whole reading is too long to read."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = sorted(one.keys() | other.keys())
        return [f"{k}: {d}" for k in keys for d in differences(one.get(k), other.get(k))]
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        pairs = enumerate(zip_longest(one, other))
        return [f"{n}: {d}" for n, pair in pairs for d in differences(*pair)]
    if isinstance(one, Struct) and type(one) is type(other):
        return differences(structs.asdict(one), structs.asdict(other))
    return [] if one == other else [f"{one!r} and {other!r}"]


LACKING = """
import importlib.util, sys
import pyslurm
spec = importlib.util.spec_from_file_location("standin", sys.argv[1])
standin = importlib.util.module_from_spec(spec)
spec.loader.exec_module(standin)
print(*(field for field in standin.NODE if not hasattr(pyslurm.Node, field)))
"""
"""Fields of the stand-in's nodes that the real module's have not."""


def test_the_clients_are_named() -> None:
    assert [c.value for c in SlurmClientKind] == ["cli", "pyslurm", "auto"]
