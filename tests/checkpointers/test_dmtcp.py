"""The launcher's session and its head side, by the contract, on stand-ins for DMTCP's commands."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import structs
from needs import ROOT_PART
from patience import eventually

from slurm_elastic.base.errors import CheckpointError, UnreadableError
from slurm_elastic.checkpointers import node_helper_client
from slurm_elastic.checkpointers.node_helper_client import VERIFY_RATE, LaunchedCheckpointer
from slurm_elastic.machine.ckptroot.quota import allocated
from slurm_elastic.machine.ckptroot.rights import as_user
from slurm_elastic.model.checkpoint import Origin
from slurm_elastic.testing.saving import SHORT_S, Deadlines, Holds, SaveContract, Spoils, save
from tests.checkpointers.node_bed import PATIENCE, USER, NodeBed
from tests.machine.ckptroot.helpers import user_of
from tests.machine.ckptroot.test_port_guard import reaches, tables

pytestmark = ROOT_PART


@pytest.fixture
def bed() -> Iterator[NodeBed]:
    made = NodeBed()
    yield made
    made.close()


class TestDmtcp(SaveContract, Spoils, Deadlines, Holds):
    pass


def test_the_next_run_goes_on_and_ends_with_the_scripts_own_code(bed: NodeBed) -> None:
    run = bed.run()
    bed.wait(lambda: len(bed.steps(7)) > 3, "steps")
    image = save(bed, run, stop=True)
    done = len(bed.steps(7))
    assert bed.checkpointer.origin(run) == Origin(image=0)
    assert bed.checkpointer.origin(structs.replace(run, attempt=1)) is None, "not begun yet"
    again = bed.run(attempt=1)
    assert bed.checkpointer.origin(again) == Origin(image=image.number)
    bed.wait(lambda: len(bed.steps(7)) > done + 3, "steps after the move")
    assert bed.end(7) == 7
    steps = bed.steps(7)
    assert steps == list(range(len(steps))), "each step is done once"
    assert not Path(image.path).parents[1].exists()  # and nothing left


def test_an_image_that_was_changed_is_not_used(bed: NodeBed) -> None:
    run = bed.run()
    first, second = save(bed, run), save(bed, run, stop=True)
    path = next(Path(second.path).glob("ckpt_*"))
    path.write_bytes(b"X" * path.stat().st_size)
    origin = bed.checkpointer.origin(bed.run(attempt=1))
    assert origin is not None
    assert origin.image == first.number
    assert origin.why.startswith(f"image {second.number} is not used: ")
    assert bed.checkpointer.hindered(run) == "", "that run is over"
    log = " ".join(bed.status(7)["log"])  # type: ignore[arg-type]
    assert f"image {second.number} is not used" in log
    assert f"continues from image {first.number}" in log


@pytest.mark.release
@pytest.mark.parametrize("kind", ["other bytes", "longer", "pipe", "link"])
def test_the_head_sees_an_image_that_was_changed(bed: NodeBed, kind: str) -> None:
    image = save(bed, bed.run())
    bed.checkpointer.verify(image)
    path = next(Path(image.path).glob("ckpt_*"))
    content = path.read_bytes()
    path.unlink()
    match kind:
        case "other bytes":
            path.write_bytes(b"X" * len(content))
        case "longer":
            path.write_bytes(content + b"X")
        case "pipe":
            os.mkfifo(path)
        case _:
            (bed.home / "elsewhere").write_bytes(content)
            path.symlink_to(bed.home / "elsewhere")
    with pytest.raises(CheckpointError):
        bed.checkpointer.verify(image)


def test_an_image_is_verified_within_a_time_that_goes_by_its_size(bed: NodeBed) -> None:
    image = structs.replace(save(bed, bed.run()), size=30 * VERIFY_RATE)
    clock = iter([0.0, *(150.0 + n for n in range(1000))])
    slow = LaunchedCheckpointer("dmtcp", bed.home / "shared/t", monotonic=lambda: next(clock))
    with pytest.raises(CheckpointError, match=r"cannot be verified within 2m 30s: .* too long"):
        slow.verify(image)
    LaunchedCheckpointer("dmtcp", bed.home / "shared/t", monotonic=lambda: 0.0).verify(image)


def test_a_shared_directory_that_hangs_does_not_hold_who_verifies(
    bed: NodeBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = save(bed, bed.run())
    answered = threading.Event()
    monkeypatch.setattr(node_helper_client, "VERIFY_MIN_S", 0.2)
    monkeypatch.setattr(node_helper_client, "_open", lambda _: answered.wait() and -1)
    with pytest.raises(CheckpointError, match="cannot be verified within 0s: no answer"):
        bed.checkpointer.verify(image)
    answered.set()


def test_a_shared_directory_that_hangs_says_nothing_about_its_images_and_jobs(
    bed: NodeBed, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = bed.run()
    save(bed, run)
    answered = threading.Event()
    with monkeypatch.context() as hanging:
        hanging.setattr(node_helper_client, "READ_TIMEOUT_S", 0.2)
        hanging.setattr(node_helper_client, "_open", lambda _: answered.wait() and -1)
        with pytest.raises(UnreadableError, match="cannot be read now: no answer"):
            bed.checkpointer.images(run)
        for _ in range(10):
            with pytest.raises(UnreadableError, match="cannot be read now: "):
                save(bed, run)
    answered.set()

    def is_read_again() -> bool:
        with contextlib.suppress(UnreadableError):  # threads that hung may not have ended yet
            return len(bed.checkpointer.images(run)) == 1
        return False

    assert eventually(is_read_again)


@pytest.mark.release
def test_a_run_of_several_nodes_without_the_launcher_is_told_when_it_has_one(bed: NodeBed) -> None:
    run = structs.replace(bed.run(), job=99, label="99", nodes=("n1", "n2"))
    said = "^job 99: this run is not under the launcher, as a job of several nodes is only if"
    with pytest.raises(CheckpointError, match=said):
        save(bed, run)


def test_with_no_good_image_the_job_starts_anew(bed: NodeBed) -> None:
    image = save(bed, bed.run(), stop=True)
    (Path(image.path) / "manifest.json").write_text("{}")
    bed.run(attempt=1)
    assert "starts over" in " ".join(bed.status(7)["log"])  # type: ignore[arg-type]


def test_a_hold_that_nobody_ends_ends_by_itself() -> None:
    bed = NodeBed(hold=1.0)
    try:
        save(bed, bed.run(), stop=True)
        bed.wait(lambda: bed.status(7)["state"] == "running", "brought back")
        assert bed.works(bed.run())
    finally:
        bed.close()


@pytest.mark.release
def test_a_signal_of_the_users_does_not_end_a_hold(bed: NodeBed) -> None:
    """Else the job would count as finished: Slurm still says that it runs."""
    run = bed.run()
    save(bed, run, stop=True)
    bed.jobs[7].send_signal(signal.SIGTERM)
    time.sleep(1.5)
    assert bed.jobs[7].poll() is None
    bed.checkpointer.release(run)
    assert bed.works(run)


@pytest.mark.release
def test_a_cancelled_hold_ends_and_leaves_its_image_to_the_sweeper(bed: NodeBed) -> None:
    image = save(bed, bed.run(), stop=True)
    bed.say(7, "CANCELLED")
    bed.jobs[7].send_signal(signal.SIGTERM)
    assert bed.jobs[7].wait(PATIENCE) == -signal.SIGTERM
    assert Path(image.path).exists()
    assert bed.status(7)["state"] == "ended"


def test_a_killed_session_takes_its_payload_along_and_images_stay(bed: NodeBed) -> None:
    image = save(bed, bed.run())
    bed.jobs[7].kill()
    bed.jobs.pop(7).wait()
    steps = len(bed.steps(7))
    bed.wait(lambda: len(bed.steps(7)) == steps, "no more steps")
    bed.attempts[7] = 1
    bed.say(7, "RUNNING")
    bed.start(7)
    assert f"continues from image {image.number}" in " ".join(bed.status(7)["log"])  # type: ignore[arg-type]


@pytest.mark.release
def test_a_machine_that_shuts_down_keeps_the_images(bed: NodeBed) -> None:
    """It ends all processes, and Slurm still says that the job runs."""
    image = save(bed, bed.run())
    bed.terminate(7)
    assert bed.jobs.pop(7).wait(PATIENCE) == -signal.SIGTERM
    bed.attempts[7] = 1
    bed.say(7, "RUNNING")
    bed.start(7)
    assert f"continues from image {image.number}" in " ".join(bed.status(7)["log"])  # type: ignore[arg-type]


def test_a_job_that_is_cancelled_leaves_nothing(bed: NodeBed) -> None:
    save(bed, bed.run())
    bed.say(7, "COMPLETING")
    bed.terminate(7)
    assert bed.jobs[7].wait(PATIENCE) == -signal.SIGTERM
    assert not (bed.home / "shared" / "t" / "7").exists()


@pytest.mark.release
def test_a_run_that_is_not_this_one_is_not_saved(bed: NodeBed) -> None:
    from msgspec.structs import replace

    run = bed.run()
    for other in (replace(run, attempt=5), replace(run, uid=1), replace(run, job=4711)):
        with pytest.raises(CheckpointError):
            save(bed, other)
    with pytest.raises(CheckpointError):
        bed.checkpointer.release(replace(run, attempt=5))


@pytest.mark.release
def test_after_the_deadline_nothing_is_asked(bed: NodeBed) -> None:
    run = bed.run()
    with pytest.raises(CheckpointError, match="no time"):
        save(bed, run, within=-1.0)
    assert (bed.home / "shared" / "t" / "7" / "request").read_bytes() == b""


@pytest.mark.release
def test_a_request_that_is_seen_too_late_stops_nobody(bed: NodeBed) -> None:
    run = bed.run()
    bed.jobs[7].send_signal(signal.SIGSTOP)
    with pytest.raises(CheckpointError, match="no answer"):
        save(bed, run, stop=True, within=SHORT_S)
    bed.jobs[7].send_signal(signal.SIGCONT)
    assert bed.works(run)
    time.sleep(0.5)  # some looks at what is asked for
    assert bed.works(run)
    assert list(bed.checkpointer.images(run)) == []


def test_a_directory_that_is_away_costs_the_image_and_not_the_job(bed: NodeBed) -> None:
    run = bed.run()
    good = save(bed, run)
    images = Path(good.path).parent
    images.rename(images.with_name("elsewhere"))
    with pytest.raises(CheckpointError):
        save(bed, run, stop=True)
    images.with_name("elsewhere").rename(images)
    assert bed.works(run)
    assert bed.checkpointer.images(run)[0] == good


def test_an_image_is_roots_and_closed_to_its_user(bed: NodeBed) -> None:
    """Who could write it could fill root's storage, at any time."""
    image = save(bed, bed.run())
    for path in (Path(image.path), *Path(image.path).iterdir()):
        found = path.stat()
        assert (found.st_uid, found.st_mode & 0o022) == (0, 0), path
    saved = next(Path(image.path).glob("*.dmtcp"))
    with as_user(user_of(USER, USER)), pytest.raises(PermissionError):
        saved.open("ab")
    assert not list((bed.home / "user").glob(".slurm-elastic-*"))


