#!/usr/bin/python3
"""Stands in for three commands of DMTCP 4.2.0: the same options, answers, exit codes, files and
order of things, no more. The options are those of the recorded help texts (dmtcp42).

A "process image" is what the payload keeps in the file that $PROGRESS names; it is started with that
file's content as it was. So a payload of the tests goes on where it was, and everything around it is
as with DMTCP: a coordinator of its own on a port of its own, written into a file; an order to save
that is answered before the save has begun; images named ckpt_*.dmtcp that have another name until
they are whole, and dmtcp_restart_script.sh after them; processes that end with 0 at --kcheckpoint.
"""

import ctypes
import json
import os
import re
import signal
import socket
import sys
import time
from pathlib import Path

PROGRAM = Path(sys.argv[0]).name
HELP = Path(__file__).resolve().with_name("dmtcp42") / f"{PROGRAM}.txt"
WITH_VALUE = {
    "-h",
    "--coord-host",
    "-p",
    "--coord-port",
    "--port-file",
    "-i",
    "--interval",
    "--ckptdir",
    "--tmpdir",
    "--coord-logfile",
    "--ckpt-signal",
    "--with-plugin",
    "--restartdir",
}
NOT_RUNNING = """\
Error, computation not in running state.  Either a checkpoint is
 currently happening or there are no connected processes.
"""
KILLED = "Computation was checkpointed and killed.\n"
STATUS = """\
Coordinator:
  Host: 127.0.0.1
  Port: {port}
Status...
  NUM_PEERS={peers}
  RUNNING={running}
  CKPT_INTERVAL=0 (checkpoint manually)
"""


def known():
    """The options in the program's help text."""
    lines = (line for line in HELP.read_text().splitlines() if re.match(r"\s*-", line))
    return {word for line in lines for word in re.findall(r"(?<![\w-])--?[a-z][\w-]*", line)}


def invalid():
    if PROGRAM == "dmtcp_command":
        sys.stderr.write(HELP.read_text())
        sys.exit(1)
    print("Invalid Argument\n" + HELP.read_text())
    sys.exit(99)


def options(words):
    found, words, names = {}, list(words), known()
    while words and words[0].startswith("-"):
        name = words.pop(0)
        if name not in names or (name in WITH_VALUE and not words):
            invalid()
        found[name] = words.pop(0) if name in WITH_VALUE else ""
    return found, words


def mark(name):
    """A file by which a test tells the stand-in what to do."""
    return Path(f"{os.environ['PROGRESS']}.{name}")


def run(given, argv, place):
    """Be the payload's first process: with its end, and 0 where a save ended it."""
    progress = Path(os.environ["PROGRESS"])
    progress.touch()
    mark("killed").unlink(missing_ok=True)
    payload = os.fork()
    if payload == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
        os.execv(argv[0], argv)
    if os.fork() == 0:
        coordinate(given, payload, argv, progress, place)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, lambda signum, _: os.kill(payload, signum))
    status = os.waitpid(payload, 0)[1]
    if mark("killed").exists():
        os._exit(0)
    if os.WIFSIGNALED(status):
        if os.WTERMSIG(status) != signal.SIGKILL:
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def coordinate(given, payload, argv, progress, place):
    """The coordinator: lives as long as the payload."""
    os.setsid()
    server = socket.create_server(("", int(given["--coord-port"])))
    server.settimeout(0.1)
    port = Path(given["--port-file"])
    port.with_suffix(".new").write_text(str(server.getsockname()[1]))
    port.with_suffix(".new").rename(port)
    asked = 0
    while alive(payload):
        try:
            client, _ = server.accept()
        except TimeoutError:
            continue
        with client:
            order = client.recv(65536).decode()
            while mark("stuck").exists() and alive(payload):
                time.sleep(0.05)
            asked += 1
            # One of two processes is gone before all have come back.
            half = PROGRAM == "dmtcp_restart" and mark("half").exists()
            status = {"peers": 1 + (half and asked < 3), "running": "no" if half else "yes"}
            client.sendall(json.dumps(status).encode())
        if order == "quit":
            os.kill(payload, signal.SIGKILL)
        elif order in ("checkpoint", "kcheckpoint") and not half:
            save(Path(given["--ckptdir"]), place, payload, argv, progress, order)
    os._exit(0)


