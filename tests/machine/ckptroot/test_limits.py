"""Rows of the limits of docs/checkpoint-criu.md that a real CRIU alone can show: a program's own look at
what it keeps, and the words by which a save or an image is refused. The harness is that of test_isolation.
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from .test_isolation import ATTACK, home, moved, newest, program  # noqa: F401 - fixtures
from .test_savable import STEPS, TRIED

pytestmark = pytest.mark.timeout(600)

BEGIN = "import ctypes, os, signal, socket, time\n"
BEGIN += "out, libc = open('out', 'a', buffering=1), ctypes.CDLL(None, use_errno=True)\n"


def job(before: str, look: str) -> str:
    """A program that does ``before`` once, and writes ``look`` with each step."""
    return f"{BEGIN}{before}\ndef look():\n    return {look}\n{STEPS}"


CHILDREN = """
seen = set()
for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, lambda got, _: seen.add(signal.Signals(got).name))
if os.fork() == 0:
    time.sleep(1e6)
"""
RUNS_ON = TRIED.replace("more()\ntold", "method.resume()\nmore()\ntold")
ASKED = "os.waitpid(-1, os.WNOHANG | os.WUNTRACED)[0], *sorted(seen)"


@pytest.mark.parametrize("attack", [ATTACK, RUNS_ON], ids=["moved", "runs on"])
def test_a_parent_is_told_of_its_child_and_finds_none_stopped(
    home: Path,  # noqa: F811
    program: str,  # noqa: F811
    attack: str,
) -> None:
    (home / "job").write_text(job(CHILDREN, ASKED))
    told = moved(home, program, "children", attack=attack)
    assert "refused" not in told, told
    seen = [line.partition(" (")[2] for line in told["lines"]]
    assert set(seen) <= {"0,)", "0, 'SIGCHLD')"}, seen
    assert (seen[-1] == "0,)") == (attack is ATTACK), "where it goes on nobody tells it"


POLICY = "assert libc.syscall(238, 2, ctypes.byref(ctypes.c_ulong(1)), 64) == 0  # MPOL_BIND"
POLICY += "\nmode = ctypes.c_int()"
MODE = "libc.syscall(239, ctypes.byref(mode), None, 0, None, 0), mode.value"
KEY = (
    "key = libc.syscall(248, b'user', b'limits', b'text', 4, -2); assert key > 0  # of the process"
)
READ = "libc.syscall(250, 11, key, None, 0)"


@pytest.mark.parametrize(
    ("before", "look", "first", "then"),
    [
        pytest.param(POLICY, MODE, "0, 2)", "0, 0)", id="memory policy"),
        pytest.param(KEY, READ, "4", "-1", id="keys"),
    ],
)
def test_it_is_not_kept(
    home: Path,  # noqa: F811
    program: str,  # noqa: F811
    before: str,
    look: str,
    first: str,
    then: str,
) -> None:
    (home / "job").write_text(job(before, look))
    told = moved(home, program, "kept", swap="sleep 3")
    assert "refused" not in told, told
    lines = told["lines"]
    assert all(line.endswith(first) for line in lines[: told["last"]])
    assert all(line.endswith(then) for line in lines[told["last"] :])


LISTENS = """
listener = socket.socket(); listener.bind(("0.0.0.0", int(open("port").read()))); listener.listen()
"""
OTHER = "python3 -c 'import socket, time; s = socket.create_server((\"0.0.0.0\", PORT)); time.sleep(9)' &\nsleep 1"


@pytest.mark.parametrize("swap", ["true", OTHER], ids=["free", "taken"])
def test_a_listener_is_there_again_unless_its_port_is_taken(
    home: Path,  # noqa: F811
    newest: str,  # noqa: F811
    swap: str,
) -> None:
    with socket.create_server(("0.0.0.0", 0)) as free:
        port = str(free.getsockname()[1])
    (home / "user" / "port").write_text(port)
    (home / "job").write_text(job(LISTENS, "listener.getsockname()[1]"))
    told = moved(home, newest, "listens", swap=swap.replace("PORT", port))
    assert told["lines"] == [f"step {n} {port}" for n in range(len(told["lines"]))]
    assert ("Address already in use" in told.get("refused", "")) == (swap is OTHER)
    assert (len(told["lines"]) > told["last"]) == (swap is not OTHER)


@pytest.mark.parametrize(
    "change", ["rm -f place/key", "chmod 600 place/key; echo more >>place/key"]
)
def test_an_image_is_not_used_where_its_files_are_not_as_they_were(
    home: Path,  # noqa: F811
    program: str,  # noqa: F811
    change: str,
) -> None:
    told = moved(home, program, "fd", swap=change)
    assert "criu restore" in told["refused"]
