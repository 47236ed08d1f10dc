"""The command-line client: which commands it runs, and what their failures become."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from needs import unless

from slurm_elastic.base.errors import SlurmError
from slurm_elastic.config import SlurmSettings
from slurm_elastic.slurm.client.cli import SlurmCli
from tests.slurm.test_queue_text import MARK, text


class Stub:
    """A directory of commands that write their arguments down and answer what they are told."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.log = path / "log"
        self.release = "22.05.8"
        self.forms = ("40", "41", "42")

    def newer(self) -> None:
        """A release whose queue comes as JSON."""
        self.release = "24.11.5"
        self.command("scontrol")

    def queue(self, *jobs: Mapping[str, str]) -> None:
        """22.05's squeue, which puts the mark behind each field that it is asked to."""
        told = self.path / "queue"
        told.write_bytes(text(*jobs))
        (self.path / "squeue").write_text(
            f'#!/bin/sh\necho "squeue $*" >> {self.log}\nfor last; do :; done\n'
            f'mark=${{last#JobID:0<}}\nexec sed "s/{MARK[1:]}/${{mark%%,*}}/g" {told}\n'
        )
        (self.path / "squeue").chmod(0o755)

    def command(
        self, name: str, answer: str = "", code: int = 0, stderr: str = "", pause: float = 0
    ) -> None:
        body = f'#!/bin/sh\necho "{name} $*" >> {self.log}\n'
        if name == "scontrol":
            body += f'[ "$1" = --version ] && echo "slurm-wlm {self.release}" && exit 0\n'
            body += self.listing()
        body += f"sleep {pause}\ncat <<'EOF'\n{answer}\nEOF\necho '{stderr}' >&2\nexit {code}\n"
        (self.path / name).write_text(body)
        (self.path / name).chmod(0o755)

    def listing(self) -> str:
        """As Slurm tells its forms of JSON (25.11, measured); a release without a choice refuses."""
        lines = "".join(f"data_parser/v0.0.{form}\\n" for form in self.forms)
        told = f"printf '{lines}'; echo 'Possible data_parser plugins:' >&2; exit 0"
        return f'[ "$3" = --json=list ] && {{ {told if self.forms else "exit 1"}; }}\n'

    def asked(self) -> list[str]:
        """The commands but for those that only ask for the release."""
        return [line for line in self.log.read_text().splitlines() if "--version" not in line]

    def ran(self) -> list[str]:
        return [line for line in self.asked() if "--json=list" not in line]

    def client(self, timeout: float = 20.0, stop: threading.Event | None = None) -> SlurmCli:
        return SlurmCli(
            SlurmSettings(conf="/dev/null", bin_dir=str(self.path), command_timeout=timeout), stop
        )


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    stub = Stub(tmp_path)
    stub.command("scontrol")
    return stub


def test_a_line_break_in_an_account_is_no_row_of_another_job(stub: Stub) -> None:
    """As sbatch --account takes it on a site without associations."""
    rows = r"%s7|ann|physics\n%s8|ben|x\n7|eve|forged\n"
    (stub.path / "squeue").write_text(
        "#!/bin/sh\nfor last; do :; done\nmark=${last#--format=} mark=${mark%%%*}\n"
        f'printf \'{rows}\' "$mark" "$mark"\n'
    )
    (stub.path / "squeue").chmod(0o755)
    owners = stub.client().owners([7, 8])
    assert owners == {7: {"user": "ann", "account": "physics"}, 8: {"user": "ben"}}


def test_updates_go_out_by_compressed_hostlist(stub: Stub) -> None:
    client = stub.client()
    client.update_nodes([f"n{i}" for i in range(1, 5001)], state="DRAIN", reason="a b")
    assert stub.ran() == ["scontrol update nodename=n[1-5000] state=DRAIN reason=a b"]
    assert client.calls == {"scontrol": 1}


