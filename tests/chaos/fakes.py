"""The clouds and the Slurm of a run: those that are shipped, each call a place where another thread
comes first, time passes, or something goes wrong.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from slurm_elastic.base.errors import (
    InstanceNotFound,
    ProviderError,
    SlurmError,
    TransientError,
)
from slurm_elastic.checkpointers.fake import FakeCheckpointer
from slurm_elastic.model.checkpoint import Image, JobRun
from slurm_elastic.model.cluster import (
    EndAnswer,
    Instance,
    InstanceState,
    LaunchSpec,
    Notice,
    Offer,
    Pool,
)
from slurm_elastic.model.slurm import SlurmJob
from slurm_elastic.policies.nodes.node_state import Phase, phase
from slurm_elastic.providers.fake.provider import FakeAccount, FakeProvider
from slurm_elastic.slurm.client.fake_timed import TimedSlurm
from tests.controller.world import T0

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

COMMANDS = (
    "version", "nodes", "jobs", "update_nodes", "set_weights", "set_addresses", "requeue",
    "start_now", "change_pending", "set_requeue", "any_nodes", "hold", "release",
)  # fmt: skip
ONLY_LIES = (
    "job", "owners", "batch_script", "excluded_nodes", "reservations", "excluded_by_job",
    "default_times", "max_times", "free_licenses", "partition_states", "default_partition",
    "slurmctld_started", "suspend_exclusions", "finished", "accounted_comment", "admin_comments",
    "mail_of", "signal", "exclude_nodes", "suspend", "resume", "reserve", "reserve_other_nodes",
    "unreserve", "tell", "set_accounted_comment", "set_admin_comment", "dependencies",
)  # fmt: skip
"""Commands that fail, take their time and are places of a kill only in runs of a world that lies, so
that the other runs stay what they were.
"""
CHANGES = frozenset((
    "update_nodes", "set_weights", "set_addresses", "requeue", "start_now", "change_pending",
    "set_requeue", "any_nodes", "hold", "release", "signal", "exclude_nodes", "suspend", "resume",
    "reserve", "reserve_other_nodes", "unreserve", "tell", "set_accounted_comment",
    "set_admin_comment",
))  # fmt: skip
"""Slurm's commands that have an effect. The others only read."""
CLOUD_CHANGES = frozenset(("launch", "terminate", "stop", "start"))
"""The calls of a cloud that have an effect."""


class Turn(NamedTuple):
    """From then on (s of the run) a machine runs, or is stopped."""

    at: float
    runs: bool


class Account(FakeAccount):
    """Tells of each machine that is made, and knows when each ended (s of the run), how many lists in
    a row had ``denied`` it by then, its ``turns``, of which image it was made (``images``), and which
    somebody else has started (``strange``).
    """

    def __init__(self, made: Callable[[Instance], None], now: Callable[[], float]) -> None:
        super().__init__()
        self._made, self._now = made, now
        self.ended: dict[str, float] = {}
        self.denied: dict[str, int] = {}
        self.turns: dict[str, list[Turn]] = {}
        self.images: dict[str, str] = {}
        self.image = ""
        self.strange: set[str] = set()
        self.repeats_addresses = False
        self.by_hand: set[str] = set()

    def start(self, spec: LaunchSpec, offer: Offer, node: str, *rest: Any) -> str:
        id_ = super().start(spec, offer, node, *rest)
        if self.repeats_addresses:
            self._repeat_address(id_)
        self.turns[id_] = [Turn(self._now(), runs=True)]
        self.images[id_] = self.image
        self._made(self.machines[id_].instance)
        return id_

    def _repeat_address(self, id_: str) -> None:
        """The machine gets the address of the one that ended last."""
        if self.ended:
            last = max(self.ended, key=lambda one: self.ended[one])
            machine, address = self.machines[id_], self.machines[last].instance.address
            machine.instance = replace(machine.instance, address=address)

    def launch_by_hand(self, like: Instance, number: int) -> Instance:
        """A person has the cloud launch one more like that, with the same tags."""
        id_ = f"{like.cloud}-by-hand-{number}"
        new = replace(
            like, id=id_, launched=T0 + self._now(), state=InstanceState.RUNNING,
            address=f"10.250.0.{number}",
        )  # fmt: skip
        self.add_foreign(new, owner=self.machines[like.id].owner)
        self.turns[id_] = [Turn(self._now(), runs=True)]
        self.images[id_] = self.images[like.id]
        self.by_hand.add(id_)
        return new

    def turn(self, id_: str, *, runs: bool) -> None:
        """It has been stopped, or started."""
        self.turns[id_].append(Turn(self._now(), runs=runs))

    def state(self, id_: str, at: float) -> InstanceState:
        """The state that a machine, which has not ended, had then."""
        ran = [turn.runs for turn in self.turns[id_] if turn.at <= at] or [True]
        return InstanceState.RUNNING if ran[-1] else InstanceState.STOPPED


