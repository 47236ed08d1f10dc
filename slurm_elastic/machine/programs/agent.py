#!/usr/bin/python3 -I
"""Runs on each cloud machine, beside slurmd, as root: ``agent.py SETTINGS [check | end ...]``.

With ``check`` it only prepares the machine (mounts, Epilog) and runs the site's check, once, before
slurmd starts. With ``end ACTION URL`` it is the ``stop_command`` of a cloud whose bill a shutdown
does not end.

It starts slurmd after the munge key has arrived. It is also the dead-man switch: a machine costs
money, and the head that should end it may be gone. By ``scontrol show node`` over munge, without a
further port of the head, the machine is needed as long as slurmctld answers and does not have this
node powered down. So the switch also works if slurmctld runs, but not the daemon that ends them.
``stop_command`` runs only after the machine was observed to be unneeded for ``heartbeat_timeout``
seconds, far longer than a restart of slurmctld, and only while no slurmstepd runs and slurmctld, if
it answers, has no job on the node. An idle machine
older than ``max_age`` plus ``heartbeat_timeout`` ends even if it is needed. A machine with files
that are to go back to the head stays ``owed`` seconds after its last job.

The agent passes warnings of the cloud's metadata service on to the head as the comment of the Slurm
node, which root on the node may set (as health checks set a node's reason): see
ckptman/sources.py.

It uses the standard library only, and any Python from 3.6 on. SETTINGS has ``key=value`` lines,
values to the end of the line, and is read once. This text is part of user data, whose size clouds
limit: keep it short. Comments and docstrings are left out there.
"""

import calendar
import json
import os
import re
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Dict, List, Optional, Tuple  # noqa: UP035 - the machine's Python may be an old one

PERIOD_S = 5.0
"""Seconds between two checks of the machine."""
POLL_S = 0.5
"""Seconds between two polls for the files that slurmd waits for."""
COMMAND_S = 60.0
"""Time-out of a Slurm command."""
SETTLE_S = 60.0
"""Seconds without slurmstepd until a machine is idle: slurmctld may not know the job's end yet."""
PREPARE_S = 300.0
"""Time-out of the program that prepares the machine. Each of its mounts has a shorter one."""
REFUSED_S = 30.0
"""Seconds for which slurmctld may keep a node powering up after its slurmd has started."""
MAX_BYTES = 65536
"""Of an answer of the metadata service."""
GONE = {"POWERED_DOWN", "POWERING_DOWN"}
INTERRUPTION = "meta-data/spot/instance-action"
INSTANCE = "meta-data/instance-id"
REBALANCE = "meta-data/events/recommendations/rebalance"


class Switch:
    """Decides when the machine stops itself. Times are monotonic seconds."""

    def __init__(
        self, timeout: float, max_age: float, now: float, gap: float = 4 * PERIOD_S
    ) -> None:
        self.timeout = timeout
        self.max_age = max_age
        self.settle = min(SETTLE_S, timeout)
        self.gap = gap
        self.last_at = now
        self.busy_at = now
        self.unneeded_s = 0.0

    def reason(self, now: float, age: float, unneeded: str, busy: bool, kept: float = 0) -> str:
        """The reason to stop now, or ''. ``unneeded``: why the machine is not needed ('': it is).
        ``kept``: for how long after the last job files wait for the head.

        A time without checks, for instance while the host was stopped, counts as ``gap`` at most,
        because the machine may have been needed in it.
        """
        step, self.last_at = min(now - self.last_at, self.gap), now
        self.unneeded_s = self.unneeded_s + step if unneeded else 0.0
        if busy:
            self.busy_at = now
        if now - self.busy_at < max(self.settle, kept):
            return ""
        if self.unneeded_s >= self.timeout:
            return "%s, for %.0f s; no job runs" % (unneeded, self.unneeded_s)  # noqa: UP031
        if self.max_age and age >= self.max_age + self.timeout:
            return "%.0f s old, %.0f allowed; no job runs" % (age, self.max_age)  # noqa: UP031
        return ""