def test_one_address_for_all_is_said_for_each(stub: Stub) -> None:
    """NodeAddr takes as many as there are nodes; a list of 5000 still fits into one argument."""
    client = stub.client()
    client.update_nodes(
        ["n1", "n2", "n1"], state="POWER_DOWN_FORCE", reason="x", address="10.0.0.1"
    )
    assert stub.ran() == [
        "scontrol update nodename=n[1-2] nodeaddr=10.0.0.1,10.0.0.1 state=POWER_DOWN_FORCE reason=x"
    ]
    client.update_nodes([f"n{i}" for i in range(5000)], state="DOWN", address="233.252.0.1")
    assert client.calls == {"scontrol": 2}


def test_addresses_are_one_list_each(stub: Stub) -> None:
    stub.client().set_addresses({"n1": "10.0.0.1", "n2": "10.0.0.2"})
    assert stub.ran() == ["scontrol update nodename=n1,n2 nodeaddr=10.0.0.1,10.0.0.2"]


def test_addresses_of_thousands_of_nodes_take_few_commands(stub: Stub) -> None:
    client = stub.client()
    wanted = {f"n{i}": f"10.100.{i // 250}.{i % 250}" for i in range(1, 5001)}
    client.set_addresses(wanted)
    assert client.calls == {"scontrol": 2}
    told: dict[str, str] = {}
    for line in stub.ran():
        names, values = (word.partition("=")[2].split(",") for word in line.split()[2:])
        told |= dict(zip(names, values, strict=True))
    assert told == wanted


def test_no_addresses_no_command(stub: Stub) -> None:
    client = stub.client()
    client.set_addresses({})
    assert client.calls == {}


@unless("scancel")
@pytest.mark.parametrize("name", ["USR1", "URG", "WINCH", "CHLD", "PROF", "STOP", "CONT"])
def test_the_real_scancel_takes_each_signal(tmp_path: Path, name: str) -> None:
    """It reads the signal before it asks for the job. There is no slurmctld here."""
    conf = tmp_path / "slurm.conf"
    conf.write_text(
        "ClusterName=c\nSlurmctldHost=localhost\nSlurmctldPort=1\nNodeName=n1\n"
        "MessageTimeout=2\nSlurmctldTimeout=2\n"
    )
    bin_dir = str(Path(shutil.which("scancel") or "").parent)
    client = SlurmCli(SlurmSettings(conf=str(conf), bin_dir=bin_dir, command_timeout=20.0))
    with pytest.raises(SlurmError, match="Unable to contact slurm controller"):
        client.signal(1, name, full=True)


def test_a_task_of_an_array_goes_by_its_own_name(stub: Stub) -> None:
    """The base id of an array is one of its tasks, and to Slurm's commands all of them."""
    tasks = [JOB | {"job_id": 5, "array_job_id": 5, "array_task_id": 4}, JOB | {"job_id": 6}]
    stub.newer()
    stub.command("squeue", json.dumps({"jobs": tasks}))
    stub.command("scancel")
    client = stub.client()
    assert [job.label for job in client.jobs(ended=True)] == ["5_4", "6"]
    client.requeue(5)
    client.signal(5, "USR1", full=False)
    client.signal(6, "STOP", full=True)
    client.any_nodes(5)
    client.release(6)
    client.hold(5)
    client.suspend(5)
    client.resume(6)
    assert stub.ran() == [
        "squeue --all --states=all --json=v0.0.42",
        "scontrol requeue 5_4",
        "scancel --signal=10 --batch 5_4",
        "scancel --signal=19 --full 6",
        "scontrol update jobid=5_4 reqnodelist=",
        "scontrol release 6",
        "scontrol uhold 5_4",
        "scontrol suspend 5_4",
        "scontrol resume 6",
    ]


def test_an_ended_task_keeps_its_own_name_after_a_list_of_the_others(stub: Stub) -> None:
    last, other = (
        JOB | {"job_id": number, "array_job_id": 5, "array_task_id": task}
        for number, task in ((5, 4), (6, 0))
    )
    stub.newer()
    stub.command("scontrol")
    client = stub.client()
    stub.command("squeue", json.dumps({"jobs": [last]}))
    assert client.job(5) is not None, "a list of one job names it, too"
    stub.command("squeue", json.dumps({"jobs": [other]}))
    client.jobs()
    client.requeue(5)
    assert stub.ran()[-1] == "scontrol requeue 5_4"
    client.jobs(ended=True)
    client.requeue(5)
    assert stub.ran()[-1] == "scontrol requeue 5", "no list of all jobs has the task any more"


