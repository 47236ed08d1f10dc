#!/usr/bin/python3 -I
"""Runs on each cloud machine, beside slurmd, as root: ``agent.py SETTINGS [check]``.

With ``check`` it only runs the site's check, once, before slurmd starts.

It starts slurmd once the munge key is there, and it is the dead-man switch: a machine costs money,
and the head that would end it may be gone. It asks Slurm itself, by ``scontrol show node`` over
munge: the machine is needed as long as slurmctld answers and does not have this node powered down.
So the head needs no further port, and the switch also works if slurmctld runs but the daemon that
ends machines does not: slurmctld then has the node powered down, and nobody ends its machine.
``stop_command`` runs only after ``heartbeat_timeout`` seconds in all of which the agent has seen
that nobody needs the machine, and only while no slurmstepd runs. A restart of slurmctld or of the
network takes far less time. An idle machine that is older than ``max_age`` and another timeout ends
even if it is needed.

The agent passes warnings of EC2's metadata service (IMDSv2) on to the head as the comment of the
Slurm node, which root on the node may set (as health checks set a node's reason): see
ckptman/sources.py.

It uses the standard library only, and any Python from 3.6 on. SETTINGS has ``key=value`` lines,
values to the end of the line, and is read once.
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
from typing import Dict, List, Set, Tuple  # noqa: UP035 - the machine's Python may be an old one

PERIOD = 5.0
"""Seconds between two looks at the machine."""
LOOK = 0.5
"""Seconds between two looks for the files that slurmd waits for."""
ANSWER = 60.0
"""Seconds that a Slurm command may take."""
SETTLE = 60.0
"""Seconds without slurmstepd until a machine is idle: the news of a job's end may be on its way."""
TELLING = 12
"""How often slurmctld is told of a failed check, until it accepts that."""
MOST = 65536
"""Most bytes of an answer of the metadata service."""
GONE = {"POWERED_DOWN", "POWERING_DOWN"}
INTERRUPTION = "meta-data/spot/instance-action"
INSTANCE = "meta-data/instance-id"
REBALANCE = "meta-data/events/recommendations/rebalance"


class Switch:
    """Decides when the machine is to stop; ``now`` is monotonic, all times are in seconds."""

    def __init__(self, timeout: float, max_age: float, now: float, gap: float = 4 * PERIOD) -> None:
        self.timeout = timeout
        self.max_age = max_age
        self.settle = min(SETTLE, timeout)
        self.gap = gap
        self.last = now
        self.busy_at = now
        self.alone = 0.0

    def reason(self, now: float, age: float, unneeded: str, busy: bool) -> str:
        """Why to stop now, '' if not. ``unneeded`` is why nobody needs the machine ('': needed).

        Time in which nobody looked, for instance because the host had stopped the machine, counts
        as ``gap`` at most: somebody may have needed the machine meanwhile.
        """
        step, self.last = min(now - self.last, self.gap), now
        self.alone = self.alone + step if unneeded else 0.0
        if busy:
            self.busy_at = now
        if now - self.busy_at < self.settle:
            return ""
        if self.alone >= self.timeout:
            return "%s, for %.0f s; no job runs" % (unneeded, self.alone)  # noqa: UP031
        if self.max_age and age >= self.max_age + self.timeout:
            return "%.0f s old, %.0f are allowed; no job runs" % (age, self.max_age)  # noqa: UP031
        return ""