@pytest.mark.release
def test_images_go_on_from_behind_a_closed_directory(bed: NodeBed) -> None:
    """Nobody else comes near a restored job's image, which is his memory."""
    image = save(bed, bed.run(), stop=True)
    bed.run(attempt=1)
    assert f"continues from image {image.number}" in " ".join(bed.status(7)["log"])  # type: ignore[arg-type]
    saved = next(Path(image.path).glob("*.dmtcp"))
    with as_user(user_of(1, 1)), pytest.raises(PermissionError):
        saved.read_bytes()


def test_processes_that_do_not_all_come_back_are_ended_and_another_node_is_asked_for(
    bed: NodeBed,
) -> None:
    """DMTCP's other processes would wait for them until the job's time limit."""
    run = bed.run()
    save(bed, run)
    image = save(bed, run, stop=True)
    (bed.home / "user" / "progress-7.half").touch()
    again = bed.run(attempt=1)
    origin = bed.checkpointer.origin(again)
    assert origin is not None
    assert origin.is_unfit
    assert origin.why.startswith(f"image {image.number} is not used: ")
    assert "did not come back" in origin.why
    assert not bed.works(again)
    assert len(bed.checkpointer.images(again)) == 2


def test_what_dmtcp_keeps_beside_an_image_is_there_at_the_restart(bed: NodeBed) -> None:
    (bed.home / "user" / "progress-7.beside").write_text("content")
    image = save(bed, bed.run(), stop=True)
    origin = bed.checkpointer.origin(bed.run(attempt=1))
    assert origin == Origin(image=image.number)
    assert (bed.home / "user" / "progress-7.came-back").read_text() == "content"
    assert not list((bed.home / "user").glob(".slurm-elastic-*"))


