"""The situations an operator may meet, each brought about as far as possible by the real daemon."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from slurm_elastic.base.errors import AuthError, SlurmError, TransientError
from slurm_elastic.model.causes import Quoted
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.cluster import Notice, NoticeKind
from slurm_elastic.state.ckptstate.facts import Migration, MigrationStep, RecordedNotice
from tests.controller.world import T0
from tests.screens.place import CKPTMAN_PID, PID, PUB, RACK, Place

SITUATIONS: dict[str, Callable[[], Place]] = {}
SPOT = Quoted(text="spot interruption")
LOW = "Low RealMemory (reported:7412 < 100.00% of configured:8000)"


def situation(make: Callable[[], Place]) -> Callable[[], Place]:
    """Register it under its name."""
    SITUATIONS[make.__name__.replace("_", "-")] = make
    return make


def busy(name: str, **site: object) -> Place:
    """Jobs on both clouds for an hour; pub2 is idle since a minute."""
    place = Place(name, **site)  # type: ignore[arg-type]
    place.tick()
    place.job(40, *RACK[:2], count=2, partitions=("onprem",), user="bob")
    place.job(42, PUB[0])
    place.job(43, PUB[1], user="carol")
    place.advance(60)
    place.advance(3600, step=30)
    place.slurm.finish(43)
    place.advance(60)
    return place


@situation
def healthy() -> Place:
    return busy("healthy")


@situation
def idle() -> Place:
    place = Place("idle")
    place.subject = "pub1"
    place.tick()
    place.job(42, PUB[0])
    place.advance(600)
    place.slurm.finish(42)
    place.advance(900)
    return place


@situation
def burst() -> Place:
    place = busy("burst")
    place.job(50, *PUB[2:8], count=6)
    place.job(51, *RACK[2:], count=2, partitions=("onprem",), user="dave")
    place.advance(5)
    place.subject = "50"
    return place


def starved(name: str, *patterns: str) -> Place:
    """Machines run out where the patterns fit while a job waits."""
    place = busy(name)
    place.clouds["aws"].tells_free = False
    for pattern in patterns:
        place.clouds["aws"].limit(pattern, 1)
    place.job(50, *PUB[2:6], count=4)
    place.advance(60)
    place.subject = "50"
    return place


@situation
def out_of_capacity() -> Place:
    return starved("out-of-capacity", "*")


@situation
def cool_down() -> Place:
    return starved("cool-down", "c6i.xlarge/eu-west-1a/spot")


@situation
def breaker() -> Place:
    """Machines boot and never register: an image without slurmd."""
    place = busy("breaker")
    place.slurm.register = lambda *_: False  # type: ignore[method-assign]
    for n in range(10):
        place.job(50 + n, PUB[2 + n % 8], user="dave")
        place.advance(60, step=5)
        if place.paused:
            break
        place.advance(690, step=30)
    place.job(99, PUB[10], user="dave")
    place.subject = "99"
    return place


@situation
def holds() -> Place:
    """Only between 20 and 6 o'clock may machines start; it is morning."""
    place = busy("holds", policies='{start_windows: ["20:00-06:00"]}')
    place.advance(120)
    place.job(50, *PUB[2:4], count=2)
    place.advance(60)
    place.subject = "50"
    return place


@situation
def budget_reached() -> Place:
    place = busy(
        "budget-reached", policies="{budget: {per_day: 0.10, per_month: 50}, poll_interval: 10}"
    )  # fmt: skip
    place.job(50, *PUB[2:4], count=2)
    place.advance(120)
    place.subject = "50"
    return place


@situation
def cap_reached() -> Place:
    place = busy("cap-reached", limits="{nodes: 20, dollars_per_hour: 0.5}")
    place.job(50, *PUB[2:4], count=2)
    place.advance(120)
    place.subject = "50"
    return place


@situation
def credentials_expired() -> Place:
    place = busy("credentials-expired")
    place.refuse("aws", AuthError(
        "aws", "ExpiredToken", "The security token included in the request is expired"
    ))  # fmt: skip
    place.job(50, *PUB[2:4], count=2)
    place.advance(60)
    place.subject = "50"
    return place


@situation
def cloud_unreachable() -> Place:
    place = busy("cloud-unreachable")
    place.refuse("onprem", TransientError(
        "onprem", "ConnectionRefused", "http://one.alps:2633/RPC2: [Errno 111] Connection refused"
    ))  # fmt: skip
    place.job(50, RACK[2], partitions=("onprem",))
    place.advance(180)
    place.subject = "op3"
    return place


@situation
def slurmctld_down() -> Place:
    place = busy("slurmctld-down")
    place.slurm.broken = SlurmError(
        ("scontrol", "ping"), 1, "Slurmctld(primary) at head is DOWN"
    )  # fmt: skip
    place.advance(30)
    return place


@situation
def slurmctld_hung() -> Place:
    place = busy("slurmctld-hung")
    place.slurm.broken = SlurmError(("scontrol", "ping"), None, "no answer in 5 s")
    place.advance(30)
    place.subject = "pub1"
    return place


