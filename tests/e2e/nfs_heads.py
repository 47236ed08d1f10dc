"""The inside of ``test_two_heads_nfs.py``: what two heads share lies on an NFS server.

This host is a machine of the test's own with a kernel that has the NFS client. Each head reaches the
server by a network of its own, by which it is a client of its own, with a cache of its own.
"""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier

import pytest
from e2e.conftest import PatientSandbox
from e2e.crash import FULL, assert_one_machine_a_node, local_records, machines_made
from e2e.heads import HEADS, SERVICES, Pair, up
from e2e.takeover import jobs_go_on, kept
from e2e.world import Until, back_to_zero, live_machines, running_nodes
from patience import eventually, patience

from slurm_elastic.base import writing
from slurm_elastic.base.errors import SandboxError
from slurm_elastic.machine.ckptroot import mounts
from slurm_elastic.model.cluster import InstanceState
from slurm_elastic.sandbox import daemons
from slurm_elastic.slurm.client.acting import Controllers
from slurm_elastic.state.heads import Epochs, Fence, SupersededError
from slurm_elastic.state.store.journal import Journal

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(5000)]

AWAY = 90.0
"""Seconds for which the server stands still, or is gone."""
HOUR = "--time=1:00:00"
"""By default Slurm ends a job after ten minutes here, which are over soon."""
PLACE = Path("/tmp")
CONFIGURATION = f"""\
NFS_CORE_PARAM {{ Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ Only_Numeric_Owners = true; RecoveryBackend = fs; }}
EXPORT {{
  Export_Id = 1; Path = {PLACE}; Pseudo = {PLACE}; Protocols = 4; SecType = sys;
  Access_Type = RW; Squash = No_Root_Squash; FSAL {{ Name = VFS; }}
}}
"""


class Server:
    """Debian's nfs-ganesha."""

    def __init__(self, work: Path) -> None:
        self._file, self.log, self._pid = work / "conf", work / "log", work / "pid"
        self._file.write_text(CONFIGURATION)
        for place in ("/run/ganesha", "/var/lib/nfs/ganesha"):
            Path(place).mkdir(parents=True, exist_ok=True)
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        self._pid.unlink(missing_ok=True)
        words = ["ganesha.nfsd", "-F", "-f", self._file, "-L", self.log, "-p", self._pid]
        return subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def again(self) -> None:
        self._process = self._started()

    def send(self, number: int) -> None:
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()


def network(head: str) -> str:
    """The server's address for that head, which has it in a namespace of its own."""
    number = HEADS.index(head) + 1
    for line in (
        f"netns add {head}",
        f"link add {head} type veth peer name eth0 netns {head}",
        f"address add 10.9.{number}.1/24 dev {head}",
        f"link set {head} up",
        f"-n {head} address add 10.9.{number}.2/24 dev eth0",
        f"-n {head} link set eth0 up",
    ):
        subprocess.run(["ip", *line.split()], check=True)
    return f"10.9.{number}.1"


def mounting(head: str, address: str, place: Path, at: Path, options: str = "hard") -> str:
    """The shell command of a mount; a client is known by its host's name, too."""
    mount = f"mount -t nfs4 -o {options} {address}:{place} {at}"
    return f"nsenter --net=/run/netns/{head} {mount}"


class Clients:
    """A directory of the server's disk, mounted by each head's network."""

    def __init__(self, work: Path, addresses: dict[str, str], options: str) -> None:
        self._disk, self._options, self._addresses = work / "disk", options, addresses
        self._places = [work / head for head in HEADS]
        for place in (self._disk, *self._places):
            place.mkdir()

    @contextmanager
    def mounted(self) -> Iterator[Clients]:
        for head, place in zip(HEADS, self._places, strict=True):
            command = mounting(head, self._addresses[head], self._disk, place, self._options)
            named = f"hostname {head} && {command}"
            subprocess.run(["unshare", "--uts", "sh", "-c", named], check=True)
        try:
            yield self
        finally:
            for place in self._places:
                subprocess.run(["umount", place], check=True)

    def new(self, name: str) -> list[Path]:
        """A new directory there, by each client."""
        (self._places[0] / name).mkdir()
        found = [place / name for place in self._places]
        eventually(found[1].is_dir)
        return found