def test_a_job_that_was_ended_for_an_image_that_is_not_kept_runs_on(bed: NodeBed) -> None:
    run = bed.run()
    bed.wait(lambda: len(bed.steps(7)) > 3, "steps")
    bed.sabotage(7, "(directory / 'z.dmtcp').symlink_to('/etc/shadow')")
    with pytest.raises(CheckpointError):
        save(bed, run, stop=True)
    (bed.home / "user" / "progress-7.hostile").unlink()
    assert bed.works(run)
    steps = bed.steps(7)
    assert steps == list(range(len(steps)))


PIPE = "os.mkfifo(directory / 'a.dmtcp')"
LINK = "os.symlink('/etc/shadow', directory / 'a.dmtcp')"
NEST = "[(os.mkdir('a.dmtcp'), os.chdir('a.dmtcp')) for _ in range(1100)]"
MANY = "[(directory / str(n)).touch() for n in range(10_001)]"


@pytest.mark.release
@pytest.mark.parametrize("attack", [PIPE, LINK, f"os.chdir(directory)\n{NEST}", MANY])
def test_what_a_user_puts_beside_his_image_is_not_waited_for_walked_or_kept(
    bed: NodeBed, attack: str
) -> None:
    run = bed.run()
    good = save(bed, run)
    bed.sabotage(7, attack)
    with pytest.raises(CheckpointError):
        save(bed, run)
    assert bed.works(run)
    assert list(bed.checkpointer.images(run)) == [good]
    assert not list((bed.home / "shared" / "t" / "7" / "images").glob("*.new"))