def broken_ledger(name: str, code: int, words: str) -> Place:
    place = busy(name)
    error = sqlite3.OperationalError(words)
    error.sqlite_errorcode = code
    place.in_trouble(error)
    return place


@situation
def full_disk() -> Place:
    place = broken_ledger("full-disk", sqlite3.SQLITE_FULL, "database or disk is full")
    place.disk_free = 0
    return place


@situation
def locked_ledger() -> Place:
    return broken_ledger("locked-ledger", sqlite3.SQLITE_BUSY, "database is locked")


@situation
def corrupt_ledger() -> Place:
    words = "database disk image is malformed"
    place = broken_ledger("corrupt-ledger", sqlite3.SQLITE_CORRUPT, words)
    (place.dir / "ledger.db").write_text("this is no database" * 100)
    for one in place.dir.glob("journal/ledger-*"):
        one.unlink()
    return place


@situation
def low_memory_node() -> Place:
    """The pool says 8000 MiB, its machines have 7412."""
    place = busy("low-memory-node")
    register = place.slurm.register

    def refused(name: str, address: str) -> bool:
        done = register(name, address)
        if done:
            place.slurm.requeue_jobs_of(name)
            states = ("IDLE", "DRAIN", "INVALID_REG", "CLOUD")
            place.slurm.set_node(name, *states, reason=LOW, reason_user="slurm")
        return done

    place.slurm.register = refused  # type: ignore[method-assign]
    place.job(50, *PUB[2:4])
    place.advance(90, step=1)
    place.subject = "50"
    return place


@situation
def drained_by_a_person() -> Place:
    place = busy("drained-by-a-person")
    why = {"reason": "disk errors, ticket 7", "reason_user": "ann"}
    place.slurm.set_node("pub1", "ALLOCATED", "DRAIN", "CLOUD", **why)
    place.slurm.set_node("pub7", "IDLE", "DRAIN", "POWERED_DOWN", "CLOUD", **why)
    place.advance(120, step=10)
    place.subject = "pub1"
    return place


@situation
def stray_machine() -> Place:
    """One with our tags and the name of a node that is none of ours any more."""
    place = busy("stray-machine")
    place.stray(node="old7")
    place.accounts["aws"].protected.add("aws-stray")
    place.advance(5400, step=60)
    place.subject = "aws"
    return place


def run_of(job: int, node: str) -> JobRun:
    return JobRun(
        job=job, label=str(job), attempt=0, user="alice", uid=1001, gid=100, nodes=(node,),
        partition="burst", started=T0 + 60,
    )  # fmt: skip


@situation
def notice_and_migration() -> Place:
    """pub1 goes in 90 s; its job is saved and waits to be requeued; another is back already."""
    place = busy("notice-and-migration")
    machine = place.machines_of("pub1")[0]
    notice = Notice(
        instance=machine, kind=NoticeKind.INTERRUPTION, seen=place.now - 30,
        deadline=place.now + 90, node="pub1",
    )  # fmt: skip
    image = Image(
        job=42, label="42", attempt=0, number=3, method="criu", node="pub1", taken=place.now - 8,
        seconds=11.2, size=3 << 30, path="/shared/ckpt/42/3",
    )  # fmt: skip
    back = Migration(
        run=run_of(40, "pub4"), method="criu", threatened=("pub4",), reason=SPOT,
        step=MigrationStep.BACK, began=place.now - 2000, changed=place.now - 1700,
        image=replace(image, job=40, label="40", number=2),
    )  # fmt: skip
    now = Migration(
        run=run_of(42, "pub1"), method="criu", threatened=("pub1",), reason=SPOT,
        step=MigrationStep.SAVED, began=place.now - 30, changed=place.now - 8, deadline=place.now + 90,
        image=image, at=place.now + 5,
    )  # fmt: skip
    state = place.memory()
    state.add_notices(
        RecordedNotice(key="n1", notice=notice, source="EventBridge", offer="aws/c6i"),
        now=place.now - 30,
    )
    state.put(back)
    state.put(now, image=image)
    state.close()
    for kind, reason in (
        ("ckpt-planned", "spot interruption of pub1 in 2m: save by criu, then requeue"),
        ("ckpt-saved", "save 3: 3.0 GiB in 11.2 s"),
    ):
        place.site.record("ckpt-42-0", kind, ["pub1", "job:42"], Quoted(text=reason))
    return place


@situation
def unsavable_job() -> Place:
    """Its method refuses it; the machine goes in a minute."""
    place = busy("unsavable-job")
    machine = place.machines_of("pub1")[0]
    notice = Notice(
        instance=machine, kind=NoticeKind.INTERRUPTION, seen=place.now - 60,
        deadline=place.now + 60, node="pub1",
    )  # fmt: skip
    refused = "criu refuses it: a connected TCP socket (pid 811, 10.0.0.9:27000); no save so far"
    state = place.memory()
    state.add_notices(
        RecordedNotice(key="n1", notice=notice, source="EventBridge"), now=place.now - 60
    )
    state.put(
        Migration(
            run=run_of(42, "pub1"), method="criu", threatened=("pub1",),
            reason=SPOT, step=MigrationStep.WAITING, began=place.now - 60,
            changed=place.now - 40, deadline=place.now + 60, note=Quoted(text=refused),
        )
    )  # fmt: skip
    state.close()
    place.site.record("ckpt-42-0", "ckpt-refused", ["pub1", "job:42"], Quoted(text=refused))
    return place


