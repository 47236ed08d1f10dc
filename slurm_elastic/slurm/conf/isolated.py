"""The inside of ``check``: a throw-away slurmctld in a network namespace of its own.

``dryrun`` runs this as a program behind ``unshare``, so that it is the first process of its
namespaces and everything ends with it. It uses the standard library only. It brings up loopback,
starts slurmctld on DIRECTORY/slurm.conf, asks it the questions of ``check``, writes the answers
into DIRECTORY and stops it. Exit 0: all answers are there; 3: slurmctld did not come up (its log
says why).
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import os
import pwd
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

QUESTIONS = {
    "nodes": ("-a", "-o", "show", "nodes"),
    "partitions": ("-a", "-o", "show", "partitions"),
    "config": ("show", "config"),
}
ADDRESS = "192.0.2.1"  # an address for documentation (RFC 5737), which no host has

_SIOCSIFFLAGS, _SIOCSIFADDR, _IFF_UP, _MS_BIND = 0x8914, 0x8916, 1, 4096
_START_TIMEOUT_S, _STOP_TIMEOUT_S = 60.0, 10.0


def main() -> int:
    """Answer ``QUESTIONS`` about DIRECTORY/slurm.conf."""
    args = arguments()
    directory = Path(args.directory)
    if not args.shared:
        if not cut_off(args.outside):
            sys.exit("the network and mount namespaces are the host's own; nothing was done")
        raise_loopback()
        own_hosts(directory / "hosts")
    environment = {"SLURM_CONF": str(directory / "slurm.conf"), "PATH": "/usr/sbin:/usr/bin:/bin"}
    munged = start_munged(directory) if args.munged else None
    daemon = start(directory, [args.slurmctld, "-D", "-f", environment["SLURM_CONF"]], environment)
    try:
        if not collect_answers(daemon, args.scontrol, environment, directory):
            return 3
        if args.submit:
            options, programs = args.submit_option, Path(args.scontrol).parent
            submit(programs, options, args.user, environment, directory)
        time.sleep(args.linger)
        return 0
    finally:
        stop(daemon)
        if munged is not None:
            stop(munged)


def arguments() -> argparse.Namespace:
    """Parse the arguments. ``--shared`` (no namespaces) and ``--linger`` let tests prove that
    contacts are noticed.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("slurmctld")
    parser.add_argument("scontrol")
    parser.add_argument("--submit", action="store_true", help="submit a held job")
    parser.add_argument("--submit-option", action="append", default=[], help="sbatch's, for it")
    parser.add_argument("--user", help="who submits it")
    parser.add_argument("--outside", default="", help="namespaces() of the caller")
    parser.add_argument("--munged", action="store_true", help="with a munged of its own")
    parser.add_argument("--shared", action="store_true", help="change nothing, isolate nothing")
    parser.add_argument("--linger", type=float, default=0.0, help="seconds to run on for")
    return parser.parse_args()


def namespaces() -> str:
    """The names of the network and mount namespaces of this process."""
    return " ".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("net", "mnt"))


def cut_off(outside: str) -> bool:
    """Whether both namespaces differ from the caller's. If not, we would change the host's own."""
    outer, inner = outside.split(), namespaces().split()
    return len(outer) == len(inner) and all(a != b for a, b in zip(outer, inner, strict=True))


def raise_loopback() -> None:
    """Bring up lo with a second address. If lo has only 127.0.0.1, getaddrinfo() (AI_ADDRCONFIG)
    thinks that the host has no IPv4, and slurmctld cannot resolve even its own address.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", _IFF_UP))
        address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(ADDRESS))
        fcntl.ioctl(control, _SIOCSIFADDR, struct.pack("16s16s", b"lo:1", address))


def own_hosts(hosts: Path) -> None:
    """Make every node name resolve here: slurmctld 22.05 tries each for 10 s while it starts.

    It calls mount(2) itself, because mount(8) refuses every uid but 0, whatever its capabilities.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(os.fsencode(hosts), b"/etc/hosts", None, ctypes.c_ulong(_MS_BIND), None) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), "/etc/hosts")


def start(
    directory: Path, command: list[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """Start a daemon in the foreground. Its output goes to NAME.out."""
    with (directory / f"{Path(command[0]).name}.out").open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def start_munged(directory: Path) -> subprocess.Popen[bytes]:
    """Start a munged with a key and a socket of its own, in DIRECTORY/munge."""
    place = directory / "munge"
    place.mkdir(mode=0o755)
    (place / "key").write_bytes(os.urandom(128))
    (place / "key").chmod(0o400)
    files = [f"--{name}-file={place}/{name}" for name in ("key", "pid", "log", "seed")]
    command = ["/usr/sbin/munged", "--foreground", "--force", f"--socket={place}/socket", *files]
    munged = start(directory, command, {"PATH": "/usr/sbin:/usr/bin:/bin"})
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    # In the foreground munged does not say when it is ready. Its socket shows it.
    while not (place / "socket").exists() and munged.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    return munged


def collect_answers(
    daemon: subprocess.Popen[bytes], scontrol: str, environment: dict[str, str], directory: Path
) -> bool:
    """Ask all questions until slurmctld is up. Return whether every answer is written."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while daemon.poll() is None and time.monotonic() < deadline:
        if all(ask(daemon, scontrol, environment, directory, name) for name in QUESTIONS):
            return True
        time.sleep(0.1)
    return False


def ask(
    daemon: subprocess.Popen[bytes],
    scontrol: str,
    environment: dict[str, str],
    directory: Path,
    name: str,
) -> bool:
    """Write the answer to one question. Return whether slurmctld gave it and still runs."""
    with (directory / name).open("wb") as answer:
        process = subprocess.Popen(
            [scontrol, *QUESTIONS[name]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=answer,
            stderr=subprocess.DEVNULL,
        )
    # Without this loop scontrol would try for 10 s to reach an ended slurmctld.
    while process.poll() is None and daemon.poll() is None:
        time.sleep(0.02)
    process.kill()
    return process.wait() == 0 and daemon.poll() is None


def submit(
    programs: Path,
    options: list[str],
    user: str | None,
    environment: dict[str, str],
    directory: Path,
) -> None:
    """Submit a held job of one node. Write its partitions to `partitions`, or sbatch's error to
    `refusal`.
    """
    account = pwd.getpwnam(user) if user else None
    groups = os.getgrouplist(account.pw_name, account.pw_gid) if account else None

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(programs / command[0]), *command[1:]],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            errors="replace", cwd="/", user=account and account.pw_uid,
            group=account and account.pw_gid, extra_groups=groups,
        )  # fmt: skip

    job_options = ("--hold", "--parsable", "--nodes=1", "--time=1", "--output=/dev/null")
    sbatch = run("sbatch", *job_options, *options, "--wrap=true")
    if sbatch.returncode != 0:
        (directory / "refusal").write_text(sbatch.stderr)
        return
    job = sbatch.stdout.strip().partition(";")[0]
    (directory / "partitions").write_text(run("squeue", "-h", "-j", job, "-o", "%P").stdout)


def stop(daemon: subprocess.Popen[bytes]) -> None:
    """End the daemon, by SIGKILL if it does not end in time."""
    daemon.terminate()
    try:
        daemon.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


if __name__ == "__main__":
    os.umask(0o022)
    sys.exit(main())