def test_the_output_of_a_job_as_slurmstepd_names_it(stub: Stub) -> None:
    stub.command("scontrol")
    stub.queue({"JobID": "7", "WorkDir": "/w", "STDOUT": "/w/a b-%j.out"})
    job = stub.client().job(7)
    assert job is not None
    assert job.output == "/w/a b-7.out"
    assert stub.ran()[-1].startswith("squeue --all --states=all --jobs=7 ")


@pytest.mark.parametrize(
    ("told", "timeout"),
    [("SlurmdTimeout           = 0 sec", 0.0), ("SlurmdTimeout = 450 sec", 450.0), ("", 300.0)],
)
def test_slurmd_timeout_is_asked_once_in_a_while(stub: Stub, told: str, timeout: float) -> None:
    stub.command("scontrol", f"SlurmctldTimeout        = 120 sec\n{told}\nSlurmdUser = root(0)")
    client = stub.client()
    assert [client.slurmd_timeout(), client.slurmd_timeout()] == [timeout] * 2
    assert stub.ran() == ["scontrol show config"]


def test_weights_are_one_command_a_weight(stub: Stub) -> None:
    stub.client().set_weights({"n1": 1009, "n2": 1000, "n3": 1009})
    assert stub.ran() == [
        "scontrol update nodename=n2 weight=1000",
        "scontrol update nodename=n[1,3] weight=1009",
    ]


def test_jobs_commands(stub: Stub) -> None:
    client = stub.client()
    client.requeue(7)
    client.start_now(7)
    client.set_requeue(7, requeue=True)
    assert stub.ran() == [
        "scontrol requeue 7",
        "scontrol update jobid=7 starttime=now",
        "scontrol update jobid=7 requeue=1",
    ]


def test_pending_jobs_are_changed_in_one_command(stub: Stub) -> None:
    jobs = [JOB | {"job_id": 5, "array_job_id": 4, "array_task_id": 2}, JOB | {"job_id": 6}]
    stub.newer()
    stub.command("squeue", json.dumps({"jobs": jobs}))
    client = stub.client()
    client.jobs()
    client.change_pending([5, 6], partitions=("batch", "debug"))
    client.change_pending([6], begin_in=99.2)
    client.change_pending([6], partitions=("aws",), begin_in=0.0)
    assert stub.ran() == [
        "squeue --all --json=v0.0.42",
        "scontrol update jobid=4_2,6 partition=batch,debug",
        "scontrol update jobid=6 starttime=now+100",
        "scontrol update jobid=6 partition=aws starttime=now",
    ]


@pytest.mark.parametrize(
    ("text", "fine"),
    [
        ("Job is no longer pending execution for job 5", True),
        ("1_1: Job is no longer pending execution\n1_2-6: No error", True),
        ("1_1: Job is no longer pending execution\nslurm_update error: Access denied", False),
        ("Invalid partition name specified for job 5", False),
        ("", False),
    ],
)
def test_what_started_meanwhile_is_no_error(stub: Stub, text: str, fine: bool) -> None:
    stub.command("scontrol", stderr=text, code=1)
    with contextlib.nullcontext() if fine else pytest.raises(SlurmError):
        stub.client().change_pending([5], begin_in=60.0)


def test_nodes_and_jobs_are_one_command_each(stub: Stub) -> None:
    nodes = [{"name": n, "state": "idle", "state_flags": ["CLOUD"]} for n in ("a", "b")]
    stub.command("sinfo", json.dumps({"nodes": nodes}))
    stub.queue({"JobID": "3", "State": "RUNNING"})
    client = stub.client()
    assert set(client.nodes()) == {"a", "b"}
    assert set(client.nodes(["b", "gone"])) == {"b"}
    assert client.jobs()[0].id == 3
    *asked, squeue = stub.ran()
    assert asked == ["sinfo --all --json", "sinfo --all --json"]
    assert squeue.startswith("squeue --all --noheader --states=all --noconvert --sort=i --Format ")


