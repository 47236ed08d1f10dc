"""How mpirun of a job under DMTCP starts the processes on the job's other nodes.

MPI's starters (Hydra of MPICH, and OpenMPI 4.1) reach other nodes by srun or ssh, which no image
can contain. Variables of theirs name a program of ours in the place of ssh. It writes the command
for its node into a file and waits; root's program on the first node has the attendant of that node
start the command under DMTCP. mpirun is never changed, and is found wherever it is.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import files
from .caller import Caller
from .job_nodes import JobNodes, interface_of
from .job_state import environment as root_environment
from .rights import as_user
from .scratch import MAX_FILES
from .site import HelperSite, RequestRefused
from .store import JobStore

_PLACE = b"SLURM_ELASTIC_STARTS"
_DEFAULT = b"SLURM_ELASTIC_MPI_DEFAULT"
_MAX_BYTES = 1 << 20
"""The limit for a command, and for its environment."""
_NAME = re.compile(r"start-\d+")
_VARIABLES, _TAKEN, _ENDED = ".env", ".taken", ".ended"

_AGENT = """\
#!/usr/bin/python3 -IS
# In the place of ssh: mpirun calls this with a node and the command to start there.
import errno, os, sys, time
words = sys.argv[1:]
while words[0].startswith("-"):
    del words[0]
node, command = words[0], " ".join(words[1:])
own = os.environ.get("SLURMD_NODENAME", "")
if node == own or node.startswith(f"{own}."):
    os.execv("/bin/sh", ["/bin/sh", "-c", command])
start = f"{os.environ['SLURM_ELASTIC_STARTS']}/start-{os.getpid()}"
taken, ended = f"{start}.taken", f"{start}.ended"
umask = os.umask(0o77)
def write():
    with open(f"{start}.env", "wb") as file:
        file.write(b"\\0".join(b"%s=%s" % pair for pair in os.environb.items()))
    with open(f"{start}.new", "w") as file:
        file.write(f"{node}\\n{os.getcwd()}\\n{umask:o}\\n{command}")
    os.rename(f"{start}.new", start)
def write_when_there_is_room():
    while True:
        try:
            return write()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
        time.sleep(0.5) # mpirun starts many of us, and root takes the files of the others away
def remove(path):
    if os.path.exists(path):
        os.unlink(path)
        return True
for path in taken, ended:
    remove(path) # of an earlier process with our number
write_when_there_is_room()
is_taken = False
# mpirun must find its child after a restore, so this waits. The directory is empty then.
while not os.path.exists(ended):
    waits = os.path.exists(start) # root renames it to ``taken``, so look in this order
    is_taken = remove(taken) or is_taken
    if not waits and not is_taken:
        write_when_there_is_room()
    time.sleep(0.5)
code = int(open(ended).read())
# This is our answer: root repeats the code after a restore until we have read it.
for path in taken, ended:
    remove(path)
sys.exit(code)
"""
_SRUN = """\
#!/bin/sh
# A rank that srun starts by PMI is connected to slurmstepd, which no image can contain.
mpi=
tasks=
before=
in_options=1
for word; do
    case $before in --mpi) mpi=$word ;; esac
    case $word in
    --mpi=*) mpi=${word#--mpi=} ;;
    :) tasks=several in_options= ;; # a step of several parts
    esac
    # The number of tasks: only up to the program, whose own words may look the same.
    case $in_options$before in
    1-n | 1--ntasks) tasks=$word ;;
    1-[NcptwxJDAoeim] | 1--nodes | 1--cpus-per-task | 1--partition | 1--time | 1--nodelist | \\
        1--exclude | 1--job-name | 1--chdir | 1--account | 1--output | 1--error | 1--input | \\
        1--mem | 1--mpi | 1--gres | 1--distribution) ;;
    1*)
        case $word in
        --ntasks=*) tasks=${word#--ntasks=} ;;
        -n?*) tasks=${word#-n} ;;
        -*) ;;
        *) in_options= ;;
        esac
        ;;
    esac
    before=$word
done
# A single task needs no MPI, unless the user has named its kind.
[ -n "$mpi" ] || [ "$tasks" = 1 ] || mpi=${SLURM_MPI_TYPE:-$SLURM_ELASTIC_MPI_DEFAULT}
case $mpi in
pmi* | cray*)
    echo "slurm-elastic: MPI ranks started by srun --mpi=$mpi cannot be saved by dmtcp: start" \\
        "them by mpirun, or submit the job with ckpt=signal or ckpt=none. For a program without" \\
        "MPI: srun --mpi=none PROGRAM, as in srun --mpi=none hostname" >&2
    exit 1
    ;;
