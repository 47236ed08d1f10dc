"""The words of a failed save, as people are to read them."""

from __future__ import annotations

import pytest

from slurm_elastic.model.causes import decoded, encoded
from slurm_elastic.model.causes.hindrances import JobHindered, JobUnsavable, SaveObstacleKind
from slurm_elastic.policies.checkpoint.unsavable import obstacle

CRIU = "job 7: no checkpoint: criu dump: exit 1: "


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (CRIU + "(criu/file-lock.c:110): Some file locks are hold by dumping tasks!", "a lock"),
        (CRIU + "(criu/files-reg.c:1107): Can't create link remap for /dev/shm/sem.x.",
         "named semaphore"),
        (CRIU + "(criu/files-reg.c:869): Can't dump ghost file /a of 4194304 size", "deleted"),
        ("job 7: DMTCP lacks a change that jobs of several hosts need: a save hangs",
         "cannot save jobs of several hosts"),
        (CRIU + "(criu/sk-inet.c:188): Connected TCP socket, consider using --tcp-established",
         "network connection"),
        (CRIU + "(criu/sockets.c:151): Can't get 1:16 opt", "network socket"),
        (CRIU + "(criu/fsnotify.c:227): Can't dump inotify", "inotify"),
        (CRIU + "(criu/namespaces.c:1012): Can't dump nested user namespace for 12", "container"),
        ("job 7: no checkpoint: it uses System V IPC, which this kernel lets only root bring back",
         "its node's kernel is too old for"),
        ("job 7: no checkpoint: semaphores may be undone at the end of a process of it (SEM_UNDO)",
         "at the end of a process"),
        ("job 7: no checkpoint: it has a socket bound to 10.0.0.5:3000, which only its node can be",
         "only its node has"),
        (CRIU + "(compel/src/lib/infect.c:3): Unseizable non-zombie 12 found, state t", "traces"),
        (CRIU + "(criu/files-ext.c:94): Can't dump file 5 of that type [20666] (chr 195:255)",
         "device"),
        (CRIU + "(criu/proc_parse.c:479): Unknown shit 600 (anon_inode:[io_uring])", "io_uring"),
        (CRIU + "(criu/pie/parasite.c:588): send_fds failed (-22)", "io_uring"),
        ("job 7: no checkpoint: process memcheck-amd64- runs in valgrind, which does not go on",
         "runs in valgrind"),
        ("job 7: no checkpoint: process a has its Kerberos tickets in a keyring", "Kerberos tickets"),
        ("job 7: no checkpoint: process script runs a terminal, and takes", "script(1)"),
        ("job 7: no checkpoint: it has 300 MiB of files in /tmp, 256 MiB at most travel with it",
         "more files"),
        ("job 7: no checkpoint: /tmp/x may be its own or that of another process", "other processes"),
        ("job 7: no checkpoint: it has /tmp/x open, which is a file of this node alone", "only its node"),
        ("job 7: no checkpoint: process ssh-agent is not dumpable (prctl(2))", "hides its memory"),
        ("job 7: no checkpoint: process x has other rights than the job's user", "other rights"),
        ("job 7: no checkpoint: process bash runs in a user namespace of its own", "container"),
        (CRIU + "(criu/files-reg.c:1790): Can't lookup mount=1487 for fd=3 path=/mq-20",
         "message queue"),
        (CRIU + "(compel/src/lib/infect.c:712): Unable to connect a transport socket: Operation not"
         " permitted", "Landlock"),
        (CRIU + "(criu/sk-inet.c:151): inet: In-flight connection (l) for 3e8", "network connection"),
        (CRIU + "(criu/sk-unix.c:471): unix: Non-empty write queue on an in-flight socket 0x3e8",
         "unix socket with a connection"),
        (CRIU + "(criu/sk-unix.c:457): unix: In-flight connection on non-listening socket 7",
         "unix socket with a connection"),
        ("job 7: no checkpoint: it runs a step (srun), which criu does not save: 7.0",
         "a step (srun), which criu does not save"),
        ("job 7: criu saves batch jobs of one node, and this one has 2",
         "criu saves batch jobs of one node, and it has 2"),
        ("job 7: this run is not under the launcher", "launcher"),
        ("job 7: no checkpoint: its node gives it no clocks of its own: Operation not permitted",
         "its clocks"),
    ],
)  # fmt: skip
def test_the_reason_is_one_sentence_with_what_would_help(message: str, why: str) -> None:
    found = obstacle(message)
    assert found is not None
    assert why in str(found)
    assert str(found)[:1].islower()
    assert "\n" not in str(found)
    assert found.remedy


@pytest.mark.parametrize(
    "message",
    [
        "job 7: no answer to checkpoint in time: its launcher on n1 is still at it",
        "job 7: no time left for a checkpoint",
        "job 7: no checkpoint: the deadline has passed",
        "job 7: no checkpoint: 12 GiB are more than is left of 25% of the file system",
        "job 7: image 3 is not whole",
        "job 7: no checkpoint: its connections could not be saved at rest",
        "job 7: no checkpoint: its datagrams could not be saved at rest",
        "job 7: no checkpoint: it has begun to use System V IPC just now",
        "job 7: no checkpoint: n2 does not answer",
        "job 7: no checkpoint: dmtcp_command: 3 of 4 images are there",
        "[Errno 28] No space left on device",
    ],
)
def test_what_may_pass_by_itself_is_no_verdict(message: str) -> None:
    assert obstacle(message) is None


def test_words_that_nobody_knows_are_given_as_they_are() -> None:
    found = obstacle(CRIU + "(criu/new.c:1): Something\n new")
    assert found is not None
    assert str(found) == "criu dump: exit 1: (criu/new.c:1): Something new"


def test_words_that_nobody_knows_are_cut_at_two_hundred_characters() -> None:
    found = obstacle("job 7: no checkpoint: " + "y" * 300)
    assert found is not None
    assert str(found) == "y" * 200


@pytest.mark.parametrize(
    "message",
    [
        "job 7: no checkpoint: it runs a step (srun), which criu does not save: 7.0",
        "job 7: no checkpoint: it runs a step (srun), which dmtcp does not save: one that begins or ends",
        CRIU + "(criu/sk-unix.c:481): unix: Found a closed in-flight socket to 0x3e8",
    ],
)  # fmt: skip
def test_closing_network_connections_is_no_advice_for_what_is_none(message: str) -> None:
    found = obstacle(message)
    assert found is not None
    assert "network connection" not in str(found)
    assert "tcp=close" not in found.remedy


def test_advice_for_pythons_multiprocessing_is_named_as_such() -> None:
    found = obstacle(
        CRIU + "(criu/files-reg.c:1107): Can't create link remap for /data/x. Use link-remap"
    )
    assert found is not None
    assert found.remedy.startswith("keep the file as long as it is open")
    assert "in Python's multiprocessing: the start method fork" in found.remedy


@pytest.mark.parametrize("kind", SaveObstacleKind)
def test_each_obstacle_has_a_sentence_and_a_remedy(kind: SaveObstacleKind) -> None:
    hindrance = JobHindered(obstacle=kind, method="criu", nodes="2")
    assert not {"{", "}"} & {*str(hindrance), *hindrance.remedy}
    verdict = JobUnsavable(cause=hindrance)
    assert decoded(encoded(verdict)) == verdict
    assert str(verdict) == f"it cannot be saved: {hindrance}. It would help to {hindrance.remedy}"