def linked(place: Path, number: int, begin: Barrier) -> bool:
    source = place / f"{threading.get_ident()}-{number}"
    source.touch()
    begin.wait()
    try:
        os.link(source, place / f"name-{number}")
    except FileExistsError:
        return False
    return True


def beats(directory: Path, place: int) -> None:
    """As slurmctld does."""
    made, path = directory / "heartbeat.new", directory / "heartbeat"
    made.write_bytes(struct.pack(">QQ", int(time.time()), place))
    path.unlink(missing_ok=True)
    path.hardlink_to(made)
    made.unlink()


@pytest.fixture(scope="module")
def addresses() -> dict[str, str]:
    return {head: network(head) for head in HEADS}


@pytest.fixture(scope="module")
def server(addresses: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    # A mount that succeeds is the only sign that its grace period is over, too.
    yield made
    made.send(signal.SIGKILL)


@pytest.fixture(scope="module")
def clients(
    server: Server, addresses: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clients]:
    """One directory, as each head sees it."""
    work = tmp_path_factory.mktemp("clients")
    with Clients(work, addresses, "hard").mounted() as made:
        yield made


def test_of_two_that_link_a_name_at_once_one_does(clients: Clients) -> None:
    shared = clients.new("links")
    for number in range(20):
        with ThreadPoolExecutor(2) as both:
            begin = Barrier(2)
            won = list(both.map(lambda place: linked(place, number, begin), shared))  # noqa: B023
        assert sorted(won) == [False, True]


def test_an_epoch_that_one_takes_is_what_the_other_one_finds_at_once(clients: Clients) -> None:
    """With all that a client keeps of the directory, as it looks at it all the time."""
    here, there = (Epochs(place) for place in clients.new("epochs"))
    for number in range(1, 21):
        actor, other = (here, there) if number % 2 else (there, here)
        for _ in range(5):
            other.newest()
        assert actor.take(f"head{number}").number == number
        found = other.newest()
        assert found is not None
        assert found.number == number
        with pytest.raises(SupersededError):
            Fence(epochs=other, epoch=number - 1, host="x").require()


def test_what_one_head_has_written_is_what_the_other_one_reads_at_once(clients: Clients) -> None:
    here, there = clients.new("journal")
    written = read = b""
    for number in range(10):
        writing.append(here / "ledger-000001.jsonl", line := b"%d\n" % number)
        written += line
        assert Journal(there, "ledger").segments() == [1]
        read = b"".join(raw for raw, _, _ in Journal(there, "ledger").read(1))
        assert read == written


def test_a_heartbeat_is_found_though_it_was_away_as_one_looked(clients: Clients) -> None:
    """slurmctld removes it before it has the next one in its place (22.05)."""
    here, there = clients.new("heartbeat")
    other = Controllers(hosts=HEADS, place=1, heartbeat=there / "heartbeat", timeout=30.0)
    for _ in range(5):
        beats(here, 0)
        assert other.acting(time.time()) == 0
        (here / "heartbeat").unlink()
        believed = other.acting(time.time())
        beats(here, 0)
        with pytest.raises(FileNotFoundError):  # what a client keeps, which is why we look again
            (there / "heartbeat").read_bytes()
        assert (believed, other.acting(time.time())) == (None, 0)


def test_without_close_to_open_an_epoch_is_not_seen(
    server: Server, addresses: dict[str, str], tmp_path: Path
) -> None:
    """Why a service does not start on such a mount."""
    with Clients(tmp_path, addresses, "hard,nocto,actimeo=600").mounted() as made:
        here, there = (Epochs(place) for place in made.new("nocto"))
        here.take("heada")
        for _ in range(5):  # it is kept from the second time on
            assert there.newest() == here.newest()
        here.take("headb")
        assert there.number() == 1
        options = mounts.nfs_options(str(there.directory), mounts.mounts())
        assert options > {"nocto", "hard"}


@pytest.fixture(scope="module")
def pair(server: Server, addresses: dict[str, str]) -> Iterator[Pair]:
    def share(directory: Path, head: str) -> str:
        place = directory / "slurmctld"
        return mounting(head, addresses[head], place, place)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(daemons, "START_TIMEOUT_S", 600.0)  # a processor that is emulated
        # A node counts as booting until it answers the head that took over.
        yield from up(share, resume_timeout=900.0)


def test_jobs_go_on_at_the_other_head_and_its_memory_is_the_same(pair: Pair) -> None:
    jobs_go_on(pair)


def by_standing_still(server: Server) -> None:
    server.send(signal.SIGSTOP)
    time.sleep(AWAY)
    server.send(signal.SIGCONT)


def by_dying(server: Server) -> None:
    """Its clients have to claim again what they had, in its grace period."""
    server.send(signal.SIGKILL)
    time.sleep(AWAY)
    server.again()


@pytest.mark.parametrize("away", [by_standing_still, by_dying])
def test_a_server_that_is_away_for_long_loses_and_doubles_nothing(
    pair: Pair, server: Server, away: Callable[[Server], None]
) -> None:
    with telling(pair):
        loses_and_doubles_nothing(pair, server, away)


@contextmanager
def telling(pair: Pair) -> Iterator[None]:
    """What Slurm and the services say where it fails: this host is gone when it ends."""
    try:
        yield
    except BaseException:
        for what in ("jobs", "nodes"):
            print(pair.sandbox.run(["scontrol", "show", what], check=False).stdout)
        print(pair.told())
        raise


def loses_and_doubles_nothing(pair: Pair, server: Server, away: Callable[[Server], None]) -> None:
    site, until = pair.sandbox, Until(pair.sandbox)
    pair.given_back()
    before = machines_made(site)
    jobs = [site.submit(until.script, FULL, HOUR, f"--partition={p}") for p in ("aws", "onprem")]
    running_nodes(site, jobs)
    kept(site, jobs[0])
    running = machines_made(site) - before
    later = site.submit(until.script, FULL, HOUR, "--partition=aws")
    with ThreadPoolExecutor(1) as beside:
        meanwhile = beside.submit(submitted, site, until.script)
        away(server)
        number = meanwhile.result(600.0)
    acting = site.wait_for(lambda: acts_alone(pair), 180.0, "exactly one head acts")
    print(f"{away.__name__}: {acting} acts, {Epochs(pair.shared).newest()}")
    assert_one_machine_a_node(site)
    assert running <= alive(site), "a machine with a job ended"
    running_nodes(site, [*jobs, later, number])
    assert_one_machine_a_node(site)
    until.go()
    for one in jobs:
        done = site.wait_job(one)
        assert (done["JobState"], done["Restarts"]) == ("COMPLETED", "0")
    for one in (later, number):
        assert site.wait_job(one)["JobState"] == "COMPLETED"
    pair.given_back()
    back_to_zero(site)
    assert_one_machine_a_node(site)
    # Slurm may have taken what it did not answer; ``kept`` has submitted one that never ran.
    assert len(machines_made(site) - before) <= number - jobs[0]


def submitted(site: PatientSandbox, script: str) -> int:
    """The number of a job that sbatch asks for while slurmctld cannot write, until it has one."""
    until = time.monotonic() + patience(400.0)
    while True:
        try:
            return site.submit(script, FULL, HOUR, "--partition=aws")
        except SandboxError as error:
            print(f"not submitted: {error}")
            if time.monotonic() > until:
                raise


def acts_alone(pair: Pair) -> str:
    """The head that acts, by its services' word, while the other one's say that they stand by."""
    head = pair.acting()
    others = [other for other in HEADS if other != head]
    logs = [pair.log(other, name) for other in others for name in SERVICES]
    stand = [said.rfind("standing by") > said.rfind("acting host=") for said in logs]
    return head if head and HEADS.index(head) == pair.place() and all(stand) else ""


def alive(site: PatientSandbox) -> set[str]:
    """Machines of both clouds that have not ended."""
    there = {m.id for m in live_machines(site)}
    return there | {r.id for r in local_records(site) if r.state != InstanceState.TERMINATED}
