"""The steps of a first machine, and the mistakes of first days by the words that they leave."""

from __future__ import annotations

import pytest
from machine_cases import changed
from msgspec.structs import replace

from slurm_elastic.model.cluster import Instance, InstanceState, Market
from slurm_elastic.model.memory import Machine
from slurm_elastic.model.slurm import SlurmNode
from slurm_elastic.policies.launch.trial import (
    CAUSES,
    USUAL,
    Rest,
    TrialLook,
    TrialStep,
    diagnosis,
    is_over,
    log_evidence,
    reached,
    reason_set,
    waiting_words,
)

OFF = SlurmNode(name="n1", states=frozenset({"IDLE", "CLOUD", "POWERED_DOWN"}))
BOOTS = SlurmNode(name="n1", states=frozenset({"IDLE", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}))
UP = SlurmNode(name="n1", states=frozenset({"IDLE", "CLOUD"}))
MACHINE = Machine(
    instance=Instance(
        id="i-1", cloud="aws", node="n1", generation="g", instance_type="t", zone="z",
        market=Market.SPOT, price=0.1, state=InstanceState.PENDING, launched=0.0,
    ),
    pool="burst",
)  # fmt: skip
RUNS = replace(MACHINE, instance=replace(MACHINE.instance, state=InstanceState.RUNNING))
THERE = replace(RUNS, instance=replace(RUNS.instance, address="10.0.0.7"))


@pytest.mark.parametrize(
    ("seen", "last"),
    [
        (TrialLook(node=OFF), None),
        (TrialLook(node=BOOTS), TrialStep.ASKED),
        (TrialLook(node=BOOTS, machine=MACHINE), TrialStep.LAUNCHED),
        (TrialLook(node=BOOTS, machine=RUNS), TrialStep.RUNNING),
        (TrialLook(node=BOOTS, machine=THERE, answers=False), TrialStep.ADDRESS),
        (TrialLook(node=BOOTS, machine=THERE, answers=True), TrialStep.REACHED),
        (TrialLook(node=UP, machine=THERE, answers=False), TrialStep.REGISTERED),
        (TrialLook(node=UP), TrialStep.ASKED),
    ],
)
def test_each_look_says_how_far_it_is(seen: TrialLook, last: TrialStep | None) -> None:
    made = reached(seen, ())
    assert (made[-1] if made else None) == last
    assert list(made) == list(TrialStep)[: len(made)], "in order, none left out"


def test_a_step_that_was_made_stays_made() -> None:
    made = reached(TrialLook(node=BOOTS, machine=THERE, answers=True), ())
    assert reached(TrialLook(node=OFF), made) == made


MISTAKES = {
    "wrong image": (
        "aws: InvalidAMIID.NotFound: The image id '[ami-0]' does not exist",
        "Image ami-0 could not be found.",
        "join.sh: 41: slurmd: not found",
    ),
    "no route": (
        "10.0.0.7:6818 did not answer in 3s (no route to it)",
        "10.0.0.7:6818: No route to host",
        "233.252.0.1:6818: Network is unreachable",
        "the machine does not reach join.head head:6817, which answers here",
    ),
    "wrong munge key": (
        "error: Munge decode failed: Invalid credential",
        "munge key not brought: wrong host key, nothing was sent",
    ),
    "wrong key of auth/slurm": (
        "error: decode_jwt: could not find kid=slurm-elastic:aws:1",
        "error: decode_jwt: token received for expired key kid=slurm-elastic:aws:1",
        "slurm.jwks not brought: wrong host key, nothing was sent",
    ),
    "other Slurm release": (
        "error: Invalid Protocol Version 10496 from uid=-1 from problem connection (10.0.0.7:5)",
        "error: slurm_unpack_received_msg: Incompatible versions of client and server code",
    ),
    "closed port": ("10.0.0.7:6818 refuses the connection",),
    "wrong head address": (
        "slurmd: error: Unable to register: Unable to contact slurm controller (connect failure)",
        "slurmd: error: fetch_config: DNS SRV lookup failed",
        "no answer at join.head: 10.0.0.1:6817 refuses the connection; SlurmctldPort is 6820",
        "no answer at join.head: 10.0.0.9:6817 did not answer in 3s (no route to it)",
    ),
    "quota": (
        "VcpuLimitExceeded: You have requested more vCPU capacity than your limit allows.",
        "MaxSpotInstanceCountExceeded: Max spot instance count exceeded",
        "Quota exceeded for instances: Requested 1, but already used 10 of 10 instances",
        "limit of 0 reached for VMS quota",
    ),
    "no credentials": (
        "aws: NoCredentialsError: Unable to locate credentials",
        "its machines could not be listed, so it sells none: aws: Unable to locate credentials",
    ),
    "expired credentials": (
        "AuthFailure: AWS was not able to validate the provided access credentials",
        "ExpiredToken: The security token included in the request is expired",
        "[one.vm.info] User couldn't be authenticated, aborting call.",
    ),
    "clock off": (
        "RequestExpired: Request has expired.",
        "error: Munge decode failed: Expired credential",
        "error: Check for out of sync clocks",
        "error: Munge decode failed: Rewound credential",
    ),
    "name that does not resolve": (
        'Could not connect to the endpoint URL: "https://ec2.example/"',
        "slurmd: error: resolve_ctls_from_dns_srv: getaddrinfo: Name or service not known",
        "no answer at join.head: head.invalid:6817: No address associated with hostname",
    ),
    "missing user": ("error: uid 1005 not found on system", "slurmd: fatal: unknown user slurm"),
    "full disk": ("error: write: No space left on device", "SlurmdSpoolDir is full"),
}


