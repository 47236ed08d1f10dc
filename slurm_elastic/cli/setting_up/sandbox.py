"""``slurm-elastic sandbox``: run a whole hybrid cluster on this machine, for rehearsals."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_elastic.base.errors import SandboxError
from slurm_elastic.base.pages import page
from slurm_elastic.base.processes.service_remedies import SANDBOX_OF_SHELL
from slurm_elastic.cli.arguments import count, pause, speed
from slurm_elastic.cli.helptext import COMMAND_VARIABLE, NAME, command_name, examples
from slurm_elastic.config import configfile, document
from slurm_elastic.sandbox.spec import DEFAULT_DIR, SandboxSpec, default_elastic

if TYPE_CHECKING:
    from slurm_elastic.sandbox.cluster import Sandbox
    from slurm_elastic.sandbox.ec2.cloud import Ec2View
    from slurm_elastic.sandbox.nebula.control import OneView as OneView

OPENNEBULA_DONE = 6  # OpenNebula's VM state DONE: the machine has ended
SERVICES = ("slurmctld", "slurm-elasticd", "slurm-elastic-ckptman", "ckptman")
_SHORT_NAMES = {"ckptman": "slurm-elastic-ckptman"}
Subparsers = Any  # argparse._SubParsersAction has no public name


def add(subparsers: Subparsers) -> None:
    parser = subparsers.add_parser(
        "sandbox",
        description="Run a whole hybrid cluster on this machine: a real slurmctld and slurmd's, an "
        "on-premises cloud and an emulated EC2. No account at a cloud is needed or used. See "
        f"{page('sandbox')}.",
        epilog=examples(
            "slurm-elastic sandbox up",
            "eval $(slurm-elastic sandbox env)",
            "slurm-elastic sandbox interrupt pub1 --notice 60",
            "slurm-elastic sandbox down",
        ),
    )
    inner = parser.add_subparsers(dest="sandbox_command", required=True, metavar="COMMAND")
    _add_up(inner)
    _plain(inner, "down", _down, "end the sandbox and remove its directory")
    _plain(inner, "status", _status, "show its services, nodes, emulated machines and failures")
    env = _plain(inner, "env", _env, "print lines that point a shell at the sandbox")
    env.epilog = examples("eval $(slurm-elastic sandbox env)")
    _plain(inner, "heal", _heal, "end all failures that `sandbox fail` has started")
    _add_services(inner)
    _add_price(inner)
    _add_interrupt(inner)
    _add_fail(inner)


def _plain(
    inner: Subparsers, name: str, run: Callable[[argparse.Namespace], int], text: str
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = inner.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=examples(f"slurm-elastic sandbox {name}"),
    )
    parser.add_argument(
        "--dir", type=Path, default=_usual_dir(),
        help=f"the directory of the sandbox (default: ${SANDBOX_OF_SHELL}, or {DEFAULT_DIR})",
    )  # fmt: skip
    parser.set_defaults(run=run)
    return parser


def _add_up(inner: Subparsers) -> None:
    parser = _plain(inner, "up", _up, "start Slurm, the clouds and the services")
    parser.epilog = examples(
        "slurm-elastic sandbox up", "slurm-elastic sandbox up --boot 20 --suspend-time 60"
    )
    default = SandboxSpec()
    parser.add_argument(
        "--static", type=int, default=default.static_nodes, metavar="N",
        help="give the site N static nodes (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--boot", type=pause, default=default.boot_seconds, metavar="SECONDS",
        help="boot time of an emulated machine (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--machines", metavar="IMAGE",
        help="boot the emulated EC2's machines as virtual machines from this image, made with "
        "`slurm-elastic image` (default: machines are processes)",
    )  # fmt: skip
    parser.add_argument(
        "--suspend-time", type=pause, default=default.suspend_time, metavar="SECONDS",
        help="power idle nodes down after this time (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--never-boot", default="", metavar="NODES",
        help="for these nodes, start and bill machines that never register",
    )  # fmt: skip
    parser.add_argument(
        "--prices", metavar="FILE",
        help="a CSV trace of spot prices (default: the trace that comes with the sandbox)",
    )  # fmt: skip
    parser.add_argument(
        "--price-speed", type=speed, default=default.price_speed, metavar="X",
        help="play X seconds of the trace in one second (default: %(default)g)",
    )  # fmt: skip
    parser.add_argument(
        "--group", action="append", default=[], metavar="GROUP",
        help="let members of this Unix group use the public cloud, besides "
        f"{' and '.join(default.groups)}; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--slurm-conf", action="append", default=[], metavar="LINE",
        help="add this line to the site's slurm.conf; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--elastic", metavar="FILE",
        help="a file with keys of slurm-elastic.yaml, which change or extend the sandbox's own",
    )  # fmt: skip


def _add_services(inner: Subparsers) -> None:
    """Add the commands that rehearse outages of services."""
    for verb, run, text in (
        ("stop", _stop, "end one service, to rehearse its outage"),
        ("start", _start, "start a service that was ended, with its state"),
    ):
        parser = _plain(inner, verb, run, text)
        parser.epilog = examples(f"slurm-elastic sandbox {verb} slurmctld")
        parser.add_argument(
            "service", choices=SERVICES, metavar="SERVICE", help=f"one of {', '.join(SERVICES)}"
        )
        if verb == "stop":
            parser.add_argument(
                "--crash", action="store_true", help="end it by SIGKILL, so that it cannot clean up"
            )


def _add_price(inner: Subparsers) -> None:
    parser = _plain(inner, "price", _price, "set a spot price, or let it follow the trace again")
    parser.epilog = examples(
        "slurm-elastic sandbox price 'c5.*' us-east-1a 0.5",
        "slurm-elastic sandbox price 'c5.*' us-east-1a trace",
    )
    parser.add_argument("type", help="an instance type, or a pattern such as c5.*")
    parser.add_argument("zone", help="a zone, or a pattern such as us-east-1*")
    parser.add_argument("price", help="dollars an hour; or the word trace")


def _add_interrupt(inner: Subparsers) -> None:
    parser = _plain(inner, "interrupt", _interrupt, "announce the end of a spot machine and end it")
    parser.epilog = examples("slurm-elastic sandbox interrupt pub1 --notice 60")
    parser.add_argument("name", metavar="NODE|INSTANCE", help="the machine's node, or its id")
    parser.add_argument(
        "--notice", type=pause, default=120.0, metavar="SECONDS",
        help="end it this long after the notice (default: %(default)g)",
    )  # fmt: skip


def _add_fail(inner: Subparsers) -> None:
    from slurm_elastic.sandbox.ec2.faults import FaultKind

    parser = _plain(
        inner, "fail", _fail, "make calls to the emulated EC2 or OpenNebula fail, until heal"
    )
    parser.epilog = examples(
        "slurm-elastic sandbox fail capacity --market spot",
        "slurm-elastic sandbox fail timeout-after --action 'one.*' --count 2",
    )
    kinds = ", ".join(FaultKind)
    parser.add_argument("kind", metavar="KIND", help=f"how the calls fail: {kinds}")
    parser.add_argument(
        "--action", default="RunInstances",
        help="a call of EC2, or a method of OpenNebula such as one.* (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--market", choices=("spot", "on-demand"), help="fail only calls for this market"
    )
    parser.add_argument("--type", help="fail only calls for this instance type or pattern")
    parser.add_argument("--zone", help="fail only calls for this zone or pattern")
    parser.add_argument(
        "--count", type=count, metavar="N", help="fail only the next N calls (default: all)"
    )


def _attached(arguments: argparse.Namespace) -> Sandbox:
    from slurm_elastic.sandbox.cluster import Sandbox

    return Sandbox.attach(arguments.dir)


def _up(arguments: argparse.Namespace) -> int:
    from slurm_elastic.sandbox.cluster import Sandbox

    spec = SandboxSpec(
        dir=arguments.dir.resolve(),
        static_nodes=arguments.static,
        boot_seconds=arguments.boot,
        suspend_time=arguments.suspend_time,
        never_boot=arguments.never_boot,
        prices=arguments.prices and str(Path(arguments.prices).resolve()),
        price_speed=arguments.price_speed,
        groups=(*SandboxSpec().groups, *arguments.group),
        slurm_conf=tuple(arguments.slurm_conf),
        elastic=_elastic(Path(arguments.elastic)) if arguments.elastic else {},
        **(_virtual(Path(arguments.machines)) if arguments.machines else {}),
    )
    Sandbox(spec).up(lambda step: print(f"  {step} ...", flush=True))
    where = _where(arguments)
    print(f"The sandbox is up in {arguments.dir}. Next:")
    print(f"  eval $({command_name()} sandbox env{where})")
    print(f"  sinfo; cd {spec.dir}/work; sbatch --wrap 'sleep 30'; {NAME} status")
    print("  runuser -u nobody -- sbatch -D /tmp --wrap hostname")
    print(f"  {command_name()} sandbox down{where}")
    groups = ", ".join(spec.groups)
    print(f"The public cloud is open to the groups {groups} (sandbox up --group GROUP adds one).")
    return 0


def _elastic(file: Path) -> dict[str, Any]:
    """Read keys of slurm-elastic.yaml. SandboxError if a cloud or pool cannot be placed: the whole
    is checked when the services start.
    """
    values = document.read(configfile.text(file), str(file)).value
    if not isinstance(values, dict):
        raise SandboxError(f"{file}: expected keys of slurm-elastic.yaml")
    default = default_elastic(SandboxSpec())
    for key, needed in (("clouds", "provider"), ("pools", "nodes")):
        default_names = {item["name"] for item in default[key]}
        for item in values.get(key) or []:
            name = item.get("name") if isinstance(item, dict) else None
            if name is None or (name not in default_names and needed not in item):
                raise SandboxError(f"{file}: {key}: each needs a name, and a new one {needed}")
    return values


def _virtual(image: Path) -> dict[str, Any]:
    """The settings of a sandbox whose public machines are virtual and boot for minutes."""
    from slurm_elastic.sandbox.hypervisor import settings

    return settings(image)


def _down(arguments: argparse.Namespace) -> int:
    from slurm_elastic.sandbox.cluster import Sandbox

    if not arguments.dir.exists():
        print(f"There is no sandbox in {arguments.dir}.")
        return 0
    Sandbox(SandboxSpec(dir=arguments.dir.resolve())).down()
    print(f"The sandbox in {arguments.dir} is removed.")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    sandbox = _attached(arguments)
    states = sandbox.status()
    for name, alive in states.items():
        print(f"{name:<21} {'running' if alive else 'DEAD'}")
    if states.get("slurmctld"):
        print(sandbox.run(["sinfo"], check=False).stdout, end="")
    if states.get("ec2"):
        for line in _cloud_lines(sandbox.ec2.state()):
            print(line)
    if states.get("opennebula"):
        for line in _one_lines(sandbox.opennebula.state()):
            print(line)
    return 0 if all(states.values()) else 1


def _cloud_lines(state: Ec2View) -> Iterator[str]:
    from slurm_elastic.sandbox.seen import ALIVE

    for m in (m for m in state.machines if m.state in ALIVE):
        end = f" taken in {m.interruption.deadline - state.now:.0f} s" if m.interruption else ""
        yield f"{m.id} {m.node:<8} {m.state:<8} {m.market:<10} {m.type} {m.zone}{end}"
    for fault in state.faults:
        where = f"{fault.action} {fault.market}/{fault.type}/{fault.zone}"
        yield f"failing: {fault.kind} of {where}, {fault.count or 'all'} calls"


def _one_lines(state: OneView) -> Iterator[str]:
    for m in (m for m in state.machines if m.state != OPENNEBULA_DONE):
        yield f"one-{m.id} {m.node:<8} state {m.state}/{m.lcm} {m.tags.get('SCHED_MESSAGE', '')}"
    for fault in state.faults:
        yield f"failing: {fault.kind} of {fault.action}, {fault.count or 'all'} calls"


def _env(arguments: argparse.Namespace) -> int:
    attached = _attached(arguments)
    current, variables = dict(os.environ), attached.env()
    variables[SANDBOX_OF_SHELL] = str(arguments.dir.resolve())
    variables["PATH"] = _with_our_program(variables["PATH"])
    # It concerns this process alone: in the shell, the name is enough.
    variables.pop(COMMAND_VARIABLE, None)
    current.pop(COMMAND_VARIABLE, None)
    for name in sorted(current.keys() - variables.keys()):
        print(f"unset {name};")
    # These also if this shell has them already: the output may be kept in a file for other shells.
    always = {"PATH", SANDBOX_OF_SHELL, *attached.layout.config_paths()}
    for name, value in sorted(variables.items()):
        if name in always or current.get(name) != value:
            print(f"export {name}={shlex.quote(value)};")
    return 0


def _with_our_program(path: str) -> str:
    """Return ``path`` so that a shell finds this program by its name, in a clone too."""
    programs = Path(sys.executable).parent
    this_program, by_name = programs / NAME, shutil.which(NAME, path=path)
    if not this_program.exists() or (by_name and this_program.samefile(by_name)):
        return path
    return f"{programs}:{path}"


def _stop(arguments: argparse.Namespace) -> int:
    service = _SHORT_NAMES.get(arguments.service, arguments.service)
    _attached(arguments).service_stop(service, crash=arguments.crash)
    print(f"{service} is ended; all other processes still run. Next:")
    name = command_name()
    print(f"  {name} status; {name} doctor --quick")
    print(f"  {name} sandbox start {arguments.service}{_where(arguments)}")
    return 0


def _start(arguments: argparse.Namespace) -> int:
    service = _SHORT_NAMES.get(arguments.service, arguments.service)
    _attached(arguments).service_start(service)
    print(f"{service} runs again with its state.")
    return 0


def _where(arguments: argparse.Namespace) -> str:
    """The option that names the directory of the sandbox; "" if it is the usual directory."""
    directory = arguments.dir.absolute()
    return "" if directory == _usual_dir() else f" --dir {shlex.quote(str(directory))}"


def _usual_dir() -> Path:
    """The directory for commands without ``--dir``: the sandbox of this shell, or the default."""
    return Path(os.environ.get(SANDBOX_OF_SHELL) or DEFAULT_DIR)


def _price(arguments: argparse.Namespace) -> int:
    price = None if arguments.price == "trace" else _number(arguments.price)
    _attached(arguments).ec2.price(arguments.type, arguments.zone, price)
    return 0


def _number(text: str) -> float:
    from slurm_elastic.base.errors import SandboxError

    try:
        return float(text)
    except ValueError:
        raise SandboxError(f"a price is a number of dollars or 'trace', not {text!r}") from None


def _interrupt(arguments: argparse.Namespace) -> int:
    from slurm_elastic.sandbox import control
    from slurm_elastic.sandbox.ec2.events import LEAD

    machine = control.interrupt(_attached(arguments).ec2, arguments.name, arguments.notice)
    remark = (
        "" if arguments.notice == LEAD else f" (its notice says {LEAD:g} s, as EC2's always do)"
    )
    print(f"{machine.id} ({machine.node}) is taken in {arguments.notice:g} s{remark}")
    return 0


def _fail(arguments: argparse.Namespace) -> int:
    from slurm_elastic.sandbox import control

    fault = control.fault(
        arguments.kind,
        action=arguments.action,
        market=arguments.market,
        type=arguments.type,
        zone=arguments.zone,
        count=arguments.count,
    )
    sandbox = _attached(arguments)
    # OpenNebula's methods all begin with "one.".
    (sandbox.opennebula if arguments.action.startswith("one.") else sandbox.ec2).fail(fault)
    which = f" for {arguments.market} machines" if arguments.market else ""
    heal = f"{command_name()} sandbox heal{_where(arguments)}"
    print(f"{arguments.action}{which} fails ({arguments.kind}); {heal} ends that")
    return 0


def _heal(arguments: argparse.Namespace) -> int:
    sandbox = _attached(arguments)
    states = sandbox.status()
    for cloud in [sandbox.ec2] * ("ec2" in states) + [sandbox.opennebula] * (
        "opennebula" in states
    ):
        cloud.heal()
    print("all failures have ended: calls succeed again")
    return 0
