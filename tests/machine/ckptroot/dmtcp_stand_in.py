#!/usr/bin/python3
"""Stands in for DMTCP's three commands: the same options, files and order of things, no more.

A "process image" is what the payload keeps in the file that $PROGRESS names; it is started with that
file's content as it was. So a payload of the tests goes on where it was, and everything around it is
as with DMTCP: a coordinator of its own on a port of its own, told by a file; a checkpoint while the
processes stand still; images named ckpt_*.dmtcp; processes that end with --quit.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

WITH_VALUE = ("--coord-host", "--coord-port", "--port-file", "--interval", "--ckptdir")


def options(words):
    found, words = {}, list(words)
    while words and words[0].startswith("-"):
        name = words.pop(0)
        found[name] = words.pop(0) if name in WITH_VALUE else ""
    return found, words


def run(given, argv):
    progress = Path(os.environ["PROGRESS"])
    progress.touch()
    payload = os.getpid()
    if os.fork() == 0:
        coordinate(given, payload, argv, progress)
    os.execv(argv[0], argv)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def coordinate(given, payload, argv, progress):
    """The coordinator: lives as long as the payload."""
    os.setsid()
    server = socket.create_server(("", int(given["--coord-port"])))
    server.settimeout(0.1)
    port = Path(given["--port-file"])
    port.with_suffix(".new").write_text(str(server.getsockname()[1]))
    port.with_suffix(".new").rename(port)
    while alive(payload):
        try:
            client, _ = server.accept()
        except TimeoutError:
            continue
        with client:
            order, saved = json.loads(client.recv(65536)), True
            if order["do"] == "quit":
                os.kill(payload, signal.SIGKILL)
            elif not Path(os.environ["PROGRESS"] + ".stuck").exists():
                saved = save(Path(order["ckptdir"]), payload, argv, progress)
            while Path(os.environ["PROGRESS"] + ".stuck").exists() and alive(payload):
                time.sleep(0.05)
            client.sendall(b"done" if saved else b"failed")
    os._exit(0)


def save(directory, payload, argv, progress):
    """Whether it worked; the payload goes on in any case."""
    os.kill(payload, signal.SIGSTOP)
    try:
        content = {"argv": argv, "cwd": os.getcwd(), "progress": progress.read_text()}
        (directory / f"ckpt_job_{payload}.dmtcp").write_text(json.dumps(content))
        if (hostile := Path(os.environ["PROGRESS"] + ".hostile")).exists():
            exec(hostile.read_text(), {"directory": directory})
    except OSError:
        return False
    else:
        return True
    finally:
        os.kill(payload, signal.SIGCONT)


def main():
    given, rest = options(sys.argv[1:])
    match Path(sys.argv[0]).name:
        case "dmtcp_launch" if "--version" in given:
            print("dmtcp_launch (DMTCP) 3.0.0")
        case "dmtcp_launch":
            run(given, rest)
        case "dmtcp_restart":
            image = json.loads(Path(rest[0]).read_text())
            Path(os.environ["PROGRESS"]).write_text(image["progress"])
            os.chdir(image["cwd"])
            os.lseek(1, 0, os.SEEK_END)  # files come back at their old places
            run(given, image["argv"])
        case "dmtcp_command":
            client = socket.create_connection((given["--coord-host"], int(given["--coord-port"])))
            do = "quit" if "--quit" in given else "checkpoint"
            client.sendall(json.dumps({"do": do, "ckptdir": given.get("--ckptdir")}).encode())
            sys.exit(client.recv(10) != b"done")


main()
