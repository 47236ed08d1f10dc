"""The lines before a batch script that start it so that it can be saved, for each checkpoint
method.

The launcher never keeps a job from running: if the node cannot save the job, or refuses, the script
runs without it. sudo passes on the standard streams and signals.
"""

from __future__ import annotations

from collections.abc import Mapping

MARK = "#__SLURM_ELASTIC_SCRIPT__"
"""The line between launcher and script."""
RANDOM_DIGITS = "@TOKEN@"
"""In place of this the submit filter writes random digits. Slurm keeps the script over requeues, so
the digits tell a job from a later one that gets its number (``machine/ckptroot/identity.py``).
"""
PROGRAM = "/usr/local/sbin/slurm-elastic-ckpt-root"

# bash -p passes the environment on unchanged and reads no BASH_ENV. dash would drop exported
# functions.
_SUDO = """\
#!/bin/bash -p
# slurm-elastic: the job's own script follows below the mark. This part lets it be checkpointed.
# job {digits}
p={program}
if [ -z "$SLURM_ELASTIC_PLAIN" ] && /usr/bin/sudo -n "$p" ready {method} </dev/null >/dev/null 2>&1
then
    exec /usr/bin/sudo -n "$p" run {method} "$(umask)" "$0" "$@"
fi
"""

_BLCR = """\
#!/bin/bash -p
# slurm-elastic: the job's own script follows below the mark. This part lets it be checkpointed.
d={directory}/blcr/$SLURM_JOB_ID
if [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ -O "$d" ] && [ -s "$d/last" ]; then
    n=$(/bin/cat "$d/last") s=$(/usr/bin/sha256sum <"$d/$n")
    if [ -O "$d/$n" ] && [ "${{s%% *}}" = "$(/bin/cat "$d/$n.sum")" ]; then
        exec cr_restart "$d/$n"
    fi
fi
SLURM_ELASTIC_RUN=$(command -v cr_run)
"""

# A deleted file keeps its content while it is open, so nothing stays in the temporary directory.
_PLAIN = """\
unset SLURM_ELASTIC_PLAIN p
f=$(/usr/bin/mktemp) && /bin/sed '1,/^{mark}$/d' "$0" >"$f" && /bin/chmod 500 "$f" &&
    exec 9<"$f" && /bin/rm -f "$f" && unset f && exec {run}/dev/fd/9 "$@"
exit 126
{mark}
"""


def launchers(directory: str, program: str = PROGRAM) -> Mapping[str, str]:
    """The text before the script by method. ``directory`` is ``checkpoint.directory``."""
    plain = _PLAIN.format(mark=MARK, run="")
    return {
        "criu": _SUDO.format(program=program, digits=RANDOM_DIGITS, method="criu") + plain,
        "dmtcp": _SUDO.format(program=program, digits=RANDOM_DIGITS, method="dmtcp") + plain,
        "blcr": _BLCR.format(directory=directory)
        + _PLAIN.format(mark=MARK, run="$SLURM_ELASTIC_RUN "),
    }
