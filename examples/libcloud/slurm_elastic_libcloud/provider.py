"""Machines by Apache Libcloud. The driver must send ``ex_metadata`` within the call (see README)."""

import json
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from libcloud.common.exceptions import BaseHTTPError
from libcloud.common.types import InvalidCredsError, LibcloudError
from libcloud.compute.providers import get_driver
from requests import RequestException

from slurm_elastic.base.errors import AuthError, ConfigError, TransientError
from slurm_elastic.model.cluster import EndAnswer, InstanceState
from slurm_elastic.providers.base.machine_tags import machine_of, marks_of
from slurm_elastic.providers.base.offers import plain_offers
from slurm_elastic.providers.base.one_by_one import OneByOne
from slurm_elastic.providers.base.ownership import ownership_of
from slurm_elastic.providers.base.statuses import error_of_status

RUNS = ("running", "rebooting", "migrating", "reconfiguring", "normal", "updating", "unknown")
STATES = dict.fromkeys(RUNS, InstanceState.RUNNING) | {"terminated": InstanceState.TERMINATED}
STATES |= dict.fromkeys(("pending", "starting"), InstanceState.PENDING)
UNREADABLE = (LibcloudError, LookupError, ValueError, TypeError, AttributeError)


def driver_of(settings):
    """ConfigError where the driver or its file of arguments will not do."""
    try:
        arguments = json.loads(Path(settings.credentials).read_text(encoding="utf-8"))
        return get_driver(settings.driver)(**arguments)
    except (OSError, *UNREADABLE) as error:
        text = f"cloud {settings.name!r}: driver or credentials will not do: {error}"
        raise ConfigError(text) from error


class LibcloudProvider:
    """One account; see protocols.Provider. Thread-safe, though libcloud is not."""

    def __init__(self, settings, cluster, config, driver, clock=time.monotonic):
        self.name, self._settings, self._cluster = settings.name, settings, cluster
        self._driver, self._lock, self._nodes = driver, threading.Lock(), {}
        driver.connection.timeout = settings.api_timeout
        self._whose = ownership_of(settings, cluster, config)
        self._calls = OneByOne(self.name, settings.listing_lag, clock)

    def offers(self, pool):
        return plain_offers(self._settings, pool, {s.name for s in self._call("list_sizes")})

    def launch(self, spec):
        listed = self._listed()
        with self._translated():
            size = {s.name: s for s in self._call("list_sizes")}[spec.offer.instance_type]
            image = {str(i.id): i for i in self._call("list_images")}[self._settings.image]
        return self._calls.launch(spec, listed, lambda *what: self._make(size, image, *what))

    def _make(self, size, image, spec, node):
        marks = marks_of(spec, node, self._cluster, self.name, time.time())
        more = {**self._settings.arguments, "ex_metadata": marks}
        made = self._call("create_node", name=node, size=size, image=image, **more)
        with self._translated():
            return self._machine(made)

    def instances(self):
        return self._shown()

    def tidy(self):
        return self._shown(self._end)

    def _shown(self, *end):
        listed = self._listed()
        failed = {m.id for m in listed if self._nodes[m.id].state == "error"}
        return self._calls.shown(listed, failed, *end)

    def _listed(self):
        found = self._call("list_nodes")
        with self._translated():
            whose = [self._whose.owner(node.extra.get("metadata") or {}) for node in found]
            return [self._machine(n) for n, o in zip(found, whose, strict=True) if o == self.name]

    def _machine(self, node):
        self._nodes[str(node.id)] = node
        address = next(iter([*node.private_ips, *node.public_ips]), None)
        state = STATES.get(node.state, InstanceState.STOPPING)
        return machine_of(str(node.id), node.extra["metadata"], self._settings, state, address)

    def terminate(self, ids):
        if not self._nodes.keys() >= set(ids):
            self._listed()  # those of an earlier process
        ours = [one for one in ids if one in self._nodes]
        answers = self._calls.terminate(ours, self._end)
        others = [one for one in ids if one not in self._nodes]
        there = {str(node.id) for node in self._call("list_nodes")} if others else ()
        answers |= {i: EndAnswer.NOT_OURS if i in there else EndAnswer.GONE for i in others}
        return answers

    def _end(self, one):
        self._call("destroy_node", self._nodes[one])

    def notices(self):
        return ()

    def check(self):
        self._call("list_nodes")

    def _call(self, what, /, *args, **more):
        with self._lock, self._translated():
            return getattr(self._driver, what)(*args, **more)

    @contextmanager
    def _translated(self):
        try:
            yield
        except InvalidCredsError as error:
            raise AuthError(self.name, "InvalidCreds", str(error)) from error
        except BaseHTTPError as error:
            raise error_of_status(self.name, error.code, error.message) from error
        except (RequestException, OSError, *UNREADABLE) as error:  # nobody knows what came of it
            raise TransientError(self.name, type(error).__name__, str(error)) from error
