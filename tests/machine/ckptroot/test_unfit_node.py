"""Images that the node cannot use although they are good: another node continues the job."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import image_wait, instructions, restoring
from slurm_elastic.machine.ckptroot.hold import Outcome

from .helpers import ROOT
from .test_session import RUNS, Bed

pytestmark = ROOT


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bed:
    """A run of a job with one image, which nobody has failed to use."""
    bed = Bed(monkeypatch, tmp_path)
    bed.tried = []
    bed.out.write_bytes(b"one\n")
    bed.save()
    bed.node.did.clear()
    # No test waits: an error has passed by the next try, or the time is up.
    monkeypatch.setattr(image_wait.signal, "sigtimedwait", lambda *_: None)
    return bed


def test_a_node_that_cannot_use_the_image_holds_the_job_for_another_node(run: Bed) -> None:
    run.node.fails = "restore"
    session = run.opened()
    session.begin()
    assert run.status()["state"] == "unfit"
    assert run.status()["origin"]["why"] == "image 1 is not used: restore: exit 1"
    assert session.is_held
    assert "start" not in run.node.did
    session.leave(int(signal.SIGTERM))
    run.node.fails = ""
    run.opened().begin()
    assert run.status()["origin"]["image"] == 1


def test_after_three_nodes_an_older_image_is_used_or_the_job_starts_over(run: Bed) -> None:
    run.node.fails = "restore"
    for _ in range(3):
        run.tried = run.store.tried_nodes()
        run.opened().begin()
        assert run.status()["state"] == "unfit"
    run.tried = run.store.tried_nodes()
    run.opened().begin()
    assert run.node.did[-1] == "start"
    assert [path.name for path in run.store.images()] == ["1"]


def test_without_a_requeue_the_job_begins_here_after_the_hold(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.node.fails = "restore"
    session = run.opened()
    session.begin()
    monkeypatch.setattr(session.hold, "outcome", lambda: Outcome.GOES_ON)
    run.node.status = 0
    assert session.run() == 0
    assert run.node.did[-1] == "start"


def test_no_image_of_a_run_that_the_head_wants_to_be_forgotten_is_used(run: Bed) -> None:
    why = "the files of its run are lost with pub-1"
    run.request("f", "forget", attempt=1, reason=why)
    run.opened().begin()
    assert run.node.did == ["start"]
    assert run.store.images() == []
    assert run.status()["origin"] == {"image": 0, "why": f"image 1 is not used: {why}"}


def test_the_images_of_other_runs_are_used(run: Bed) -> None:
    run.request("f", "forget", attempt=0, reason="its files are lost")
    run.opened().begin()
    assert run.status()["origin"] == {"image": 1, "why": ""}


def test_an_image_that_is_to_be_forgotten_and_cannot_be_removed_is_not_used(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.request("f", "forget", attempt=1, reason="its files are lost")
    session = run.opened()
    monkeypatch.setattr(run.store, "drop_image", lambda _: None)
    session.begin()
    assert run.node.did == ["start"]


def test_an_image_that_is_wrong_is_passed_over_at_once(run: Bed) -> None:
    run.out.write_bytes(b"one\ntwo\n")
    run.save()
    (run.store.path / "images" / "2" / "pages").write_bytes(b"MEMORY")
    run.opened().begin()
    assert run.status()["origin"]["image"] == 1
    assert run.status()["state"] == "running"


def _fails_once(real: Callable[..., object]) -> Callable[..., object]:
    errors = [OSError(116, "Stale file handle")]

    def call(*arguments: object) -> object:
        if errors:
            raise errors.pop()
        return real(*arguments)

    return call


@pytest.mark.parametrize("what", ["the list of images", "a restore"])
def test_an_error_of_the_file_server_is_waited_for(
    run: Bed, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    session = run.opened()
    if what == "a restore":
        monkeypatch.setattr(restoring, "restore", _fails_once(restoring.restore))
    else:
        monkeypatch.setattr(run.store, "images", _fails_once(run.store.images))
    session.begin()
    assert run.status()["origin"]["image"] == 1


def test_images_that_cannot_be_listed_are_not_taken_for_none(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = run.opened()

    def stale(*_: object) -> list[str]:
        run.clock.now += 400
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(run.store, "images", stale)
    session.begin()
    assert session.is_held
    assert "start" not in run.node.did
    monkeypatch.undo()
    assert [path.name for path in run.store.images()] == ["1"]


X86 = pytest.mark.skipif(os.uname().machine != "x86_64", reason="flags of x86-64")


@X86
@pytest.mark.parametrize("status", [int(signal.SIGILL), int(signal.SIGSEGV), (128 + 4) << 8])
def test_a_program_that_dies_on_another_processor_continues_on_a_third(
    run: Bed, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    run.cpuinfo.write_text("model : 1\nflags : avx2 sha_ni\n")
    run.save()
    run.cpuinfo.write_text("model : 2\nflags : avx2\n")
    session = run.opened()
    session.begin()
    run.node.status = status
    monkeypatch.setattr(session.hold, "outcome", lambda: Outcome.IS_OVER)
    assert session.run() == int(signal.SIGTERM)
    assert run.status()["state"] == "unfit"
    session.leave(int(signal.SIGTERM))
    assert run.store.images() != []


@X86
def test_a_program_that_dies_on_its_own_processor_has_ended(run: Bed) -> None:
    run.cpuinfo.write_text("model : 1\nflags : avx2 sha_ni\n")
    run.save()
    session = run.opened()
    session.begin()
    run.node.status = int(signal.SIGILL)
    run.answers = [RUNS]
    assert session.run() == int(signal.SIGILL)
    session.leave(int(signal.SIGILL))
    assert not run.store.path.exists()


def test_an_image_needs_the_processors_of_the_jobs_other_nodes(
    run: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.cpuinfo.write_text("flags : avx2\n")
    monkeypatch.setattr(type(run.node), "other_instructions", lambda _: ["avx512f"])
    run.save()
    newest = run.store.images()[0]
    with pytest.raises(instructions.RequestRefused, match="lacks avx512f"):
        instructions.of_image(newest)


@pytest.mark.parametrize("reported", [None, "avx2", ["avx512f", "rm -rf", 7]])
def test_what_another_node_reports_may_be_anything(reported: object) -> None:
    names = ["avx2", "avx512f"] if isinstance(reported, list) else ["avx2"]
    assert instructions.joined(["avx2"], reported) == names
