"""A run of CRIU that writes an image: so much and no more, and it is never killed, as its victims
would not survive that. A limit of each file's length (setrlimit(2)) it takes as a full disk, and
lets them go on. As a job may have thousands of processes, and each has files of its own in the
image, that is looked at meanwhile: once it is too large, no file of CRIU's may grow any more.
"""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from slurm_elastic.machine.ckptroot.caller import CLEAN
from slurm_elastic.machine.ckptroot.payload import calm
from slurm_elastic.machine.ckptroot.quota import allocated

LOOK = 0.1
"""Seconds between two looks at the image: a fast disk takes some hundred MiB meanwhile."""
_PART = 0.1
"""The part of the time that looks may take."""


def run(
    command: list[str], pass_fds: tuple[int, ...], image: Path, most: int, said: int | None = None
) -> tuple[int, bool]:
    """Its exit code, and whether it was told to end as ``image`` has more than ``most`` bytes. Its
    words go to the descriptor ``said``, if there is one.
    """

    def before() -> None:
        calm()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done, over = threading.Event(), threading.Event()
    with subprocess.Popen(
        command, env=CLEAN, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL if said is None else said, preexec_fn=before,
        pass_fds=pass_fds,
    ) as process:  # fmt: skip
        watch = threading.Thread(
            target=_watch, args=(process.pid, image, most, done, over), daemon=True
        )
        watch.start()
        code = process.wait()
    done.set()
    watch.join()
    return code, over.is_set()


def _watch(pid: int, image: Path, most: int, done: threading.Event, over: threading.Event) -> None:
    """Nothing is lost where that fails: what was written is counted once more when it is whole."""
    pause = LOOK
    while not done.wait(pause):
        begun = time.monotonic()
        with contextlib.suppress(OSError):
            if allocated(image) > most:
                over.set()
        if over.is_set():  # at each look: CRIU may not have begun at the one before
            for one in _family(pid):
                # EPERM without CAP_SYS_RESOURCE, as in containers; its files' limit stands.
                with contextlib.suppress(OSError, ValueError):
                    resource.prlimit(one, resource.RLIMIT_FSIZE, (0, 0))
        pause = max(LOOK, (time.monotonic() - begun) / _PART)


def _family(pid: int) -> Iterator[int]:
    """A process and those that it has started (proc(5), children)."""
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))