esac
own=${0%/*}
IFS=:
for place in $PATH; do
    [ "$place" != "$own" ] && [ -x "$place/srun" ] && exec "$place/srun" "$@"
done
echo "srun: not found" >&2
exit 127
"""


@dataclass(frozen=True)
class Start:
    """A command for a node, with its directory, umask and environment. ``name``: the name of its
    file.
    """

    name: str
    node: str
    directory: str
    umask: int
    command: str
    environment: dict[bytes, bytes]


def environment(
    site: HelperSite, caller: Caller, nodes: JobNodes, place: Path
) -> dict[bytes, bytes]:
    """Write our programs into the job's directory; return the job's variables, by which MPI uses
    them.

    ``place``: a directory of the user's, in which commands are written.
    """
    store = JobStore(site, caller.job)
    programs = store.path / "bin"
    with contextlib.suppress(FileExistsError):
        programs.mkdir(mode=0o755)
    programs.chmod(0o755)
    store.replace("bin/start", _AGENT.encode(), 0o755)
    store.replace("bin/srun", _SRUN.encode(), 0o755)
    path = caller.environment.get(b"PATH", b"/usr/local/bin:/usr/bin:/bin")
    starters: dict[bytes, bytes] = {
        b"PATH": f"{programs}:".encode() + path,
        _PLACE: str(place).encode(),
        _DEFAULT: _default_mpi(site).encode(),
        b"HYDRA_LAUNCHER": b"ssh",
        b"HYDRA_LAUNCHER_EXEC": f"{programs}/start".encode(),
        b"OMPI_MCA_plm": b"rsh",
        b"OMPI_MCA_plm_rsh_agent": f"{programs}/start".encode(),
        b"OMPI_MCA_plm_rsh_no_tree_spawn": b"1",
        b"OMPI_MCA_orte_leave_session_attached": b"1",
    }
    network = _of_interface(nodes.first.address)
    return {**_DEFAULTS, **network, **caller.environment, **starters}


_DEFAULTS: Mapping[bytes, bytes] = {
    # DMTCP 4.2.0 ends a program that opens a link by O_PATH, as libudev does for hwloc.
    b"HWLOC_COMPONENTS": b"-linux:io",
    # TCP alone: other nodes have no part in a node's shared memory, nor devices in an image.
    b"UCX_TLS": b"tcp,self",
    b"UCX_MEM_EVENTS": b"no",
    b"UCX_MEM_MMAP_HOOK_MODE": b"none",
    b"OMPI_MCA_pml": b"ob1",
    b"OMPI_MCA_btl": b"tcp,self",
    # Map no files in the node's /tmp, because the next node does not have them.
    b"OMPI_MCA_rtc_hwloc_vmhole": b"none",
    b"PMIX_MCA_gds": b"hash",
}
"""Of MPI's libraries; the job may have set them otherwise."""


def _of_interface(address: str) -> dict[bytes, bytes]:
    """Return the variables that keep MPI to the network with that address of ours."""
    name = interface_of(address)
    if not name:
        return {}
    return {
        b"HYDRA_IFACE": name.encode(),
        b"UCX_NET_DEVICES": name.encode(),
        b"OMPI_MCA_btl_tcp_if_include": name.encode(),
        b"OMPI_MCA_oob_tcp_if_include": name.encode(),
    }


def _default_mpi(site: HelperSite) -> str:
    """Return slurm.conf's MpiDefault; "" if it cannot be read now."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [site.scontrol, "show", "config"], env=root_environment(site), capture_output=True,
            text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=20, check=False,
        )  # fmt: skip
        for line in done.stdout.splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "MpiDefault":
                return value.strip()
    return ""


def number_of(name: str, nodes: Sequence[str]) -> int:
    """Return the number of the node with the name that mpirun uses, perhaps with a domain; 0 for
    the first node or an unknown name.
    """
    return next(
        (n for n, node in enumerate(nodes) if name == node or name.startswith(f"{node}.")), 0
    )


def starts(place: Path, caller: Caller) -> list[Start]:
    """Return each complete command in the user's directory. After a restore this may be a command
    that was returned before.

    A command that cannot be read ends with an error, so that mpirun does not wait for it.
    """
    names: list[str] = []
    with (
        as_user(caller), contextlib.suppress(OSError, RequestRefused),
        files.directory(place) as directory,
    ):  # fmt: skip
        names = files.names(directory, MAX_FILES)
    taken: list[Start] = []
    for name in (name for name in names if _NAME.fullmatch(name)):
        try:
            with as_user(caller):
                taken.append(_read(place / name))
        except (OSError, RequestRefused, ValueError) as error:
            os.write(2, f"slurm-elastic: mpirun cannot start a command: {error}\n".encode())
            end(place, caller, name, 1)
    return taken


def end(place: Path, caller: Caller, name: str, code: int) -> None:
    """Have the program that stands for ssh end with this exit code."""
    with as_user(caller), contextlib.suppress(OSError, RequestRefused):
        with open(files.opened(place / f"{name}.code", files.NEW), "w") as file:
            file.write(f"{code}\n")
        place.joinpath(f"{name}.code").rename(place / f"{name}{_ENDED}")


def has_read_end(place: Path, caller: Caller, name: str) -> bool:
    """Return whether that program has read its exit code."""
    with as_user(caller), contextlib.suppress(OSError):
        place.joinpath(f"{name}{_ENDED}").lstat()
        return False
    return True


def forget_end(place: Path, caller: Caller, name: str) -> None:
    """Remove the files of a command whose exit code nobody reads."""
    with as_user(caller), contextlib.suppress(OSError):
        for suffix in (_TAKEN, _ENDED):
            place.joinpath(f"{name}{suffix}").unlink(missing_ok=True)


def _read(path: Path) -> Start:
    variables = path.with_name(path.name + _VARIABLES)
    try:
        text = files.read(path, _MAX_BYTES).decode(errors="surrogateescape")
        entries = files.read(variables, _MAX_BYTES).split(b"\0")
    finally:
        path.rename(path.with_name(path.name + _TAKEN))
        variables.unlink(missing_ok=True)
    node, directory, umask, command = text.split("\n", 3)
    pairs = (entry.partition(b"=") for entry in entries)
    content = {name: value for name, equals, value in pairs if equals and not _is_dmtcps(name)}
    if b"LD_PRELOAD" in content:
        content[b"LD_PRELOAD"] = _without_dmtcp(content[b"LD_PRELOAD"])
    return Start(path.name, node, directory, int(umask, 8), command, content)


def _is_dmtcps(name: bytes) -> bool:
    return name.startswith((b"DMTCP_", b"MTCP_"))


def _without_dmtcp(libraries: bytes) -> bytes:
    kept = (path for path in libraries.split(b":") if b"/libdmtcp" not in path)
    return b":".join(kept)