def save(directory, place, payload, argv, progress, order):
    """The payload goes on in any case, unless the save ends it."""
    os.kill(payload, signal.SIGSTOP)
    try:
        write_images(directory, payload, argv, progress)
        script = place / "dmtcp_restart_script_1.sh"
        script.write_text("#!/bin/sh\n")
        (place / "dmtcp_restart_script.sh").symlink_to(script.name)
        if order == "kcheckpoint":
            mark("killed").touch()
            os.kill(payload, signal.SIGKILL)
    except OSError:
        pass
    finally:
        os.kill(payload, signal.SIGCONT)


def write_images(directory, payload, argv, progress):
    directory.mkdir(exist_ok=True)
    name = f"ckpt_job_{payload}"
    content = {"argv": argv, "cwd": os.getcwd(), "progress": progress.read_text()}
    if mark("beside").exists():
        (directory / f"{name}_files").mkdir(exist_ok=True)
        (directory / f"{name}_files" / "tmp_99047").write_text(mark("beside").read_text())
        content["beside"] = f"{name}_files/tmp_99047"
    (directory / f"{name}.dmtcp.temp").write_text(json.dumps(content))
    (directory / f"{name}.dmtcp.temp").rename(directory / f"{name}.dmtcp")
    if mark("hostile").exists():
        exec(mark("hostile").read_text(), {"directory": directory})


def restart(given, paths):
    if "--no-strict-checking" not in given and os.stat(paths[0]).st_uid != os.getuid():
        sys.exit(99)
    image = json.loads(Path(paths[0]).read_text())
    if "beside" in image:
        beside = Path(given["--ckptdir"]) / image["beside"]
        if not beside.exists():
            sys.stderr.write(f"[Error] JASSERT(FileExists(_savedFilePath)) {beside}\n")
            sys.exit(99)
        mark("came-back").write_text(beside.read_text())
    Path(os.environ["PROGRESS"]).write_text(image["progress"])
    os.chdir(image["cwd"])
    os.lseek(1, 0, os.SEEK_END)  # files come back at their old places
    # The coordinator does not learn of --ckptdir.
    run(given, image["argv"], Path(os.environ.get("DMTCP_CHECKPOINT_DIR", ".")))


def command(given):
    orders = {"-c": "checkpoint", "--checkpoint": "checkpoint", "-kc": "kcheckpoint",
              "--kcheckpoint": "kcheckpoint", "-s": "status", "--status": "status",
              "-q": "quit", "--quit": "quit"}  # fmt: skip
    found = [order for word, order in orders.items() if word in given]
    if not found:
        invalid()
    try:
        client = socket.create_connection((given["--coord-host"], int(given["--coord-port"])))
        client.sendall(found[0].encode())
        answer = json.loads(client.recv(1000))
    except (OSError, ValueError):
        sys.stderr.write("Coordinator not found. Please check port and host.\n")
        sys.exit(2)
    if found[0] == "status":
        print(STATUS.format(port=given["--coord-port"], **answer))
    elif found[0].endswith("checkpoint") and answer["running"] == "no":
        sys.stderr.write(NOT_RUNNING)
        sys.exit(2)
    elif found[0] == "kcheckpoint":
        sys.stderr.write(KILLED)
        sys.exit(2)


def main():
    given, rest = options(sys.argv[1:])
    if "--version" in given or "--help" in given:
        print(f"{PROGRAM} (DMTCP) 4.2.0" if "--version" in given else HELP.read_text())
        sys.exit(PROGRAM == "dmtcp_command")
    match PROGRAM:
        case "dmtcp_launch" if rest:
            run(given, rest, Path(given["--ckptdir"]))
        case "dmtcp_restart" if rest:
            restart(given, rest)
        case "dmtcp_command":
            command(given)


main()
