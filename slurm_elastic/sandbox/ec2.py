"""An EC2 on loopback: moto behind a front that adds what a rehearsal needs and moto lacks.

``python -m slurm_elastic.sandbox.ec2 --dir DIR [--port N] [--prices FILE] [--speed X]`` serves it,
writes ``DIR/ec2/ready`` (``{"port", "pid"}``) when it answers, and ends on SIGTERM. The front adds
partial launches (moto starts MinCount machines whatever MaxCount says), fleets, client tokens,
stock, faults, delayed visibility, spot prices and interruptions, and the SQS queue that tells of
these; ``ec2_control`` steers it. Its state is in memory: it ends with the process.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_elastic.base.errors import SandboxError, SlurmElasticError
from slurm_elastic.providers.base.prices.trace import load_trace
from slurm_elastic.sandbox import ec2_moto
from slurm_elastic.sandbox.ec2_cloud import EmulatedCloud
from slurm_elastic.sandbox.ec2_front import Front
from slurm_elastic.sandbox.loopback_only import isolated_env
from slurm_elastic.sandbox.steering import HOST, serve_until_ended

if TYPE_CHECKING:
    from werkzeug.serving import WSGIRequestHandler

log = logging.getLogger(__name__)


def serve(directory: Path, port: int, prices: Path | None, speed: float) -> None:
    """Serve until SIGTERM or SIGINT. ``port`` 0 takes a free one."""
    os.environ.update(isolated_env({}))
    # Nobody asks the emulator for images; without moto's list of them a launch is much faster.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    from werkzeug.serving import make_server

    # Before anything imports moto.
    from slurm_elastic.sandbox import botocore_data

    botocore_data.keep()
    cloud = EmulatedCloud(speed, time.time())
    if prices:
        cloud.prices.replay(load_trace(prices), speed, time.time())
    front = Front(cloud, ec2_moto.application())
    try:
        server = make_server(HOST, port, front, threaded=True, request_handler=_handler())
    # Werkzeug exits where the port is taken.
    except (OSError, SystemExit) as error:
        raise SandboxError(f"port {port} on {HOST} cannot be had: {error}") from error
    front.reaper.start()
    serve_until_ended(server, directory / "ec2", front.stop)


def _handler() -> type[WSGIRequestHandler]:
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


def main(argv: Sequence[str] | None = None) -> int:
    """The program; 2 where it cannot start."""
    parser = argparse.ArgumentParser(prog="slurm_elastic.sandbox.ec2", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--prices", type=Path, help="a CSV trace; default: the shipped day")
    parser.add_argument("--speed", type=float, default=1.0, help="trace seconds a second")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    # An earlier run's would say that we answer before we do.
    (args.dir / "ec2" / "ready").unlink(missing_ok=True)
    try:
        serve(args.dir, args.port, args.prices, args.speed)
    except SlurmElasticError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