class Slurm:
    """The machine's node in Slurm, by ``scontrol``."""

    def __init__(self, node: str, scontrol: str) -> None:
        self.node = node
        self.scontrol = scontrol

    def unneeded(self) -> str:
        """Why nobody needs this machine; '' if slurmctld does."""
        code, text = self.run("show", "node", self.node)
        found = re.search(r"\bState=(\S+)", text)
        if found is None:
            said = text.strip().splitlines()[-1:] or ["exit %d" % code]  # noqa: UP031
            return "slurmctld does not know or answer this node: " + said[0]
        words = set(re.split(r"[+*~#!%$@^-]+", found.group(1).upper()))
        if words & GONE and "POWERING_UP" not in words:
            return "Slurm has this node powered down"
        return ""

    def tell(self, comment: str) -> bool:
        """Put a comment on the node; whether slurmctld has accepted it."""
        return self.run("update", "nodename=" + self.node, "comment=" + comment)[0] == 0

    def run(self, *words: str) -> Tuple[int, str]:  # noqa: UP006
        """The exit code and all output of an scontrol."""
        try:
            done = subprocess.run(
                [self.scontrol, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=ANSWER,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, "no answer in %.0f s" % ANSWER  # noqa: UP031
        except OSError as error:
            return 127, str(error)
        return done.returncode, done.stdout.decode(errors="replace")


def busy(workdir: str) -> bool:
    """Whether a slurmstepd runs (with ``workdir``: one in that directory). If in doubt, yes."""
    try:
        pids = [entry for entry in os.listdir("/proc") if entry.isdigit()]
    except OSError:
        return True
    return any(is_step(pid, workdir) for pid in pids)


def is_step(pid: str, workdir: str) -> bool:
    """Whether the process is the slurmstepd of a job. If it ends meanwhile, it is not.

    Users may give their processes any name, and could keep the machine up for ever. So the process
    has to be of our own user (root, as slurmd is) and run a program of that name that is ours, too.
    """
    try:
        with open("/proc/%s/comm" % pid) as file:  # noqa: UP031
            if file.read().strip() != "slurmstepd":
                return False
        if real_user(pid) != os.getuid():
            return False
        program = os.readlink("/proc/%s/exe" % pid).replace(" (deleted)", "")  # noqa: UP031
        # Debian's is slurmstepd-wlm, by a link of that name.
        if "slurmstepd" not in os.path.basename(program):
            return False
        if os.stat("/proc/%s/exe" % pid).st_uid != os.getuid():  # noqa: UP031
            return False
        with open("/proc/%s/cmdline" % pid, "rb") as file:  # noqa: UP031
            # cgroup/v2 keeps a "slurmstepd infinity" as long as slurmd runs.
            if file.read().split(b"\0")[1:2] == [b"infinity"]:
                return False
        where = os.readlink("/proc/%s/cwd" % pid) if workdir else ""  # noqa: UP031
    except (FileNotFoundError, ProcessLookupError):
        return False
    except OSError:
        return True
    return where.replace(" (deleted)", "") == workdir


def real_user(pid: str) -> int:
    """The process' real uid, as slurmstepd sometimes sets its effective one to the job's user."""
    with open("/proc/%s/status" % pid) as file:  # noqa: UP031
        for line in file:
            if line.startswith("Uid:"):
                return int(line.split()[1])
    raise FileNotFoundError(pid)


class Gate:
    """The site's own check of this machine: ``check`` exits 0 if jobs may run here."""

    def __init__(self, settings: Dict[str, str], slurm: Slurm) -> None:  # noqa: UP006
        self.command = settings.get("check") or ""
        self.timeout = float(settings.get("check_timeout") or 60)
        self.generation = settings.get("generation") or ""
        self.slurm = slurm
        self.was_busy = False

    def wrong(self) -> str:
        """The check's last line if it fails, '' if it does not."""
        if not self.command:
            return ""
        try:
            done = subprocess.run(
                shlex.split(self.command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=self.timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return "no end in %.0f s" % self.timeout  # noqa: UP031
        except (OSError, ValueError) as error:
            return str(error)
        if done.returncode == 0:
            return ""
        said = done.stdout.decode(errors="replace").strip().splitlines()[-1:]
        # Slurm separates reasons that it joins by commas.
        words = "".join(c if c.isprintable() else "?" for c in "".join(said)).replace(",", ";")
        return "exit %d: %s" % (done.returncode, words[:150])  # noqa: UP031

    def enter(self) -> int:
        """Before slurmd starts: 0, or 1 if it must not start; slurmctld is told why."""
        words = self.wrong()
        if not words:
            return 0
        say("the check fails, slurmd does not start: " + words)
        for _ in range(TELLING):
            if self.slurm.tell("slurm-elastic:gate:%s:%s" % (self.generation, words)):  # noqa: UP031
                break
            time.sleep(PERIOD)
        return 1

    def look(self, is_busy: bool) -> None:
        """Check again when the last running job has ended; if that fails, no other
        job comes here.
        """
        ended, self.was_busy = self.was_busy and not is_busy, is_busy
        words = self.wrong() if ended else ""
        if words:
            say("the check fails after a job: " + words)
            reason = "slurm-elastic gate: " + words
            self.slurm.run(
                "update", "nodename=" + self.slurm.node, "state=DRAIN", "reason=" + reason
            )


class Metadata:
    """EC2's warnings, by IMDSv2."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.token = ""
        self.renew = 0.0

    def warning(self, now: float) -> str:
        """``KIND:TIME:INSTANCE`` of a warning, '' if there is none. TIME is Unix time (0 if
        unknown): an interruption's deadline, or when a rebalance recommendation was given.
        """
        if now >= self.renew:
            self.token = self.ask("api/token", "PUT", "X-aws-ec2-metadata-token-ttl-seconds", "300")
            self.renew = now + (240 if self.token else 30)
        if not self.token:
            return ""
        said = self.get(INTERRUPTION)
        if said.get("action"):
            return "interruption:%d:%s" % (unix(said.get("time")), self.text(INSTANCE))  # noqa: UP031
        said = self.get(REBALANCE)
        if not said:
            return ""
        return "rebalance:%d:%s" % (unix(said.get("noticeTime")), self.text(INSTANCE))  # noqa: UP031

    def text(self, path: str) -> str:
        """The text at that path; '' if there is none."""
        return self.ask(path, "GET", "X-aws-ec2-metadata-token", self.token)

    def get(self, path: str) -> Dict[str, object]:  # noqa: UP006
        """The JSON object at that path; an empty one if there is none."""
        try:
            said = json.loads(self.text(path) or "{}")
        except ValueError:
            return {}
        return said if isinstance(said, dict) else {}

    def ask(self, path: str, method: str, header: str, value: str) -> str:
        """The answer's text; '' if there is none (404: there is no warning)."""
        # Imported only here: it takes longer than the rest of our start, which slurmd waits for.
        import urllib.request

        request = urllib.request.Request(  # noqa: S310
            self.url + path, headers={header: value}, method=method
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=2) as answer:
                return str(answer.read(MOST).decode())
        except (OSError, ValueError):
            return ""


def unix(text: object) -> int:
    """``2017-09-18T08:22:00Z`` as Unix time; 0 if it cannot be read."""
    try:
        return calendar.timegm(time.strptime(str(text), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return 0


class Agent:
    """All of it together, one look after the other."""

    def __init__(self, path: str, settings: Dict[str, str]) -> None:  # noqa: UP006
        self.path = path
        self.settings = settings
        self.timeout = float(settings["heartbeat_timeout"])
        # Often enough to get some answers within a short timeout.
        self.period = min(PERIOD, self.timeout / 5)
        self.slurm = Slurm(settings["node"], settings.get("scontrol") or "scontrol")
        max_age = float(settings.get("max_age") or 0)
        gap = max(4 * self.period, ANSWER + self.period)
        self.switch = Switch(self.timeout, max_age, time.monotonic(), gap)
        self.metadata = Metadata(settings["metadata"]) if settings.get("metadata") else None
        self.gate = Gate(settings, self.slurm)
        self.began = self.first("began", "%.0f" % clock())  # noqa: UP031
        self.unneeded = ""
        self.next_look = 0.0
        self.told = ""

    def tick(self) -> str:
        """One look; why the machine was told to stop, '' if it was not."""
        self.relay()
        now = time.monotonic()
        if now >= self.next_look:
            self.unneeded = self.slurm.unneeded()
            self.next_look = time.monotonic() + min(30.0, self.timeout / 5)
        age = clock() - float(self.began)
        is_busy = busy(self.settings.get("workdir", ""))
        self.gate.look(is_busy)
        why = self.switch.reason(time.monotonic(), age, self.unneeded, is_busy)
        if why:
            say("this machine stops itself: " + why)
            self.run(shlex.split(self.settings["stop_command"]))
        return why

    def watch(self) -> None:
        """Try until slurmd was started. This has a thread of its own, as each scontrol takes
        seconds while the munge key is missing.
        """
        while True:
            try:
                if self.start():
                    return
            except Exception as error:  # noqa: BLE001 - a machine without slurmd is of no use
                say("%s: %s" % (type(error).__name__, error))  # noqa: UP031
                time.sleep(self.period)
            time.sleep(LOOK)

    def start(self) -> bool:
        """Run ``start_command`` until it succeeds once in a boot, as soon as all files of
        ``key_mark`` exist: the munge key has come, the tunnel is up. Whether that is done.
        """
        command, marks = self.settings.get("start_command"), self.settings.get("key_mark") or ""
        done = self.path + ".started"
        there = all(os.path.exists(mark) for mark in marks.split())
        if not command or os.path.exists(done):
            return True
        if not there:
            return False
        say("starting slurmd")
        if not self.run(shlex.split(command)):
            # Not at once: systemd stops trying a unit that is started too often.
            time.sleep(self.period)
            return False
        with open(done, "w"):
            pass
        return True

    def relay(self) -> None:
        """Tell Slurm of each warning once; try again until slurmctld has accepted it."""
        said = self.metadata.warning(time.monotonic()) if self.metadata else ""
        if not said or said == self.told:
            return
        if self.slurm.tell("slurm-elastic:notice:" + said):
            say("told Slurm of " + said)
            self.told = said

    def run(self, command: List[str]) -> bool:  # noqa: UP006
        """Run a command of the settings. If it fails we say so and return False; the next look
        tries again.
        """
        try:
            code = subprocess.call(command, stdin=subprocess.DEVNULL)
        except OSError as error:
            say("%s: %s" % (command, error))  # noqa: UP031
            return False
        if code:
            say("%s: exit %d" % (command, code))  # noqa: UP031
        return code == 0

    def first(self, name: str, value: str) -> str:
        """The value that was kept under that name since the boot; if there is none,
        keep ``value``.
        """
        path = self.path + "." + name
        try:
            with open(path) as file:
                return str(float(file.read()))
        except (OSError, ValueError):
            with open(path, "w") as file:
                file.write(value)
            return value


def clock() -> float:
    """Seconds since the boot, including those in which the machine was suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", 7))


def read(path: str) -> Dict[str, str]:  # noqa: UP006
    with open(path, encoding="utf-8") as file:
        lines = [line.rstrip("\n").partition("=") for line in file if "=" in line]
    return {key.strip(): value.strip() for key, _, value in lines}


def say(text: str) -> None:
    """Write to the journal, in printable characters only, as it may quote others."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    sys.stderr.write("slurm-elastic-agent: %s\n" % text)  # noqa: UP031
    sys.stderr.flush()


def main(argv: List[str]) -> int:  # noqa: UP006
    """For ever: the machine ends, not the agent."""
    settings = read(argv[1])
    missing: Set[str] = {"node", "heartbeat_timeout", "stop_command"} - set(settings)  # noqa: UP006
    if missing:
        say("%s lacks %s" % (argv[1], ", ".join(sorted(missing))))  # noqa: UP031
        return 2
    if argv[2:] == ["check"]:
        slurm = Slurm(settings["node"], settings.get("scontrol") or "scontrol")
        return Gate(settings, slurm).enter()
    agent = Agent(argv[1], settings)
    threading.Thread(target=agent.watch, daemon=True).start()
    while True:
        try:
            agent.tick()
        except Exception as error:  # noqa: BLE001 - a switch that dies is none
            say("%s: %s" % (type(error).__name__, error))  # noqa: UP031
        time.sleep(agent.period)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
