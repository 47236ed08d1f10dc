"""The emulated EC2's server, as far as it is HTTP's."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from werkzeug.serving import WSGIRequestHandler

log = logging.getLogger(__name__)

HOST = "127.0.0.1"


def handler() -> type[WSGIRequestHandler]:
    """How werkzeug serves the requests."""
    from werkzeug.serving import WSGIRequestHandler

    class Quiet(WSGIRequestHandler):
        """Requests are counted, not printed."""

        def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
            log.debug("http %s " + message, type, *args)

        def connection_dropped(self, error: BaseException, environ: object = None) -> None:  # noqa: ARG002
            # Werkzeug would keep the connection open for the client's next request.
            self.close_connection = True

    return Quiet


def announce(directory: Path, port: int) -> None:
    """Say that it answers, and where, to whoever waits for the file."""
    place = directory / "ec2"
    place.mkdir(parents=True, exist_ok=True)
    draft = place / "ready.new"
    draft.write_bytes(msgspec.json.encode({"port": port, "pid": os.getpid()}))
    draft.replace(place / "ready")
    log.info("emulated EC2 ready url=http://%s:%d", HOST, port)