@pytest.mark.release
def test_a_pipe_in_the_place_of_the_port_keeps_nobody(bed: NodeBed) -> None:
    run = bed.run()
    port = Path(f"/proc/{bed.payload(7)}/root{bed.home}/run/7/port")
    port.unlink()
    os.mkfifo(port)
    os.chown(port, USER, USER)
    with pytest.raises(CheckpointError, match="not a regular file"):
        save(bed, run)
    assert bed.end(7) == 7


def test_others_do_not_reach_a_jobs_coordinator(bed: NodeBed) -> None:
    """It would do whatever it is asked: save the job, or end it."""
    run = bed.run()
    path = Path(f"/proc/{bed.payload(7)}/root{bed.home}/run/7/port")
    port = int(path.read_text())
    if f"slurm_elastic_port_{port}\n" not in tables():
        pytest.skip("nft is missing or may not set rules here")
    assert not reaches(port, USER - 1)
    save(bed, run)
    assert bed.end(7) == 7
    assert f"slurm_elastic_port_{port}\n" not in tables()


def mounted(bed: NodeBed, size: str) -> Iterator[NodeBed]:
    """The shared directory has that much room."""
    shared = str(bed.home / "shared")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", shared]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no small file system can be mounted: {done.stderr.strip()}")
    yield bed
    bed.stop()
    subprocess.run(["umount", "-l", shared], check=True)


@pytest.fixture
def small(bed: NodeBed) -> Iterator[NodeBed]:
    yield from mounted(bed, "256k")


@pytest.fixture
def fair(bed: NodeBed) -> Iterator[NodeBed]:
    """A job may have 16 MiB of 64, a user 32."""
    yield from mounted(bed, "64m")


MIB = 1 << 20


def taken(bed: NodeBed, job: int) -> int:
    """Bytes that a job's directory takes."""
    return allocated(bed.home / "shared" / "t" / str(job))


