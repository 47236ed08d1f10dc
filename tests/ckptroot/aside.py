"""What must not be done to the tests' own process is done in a child of it."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Any


def aside(does: Callable[[], Any]) -> Any:
    """What ``does`` says in a process of its own, as JSON."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, json.dumps(does()).encode())
        except BaseException:  # noqa: BLE001 - the parent sees that nothing was said
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    assert said, "the child failed"
    return json.loads(said)
