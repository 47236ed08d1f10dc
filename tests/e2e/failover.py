"""Heads that are struck again and again while jobs arrive, are moved and ordered about."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from datetime import datetime

from e2e import ckpt
from e2e.crash import FULL
from e2e.failover_counts import LOOK, Clouds, Found, Job, Span, Told, count_jobs, words, written
from e2e.heads import HEADS, OWN, SERVICES, TIMEOUT, Pair

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.base.faults import POINTS
from slurm_elastic.sandbox.control import interrupt
from slurm_elastic.sandbox.daemons import CKPTMAN, ELASTICD, SLURMCTLD
from slurm_elastic.state.ckptstate.facts import Migration

KINDS = ("all", "services", "still", "asleep", "power")
"""Killed: all of the head's, or ours alone; stood still for a minute: ours, or slurmctld, too; its
host gone.
"""
LAUNCHES = tuple(p for p in POINTS if p.startswith(("launch.", "suspend.")))
MOVES = (
    "notice.after-record",
    *(p for p in POINTS if p.startswith("migration.") and p != "migration.hurried"),
)
RANDOM = "a random moment"
THREATS = ("interruption", "notice", "drain")
"""Of whom a move is: the cloud's, and two orders of a person's."""
FORGETS = 20.0
"""Seconds: Slurm may forget jobs and allocations that are younger when its acting host dies."""
BETWEEN = 3.0
"""Seconds between two jobs."""
LONGEST = 2400.0
"""Seconds after which a job that counts may end, so that no time limit ends it."""
EACH = 10.0
"""Seconds for which a job keeps the queue, at the end."""
STILL = 60.0
"""Seconds for which a head stands still."""
LONG = 180.0
HANGS = 6.0 * TIMEOUT
"""Seconds after which a slurmctld that should act does not any more."""
REACHED = 45.0
"""Seconds within which a step is reached, or the head is struck without."""
QUIET = 3.0
"""Seconds without a call after which none is on its way."""
BOTH = 5.0
"""Seconds for which two slurmctld believe that they act."""
COUNTERS = 2
"""Jobs that save themselves and run at a time."""
NOTICE = 120.0
"""Seconds that a cloud gives, as EC2 does."""
SLACK = 20.0
"""Seconds that a save and a requeue take in any case."""


LINE = re.compile(r"\[(\d{4}-\d\d-\d\dT[\d:.]+)\] ")
"""How a line of slurmctld.log begins: with its time, in the time zone of this host."""
ENDS = re.compile("job_complete|[Rr]equeu|[Kk]ill|missing from|[Cc]ancel|[Tt]ime limit")
"""Words of a slurmctld that ends a job or begins it anew."""


class Deck:
    """Draws each card once before any comes again."""

    def __init__(self, cards: Sequence[str], draw: random.Random) -> None:
        self._cards, self._draw, self._left = cards, draw, list[str]()

    def next(self) -> str:
        if not self._left:
            self._left = self._draw.sample(self._cards, len(self._cards))
        return self._left.pop()


class Failover:
    """Strikes of one pair, drawn by ``seed``."""

    def __init__(self, pair: Pair, seed: int, say: Callable[[str], None] = print) -> None:
        self.pair, self.site, self.say = pair, pair.sandbox, say
        self.draw = random.Random(seed)
        self.found = Found()
        self.clouds = Clouds(self.site)
        self.jobs: list[Job] = []
        self.numbers: list[tuple[int, Job]] = []
        self.spans: list[Span] = []
        self.away: list[Span] = []
        self._kinds = Deck(KINDS, self.draw)
        halves = (*LAUNCHES, *MOVES, *[RANDOM] * (len(MOVES) // 2))
        self._points = Deck(halves, self.draw)
        self._threats = Deck(THREATS, self.draw)
        self._drained = ""

    def run(self, kills: int) -> Found:
        """So many strikes, then until all is at rest again."""
        with self._again(BETWEEN, self._submit), self._again(LOOK, self.clouds.look):
            for number in range(kills):
                self._given_back()
                with self._told():
                    self._strike(number)
            self._given_back()
        with self._again(LOOK, self.clouds.look):
            self._at_rest()
        self._count()
        return self.found

    @contextlib.contextmanager
    def _again(self, every: float, work: Callable[[], None]) -> Iterator[None]:
        """Do it again and again beside the block."""
        over = threading.Event()

        def on() -> None:
            while not over.wait(every):
                work()

        thread = threading.Thread(target=on, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What the services said last, where the block does not come to its end."""
        try:
            yield
        except TimeoutError:
            self.say(self.pair.told())
            raise

    # jobs

    def _submit(self) -> None:
        name = f"j{len(self.jobs):05d}-{os.urandom(2).hex()}"
        counts = len(self._counting()) < COUNTERS
        if counts:
            script = ckpt.COUNTER.replace("$SLURM_JOB_ID", name)
            script = script.replace("STEPS", str(ckpt.UNTIL_ENOUGH)) + f"echo end >> {name}\n"
            sign = ckpt.FILE_SIGN.replace("%j", name)
            # As long as may be: by default Slurm ends a job after ten minutes here.
            options = (f"--job-name={name}", f"--comment={sign}", "--time=1:00:00")
        else:
            file = self.site.work / name
            script = f"echo begin >> {file}; sleep {self.draw.randint(1, 15)}; echo end >> {file}"
            where = self.draw.choice(("aws", "aws", "aws", "onprem"))  # as many as they have nodes
            options = (FULL, f"--partition={where}", f"--job-name={name}")
        try:
            number = self.site.submit(script, *options)
        except SandboxError as error:  # while no slurmctld answers
            self.say(f"not submitted: {str(error).splitlines()[0]}")
            self._enough(name)  # it may have taken the job all the same
        else:
            job = Job(name, time.time(), counts)
            self.jobs.append(job)
            self.numbers.append((number, job))

    def _counting(self) -> list[Job]:
        """Those that may count yet."""
        return [j for j in self.jobs if j.counts and not self._told_enough(j)]

    def _told_enough(self, job: Job) -> bool:
        return (self.site.work / f"enough-{job.name}").exists()

    def _enough(self, name: str) -> None:
        (self.site.work / f"enough-{name}").touch()

    # one strike

    def _strike(self, number: int) -> None:
        kind, point = self._kinds.next(), self._points.next()
        head, other = HEADS
        if point == RANDOM:
            time.sleep(self.draw.uniform(0.0, 6.0))
        else:
            point = self._until(head, point, number, stands=kind in ("still", "asleep"))
        self.say(f"strike {number}: {kind} at {point}")
        self.found.strikes[kind] += 1
        self.found.points[point] += 1
        begun = time.time()
        getattr(self, f"_{kind}")(head, other)
        self.spans.append(Span(begun - FORGETS, time.time() if kind == "asleep" else begun))

    def _until(self, head: str, point: str, number: int, *, stands: bool) -> str:
        """Have a service die, or stand still, there; the point, or what it came to."""
        once = self.pair.shared / f"died-{number}"
        fault = {"SLURM_ELASTIC_FAULT": point, "SLURM_ELASTIC_FAULT_ONCE": str(once)}
        if stands:
            fault["SLURM_ELASTIC_FAULT_SIGNAL"] = "STOP"
        service = CKPTMAN if point in MOVES else ELASTICD
        self.pair.strike(head, [service], signal.SIGTERM)
        self._wait(lambda: not self.pair.lives(head, service), LONG, "it ends")
        self.pair.daemons.begin(head, service, fault)
        if point in MOVES:
            self._wait(lambda: self.pair.acting() == head, LONG, "it acts")
            with contextlib.suppress(TimeoutError):
                self._wait(self._nodes_of_old, REACHED, "a job counts that Slurm does not forget")
            point = self._threaten(head) and point
        until = time.monotonic() + REACHED
        while point and time.monotonic() < until:
            if once.exists():
                return point
            time.sleep(0.05)
        once.touch()  # nor is it reached later
        return "no step"

    def _threaten(self, head: str) -> str:
        """Have a job move that counts: whose; "" where none does."""
        nodes = self._nodes_of_old()
        if not nodes:
            return ""
        node, how = self.draw.choice(nodes), self._threats.next()
        if how == "interruption":
            with contextlib.suppress(SandboxError):
                interrupt(self.site.ec2, node, NOTICE)
                return how
        elif how == "notice":
            self.pair.run(head, "ckpt", "notice", node, "--in", "2m", "--reason", "a strike")
        else:
            self._drained = node
            self.pair.run(head, "drain", node, "--aggressive", "--reason", "a strike")
        return how

    def _nodes_of_old(self) -> list[str]:
        """Where jobs count that Slurm does not forget any more."""
        counting = {job.name for job in self._counting()}
        old = {n for n in counting if len(words(self.site.work / f"steps-{n}")) > 4 * FORGETS}
        jobs = [j for j in self.site.jobs() if "RUNNING" in j.states and j.name in old]
        return [node for job in jobs for node in job.nodes]

    def _all(self, head: str, other: str) -> None:
        self.pair.strike(head)
        self._taken_over(other)

    def _power(self, head: str, other: str) -> None:
        """The host goes, with all that runs on it."""
        self.pair.strike(head)
        self.pair.processes.kill(f"{head}-host")
        self._taken_over(other)
        (self.site.layout.dir / "heads" / head / "ready").unlink()
        self.pair.processes.hold(head, self.site.layout.daemon_env())
        self._wait(lambda: self.pair.processes.ready(head), LONG, "the host is back")

    def _services(self, head: str, _: str) -> None:
        self.pair.strike(head, SERVICES)
        self.pair.begin(head, SERVICES)

    def _still(self, head: str, other: str) -> None:
        """Our services stand still; slurmctld is dead by then."""
        self.pair.strike(head, SERVICES, signal.SIGSTOP)
        self.pair.strike(head, [SLURMCTLD])
        self._sleeps(head, other)

    def _asleep(self, head: str, other: str) -> None:
        """The whole host stands still. Its slurmctld believes that it acts when it wakes, and writes
        so; it is ended a little later, as sites that fence have it.
        """
        self.pair.strike(head, OWN, signal.SIGSTOP)
        self._sleeps(head, other)
        self.pair.strike(head, [SLURMCTLD], signal.SIGCONT)
        time.sleep(BOTH)
        self.pair.strike(head, [SLURMCTLD])

    def _sleeps(self, head: str, other: str) -> None:
        """Until a minute is over and it wakes: its services may call nobody, and write nothing."""
        begun = time.monotonic()
        self._taken_over(other)
        time.sleep(max(STILL - (time.monotonic() - begun), 0.0))
        # Nobody else works then, so that each call and each line is of the one that wakes.
        self.pair.strike(other, SERVICES, signal.SIGSTOP)
        before, here = self._at_last(), {n: len(self.pair.log(head, n)) for n in SERVICES}
        self.pair.strike(head, SERVICES, signal.SIGCONT)
        for name in SERVICES:
            self._wait(lambda name=name: self._stood_down(head, name, here), LONG, f"{name} stops")
        time.sleep(2.0)
        newest = {name.split("-")[0]: name for name in sorted(written(self.pair))}.values()
        for what, more in (self._traces() - before).items():
            is_old = what.endswith(".jsonl") and what not in newest
            (self.found.late if is_old else self.found.woken).append(f"{what}: {more} more")
        self.pair.strike(other, SERVICES, signal.SIGCONT)

    def _stood_down(self, head: str, name: str, here: Mapping[str, int]) -> bool:
        """Whether it has; one that reaches its step only now stands still there once more."""
        self.pair.strike(head, [name], signal.SIGCONT)
        said = self.pair.log(head, name)[here[name] :]
        told = "no longer acts" in said or "standing by" in said
        return told or not self.pair.lives(head, name)

    def _at_last(self) -> Counter[str]:
        """The traces of now, where nothing has come for a while: on a busy machine a call is on its
        way for long.
        """
        found, since = self._traces(), time.monotonic()
        while time.monotonic() - since < QUIET:
            time.sleep(0.2)
            if (now := self._traces()) != found:
                found, since = now, time.monotonic()
        return found

    def _traces(self) -> Counter[str]:
        """How often EC2 was asked what, and how much is written."""
        return Counter(self.site.ec2.state().calls) + Counter(written(self.pair))

    def _taken_over(self, other: str) -> None:
        """Wait for Slurm, and for us. A slurmctld that hangs from an earlier turn, and so never takes
        over, is begun anew, as an administrator would.
        """
        begun = time.time()
        try:
            self._wait(lambda: self.pair.place() == HEADS.index(other), HANGS, "Slurm takes over")
        except TimeoutError:
            self.found.hung += 1
            self.pair.strike(other, [SLURMCTLD])
            self.pair.begin(other, [SLURMCTLD])
            self._wait(lambda: self.pair.place() == HEADS.index(other), LONG, "Slurm takes over")
        slurm = time.time()
        self._wait(lambda: self.pair.acting() == other, LONG, f"{other} acts")
        self.found.takeovers.append(slurm - begun)
        self.found.actions.append(time.time() - slurm)
        if time.time() - begun > NOTICE - SLACK:
            self.away.append(Span(begun - NOTICE, time.time() + SLACK))

    def _given_back(self) -> None:
        """The first head acts again; what was ordered stands yet, and is ended."""
        self.found.hung += self.pair.given_back()
        if self._drained:
            said = self.pair.run(HEADS[0], "resume", self._drained)
            if not said:
                self.found.orders.append(f"drain {self._drained}")
            self._drained = ""
        for job in self._counting():
            moved = len(words(self.site.work / f"runs-{job.name}")) > 1
            if moved or time.time() - job.accepted > LONGEST:
                self._enough(job.name)

    def _wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > until:
                raise TimeoutError(f"not within {seconds:g} s: {what}")
            time.sleep(0.1)

    # afterwards

    def _at_rest(self) -> None:
        for job in self._counting():
            self._enough(job.name)
        queue = len(self.site.jobs())
        self._wait(self._over_or_released, 900.0 + EACH * queue, f"all {queue} jobs are over")
        until = time.monotonic() + 400.0
        while (left := self.clouds.left()) and time.monotonic() < until:
            time.sleep(1.0)
        self.found.orphans = left
        time.sleep(10.0)  # the last end is in the journal

    def _over_or_released(self) -> bool:
        """Whether no job is left. Slurm gives the number of a job that it forgot to the next one,
        refuses that on the node where the first one runs, and holds it: an administrator lets go.
        """
        jobs = self.site.jobs()
        for job in jobs:
            if "PENDING" in job.states and job.priority == 0:
                self.found.held += 1
                self.site.run(["scontrol", "release", str(job.id)], check=False)
        for node in self.site.nodes().values():
            if node.reason.startswith("Duplicate jobid"):
                self.site.run(
                    ["scontrol", "update", f"nodename={node.name}", "state=resume"], check=False
                )
        time.sleep(1.0)
        return not jobs

    def _count(self) -> None:
        self.found.doubles = self.clouds.doubles
        self.clouds.compare(self.found)
        moves = self._moves()
        told = Told(
            moves=Counter(name for name, _ in moves),
            ended=self._ended(),
            unheard={n for n, m in moves if any(a.begin <= m.began <= a.end for a in self.away)},
        )
        count_jobs(self.site.work, self.jobs, self.spans, told, self.found)
        for number, job in self.numbers:
            if job.name in (*self.found.lost, *self.found.unsaved):
                self.say(f"{job.name}: {self.pair.run(HEADS[0], 'explain', str(number))}")
                for _, line in (one for one in self._said() if one[0] == job.name):
                    self.say(line)

    def _ended(self) -> Set[str]:
        """Jobs of which a slurmctld has said that it ends them, or begins them anew."""
        return {name for name, line in self._said() if ENDS.search(line)}

    def _said(self) -> Iterator[tuple[str, str]]:
        """Each line of both slurmctld on a job of ours, with the job's name: of those that had its
        number, the one that Slurm had accepted last by then.
        """
        numbers: dict[int, list[Job]] = {}
        for number, job in self.numbers:
            numbers.setdefault(number, []).append(job)
        log = self.site.layout.dir / "log" / "slurmctld.log"
        for line in log.read_text(errors="replace").splitlines():
            dated = LINE.match(line)
            at = datetime.fromisoformat(dated[1]).timestamp() if dated else 0.0
            for number in {int(n) for n in re.findall(r"JobId=(\d+)", line)}:
                those = [job.name for job in numbers.get(number, ()) if job.accepted <= at]
                if those:
                    yield those[-1], line

    def _moves(self) -> Sequence[tuple[str, Migration]]:
        """Each requeue of ckptman's, by its memory, with the job's name; Slurm uses some numbers
        twice.
        """
        found = []
        for move in ckpt.migrations(self.site):
            before = [j for n, j in self.numbers if n == move.run.job and j.accepted <= move.began]
            if before and move.step == "back":
                found.append((before[-1].name, move))
        return found