def test_the_mark_of_the_queues_text_is_new_each_time(stub: Stub) -> None:
    stub.queue({"State": "RUNNING"}, {"JobID": "8", "State": "COMPLETED"})
    client = stub.client()
    assert [job.id for job in client.jobs()] == [7]
    assert [job.id for job in client.jobs(ended=True)] == [7, 8]
    first, second = stub.ran()
    assert first != second


@pytest.mark.parametrize("answer", ["no queue", '{"jobs": []}'])
def test_text_of_an_unknown_form_is_a_slurm_error(stub: Stub, answer: str) -> None:
    stub.command("squeue", answer)
    with pytest.raises(SlurmError, match=r"^squeue --all --Format: answered text of an unknown"):
        stub.client().jobs()


NODE = {"name": "a", "state": ["IDLE", "CLOUD"], "partitions": ["p"]}
JOB = {"job_id": 3, "job_state": ["RUNNING"], "nodes": "a"}


@pytest.mark.parametrize(
    ("release", "forms", "option"),
    [
        ("23.02.7", (), "--json"),
        ("23.11.4", ("39", "40"), "--json=v0.0.40"),
        ("24.05.2", ("39", "40", "41"), "--json=v0.0.41"),
        ("24.11.5", ("40", "41", "42"), "--json=v0.0.42"),
        ("25.11.7", ("44", "42"), "--json=v0.0.42"),
        ("26.05.1", ("42", "43", "44", "45"), "--json=v0.0.42"),
        ("26.11.0", ("43", "44", "45", "46"), "--json=v0.0.43"),
        ("30.05.0", ("60", "100", "61"), "--json=v0.0.60"),
    ],
)
def test_slurm_is_asked_once_which_forms_it_has_and_for_one_of_them(
    stub: Stub, release: str, forms: tuple[str, ...], option: str
) -> None:
    stub.release, stub.forms = release, forms
    stub.command("scontrol", json.dumps({"nodes": [NODE]}))
    stub.command("squeue", json.dumps({"jobs": [JOB]}))
    client = stub.client()
    assert client.nodes()["a"].states == {"IDLE", "CLOUD"}
    assert client.jobs()[0].nodes == ("a",)
    assert stub.asked() == [
        "scontrol show nodes --json=list",
        f"scontrol --all show nodes {option}",
        f"squeue --all {option}",
    ]


def test_an_upgraded_slurm_is_read_again_after_one_failure(stub: Stub) -> None:
    """Since 23.02 ``sinfo --json`` has no nodes, and later releases drop older forms."""
    stub.command("sinfo", json.dumps({"nodes": [NODE]}))
    client = stub.client()
    assert set(client.nodes()) == {"a"}
    stub.command("sinfo", json.dumps({"nodes": [{"rows": "of equal nodes"}]}))
    stub.release = "24.11.5"
    stub.command("scontrol", json.dumps({"nodes": [NODE]}))
    with pytest.raises(SlurmError):
        client.nodes()
    assert set(client.nodes()) == {"a"}
    assert client.version() == (24, 11)


def test_newer_forms_tell_the_output_as_slurm_has_expanded_it_apart(stub: Stub) -> None:
    """25.11 in v0.0.44; an older one has it expanded, or nothing."""
    told = {"standard_output": "slurm-%j.out", "stdout_expanded": "/w/slurm-3.out"}
    stub.newer()
    jobs = [JOB | told, JOB | {"job_id": 4, "standard_output": "/w/slurm-4.out"}]
    stub.command("squeue", json.dumps({"jobs": jobs}))
    assert [job.output for job in stub.client().jobs()] == ["/w/slurm-3.out", "/w/slurm-4.out"]