class NodeInSlurm:
    """The machine's node in Slurm, by ``scontrol``."""

    def __init__(self, node: str, scontrol: str) -> None:
        self.node = node
        self.scontrol = scontrol
        self.flags = {""}

    def unneeded(self) -> str:
        """Why this machine is not needed; '' if slurmctld needs it. Sets ``flags``, the words of
        the node's state.
        """
        code, text = self.run("show", "node", self.node)
        state = re.search(r"\bState=(\S+)", text)
        self.flags = set()
        if state is None:
            last_line = text.strip().splitlines()[-1:] or ["exit %d" % code]  # noqa: UP031
            return "slurmctld does not know or answer this node: " + last_line[0]
        self.flags = set(re.split(r"[+*~#!%$@^-]+", state.group(1).upper()))
        if self.flags & GONE and "POWERING_UP" not in self.flags:
            return "Slurm has this node powered down"
        return ""

    def update(self, *fields: str) -> bool:
        """Update the node; True if slurmctld accepted it."""
        return self.run("update", "nodename=" + self.node, *fields)[0] == 0

    def run(self, *arguments: str) -> Tuple[int, str]:  # noqa: UP006
        """The exit code and all output of scontrol."""
        return finish([self.scontrol, *arguments], COMMAND_S)


def finish(command: List[str], timeout: float) -> Tuple[int, str]:  # noqa: UP006
    """The exit code and all output of the command; never later than the timeout.

    subprocess.run waits for the killed process, which the kernel may keep (nvidia-smi with a lost
    GPU), and before Python 3.7.5 for its children. Then the dead-man switch would wait, too.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        output = process.communicate(timeout=timeout)[0]
    except OSError as error:
        return 127, str(error)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        threading.Thread(target=process.communicate, daemon=True).start()
        return 124, "no end in %.0f s" % timeout  # noqa: UP031
    return process.returncode, output.decode(errors="replace")


def busy(workdir: str) -> bool:
    """Whether a slurmstepd runs (with ``workdir``: in that directory). If in doubt, True."""
    return any(is_step(pid, workdir) for pid in os.listdir("/proc") if pid.isdigit())


def owes(directory: str = "/var/lib/slurm-elastic-node/owed") -> bool:
    """Whether files of ended jobs are to go back to the head: a job's file there is not empty
    (machine/jobfiles/owed.py).
    """
    return any(path.stat().st_size for path in Path(directory).glob("*"))


def is_step(pid: str, workdir: str) -> bool:
    """Whether the process is the slurmstepd of a job; False if it has ended.

    Users may give their processes any name, and could keep the machine up for ever. So its user and
    the owner of its program must be ours (root's).
    """
    try:
        with open("/proc/%s/comm" % pid) as file:  # noqa: UP031
            if file.read().strip() != "slurmstepd":
                return False
        if real_user(pid) != os.getuid():
            return False
        program = os.readlink("/proc/%s/exe" % pid).replace(" (deleted)", "")  # noqa: UP031
        # Debian's program is slurmstepd-wlm; slurmstepd is a link.
        if "slurmstepd" not in os.path.basename(program):
            return False
        if os.stat("/proc/%s/exe" % pid).st_uid != os.getuid():  # noqa: UP031
            return False
        with open("/proc/%s/cmdline" % pid, "rb") as file:  # noqa: UP031
            # cgroup/v2 keeps a "slurmstepd infinity" as long as slurmd runs.
            if file.read().split(b"\0")[1:2] == [b"infinity"]:
                return False
        cwd = os.readlink("/proc/%s/cwd" % pid) if workdir else ""  # noqa: UP031
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return cwd.replace(" (deleted)", "") == workdir


def real_user(pid: str) -> int:
    """The real uid: slurmstepd sometimes sets its effective uid to the job's user."""
    with open("/proc/%s/status" % pid) as file:  # noqa: UP031
        for line in file:
            if line.startswith("Uid:"):
                return int(line.split()[1])
    raise FileNotFoundError(pid)


class Gate:
    """The site's check of this machine: ``check`` exits 0 if jobs may run here."""

    def __init__(self, settings: Dict[str, str], slurm: NodeInSlurm) -> None:  # noqa: UP006
        self.prepare = settings.get("prepare") or ""
        self.command = settings.get("check") or ""
        self.timeout = float(settings.get("check_timeout") or 60)
        self.generation = settings.get("generation") or ""
        self.slurm = slurm
        self.was_busy = False
        self.undrained = ""

    def failure(self, command: str, timeout: float) -> str:
        """'' if the command succeeds, else its last line."""
        if not command:
            return ""
        code, output = finish(shlex.split(command), timeout)
        if code == 0:
            return ""
        last_line = "".join(output.strip().splitlines()[-1:])
        # Slurm joins reasons by commas.
        text = "".join(c if c.isprintable() else "?" for c in last_line).replace(",", ";")
        return "exit %d: %s" % (code, text[:150])  # noqa: UP031

    def enter(self, reported: str) -> int:
        """Return 0 if slurmd may start. Else report the failure to slurmctld and return 1. Many
        machines try every few seconds: the file ``reported`` has the last report, so it goes once.
        """
        kind = "prepare"
        failure = self.failure(self.prepare, PREPARE_S).replace("exit 1: ", "", 1)
        if not failure:
            kind, failure = "gate", self.failure(self.command, self.timeout)
        if not failure:
            return 0
        report = "slurm-elastic:%s:%s:%s" % (kind, self.generation, failure)  # noqa: UP031
        if content(reported) == report:
            return 1
        say("slurmd does not start, %s: %s" % (kind, failure))  # noqa: UP031
        for _ in range(12):  # slurmctld may be away
            if self.slurm.update("comment=" + report):
                Path(reported).write_text(report)
                break
            time.sleep(PERIOD_S)
        return 1

    def look(self, is_busy: bool) -> None:
        """Check again after the last running job; drain the node if the check fails."""
        if self.was_busy and not is_busy:
            self.undrained = self.failure(self.command, self.timeout)
            if self.undrained:
                say("check failed after a job: " + self.undrained)
        self.was_busy = is_busy
        # Retried in each round: slurmctld may be away.
        if self.undrained and self.slurm.update(
            "state=DRAIN", "reason=slurm-elastic gate: " + self.undrained
        ):
            self.undrained = ""


class Metadata:
    """Reads warnings from a cloud's metadata service. The text for a machine has only the subclass
    of its own cloud's protocol (providers/base/joining.py).
    """

    protocol = ""
    period = PERIOD_S
    headers: Dict[str, str] = {}  # noqa: RUF012, UP006

    def __init__(self, url: str) -> None:
        self.url = url

    def warning(self, now: float) -> str:
        """A warning as ``KIND:TIME:INSTANCE``, or ''. TIME is Unix time (0: unknown) of an
        interruption's deadline or of a rebalance recommendation.
        """
        raise NotImplementedError

    def end(self, action: str, manager: str, *identity: str) -> int:  # noqa: ARG002
        """End this machine by the cloud's API. Returns the exit code. Only Azure needs it."""
        return 2

    def about(self, kind: str, time_: float, path: str) -> str:
        """A warning about the instance whose id is at the path. '' if the id cannot be read now."""
        instance = self.text(path)
        return "%s:%d:%s" % (kind, time_, instance) if instance else ""  # noqa: UP031

    def text(self, path: str) -> str:
        """The text that the service has at the path, or ''."""
        return self.ask(path, "GET", self.headers).strip()

    def get(self, path: str) -> Dict[str, object]:  # noqa: UP006
        """The JSON object at the path, or {}."""
        try:
            value = json.loads(self.text(path) or "{}")
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def ask(self, path: str, method: str, headers: Dict[str, str]) -> str:  # noqa: UP006
        """The answer's text, or '' (404: there is no warning)."""
        # Imported only here: slurmd waits for our start, and this import is most of it.
        import http.client
        import urllib.request

        request = urllib.request.Request(  # noqa: S310
            self.url + path, headers=headers, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=2) as answer:
                return str(answer.read(MAX_BYTES).decode())
        # A broken answer, an HTTPException, must not end the round of the dead-man switch.
        except (OSError, ValueError, http.client.HTTPException):
            return ""


class Ec2Metadata(Metadata):
    """EC2's warnings, by IMDSv2."""

    protocol = "ec2"
    renew_at = 0.0

    def warning(self, now: float) -> str:
        """See Metadata."""
        if now >= self.renew_at:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
            token = self.ask("api/token", "PUT", ttl)
            self.headers = {"X-aws-ec2-metadata-token": token} if token else {}
            self.renew_at = now + (240 if token else 30)
        if not self.headers:
            return ""
        notice = self.get(INTERRUPTION)
        if notice.get("action"):
            return self.about("interruption", unix(notice.get("time")), INSTANCE)
        notice = self.get(REBALANCE)
        if not notice:
            return ""
        return self.about("rebalance", unix(notice.get("noticeTime")), INSTANCE)


class GceMetadata(Metadata):
    """Google's warnings. The id of an instance is its name."""

    protocol = "gce"
    period = 2.0
    headers = {"Metadata-Flavor": "Google"}  # noqa: RUF012
    end_at = 0.0

    def warning(self, now: float) -> str:  # noqa: ARG002
        """See Metadata. Google gives no time, and ends a preempted machine after 30 s."""
        if self.text("instance/preempted") == "TRUE":
            self.end_at = self.end_at or time.time() + 30
            return self.about("interruption", self.end_at, "instance/name")
        if self.text("instance/maintenance-event").startswith("TERMINATE"):
            return self.about("interruption", 0, "instance/name")
        return ""


class AzureMetadata(Metadata):
    """Azure's warnings, by scheduled events. The id of an instance is its name."""

    protocol = "azure"
    period = 2.0
    headers = {"Metadata": "true"}  # noqa: RUF012
    kinds = {  # noqa: RUF012
        "Preempt": "interruption", "Terminate": "interruption", "Reboot": "rebalance",
        "Redeploy": "rebalance", "Freeze": "rebalance",
    }  # fmt: skip

    def __init__(self, url: str) -> None:
        Metadata.__init__(self, url)
        self.times: Dict[str, int] = {}  # noqa: UP006

    def warning(self, now: float) -> str:  # noqa: ARG002
        """See Metadata. Other machines' events are skipped, because all members of a scale set see
        the events of each member. A started event no longer has its time.
        """
        events = self.get("scheduledevents?api-version=2020-07-01").get("Events")
        name_path = "instance/compute/name?api-version=2021-02-01&format=text"
        name = self.text(name_path).lower() if events else ""
        warnings = []
        for event in events if name and isinstance(events, list) else ():
            kind = self.kinds.get(event.get("EventType"))
            if kind and name in [str(each).lower() for each in event.get("Resources") or ()]:
                key = str(event.get("EventId"))
                self.times[key] = unix(event.get("NotBefore")) or self.times.get(key, 0)
                warnings.append("%s:%d" % (kind, self.times[key]))  # noqa: UP031
        # An interruption comes first, also in this order of texts.
        kind, _, event_time = min(warnings, default="").partition(":")
        return self.about(kind, int(event_time), name_path) if kind else ""

    def end(self, action: str, manager: str, *identity: str) -> int:
        """Delete or deallocate this machine by its managed identity, because a machine that only
        shuts down goes on costing. ``manager``: the URL of the resource manager. ``identity``: the
        quoted resource id of the identity. Policies of a site may give the machine others, too.
        """
        import urllib.request

        compute = self.get("instance/compute?api-version=2021-02-01")
        path = "identity/oauth2/token?api-version=2018-02-01&resource=%s/" % manager  # noqa: UP031
        token = self.get("&msi_res_id=".join((path, *identity))).get("access_token")
        if not token or not compute.get("resourceId"):
            say("no managed identity can end this machine, which goes on costing")
            return 1
        url = manager + str(compute["resourceId"])
        url += "?" if action == "delete" else "/deallocate?"
        request = urllib.request.Request(  # noqa: S310
            url + "api-version=2024-07-01",
            headers={"Authorization": "Bearer " + str(token), "Content-Length": "0"},
            method="DELETE" if action == "delete" else "POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=COMMAND_S):  # noqa: S310
                return 0
        # An HTTPError is an OSError, and its text has no part of the token.
        except (OSError, ValueError) as error:
            say("this machine cannot %s itself and goes on costing: %s" % (action, error))  # noqa: UP031
            return 1


def metadata_of(setting: str) -> Optional[Metadata]:  # noqa: UP045
    """The metadata service of the setting ``PROTOCOL URL``. None without one."""
    protocol, _, url = setting.partition(" ")
    for kind in Metadata.__subclasses__():
        if kind.protocol == protocol:
            return kind(url)
    return None


TIMES = ("%Y-%m-%dT%H:%M:%SZ", "%a, %d %b %Y %H:%M:%S GMT")


def unix(text: object) -> int:
    """A time such as ``2017-09-18T08:22:00Z`` or ``Mon, 18 Sep 2017 08:22:00 GMT`` as Unix time; 0
    if it cannot be read.
    """
    for form in TIMES:
        try:
            return calendar.timegm(time.strptime(str(text), form))
        except ValueError:
            pass
    return 0


class Agent:
    """Runs all parts in turn, in one thread; ``watch`` and ``warn`` have threads of their own."""

    def __init__(self, path: str, settings: Dict[str, str]) -> None:  # noqa: UP006
        self.path = path
        self.settings = settings
        self.timeout = float(settings["heartbeat_timeout"])
        # Often enough to get some answers within a short timeout.
        self.period = min(PERIOD_S, self.timeout / 5)
        self.slurm = NodeInSlurm(settings["node"], settings.get("scontrol") or "scontrol")
        max_age = float(settings.get("max_age") or 0)
        gap = max(4 * self.period, COMMAND_S + self.period)
        self.switch = Switch(self.timeout, max_age, time.monotonic(), gap)
        self.metadata = metadata_of(settings.get("metadata") or "")
        self.gate = Gate(settings, self.slurm)
        self.began_at = self.stored("began", "%.0f" % clock())  # noqa: UP031
        self.unneeded = ""
        self.next_look = 0.0
        self.refused_since = 0.0
        self.reported = ""

    def tick(self) -> str:
        """Do one round. Return the reason if the machine was told to stop, else ''."""
        now = time.monotonic()
        if now >= self.next_look:
            self.unneeded = self.slurm.unneeded()
            self.next_look = time.monotonic() + min(30.0, self.timeout / 5)
            self.report_boot(now)
        age = clock() - float(self.began_at)
        is_busy = busy(self.settings.get("workdir", ""))
        self.gate.look(is_busy)
        kept = owes() and float(self.settings.get("owed") or 0)
        # A node of a job of several nodes has a slurmstepd only while a step runs on it.
        is_busy |= bool(self.slurm.flags & {"ALLOCATED", "MIXED"})
        reason = self.switch.reason(time.monotonic(), age, self.unneeded, is_busy, kept)
        if reason:
            say("this machine stops itself: " + reason)
            self.run(shlex.split(self.settings["stop_command"]))
        return reason

    def watch(self) -> None:
        """Try to start slurmd until that succeeds. In its own thread, because scontrol takes
        seconds while the munge key is missing.
        """
        while True:
            try:
                if self.start():
                    return
            except Exception as error:  # noqa: BLE001 - a machine without slurmd is of no use
                say("%s: %s" % (type(error).__name__, error))  # noqa: UP031
                time.sleep(self.period)
            time.sleep(POLL_S)

    def start(self) -> bool:
        """Run ``start_command`` once per boot, after all files of ``key_mark`` exist (the munge key
        is here, the tunnel is up). True if that is done.
        """
        command, marks = self.settings.get("start_command"), self.settings.get("key_mark") or ""
        started = self.path + ".started"
        is_ready = all(os.path.exists(mark) for mark in marks.split())
        if not command or os.path.exists(started):
            return True
        if not is_ready:
            return False
        say("starting slurmd")
        if not self.run(shlex.split(command)):
            # Wait: systemd gives up a unit that is started too often.
            time.sleep(self.period)
            return False
        with open(started, "w"):
            pass
        return True

    def report_boot(self, now: float) -> None:
        """Run ``boot_command`` once per boot if slurmctld keeps the node powering up: slurmctld
        refuses a machine that booted before the node's last power-up request.
        """
        command, settled = self.settings.get("boot_command"), self.path + ".settled"
        if not command or not os.path.exists(self.path + ".started") or os.path.exists(settled):
            return
        # While the node powers up, no job runs on it. Later a restart of slurmd could cost jobs.
        if "POWERING_UP" in self.slurm.flags:
            self.refused_since = self.refused_since or now
            if now - self.refused_since < REFUSED_S:
                return
            say("slurmctld refuses this machine")
            if not self.run(shlex.split(command)):
                return  # the next look tries again
        elif not self.slurm.flags or self.slurm.flags & GONE:
            return
        with open(settled, "w"):
            pass

    def warn(self) -> None:
        """Relay warnings until the machine ends. In its own thread, because they may come half a
        minute before the machine's end, and the other parts may wait a minute for scontrol or the
        check.
        """
        period = min(self.metadata.period if self.metadata else PERIOD_S, self.period)
        while True:
            try:
                self.relay()
            except Exception as error:  # noqa: BLE001 - the next warning may be the last one
                say("%s: %s" % (type(error).__name__, error))  # noqa: UP031
            time.sleep(period)

    def relay(self) -> None:
        """Report each warning to Slurm once; retry until slurmctld accepts it."""
        warning = self.metadata.warning(time.monotonic()) if self.metadata else ""
        if not warning or warning == self.reported:
            return
        if self.slurm.update("comment=slurm-elastic:notice:" + warning):
            say("reported to Slurm: " + warning)
            self.reported = warning

    def run(self, command: List[str]) -> bool:  # noqa: UP006
        """Run a command of the settings. Log a failure and return False; the next round retries."""
        try:
            code = subprocess.call(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            say("%s: %s" % (command, error))  # noqa: UP031
            return False
        if code:
            say("%s: exit %d" % (command, code))  # noqa: UP031
        return code == 0

    def stored(self, name: str, value: str) -> str:
        """The value stored under the name since the boot. If there is none, store ``value``."""
        path = self.path + "." + name
        try:
            return str(float(content(path)))
        except ValueError:
            Path(path).write_text(value)
            return value


def content(path: str) -> str:
    """The text of the file; '' if there is none."""
    return Path(path).read_text() if os.path.exists(path) else ""


def clock() -> float:
    """Seconds since the boot, including the time suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", 7))


def read(path: str) -> Dict[str, str]:  # noqa: UP006
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n").partition("=") for line in file if "=" in line]
    return {key.strip(): value.strip() for key, _, value in lines}


def say(text: str) -> None:
    """Log, printable characters only, because the text may quote other programs."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    sys.stderr.write("slurm-elastic-agent: %s\n" % text)  # noqa: UP031
    sys.stderr.flush()


def main(argv: List[str]) -> int:  # noqa: UP006
    """Run until the machine ends. With ``check``: prepare, check once, and return the exit code.
    With ``end``: end the machine by the cloud's API.
    """
    settings = read(argv[1])
    missing = {"node", "heartbeat_timeout", "stop_command"} - set(settings)
    if missing:
        say("%s lacks %s" % (argv[1], ", ".join(sorted(missing))))  # noqa: UP031
        return 2
    if argv[2:] == ["check"]:
        slurm = NodeInSlurm(settings["node"], settings.get("scontrol") or "scontrol")
        return Gate(settings, slurm).enter(argv[1] + ".reported")
    if argv[2:3] == ["end"]:
        service = metadata_of(settings.get("metadata") or "")
        return service.end(*argv[3:]) if service else 2
    agent = Agent(argv[1], settings)
    for loop in (agent.watch, agent.warn) if agent.metadata else (agent.watch,):
        threading.Thread(target=loop, daemon=True).start()
    while True:
        try:
            agent.tick()
        except Exception as error:  # noqa: BLE001 - a switch that dies is none
            say("%s: %s" % (type(error).__name__, error))  # noqa: UP031
        time.sleep(agent.period)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
