"""A hypervisor for tests, part of nova by its setup: machines are entries in a dictionary.

Unlike nova's own fake ones it keeps its identity over a restart, and a file says how big it is and
what goes wrong: ``{"memory": MiB, "held": true, "broken": "text"}``.
"""

import json
import os
import time

from nova import exception
from nova.virt import fake


def orders():
    """The orders in the file now; none if it is missing."""
    try:
        with open(os.environ["SLURM_ELASTIC_HYPERVISOR"], encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}


class Hypervisor(fake.FakeDriverWithoutFakeNodes):
    """One host."""

    vcpus = 100_000
    local_gb = 1_000_000
    memory_mb = int(os.environ.get("SLURM_ELASTIC_MEMORY", "1048576"))

    def spawn(self, context, instance, *args, **kwargs):
        """As the file says; the wait is this boot's alone."""
        while (told := orders()).get("held"):
            time.sleep(0.1)
        if told.get("broken"):
            raise exception.BuildAbortException(instance_uuid=instance.uuid, reason=told["broken"])
        return super().spawn(context, instance, *args, **kwargs)