@pytest.mark.parametrize(("name", "words"), [(n, w) for n, some in MISTAKES.items() for w in some])
def test_a_mistake_is_named_with_its_remedy(name: str, words: str) -> None:
    found = diagnosis(TrialStep.REGISTERED, ["", words])
    assert (found.name, found.step) == (name, TrialStep.REGISTERED)
    assert found.remedy
    assert found.usual == ()


def test_a_slurmctld_that_does_not_answer_is_no_missing_route() -> None:
    found = diagnosis(TrialStep.LAUNCHED, ["slurmctld: scontrol ping: timed out after 5 s"])
    assert found.name == "no answer of slurmctld"


def test_all_have_a_cause() -> None:
    assert len(MISTAKES) == 14
    assert set(MISTAKES) <= {cause.name for cause in CAUSES}


OWN_HOLD = "slurm-elastic:hold:pool aws cools down until 04:36:56: the machine did not register"


@pytest.mark.parametrize(
    ("step", "name"),
    [(TrialStep.LAUNCHED, "no capacity or no room"), (TrialStep.REGISTERED, "")],
)
def test_a_pool_that_cools_down_is_a_cause_only_before_a_machine_was_launched(
    step: TrialStep, name: str
) -> None:
    found = diagnosis(step, [OWN_HOLD])
    assert (found.name, bool(found.usual)) == (name, not name)


def test_what_nobody_knows_is_told_with_the_usual_causes_of_the_step() -> None:
    found = diagnosis(TrialStep.ADDRESS, ["something quite new"])
    assert (found.name, found.words) == ("", "something quite new")
    assert found.usual == USUAL[TrialStep.ADDRESS]
    assert set(USUAL) == set(TrialStep)


def test_a_long_step_shows_the_evidence_of_a_known_mistake_only() -> None:
    known = diagnosis(TrialStep.REGISTERED, ["connect: Network is unreachable"])
    assert waiting_words(known) == "not yet; last sign: connect: Network is unreachable"
    harmless = diagnosis(TrialStep.REGISTERED, ["Enabling fast FPU save and restore... done."])
    assert waiting_words(harmless) == "not yet"


def test_of_the_log_only_lines_that_can_be_about_it_count_newest_first() -> None:
    lines = [
        "[t] error: Munge decode failed: Invalid credential",
        "[t] error: Nodes n12 not responding",
        "[t] debug: sched: Running job scheduler",
        "[t] error: Node n1 has low real_memory size",
    ]
    assert log_evidence(lines, "n1") == (lines[3], lines[0])


def test_a_reason_is_known_from_the_log_after_the_node_was_powered_down_for_it() -> None:
    lines = [
        "[t] update_node: node n1 reason set to: SlurmdSpoolDir is full",
        "[t] update_node: node n11 reason set to: another's",
        "[t] update_node: node n1 reason set to: slurm-elastic:hold:repair",
        "[t] powering down node n1",
    ]
    assert reason_set(lines, "n1") == "SlurmdSpoolDir is full"
    assert reason_set(lines[2:], "n1") == ""


CONTACT = "slurmd: error: Unable to register: Unable to contact slurm controller (connect failure)"
REFUSES = "10.0.0.7:6818 refuses the connection"
SILENT = "10.0.0.7:6818 did not answer in 3s (no route to it)"