def test_forms_that_could_not_be_asked_for_are_asked_for_again(stub: Stub) -> None:
    stub.newer()
    answering = (stub.path / "scontrol").read_text()
    stub.command("squeue", json.dumps({"jobs": [JOB]}))
    (stub.path / "scontrol").write_text(
        answering.replace("printf", "echo 'Unable to contact slurm controller' >&2; exit 1; printf")
    )
    client = stub.client()
    with pytest.raises(SlurmError, match="Unable to contact") as raised:
        client.jobs()
    assert raised.value.unanswered
    (stub.path / "scontrol").write_text(answering)
    assert client.jobs()[0].id == 3


@pytest.mark.parametrize(
    ("nodes", "jobs"),
    [
        ({"sinfo": []}, {"queue": []}),
        ({"nodes": [{"state": "idle"}]}, {"jobs": [{"job_state": "RUNNING"}]}),
        ({"nodes": ["a"]}, {"jobs": [3]}),
        ({"nodes": None}, {"jobs": None}),
        ({"nodes": [{"name": "a", "partitions": 3}]}, {"jobs": [JOB | {"nodes": {"count": 1}}]}),
    ],
)
def test_json_of_an_unknown_form_is_a_slurm_error(stub: Stub, nodes: object, jobs: object) -> None:
    stub.command("sinfo", json.dumps(nodes))
    stub.command("squeue", json.dumps(jobs))
    with pytest.raises(SlurmError, match="JSON of an unknown form"):
        stub.client().nodes()
    stub.newer()
    with pytest.raises(SlurmError, match="JSON of an unknown form"):
        stub.client().jobs()


def test_a_failing_command_is_a_slurm_error_with_its_words(stub: Stub) -> None:
    stub.command(
        "squeue", code=1, stderr="slurm_load_jobs error: Unable to contact slurm controller"
    )
    with pytest.raises(SlurmError, match="exit 1: slurm_load_jobs error"):
        stub.client().jobs()


NODES_OF_NOBODY = {
    "meta": {"Slurm": {"release": "22.05.8"}},
    "errors": [{"error": "Unspecified error", "errno": -1}],
    "nodes": [],
}
JOBS_OF_NOBODY = {
    "errors": [
        {"description": "Failed while looking for jobs", "error_number": -1,
         "error": "Unspecified error", "source": "slurm_load_jobs"}
    ],
    "jobs": [],
}  # fmt: skip
"""22.05's JSON answers with slurmctld stopped, and with one that hangs: exit 0 (measured)."""


def test_an_answer_with_errors_has_failed_whatever_its_exit_status(stub: Stub) -> None:
    stub.command("sinfo", json.dumps(NODES_OF_NOBODY))
    stub.command("squeue", json.dumps(JOBS_OF_NOBODY))
    client = stub.client()
    with pytest.raises(SlurmError, match=r"^sinfo --all --json: answered with an error: Unsp") as e:
        client.nodes()
    assert e.value.unanswered
    stub.newer()
    client = stub.client()
    words = "slurm_load_jobs: Failed while looking for jobs: Unspecified error"
    for ended in (True, False):
        with pytest.raises(SlurmError, match=words) as e:
            client.jobs(ended=ended)
        assert e.value.unanswered


@pytest.mark.parametrize("errors", [["a word"], [{}], [{"error": "Invalid job id specified"}]])
def test_errors_beside_a_list_are_not_passed_over(stub: Stub, errors: list[object]) -> None:
    stub.newer()
    stub.command("squeue", json.dumps({"errors": errors, "jobs": [JOB]}))
    with pytest.raises(SlurmError, match="answered with an error") as e:
        stub.client().jobs()
    assert not e.value.unanswered


def test_no_errors_and_warnings_are_an_answer(stub: Stub) -> None:
    stub.release = "24.11.5"
    stub.command("scontrol")
    stub.command("squeue", json.dumps({"errors": [], "warnings": ["odd"], "jobs": [JOB]}))
    assert [job.id for job in stub.client().jobs()] == [3]


