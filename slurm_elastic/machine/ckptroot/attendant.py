"""The program that starts and restores a job's processes on the job's other nodes (``attendants``
is the other end).

It is root, and started by sudo from a step of the job. It takes from root's own file which node it
is, and where the coordinator is. Its orders come from its standard input, which the user may write:
each of them does what the user may do himself.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import dmtcp_images, files, instructions, steps, uncut_files
from .attendants import FACTS
from .caller import Caller
from .dmtcp_coordinator import SILENT, joining, variables
from .dmtcp_hang import SaveProbe
from .dmtcp_open_files import appended_files, check_files
from .dmtcp_task import DmtcpTask, handed_paths
from .payload import Payload
from .port_guard import guarded_peer, is_guarded_port
from .scratch import Scratch
from .signals import block
from .site import HelperSite, RequestRefused

_LOOK_EVERY_S = 0.5
"""Seconds between two checks for ended processes."""
_MAX_FACTS_BYTES = 1 << 20
_MAX_ORDER_BYTES = 8 << 20
_BLOCK_BYTES = 65536
_MAX_FILES = 100_000


class Attendant:
    """Our process on one of the job's other nodes. ``orders`` and ``reports``: descriptors."""

    def __init__(self, site: HelperSite, caller: Caller, orders: int, reports: int) -> None:
        self._site, self._caller = site, caller
        self._orders, self._report_to = orders, reports
        self._unread = b""
        facts = files.json_of(
            files.read(site.jobs / str(caller.job) / FACTS, _MAX_FACTS_BYTES, owners=(0,))
        )
        if caller.node not in facts["nodes"]:
            raise RequestRefused(f"{caller.node} is no other node of the job")
        self.number = 1 + facts["nodes"].index(caller.node)
        self._address, self._port = str(facts["address"]), int(facts["port"])
        if not is_guarded_port(self._port):
            raise RequestRefused(f"port {self._port} is no coordinator's")
        self._guard = guarded_peer(caller.uid, self._address, self._port)
        if self._guard is None:
            raise RequestRefused("nft cannot set rules here: install nftables on the node")
        # Other nodes may be slurmds of the same host, so the place has the node's number.
        place = site.scratch.with_name(f"{site.scratch.name}-{self.number}")
        self._scratch = Scratch(place, caller.job)
        self._tasks: dict[DmtcpTask, list[str]] = {}
        self._probe: SaveProbe | None = None

    def report(self, event: str, **fields: object) -> None:
        """Write a line to the first node."""
        line = json.dumps({"node": self.number, "event": event, **fields}) + "\n"
        os.write(self._report_to, line.encode())

    def serve(self) -> None:
        """Carry out orders until there are no more, or the step is to end."""
        library = dmtcp_images.library_digest(self._site)
        self.report("hello", id=0, library=library, processor=instructions.of_node())
        while True:
            ready, _, _ = select.select([self._orders], [], [], _LOOK_EVERY_S)
            if signal.sigtimedwait({signal.SIGTERM, signal.SIGHUP, signal.SIGINT}, 0):
                return
            if ready and not self._obey():
                return
            self._reap()

    def _obey(self) -> bool:
        """Read orders and carry them out. False after the last order."""
        block_read = os.read(self._orders, _BLOCK_BYTES)
        *lines, self._unread = (self._unread + block_read).split(b"\n")
        if len(self._unread) > _MAX_ORDER_BYTES:
            return False
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                order = dict(files.json_of(line))
                answer: dict[str, object] = {}
                try:
                    answer = self._carry_out(order)
                except (RequestRefused, OSError) as error:
                    answer = {"refused": str(error) or type(error).__name__}
                self.report("done", id=order["id"], **answer)
        return bool(block_read)

    def _carry_out(self, order: dict[str, Any]) -> dict[str, object]:
        actions: dict[str, Callable[[dict[str, Any]], dict[str, object]]] = {
            "answer": lambda _: {},
            "launch": self._launch,
            "look": self._look,
            "measure": self._measure,
            "restore": self._restore,
            "end": self._end,
            "restored": self._restored,
        }
        return actions[order["do"]](order)

    def _launch(self, order: dict[str, Any]) -> dict[str, object]:
        """Start the command for this node under DMTCP, if there is one."""
        command = order["commands"].get(str(self.number))
        if command is None:
            return {}
        environment = {os.fsencode(k): os.fsencode(v) for k, v in order["environment"].items()}
        of_node = {k: self._caller.environment[k] for k in _OWN if k in self._caller.environment}
        task = self._task(environment | of_node, str(order["directory"]), int(order["umask"]))
        program = f"{self._site.dmtcp}/dmtcp_launch"
        argv = [program, *self._options(order), "/bin/sh", "-c", str(command)]
        task.run(argv, self._variables(order), clocks=order["clocks"])
        self._tasks[task] = [str(order["name"])]
        return {}

    def _restore(self, order: dict[str, Any]) -> dict[str, object]:
        """Restore this node's processes from root's image, or from the user's directory."""
        self._end(order)
        task, number = self._task(self._caller.environment, "/"), int(order["image"])
        program = f"{self._site.dmtcp}/dmtcp_restart"
        argv = [program, *self._options(order), "--no-strict-checking"]
        directory = self._images(order)
        with contextlib.ExitStack() as stack:
            if number:
                directory = self._site.jobs / str(self._caller.job) / "images" / str(number)
                # The first node has only compared its own processor.
                instructions.of_image(directory)
                handed = stack.enter_context(files.directory(directory))
                start = dmtcp_images.prefix(self.number)
                names = [n for n in files.names(handed, _MAX_FILES) if n.startswith(start)]
                paths = handed_paths([n for n in names if n.endswith(dmtcp_images.IMAGE)])
            else:
                handed = None
                paths = dmtcp_images.DmtcpImages(directory, self._caller).images()
            if paths:
                task.run([*argv, *paths], self._variables(order), handed, order["clocks"],
                         order["uncut"])  # fmt: skip
                self._tasks[task] = order["names"][str(self.number)]
            elif names_ended := order["names"].get(str(self.number)):
                # They had ended before the image, but mpirun did not know yet.
                self.report("ended", status=0, names=names_ended)
        return {}

    def _look(self, _order: dict[str, Any]) -> dict[str, object]:
        """Return the files that the processes append to. RequestRefused if a save is impossible
        now.
        """
        tasks = [pid for task in self._tasks for pid in task.members()]
        own_step = self._caller.step
        step = next((s for s in steps.running(self._site, self._caller.job) if s != own_step), "")
        if step:
            raise RequestRefused(f"it runs a step (srun), which dmtcp does not save: {step}")
        check_files(tasks)
        appended = appended_files(tasks, ())
        uncut_files.check_possible(appended)
        return {"appended": appended}

    def _measure(self, order: dict[str, Any]) -> dict[str, object]:
        """Return the bytes of the save on this node; None if the file system does not answer."""
        if self._probe is None:
            images = dmtcp_images.DmtcpImages(self._images(order), self._caller)
            # One for all orders, so that no series of orders starts many processes.
            self._probe = SaveProbe(images)
        return {"written": self._probe.look()}

    def _restored(self, _order: dict[str, Any]) -> dict[str, object]:
        for task in self._tasks:
            task.restored()
        return {}

    def _end(self, _order: dict[str, Any]) -> dict[str, object]:
        for task in self._tasks:
            task.end()
        self._tasks.clear()
        return {}

    def _reap(self) -> None:
        for task in [task for task in self._tasks if task.status() is not None]:
            self.report("ended", status=task.status(), names=self._tasks.pop(task))
            task.end()

    def _task(
        self, environment: dict[bytes, bytes], directory: str, umask: int = 0o22
    ) -> DmtcpTask:
        caller = self._caller
        return DmtcpTask(
            Payload(argv=(), environment=environment, directory=directory, umask=umask,
                    uid=caller.uid, gid=caller.gid, groups=caller.groups)
        )  # fmt: skip

    def _options(self, order: dict[str, Any]) -> list[str]:
        return joining(self._address, str(self._port), self._images(order), self._place())

    def _variables(self, order: dict[str, Any]) -> dict[bytes, bytes]:
        return variables(self._images(order), self._place()) | SILENT

    def _images(self, order: dict[str, Any]) -> Path:
        return Path(str(order["images"])) / str(self.number)

    def _place(self) -> Path:
        return self._scratch.of_user(self._caller.uid, self._caller.gid)

    def close(self) -> None:
        """End all processes that this attendant started."""
        self._end({})
        if self._probe:
            self._probe.close()
        if self._guard:
            self._guard.close()
        self._scratch.close()


_OWN = (b"SLURMD_NODENAME", b"SLURM_NODEID")
"""Variables of the node, which the order's environment has of another node."""


def attend(site: HelperSite, caller: Caller) -> int:
    """Serve the first node until the end of the step."""
    block()
    # Programs of the job write to our standard error, which the first node passes on.
    orders, reports = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    attendant = Attendant(site, caller, orders, reports)
    try:
        attendant.serve()
    finally:
        attendant.close()
    return 0