class Cloud(FakeProvider):
    """``omitted`` counts the daemon's answered lists in a row that lacked a machine of ours, ``before``
    is that as of the list before; ``listed`` counts those that had one since a ledger was lost; ``lies`` are the lists to come that lack some, each with the share
    that it lacks. ``lag``: lists have machines stopped, or running, as they were so many seconds ago.
    ``unanswered`` stops and starts to come take effect without an answer. ``unkept`` stops and ends
    to come are accepted, and nothing is done; ``promised_ends`` are the machines of such ends that no
    list has shown since. ``repeats`` lists to come have a page twice; ``lacked``
    are machines that so many lists to come lack. The cloud's clock is ``ahead`` (s). ``is_strict``: a
    call about several machines ends none if one of them is gone.
    """

    stage: Stage
    account: Account

    def __init__(self, stage: Stage, *args: Any) -> None:
        super().__init__(*args)
        self.stage = stage
        self.omitted: Counter[str] = Counter()
        self.before: Counter[str] = Counter()
        self.listed: Counter[str] = Counter()
        self.lies: list[float] = []
        self.slow = self.lag = 0.0
        self.account.image = self.image
        self._by_others = False
        self.unanswered = 0
        self.unkept: Counter[str] = Counter()
        self.promised_ends: set[str] = set()
        self.repeats = 0
        self.lacked: Counter[str] = Counter()
        self.ahead = 0.0
        # As EC2's: of a chance of its own, at drawn sites, so that the other runs stay what they were.
        chance = random.Random(f"{stage.seed} {self.name} strict").random()
        self.is_strict = stage.kind == "drawn" and chance < 0.5

    def offers(self, pool: Pool) -> Sequence[Offer]:
        self._io("offers")
        return super().offers(pool)

    def launch(self, spec: LaunchSpec) -> Sequence[Instance]:
        self._io("launch")
        self.stage.books.judge_market(spec)
        answer = super().launch(spec)
        self._io("launch answered")
        return self._by_its_clock(answer)

    def _by_its_clock(self, answer: Sequence[Instance]) -> Sequence[Instance]:
        if not self.ahead:
            return answer
        return tuple(replace(one, launched=one.launched + self.ahead) for one in answer)

    @contextmanager
    def _called(self, *args: Any, **more: Any) -> Iterator[None]:
        try:
            with super()._called(*args, **more):
                yield
        finally:
            self.stage.sched.current.sent = False

    def terminate(self, ids: Sequence[str]) -> Mapping[str, EndAnswer]:
        self.stage.ends(
            [self.account.machines[i].instance for i in ids if i in self.account.alive()]
        )
        self._io("terminate")
        if self.is_strict and any(self._answer_to_end(i) is EndAnswer.GONE for i in ids):
            raise InstanceNotFound(self.name, "InvalidInstanceID.NotFound", ", ".join(ids))
        if self._breaks_its_word("terminate"):
            answers: Mapping[str, EndAnswer] = {i: self._answer_to_end(i) for i in ids}
            self.promised_ends.update(ids)
        else:
            answers = super().terminate(ids)
        self._io("terminate answered")
        return answers

    def _breaks_its_word(self, call: str) -> bool:
        """The call is accepted, and nothing comes of it."""
        if not self.unkept[call]:
            return False
        self.unkept[call] -= 1
        self.stage.struck[f"lies: {call} accepted and not done"] += 1
        return True

    def recipe(self, pool: Pool) -> str:
        self._io("recipe")
        return super().recipe(pool)

    def stop(self, ids: Sequence[str]) -> Sequence[str]:
        with self._told("stop"):
            if self._breaks_its_word("stop"):
                self.stage.books.runs_on(ids)
                return ()
            return super().stop(ids)

    def start(self, instance: str) -> None:
        with self._told("start"):
            super().start(instance)

    @contextmanager
    def _told(self, call: str) -> Iterator[None]:
        """Count a lost answer, a failure or a refusal of the call."""
        self._io(call)
        if self.unanswered:
            self.unanswered -= 1
            self.lose_answer_next()
        try:
            yield
        except TransientError as error:
            lost = error.code == "ConnectionLost"
            self.stage.struck[f"{call}: {'answer lost' if lost else 'fails'}"] += 1
            raise
        except ProviderError:
            self.stage.struck[f"{call}: refused"] += 1
            raise
        self._io(f"{call} answered")

    def _switch(self, instance_id: str, state: InstanceState) -> bool:
        machine = self.account.machines.get(instance_id)
        before = None if machine is None else machine.instance.state
        switched = super()._switch(instance_id, state)
        if machine is not None and machine.instance.state not in (before, InstanceState.TERMINATED):
            runs = state is InstanceState.RUNNING
            self.account.turn(instance_id, runs=runs)
            self.stage.books.turned(machine.instance, runs=runs, strange=self._by_others)
        return switched

    def switch_on(self, instance_id: str) -> None:
        """Somebody else starts it, by the console."""
        machine = self.account.machines[instance_id]
        machine.instance = replace(machine.instance, launched=self.stage.true_time())
        self._by_others = True
        self._switch(instance_id, InstanceState.RUNNING)
        self._by_others = False

    def renew(self, image: str) -> None:
        """Fresh machines start from another image from now on."""
        self.image = self.account.image = image

    def notices(self) -> Sequence[Notice]:
        self._io("notices")
        return tuple(
            replace(n, seen=n.seen + self.ahead, deadline=(n.deadline or 0.0) + self.ahead)
            for n in super().notices()
        )

    def instances(self) -> Sequence[Instance]:
        self._io("list")
        answer = super().instances()
        if self.lies:
            share, rng = self.lies.pop(0), self.stage.rng
            answer = tuple(i for i in answer if rng.random() >= share)
            self.stage.struck["a list that lies"] += 1
        if self.lag:
            answer = tuple(self._as_it_was(i) for i in answer)
        answer = self._by_its_clock(self._paged(answer))
        there = {i.id for i in answer}
        if self.stage.sched.current.owner.startswith("elasticd"):
            self.promised_ends -= there
            self.listed.update(there)
            mine = [i for i in self.account.alive() if self._owns(i)]
            self.before = self.omitted
            self.omitted = Counter({i: self.omitted[i] + 1 for i in mine if i not in there})
        self._io("list answered")
        return answer

    def _paged(self, answer: Sequence[Instance]) -> Sequence[Instance]:
        """The list as its pages come: one of them twice, or a machine between two of them lacked."""
        lacked = {i.id for i in answer if self.lacked[i.id]}
        self.lacked -= Counter(dict.fromkeys(lacked, 1))
        answer = tuple(i for i in answer if i.id not in lacked)
        self.stage.struck["lies: a list lacks a machine"] += bool(lacked)
        if self.repeats:
            self.repeats -= 1
            self.stage.struck["lies: a list repeats a page"] += 1
            answer = (*answer, *answer[len(answer) // 2 :])
        return answer

    def _as_it_was(self, one: Instance) -> Instance:
        if one.id not in self.account.turns or one.state is InstanceState.TERMINATED:
            return one
        was = self.account.state(one.id, self.stage.sched.now - self.lag)
        self.stage.struck["a machine listed as it was"] += was is not one.state
        return replace(one, state=was)

    def _io(self, call: str) -> None:
        self.stage.note(f"{self.name} {call}")
        if not call.endswith("answered"):
            self.stage.sent(self.name, call)
        name, _, answered = call.partition(" ")
        if self.stage.lies is not None:
            self.stage.lies.called(self, name, answered=bool(answered))
        self.stage.linger(self.slow)

    def _stop(self, instance_id: str) -> None:
        if instance_id in self.account.alive():
            self.account.ended[instance_id] = self.stage.sched.now
            self.account.denied[instance_id] = self.omitted[instance_id]
        super()._stop(instance_id)


class Saver(FakeCheckpointer):
    """``spoils`` more saves come out spoilt; ``since`` has when (s of the run) each image was, before
    any look at it or later. ``taken``: when (s of the run) each was. The machines' clocks are
    ``ahead`` (s).
    """

    stage: Stage
    spoils = 0

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.since: dict[tuple[int, int], float] = {}
        self.taken: dict[tuple[int, int], float] = {}
        self.ahead = 0.0

    def checkpoint(self, run: JobRun, *, deadline: float, stop: bool) -> Image:
        image = super().checkpoint(run, deadline=deadline, stop=stop)
        self.taken[image.job, image.number] = self.stage.sched.now
        if self.ahead:
            image = self._by_its_clock(image)
        if self.spoils:
            self.spoils -= 1
            self.spoil(image, since=float("-inf"))
        return image

    def _by_its_clock(self, image: Image) -> Image:
        kept = self._images[image.job]
        later = replace(image, taken=image.taken + self.ahead)
        kept[kept.index(image)] = later
        return later

    def spoil(self, image: Image, since: float) -> None:
        """It is whole no more."""
        self.spoilt.add((image.job, image.number))
        self.since.setdefault((image.job, image.number), since)
        self.stage.struck["image: spoilt"] += 1
        self.stage.note(f"save {image.number} of job {image.job} is spoilt")


class Controller(TimedSlurm):
    """slurmctld. ``trouble`` is "", "stopped", "hung" or "errors"; ``lost_answers`` more commands
    take effect and say that they did not. ``after`` has the job that each waits for, ``by_users``
    those that users have held, suspended or put off, ``user_requeues`` is the job that its user
    requeues just now.
    """

    stage: Stage
    trouble = ""
    lost_answers = user_requeues = 0
    quiet = float("-inf")

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._allocated: dict[int, float] = {}
        self.after: dict[int, int] = {}
        self.by_users: set[int] = set()

    def _schedule(self) -> None:
        if self.stage.sched.now < self.quiet:
            self._configure()
        else:
            super()._schedule()

    def _may_start(self, job: SlurmJob) -> bool:
        if not super()._may_start(job) or self.after.get(job.id) in self._jobs:
            return False
        started = sum(j.array == job.array and bool(j.nodes) for j in self._jobs.values())
        return not job.array or not job.max_running_tasks or started < job.max_running_tasks

    def _split(self, job: SlurmJob) -> SlurmJob:
        """The next task of an array, which gets a number of its own; the last one keeps the array's."""
        left = job.tasks - 1
        self._jobs[job.id] = replace(job, tasks=left, task=0 if left == 1 else None)
        task = replace(job, id=job.id + left, tasks=1, task=left)
        self._wishes[task.id] = self._wishes[job.id]
        self.stage.books.submitted(task.id)
        return task

    def _allocate(self, job: SlurmJob, names: Sequence[str]) -> None:
        if job.tasks > 1:
            job = self._split(job)
        self._allocated[job.id] = self.stage.sched.now
        super()._allocate(job, names)

    def forget(self, since: float, lost: float) -> None:
        """What was allocated since then (s of the run), and waits for its machines, was not: its jobs are
        pending, their nodes powered down (measured on 22.05). Of jobs since ``lost`` nothing is left.
        """
        for job in list(self._jobs.values()):
            if "CONFIGURING" not in job.states or self._allocated[job.id] < since:
                continue
            self.stage.struck["heads: an allocation is forgotten"] += 1
            if job.submit >= T0 + lost + self.stage.skew:
                self.stage.struck["heads: a job is forgotten"] += 1
                self.stage.books.jobs.discard(job.id)
                del self._jobs[job.id]
            else:
                pending = frozenset({"PENDING"})
                self._jobs[job.id] = replace(job, states=pending, nodes=(), start=0.0)
            for name in job.nodes:
                node, asked = self._nodes[name], self.stage.since[name]
                if phase(node) is Phase.POWERING_UP and asked >= since:
                    self.stage.forgotten.setdefault(name, asked)
                    off = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
                    self._become(name, states=off, address=name)
                else:
                    self._free(name)

    def begin_anew(self) -> Sequence[int]:
        """Its StateSaveLocation is lost: no job is left, and the nodes are as slurm.conf has them."""
        gone = tuple(self._jobs)
        self._jobs.clear()
        self._wishes.clear()
        self._allocated.clear()
        self.after.clear()
        self.by_users.clear()
        for name in self._nodes:
            off = frozenset({"IDLE", "CLOUD", "POWERED_DOWN"})
            self._become(name, states=off, address=name, reason="")
        self.started = self.clock()
        return gone

    def update_nodes(self, names: Sequence[str], **changes: Any) -> None:
        for name in names:
            self.stage.judge_update(self.node(name), changes.get("state") or "")
        super().update_nodes(names, **changes)

    def _requeue(self, job: Any) -> None:
        if not job.requeue:
            self.stage.died(job)
        super()._requeue(job)

    def _become(self, name: str, **fields: Any) -> None:
        before = phase(self._nodes[name])
        super()._become(name, **fields)
        if phase(self._nodes[name]) is not before:
            self.stage.since[name] = self.stage.sched.now
            if phase(self._nodes[name]) in (Phase.UP, Phase.POWERING_DOWN):
                self.stage.forgotten.pop(name, None)

    def cancel_waiting(self) -> None:
        """Users take their jobs back that have not begun, so that nobody wants a node again."""
        for job in list(self._jobs.values()):
            if "PENDING" in job.states and not job.restarts:
                self.stage.struck["heads: a waiting job is cancelled"] += 1
                self.stage.books.jobs.discard(job.id)
                del self._jobs[job.id]

    def change(self, job: int, **fields: Any) -> None:
        """As scontrol update of its user."""
        self._jobs[job] = replace(self._jobs[job], **fields)

    def let_go(self) -> None:
        """Users release what they have held, suspended or put off. A job that moved while it was
        suspended is suspended again later, or held by Slurm.
        """
        for number in sorted(self.by_users & self._jobs.keys()):
            job = self._jobs[number]
            if job.is_suspended:
                self.resume(number)
            elif "PENDING" in job.states and job.is_held:
                self.release(number)
            elif "PENDING" in job.states and not job.restarts:
                self.start_now(number)

    def fails(self, rng: random.Random, name: str) -> None:
        stage = self.stage
        if self.trouble == "hung":
            stage.struck["slurmctld hangs"] += 1
            stage.sched.sleep(20.0)
        elif self.trouble == "stopped":
            stage.struck["slurmctld stopped"] += 1
        elif self.trouble != "errors" or rng.random() < 0.5:
            return
        else:
            stage.struck["slurmctld answers with an error"] += 1
        raise SlurmError((name,), 1, f"slurmctld: {self.trouble}")


def _asked(name: str) -> Callable[..., Any]:
    real = Controller.update_nodes if name == "update_nodes" else getattr(TimedSlurm, name)

    def command(self: Controller, *args: Any, **kwargs: Any) -> Any:
        stage = self.stage
        if stage.sched.current.owner == "world" or (name in ONLY_LIES and stage.lies is None):
            return real(self, *args, **kwargs)
        stage.note(f"slurm {name}")
        stage.tells_slurm(name)
        stage.linger(0.0)
        self.fails(stage.rng, name)
        if stage.lies is not None:
            stage.lies.commanded(name, answered=False)
        answer = real(self, *args, **kwargs)
        if stage.lies is not None:
            stage.lies.commanded(name, answered=True)
        if name == "nodes":
            stage.sched.current.read_nodes.update(dict.fromkeys(answer, stage.sched.now))
        stage.linger(0.0)
        if self.lost_answers:
            self.lost_answers -= 1
            stage.struck["slurmctld's answer lost"] += 1
            raise SlurmError((name,), 1, "Socket timed out on send/recv operation")
        return answer

    return command


class Slurm(Controller):
    """As the services reach it."""


for _name in (*COMMANDS, *ONLY_LIES):
    setattr(Slurm, _name, _asked(_name))


def runs(machine: Instance) -> bool:
    return machine.state is InstanceState.RUNNING


def is_up(node: Any) -> bool:
    return phase(node) is Phase.UP and "DOWN" not in node.states