@pytest.mark.release
def test_the_holes_of_an_output_take_no_room_and_come_back(fair: NodeBed) -> None:
    """An output of 1 TiB was copied until the disk was full, and the next job's save failed."""
    run, other = fair.run(7), fair.run(8)
    size = 1 << 40
    os.truncate(fair.output_path(7), size)
    save(fair, run, stop=True)
    assert taken(fair, 7) < MIB
    save(fair, other)
    fair.run(7, attempt=1)
    found = fair.output_path(7).stat()
    assert found.st_size >= size
    assert found.st_blocks * 512 < MIB


def test_an_output_beyond_the_jobs_quota_costs_its_own_save_and_no_others(fair: NodeBed) -> None:
    run, other = fair.run(7), fair.run(8)
    good = save(fair, run)
    with open(fair.output_path(7), "ab") as output:
        output.write(b"x" * 17 * MIB)
    with pytest.raises(CheckpointError, match="job_quota = 25%"):
        save(fair, run)
    assert taken(fair, 7) < MIB
    assert list(fair.checkpointer.images(run)) == [good]
    assert fair.works(run)
    save(fair, other)


@pytest.mark.release
@pytest.mark.parametrize("size", ["17 << 20", "1 << 40"])
def test_an_image_beyond_the_jobs_quota_is_not_copied(fair: NodeBed, size: str) -> None:
    run, other = fair.run(7), fair.run(8)
    fair.sabotage(7, f"(directory / 'a.dmtcp').touch(); os.truncate(directory / 'a.dmtcp', {size})")
    with pytest.raises(CheckpointError, match="more than"):
        save(fair, run)
    fair.sabotage(7, "(directory / 'a.dmtcp').write_bytes(b'x' * (17 << 20))")
    with pytest.raises(CheckpointError, match="more than"):
        save(fair, run)
    assert taken(fair, 7) < MIB
    save(fair, other)


@pytest.mark.release
def test_many_images_of_holes_are_no_more_to_read_than_one_may_be(fair: NodeBed) -> None:
    """They take no room, and were read whole on the node and by the head for hours."""
    run = fair.run(7)
    fair.sabotage(
        7,
        "for n in range(20):\n"
        "    (directory / f'a{n}.dmtcp').touch(); os.truncate(directory / f'a{n}.dmtcp', 10 << 20)",
    )
    with pytest.raises(CheckpointError, match="more than"):
        save(fair, run)
    assert fair.works(run)


@pytest.mark.release
def test_the_scripts_copy_is_for_its_user_to_run_and_not_to_fill(fair: NodeBed) -> None:
    fair.run()
    script = fair.home / "shared" / "t" / "7" / "script"
    with as_user(user_of(USER, USER)):
        assert b"progress" in script.read_bytes()
        with pytest.raises(PermissionError):
            script.chmod(0o700)
        with pytest.raises(PermissionError):
            script.open("ab")
    with as_user(user_of(1, 1)), pytest.raises(PermissionError):
        script.read_bytes()


def test_a_full_disk_costs_the_image_and_not_the_job(small: NodeBed) -> None:
    run = small.run()
    good = save(small, run)
    small.wait(lambda: len(small.steps(7)) > 3, "steps")
    filler = small.home / "shared" / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(b"x" * 4096)
    with pytest.raises(CheckpointError):
        save(small, run, stop=True, within=5.0)
    assert small.works(run)
    filler.unlink()
    small.checkpointer.verify(good)
    again = save(small, run, stop=True)
    assert small.checkpointer.images(run)[:2] == (again, good)


@pytest.mark.release
def test_a_directory_that_is_gone_at_the_end_does_not_cost_the_exit_code(bed: NodeBed) -> None:
    save(bed, bed.run())
    (bed.home / "shared" / "t" / "7").rename(bed.home / "shared" / "elsewhere")
    assert bed.end(7) == 7


@pytest.mark.release
def test_a_job_whose_script_ignores_its_childrens_ends_is_still_waited_for() -> None:
    """The kernel would reap its processes at once (sigaction(2), SIGCHLD)."""
    bed = NodeBed(ignored_children=True)
    try:
        bed.run()
        assert bed.end(7) == 7
    finally:
        bed.close()
