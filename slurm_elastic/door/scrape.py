"""``/metrics`` of slurm-elasticd, on loopback: prometheus_client's own server, few readings.

A reading is good for FRESH seconds, whoever asks how often, and Slurm's nodes are read much less
often: they are work for slurmctld.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server
from wsgiref.types import StartResponse, WSGIEnvironment

from slurm_elastic.config import Config
from slurm_elastic.door.answers import Kept
from slurm_elastic.door.metrics import States, node_states, text
from slurm_elastic.errors import SlurmError
from slurm_elastic.protocols import Slurm

log = logging.getLogger(__name__)

FRESH = 5.0
NODES_FRESH = 60.0
FORM = "text/plain; version=0.0.4; charset=utf-8"


class _Handler(WSGIRequestHandler):
    timeout = 10

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its own name
        log.debug(format, *args)


class Scrape:
    """Serves one request at a time, in a thread of its own. OSError where it cannot listen."""

    def __init__(self, config: Config, slurm: Slurm, now: Callable[[], float] = time.time) -> None:
        self._states: Kept[States] = Kept(lambda: node_states(config, now(), slurm), NODES_FRESH)
        self._text: Kept[bytes] = Kept(lambda: text(config, now(), self._nodes()), FRESH)
        host, _, port = str(config.metrics.listen).rpartition(":")
        self._server = make_server(
            host, int(port), self._answer, server_class=WSGIServer, handler_class=_Handler
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _nodes(self) -> States | None:
        try:
            return self._states.get()
        except SlurmError as error:
            log.warning("metrics lack nodes: %s", error)
            return None

    def _answer(self, environment: WSGIEnvironment, start: StartResponse) -> list[bytes]:
        if environment["PATH_INFO"] not in ("/metrics", "/"):
            start("404 Not Found", [("Content-Type", "text/plain")])
            return [b"metrics are at /metrics\n"]
        try:
            found = self._text.get()
        except Exception:
            log.exception("metrics cannot be read")
            start("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"metrics cannot be read: see the log of slurm-elasticd\n"]
        start("200 OK", [("Content-Type", FORM), ("Content-Length", str(len(found)))])
        return [found]