@situation
def wrong_clock() -> Place:
    """Somebody set the head's clock back two hours a moment ago."""
    place = busy("wrong-clock")
    place.finish()
    place.now -= 7200
    return place


@situation
def ledger_lost() -> Place:
    """A machine's disk was lost: the new ledger adopts what the clouds have."""
    place = busy("ledger-lost")
    place.lose_ledger()
    place.advance(60)
    place.subject = "pub1"
    return place


@situation
def other_head() -> Place:
    """A copy of the head, such as a snapshot that was started, has launched a machine."""
    place = busy("other-head")
    place.stray(node="pub4", generation=f"g{int(place.now * 1000):013d}-0123abcd")
    place.advance(120)
    place.subject = "pub4"
    return place


@situation
def daemon_away() -> Place:
    place = busy("daemon-away")
    place.finish()
    place.now += 900
    place.away.add(PID)
    place.program("resume", ["pub5"], {50: ["pub5"]})
    place.job(50, PUB[4])
    place._listening.close()
    place.subject = "50"
    return place


@situation
def ckptman_away() -> Place:
    place = busy("ckptman-away")
    image = Image(
        job=42, label="42", attempt=0, number=1, method="dmtcp", node="pub1",
        taken=place.now - 1500, seconds=3.0, size=200 << 20,
    )  # fmt: skip
    state = place.memory()
    state.add_image(image)
    state.close()
    place.away.add(CKPTMAN_PID)
    return place


@situation
def poisoned_tag() -> Place:
    """Somebody wrote nan into a machine's price tag, and the ledger was lost, too."""
    place = busy("poisoned-tag")
    place.stray(node="pub9", price=math.nan)
    place.lose_ledger()
    place.advance(60)
    place.subject = "pub9"
    return place


@situation
def many() -> Place:
    """10,000 nodes, 2,000 machines; 20 are down, some idle."""
    place = Place("many", limits="{nodes: 3000, dollars_per_hour: 900}", nodes=10_000)
    place.job(42, *(f"pub{n}" for n in range(1, 4001, 2)), count=2000)
    place.advance(40, step=10)
    for n in range(101, 4000, 200):
        place.slurm.set_node(
            f"pub{n}", "DOWN", "NOT_RESPONDING", "CLOUD", reason="Not responding",
            reason_user="slurm",
        )  # fmt: skip
    place.subject = "pub101"
    return place


@situation
def nothing_allowed() -> Place:
    """Freshly installed: nobody may burst, and no spending cap is set."""
    place = Place("nothing-allowed", who="{}", limits="{}")
    place.tick()
    place.job(42, PUB[0])
    place.advance(20)
    return place


@situation
def never_started() -> Place:
    """Installed, configured, and the services were never started."""
    place = Place("never-started")
    place.stopped = True
    place.away |= {PID, CKPTMAN_PID}
    place.stop()
    for file in (*place.dir.glob("ledger.db*"), *place.dir.glob("journal/ledger[-.]*")):
        file.unlink()
    place._listening.close()
    place.subject = "pub1"
    return place


@situation
def hostile_words() -> Place:
    """Words of users and clouds that would write on a terminal."""
    place = busy("hostile-words")
    place.job(
        50, PUB[3], user="m\x1b[31mallory", name="\x1b]0;owned\x07", reason="Res\x1b[2Jources"
    )
    place.slurm.set_node(
        "pub2", "DOWN", "CLOUD", reason="bad\x1b[2J\nnode " * 6, reason_user="root"
    )
    place.advance(30)
    place.subject = "pub2"
    return place


@situation
def reservations() -> Place:
    """Two machines are paid for the year, one of which runs, and so is a savings plan."""
    place = busy("reservations", reservations=True)
    place.subject = "pub1"
    return place


@situation
def two_clouds() -> Place:
    """A job may use two public clouds, of which the first is sold out."""
    place = Place("two-clouds", two_clouds=True)
    place.tick()
    place.clouds["aws"].limit("*", 0)
    place.job(44, "goo1", partitions=("gcp",))
    place.advance(120)
    place.job(50, *PUB[:2], count=2, partitions=("onprem", "burst", "gcp"))
    place.advance(120)
    place.subject, place.ranked_job = "50", 50
    return place


def commands(place: Place) -> Sequence[tuple[str, ...]]:
    """The screens that an operator looks at."""
    screens = [
        ("status",),
        ("explain", place.subject),
        ("doctor", "--quick"),
        ("offers",),
        ("ckpt", "list"),
    ]
    if place.ranked_job:
        screens.append(("offers", "--job", str(place.ranked_job)))
    return screens
