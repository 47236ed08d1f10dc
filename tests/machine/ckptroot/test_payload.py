"""The user's program gets nothing of root's but what it is handed."""

from __future__ import annotations

import ctypes
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_elastic.machine.ckptroot import kernel
from slurm_elastic.machine.ckptroot.payload import Payload, become

from .helpers import ROOT, aside

pytestmark = ROOT
USER = 65534
DEATH = (
    "import ctypes, os; found = ctypes.c_int(); ctypes.CDLL(None).prctl(2, ctypes.byref(found), 0, 0, 0);"
    " print(found.value, os.getsid(0) == os.getpid())"
)  # PR_GET_PDEATHSIG


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="se-payload-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def became(place: Path, *argv: str, leads: bool = False, **how: object) -> tuple[int, str]:
    """Its exit code, and what it said."""
    made = Payload(argv, {b"PATH": b"/usr/bin:/bin"}, str(place), 0o022, USER, USER, (USER,))
    out = place / "said"
    pid = os.fork()
    if pid == 0:
        if leads:
            os.setpgid(0, 0)
        said = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number in (1, 2):
            os.dup2(said, number)
        become(made, **how)  # type: ignore[arg-type]
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code, out.read_text()


@pytest.mark.parametrize("bound", [False, True])
def test_one_that_is_bound_is_killed_with_its_parent(place: Path, bound: bool) -> None:
    code, said = became(place, "/usr/bin/python3", "-c", DEATH, bound=bound)
    assert (code, said) == (0, f"{9 if bound else 0} True\n")


def test_one_that_leads_a_process_group_already_begins_all_the_same(place: Path) -> None:
    assert became(place, "/bin/echo", "begun", leads=True) == (0, "begun\n")


def test_it_gets_the_descriptor_that_it_is_handed_and_no_other(place: Path) -> None:
    (place / "handed").write_text("for it\n")
    script = (
        'cat <&3; for one in 4 5 6 7 8 9 700; do [ ! -e "/proc/$$/fd/$one" ] || echo $one; done'
    )
    with open(place / "handed", "rb") as handed, open("/dev/null", "rb") as other:
        os.set_inheritable(other.fileno(), True)
        far = os.dup2(other.fileno(), 700)
        try:
            found = became(place, "/bin/sh", "-c", script, handed=handed.fileno())
            without = became(place, "/bin/sh", "-c", '[ ! -e "/proc/$$/fd/3" ] && echo none')
        finally:
            os.close(far)
    assert (found, without) == ((0, "for it\n"), (0, "none\n"))


def test_a_users_small_file_system_runs_nothing_and_has_few_files(place: Path) -> None:
    def mounted() -> list[str]:
        kernel.unshare_mounts()
        kernel.mount_small(str(place), USER, USER, 1000)
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
        (line,) = [one for one in lines if f" {place} " in one]
        found = os.stat(place)
        free = os.statvfs(place)
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (USER, USER, 0o700)
        assert (free.f_blocks * free.f_frsize, free.f_files) == (266 << 20, 8256)
        kernel.unmount(str(place))
        assert os.stat(place).st_uid == 0
        return sorted(set(line.split()[5].split(",")))

    flags = aside(mounted)
    assert {"nosuid", "nodev", "noexec"} <= set(flags)
    assert os.stat(place).st_uid == 0, "nobody else has it"


def test_our_mounts_reach_nobody_and_the_hosts_still_come_through() -> None:
    def root_is() -> list[str]:
        kernel.unshare_mounts()
        every, to_all = kernel.MS_REC, 1 << 20  # MS_SHARED, mount(2)
        assert kernel.LIBC.mount(None, b"/", None, every | to_all, None) == 0
        with open("/proc/self/ns/mnt"):  # it stays, as a host's does
            kernel.unshare_mounts()
            lines = Path("/proc/self/mountinfo").read_text().splitlines()
        (root,) = [one for one in lines if one.split()[4] == "/"]
        return [word.partition(":")[0] for word in root.split()[6:] if ":" in word]

    assert aside(root_is) == ["master"]


def test_a_call_of_the_kernel_that_fails_says_which() -> None:
    with pytest.raises(OSError, match=r"umount /nowhere: No such file"):
        kernel.unmount("/nowhere")
    ctypes.set_errno(0)


def test_a_place_is_anothers_proc_by_its_whole_path() -> None:
    line = b"22 27 0:21 / %s rw - proc proc rw"
    places = (b"/proc", b"/proc/x", b"/procs", b"/a\\134b")
    info = b"\n".join(line % place for place in places)
    assert kernel.other_procs(info) == [b"/procs", b"/a\\b"]
