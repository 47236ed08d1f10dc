"""An EC2 on loopback: moto behind a front with the features that a rehearsal needs and moto lacks.

``python -m slurm_elastic.sandbox.ec2.serve --dir DIR [--port N] [--prices FILE] [--speed X]``
serves it.
The program writes ``DIR/ec2/ready`` (``{"port", "pid"}``) when it answers, and ends on SIGTERM.

The front adds partial launches (moto starts MinCount machines and ignores MaxCount), fleets, client
tokens, stock, faults, delayed visibility, spot prices, interruptions, and the SQS queue of their
notices. ``ec2_control`` steers the front. Its state is in memory and is lost with the process.
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
from slurm_elastic.sandbox.ec2 import moto_changes as ec2_moto
from slurm_elastic.sandbox.ec2.cloud import EmulatedCloud
from slurm_elastic.sandbox.ec2.front import Ec2Front
from slurm_elastic.sandbox.loopback_only import isolated_env
from slurm_elastic.sandbox.steering import HOST, serve_until_ended

if TYPE_CHECKING:
    from werkzeug.serving import WSGIRequestHandler

log = logging.getLogger(__name__)


def serve(directory: Path, port: int, prices: Path | None, speed: float) -> None:
    """Serve until SIGTERM or SIGINT. ``port`` 0: any free port. Raises SandboxError."""
    os.environ.update(isolated_env({}))
    # No client asks the emulator for images. Without moto's list of images a launch is much faster.
    os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"
    from werkzeug.serving import make_server

    # ``cache_shipped_files`` must run before moto is imported, because the import opens the
    # sessions.
    from slurm_elastic.sandbox import botocore_data

    botocore_data.cache_shipped_files()
    cloud = EmulatedCloud(speed, time.time())
    if prices:
        cloud.prices.replay(load_trace(prices), speed, time.time())
    front = Ec2Front(cloud, ec2_moto.application())
    try:
        server = make_server(HOST, port, front, threaded=True, request_handler=_handler())
    # Werkzeug raises SystemExit if the port is in use.
    except (OSError, SystemExit) as error:
        raise SandboxError(f"port {port} on {HOST} is not available: {error}") from error
    front.reaper.start()
    serve_until_ended(server, directory / "ec2", front.stop)


def _handler() -> type[WSGIRequestHandler]:
    """Return werkzeug's request handler, imported only when EC2 is served."""
    from werkzeug.serving import WSGIRequestHandler

    class Quiet(WSGIRequestHandler):
        """Logs requests for debugging only, because the front counts them."""

        def log(self, type: str, message: str, *args: object) -> None:  # noqa: A002
            log.debug("http %s " + message, type, *args)

        def connection_dropped(self, error: BaseException, environ: object = None) -> None:  # noqa: ARG002
            # A fault drops the connection. Werkzeug alone would keep it open for the next request.
            self.close_connection = True

    return Quiet


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program. Returns 2 if it cannot start."""
    parser = argparse.ArgumentParser(prog="slurm_elastic.sandbox.ec2.serve", description=__doc__)
    parser.add_argument("--dir", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--prices", type=Path, help="a CSV trace; default: the shipped day")
    parser.add_argument("--speed", type=float, default=1.0, help="seconds of the trace per second")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    # Remove the file of an earlier run, which would show us as ready too early.
    (args.dir / "ec2" / "ready").unlink(missing_ok=True)
    try:
        serve(args.dir, args.port, args.prices, args.speed)
    except SlurmElasticError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
