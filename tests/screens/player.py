"""Shows screens on its own terminal, or into a pipe, as they are asked for over a socket.

It is a process of its own: its clock, its processes and its directory are those of the situation.
Each screen is a child's that runs the command itself.

A request is a line of JSON: ``situation``, ``words`` of the command, and ``where`` it is shown: in
a ``pipe`` of a ``width``, or on a ``terminal`` of a ``size``; ``watch``: by a child that stays. The answer has ``text`` (of the pipe) and
the exit ``code``; below what a terminal shows stands END.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from slurm_elastic.base.processes import service_remedies
from slurm_elastic.cli.jobs import ckpt, explain, offers
from slurm_elastic.cli.main import main
from slurm_elastic.cli.operate import doctor, status
from slurm_elastic.cli.orders import departure_orders
from slurm_elastic.watch.doctor import clouds
from tests.screens.place import Place, freeze

END = "@@end@@"
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def serve(path: str) -> None:
    """Until the other side is gone."""
    logging.disable()
    service_remedies.has_systemd = lambda: True
    choose = freeze()
    from tests.screens.situations import SITUATIONS, commands

    places: dict[str, Place] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
        link.connect(path)
        with link.makefile("rw") as lines:
            for line in lines:
                asked = json.loads(line)
                name = asked["situation"]
                if name not in places:
                    choose(None)
                    random.seed(name)  # of back-offs
                    places[name] = SITUATIONS[name]()
                place = places[name]
                choose(place)
                place.finish()
                said: Any = commands(place) if asked["where"] == "list" else show(place, asked)
                print(json.dumps(said), file=lines, flush=True)


def show(place: Place, asked: dict[str, Any]) -> dict[str, Any]:
    """Run the command once, in a child."""
    if asked["where"] == "pipe":
        return piped(place, asked["words"], asked["width"])
    while tuple(os.get_terminal_size(1)) != tuple(asked["size"]):  # tmux tells it a while later
        time.sleep(0.01)
    os.write(1, _CLEAR.encode())
    child = os.fork()
    if child == 0:
        run(place, asked["words"], watch=asked["where"] == "watch")
    if asked["where"] == "watch":
        return {"child": child}
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(1, f"{END}\r\n".encode())
    return {"code": code}


def piped(place: Place, words: list[str], width: int) -> dict[str, Any]:
    """All that it writes, as ``2>&1 | cat`` has it."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        os.dup2(write, 1)
        os.environ["COLUMNS"] = str(width)
        run(place, words)
    os.close(write)
    with open(read, encoding="utf-8", errors="backslashreplace") as file:
        text = file.read()
    return {"text": text, "code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}


def run(place: Place, words: list[str], *, watch: bool = False) -> None:
    """Never comes back. A watching one has shown its screen twice when it sleeps for good."""
    code = 70
    os.dup2(1, 2)
    sys.stdout, sys.stderr = (
        open(fd, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the child lives
        for fd in (1, 2)
    )
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for module in (status, explain, offers, ckpt, departure_orders):
            module.PromptCli = lambda _, **__: place.slurm  # type: ignore[attr-defined]
        doctor.ProbingCli = lambda _: place.slurm  # type: ignore[attr-defined,assignment]
        for asking in (offers, clouds):
            asking.open_provider = lambda cloud, *_: place.clouds[cloud.name]  # type: ignore[attr-defined,assignment]
        doctor.head._name = lambda _: "slurm"
        if watch:
            sleep, times = time.sleep, iter((0.0, 1e6))
            time.sleep = lambda _: sleep(next(times))
        code = main(["--config", str(place.file), *words])
    except SystemExit as wrong:
        code = int(wrong.code or 0)
    except BaseException:  # noqa: BLE001 - it is the screen that a user would see
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve(str(Path(sys.argv[1])))