@pytest.mark.parametrize(
    "said",
    [
        "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)",
        "scontrol: error: Unable to contact slurm controller",
        "slurm_update error: Socket timed out on send/recv operation",
        "slurm_load_ctl_conf error:Protocol authentication error",  # munged is away
    ],
)
def test_what_a_command_says_of_its_failure_counts_more_than_its_exit_status(
    stub: Stub, said: str
) -> None:
    stub.command("scontrol", stderr=said)
    for call in (stub.client().slurmd_timeout, lambda: stub.client().requeue(7)):
        with pytest.raises(SlurmError) as e:
            call()
        assert e.value.unanswered


@pytest.mark.parametrize(
    "said",
    [
        "Invalid job id specified for job 7",
        "Unspecified error for job 7",  # the site's own slurm_job_modify refuses it
        "7_1: Unspecified error\n7_[2-5,9%2]: Unspecified error",
    ],
)
def test_a_refusal_is_an_answer(stub: Stub, said: str) -> None:
    stub.command("scontrol", stderr=said, code=1)
    with pytest.raises(SlurmError) as e:
        stub.client().requeue(7)
    assert not e.value.unanswered


@pytest.mark.parametrize(
    ("state", "there"),
    [
        ("RUNNING", True), ("PENDING", True), ("COMPLETING", True), ("SUSPENDED", True),
        ("COMPLETED", False), ("CANCELLED", False), ("FAILED", False), ("TIMEOUT", False),
        ("NODE_FAIL", False), ("PREEMPTED", False), ("OUT_OF_MEMORY", False), ("DEADLINE", False),
        (["COMPLETED", "COMPLETING"], True), (["NODE_FAIL", "PENDING"], True),
    ],
)  # fmt: skip
def test_jobs_that_have_ended_are_listed_only_where_they_are_asked_for(
    stub: Stub, state: object, there: bool
) -> None:
    """22.05 lists them for MinJobAge, asked for or not."""
    stub.newer()
    stub.command("squeue", json.dumps({"errors": [], "jobs": [JOB | {"job_state": state}]}))
    client = stub.client()
    assert bool(client.jobs()) is there
    assert len(client.jobs(ended=True)) == 1


def test_a_hanging_command_is_a_slurm_error(stub: Stub) -> None:
    stub.command("squeue", pause=30)
    with pytest.raises(SlurmError, match="timed out"):
        stub.client(timeout=0.5).jobs()


def test_at_the_end_of_the_service_nobody_waits_for_a_slurmctld_that_hangs(stub: Stub) -> None:
    """Neither the command that is under way nor the next ones; those that are answered go on."""
    stub.queue({"State": "RUNNING"})
    stub.command("sinfo", pause=60)
    stop = threading.Event()
    client = stub.client(60.0, stop)
    began = time.monotonic()
    failed: list[SlurmError] = []

    def read() -> None:
        with pytest.raises(SlurmError) as raised:
            client.nodes()
        failed.append(raised.value)

    reading = threading.Thread(target=read)
    reading.start()
    while not stub.log.exists() or "sinfo" not in stub.log.read_text():
        pass
    stop.set()
    assert [job.id for job in client.jobs()] == [7]
    reading.join(60)
    read()
    assert time.monotonic() - began < 30
    assert all(error.unanswered for error in failed)
    assert len(failed) == 2
    assert stub.ran()[-1].startswith("squeue"), "the second is not asked"


@pytest.mark.parametrize("answer", ["", "not json", "[1]"])
def test_an_unreadable_answer_is_a_slurm_error(stub: Stub, answer: str) -> None:
    stub.command("squeue", answer)
    with pytest.raises(SlurmError, match="answered"):
        stub.client().jobs()


def test_a_missing_slurm_conf_is_said_at_once(tmp_path: Path) -> None:
    conf = str(tmp_path / "slurm.conf")
    with pytest.raises(SlurmError, match=f"scontrol --version: exit 1: there is no {conf}"):
        SlurmCli(SlurmSettings(conf=conf)).version()


def test_a_missing_command_is_a_slurm_error(stub: Stub) -> None:
    with pytest.raises(SlurmError, match="No such file"):
        stub.client().jobs()