@pytest.mark.parametrize(
    ("pieces", "name"),
    [
        ((CONTACT, SILENT), "no route"),
        ((CONTACT, REFUSES), "wrong head address"),
        ((REFUSES, CONTACT), "closed port"),
        ((REFUSES, "no answer at join.head: 10.0.0.1:1 refuses"), "wrong head address"),
        ((CONTACT, REFUSES, "write: No space left on device"), "full disk"),
    ],
)
def test_words_that_may_come_of_another_mistake_count_where_nothing_else_is_known(
    pieces: tuple[str, ...], name: str
) -> None:
    assert diagnosis(TrialStep.REACHED, pieces).name == name


@pytest.mark.parametrize(
    ("number", "release"),
    [
        (9216, "20.11"), (9472, "21.08"), (9728, "22.05"), (9984, "23.02"), (10240, "23.11"),
        (10496, "24.05"), (10752, "24.11"), (11008, "25.05"), (11264, "25.11"), (11520, "26.05"),
    ],
)  # fmt: skip
def test_a_protocols_version_is_told_by_its_release(number: int, release: str) -> None:
    found = diagnosis(
        TrialStep.REGISTERED, [f"error: Invalid Protocol Version {number} from uid=0"]
    )
    assert found.words == (
        f"error: Invalid Protocol Version {number} (Slurm {release}'s) from uid=0"
    )


def test_a_version_that_nobody_knows_stays_a_number() -> None:
    assert diagnosis(TrialStep.JOB, ["Protocol Version 65280 from x"]).words.endswith(
        "65280 from x"
    )


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        ("Sat Nov 21 12:00:05 2026", "2h ahead of"),
        ("Sat Nov 21 09:59:00 2026", "1m behind"),
    ],
)
def test_clocks_that_differ_are_told_by_how_much(sent: str, words: str) -> None:
    lines = [
        "[t] error: Munge decode failed: Rewound credential",
        f"[t] auth/munge: _print_cred: ENCODED: {sent}",
        "[t] auth/munge: _print_cred: DECODED: Sat Nov 21 10:00:00 2026",
        "[t] error: Check for out of sync clocks",
    ]
    found = diagnosis(TrialStep.REGISTERED, log_evidence(lines, "n1"))
    assert (found.name, found.words) == (
        "clock off", f"out of sync clocks: the sender's is {words} the head's",
    )  # fmt: skip


def test_a_credential_that_cannot_be_read_tells_nothing_of_clocks() -> None:
    lines = [
        "[t] error: Munge decode failed: Invalid credential",
        "[t] auth/munge: _print_cred: ENCODED: Thu Jan 01 00:00:00 1970",
        "[t] auth/munge: _print_cred: DECODED: Thu Jan 01 00:00:00 1970",
    ]
    assert diagnosis(TrialStep.REGISTERED, log_evidence(lines, "n1")).name == "wrong munge key"


def test_of_one_time_alone_or_one_that_cannot_be_read_nothing_is_told_of_clocks() -> None:
    lines = (
        "[t] auth/munge: _print_cred: ENCODED: Thu Jan 01 00:00:00 1970",
        "[t] auth/munge: _print_cred: DECODED: Sat Nov 21 10:00:00 2026",
    )
    assert log_evidence(lines, "n1") == ()
    assert log_evidence(lines[1:], "n1") == ()


GOES = SlurmNode(name="n1", states=frozenset({"IDLE", "CLOUD", "POWERING_DOWN"}))
ENDED = changed(THERE, ended=9.0)


@pytest.mark.parametrize(
    ("rest", "over"),
    [
        (Rest(node=None), False),
        (Rest(node=None, machines=(ENDED,)), False),
        (Rest(node=BOOTS), False),
        (Rest(node=BOOTS, machines=(ENDED,)), False),
        (Rest(node=GOES), False),
        (Rest(node=OFF), True),
        (Rest(node=OFF, requested=True), False),
        (Rest(node=OFF, launching=True), False),
        (Rest(node=GOES, refused=True), True),
        (Rest(node=GOES, refused=True, launching=True), False),
        (Rest(node=GOES, machines=(THERE,)), False),
        (Rest(node=GOES, machines=(ENDED,)), True),
        (Rest(node=GOES, machines=(ENDED, THERE)), False),
    ],
)
def test_it_is_over_when_no_machine_is_left_and_none_can_come(rest: Rest, *, over: bool) -> None:
    assert is_over(rest) is over
