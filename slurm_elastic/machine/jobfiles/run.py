"""The program: ``head DESCRIPTOR`` on the head, ``node SSH_COMMAND`` on a machine, both by root.

The head's end reads its order from a descriptor: everybody may read the arguments of a process, and
the order has names of the user's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys

from . import head, identity, node
from .locks import Locks, open_place
from .wire import Channel, CopyError, Message


def main(argv: list[str]) -> int:
    """Copy. The head's end writes its result, a line of JSON, to standard error."""
    signal.signal(signal.SIGALRM, _silent)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    channel = Channel(sys.stdin.buffer, sys.stdout.buffer)
    if argv[1] == "node":
        return _node(" ".join(argv[2:]), channel)
    with open(int(argv[2]), "rb") as text:
        order = json.loads(text.read())
    result = _head(order, channel)
    os.write(2, json.dumps(result).encode() + b"\n")
    # Python would flush its output once more, and complain if the machine has gone.
    os._exit(0)


def _silent(*_: object) -> None:
    raise CopyError("the other end is silent")


def _head(order: Message, channel: Channel) -> Message:
    try:
        place = None
        if os.geteuid() == 0:
            user = identity.of(order)
            place = open_place(user.uid, user.gid)
            identity.become(user)
        return {"ok": True, **head.run(order, channel, Locks(place))}
    except CopyError as error:
        reason, final, busy = str(error), error.final, error.busy
    except OSError as error:
        reason, final, busy = _text(error), False, False
    # The other end learns why, so that it keeps its files.
    _say(channel, reason, final=final)
    bases = order.get("bases", {})
    return {"ok": False, "reason": reason, "final": final, "busy": busy, "bases": bases}


def _node(command: str, channel: Channel) -> int:
    try:
        node.run(identity.read(command), channel)
    except CopyError as error:
        _say(channel, str(error), final=error.final, busy=error.busy)
    except OSError as error:
        _say(channel, f"on the machine: {_text(error)}", final=False)
    else:
        return 0
    return 1


def _say(channel: Channel, reason: str, *, final: bool, busy: bool = False) -> None:
    with contextlib.suppress(OSError, CopyError):  # the other end has gone
        channel.send(error=reason, final=final, busy=busy)


def _text(error: OSError) -> str:
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror or error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv))
