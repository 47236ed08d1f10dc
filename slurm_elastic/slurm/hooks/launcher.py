"""The lines before a batch script that start it so that it can be saved, for each checkpoint
method.

The launcher never keeps a job from running: if the node cannot save the job, or refuses, the script
runs without it. A restarted job that has images first waits for another node. sudo passes on the
standard streams and signals.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

MARK = "#__SLURM_ELASTIC_SCRIPT__"
"""The line between launcher and script."""
RANDOM_DIGITS = "@TOKEN@"
"""The submit filter writes random digits in place of this. Slurm keeps the script over requeues, so
the digits distinguish a job from a later job with its number (``machine/ckptroot/identity.py``).
"""
UNFIT_S = 6 * 3600
"""Seconds for which a job with images waits for another node. Without a report, ckptman requeues it
only after the time in which its image could be read, however large it is: it looks at a run for as
long (``ckptman/unfit_nodes.py``).
"""
_PAUSE_S = 15
PROGRAM = "/usr/local/sbin/slurm-elastic-ckpt-root"

# A restarted job may have images. On a machine that has just booted, the directory service may not
# answer yet, and sudo and the root part need the user's name: the job would start over.
# On a node without the root part, or with a root part that refuses, the script would start over and
# truncate its output, although other nodes can use the images. ckptman requeues such a job
# (ckptman/unfit_nodes.py). Users may pass through the job's directory, and a directory of images
# has more links than the two of an empty one. A file system that counts no links says 1.
# bash -p passes the environment on unchanged and reads no BASH_ENV. dash would drop exported
# functions.
_SUDO = """\
#!/bin/bash -p
# slurm-elastic: the job's own script follows below the mark. This part lets it be checkpointed.
# job {digits}
p={program}
se_tries=0
while [ -z "$SLURM_ELASTIC_PLAIN" ] && [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ -x "$p" ] &&
    [ $se_tries -lt 60 ] && ! /usr/bin/id -un >/dev/null 2>&1
do
    se_tries=$((se_tries + 1))
    /bin/sleep 5
done
se_tries=0 se_images={directory}/$SLURM_CLUSTER_NAME/$SLURM_JOB_ID/images
while :; do
    if [ -z "$SLURM_ELASTIC_PLAIN" ] &&
        /usr/bin/sudo -n "$p" ready {method} </dev/null >/dev/null 2>&1
    then
        unset se_tries se_images se_links
        exec /usr/bin/sudo -n "$p" run {method} "$(umask)" "$0" "$@"
    fi
    [ "${{SLURM_RESTART_COUNT:-0}}" -gt 0 ] && [ $se_tries -lt {tries} ] || break
    se_links=$(/usr/bin/stat -c %h "$se_images" 2>/dev/null) && [ "$se_links" != 2 ] || break
    [ $se_tries -gt 0 ] || echo "slurm-elastic: this node cannot continue the job from its image:" \
        "the job waits up to 6 hours for another node" >&2
    se_tries=$((se_tries + 1))
    /bin/sleep {pause}
done
unset se_tries se_images se_links
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

# A deleted file keeps its content while it is open, so nothing stays in the directory. Nodes may
# forbid programs in /tmp (noexec), users may fill it: so try the other directories too. If all
# forbid programs, give the script to its interpreter, as the kernel would do.
_PLAIN = """\
unset SLURM_ELASTIC_PLAIN p se_how
for se_place in "${{TMPDIR:-/tmp}}" /tmp /dev/shm /var/tmp "${{HOME:-/tmp}}"; do
    se_file=$(/usr/bin/mktemp -p "$se_place" 2>/dev/null) || continue
    if /bin/sed '1,/^{mark}$/d' "$0" 2>/dev/null >"$se_file" && /bin/chmod 500 "$se_file" &&
        exec 9<"$se_file"
    then
        se_line=$(/bin/sed 's/^#![[:blank:]]*//; s/[[:blank:]]*$//
            s/[[:blank:]][[:blank:]]*/ /; q' <&9)
        se_how=interpreter
        [ -x "$se_file" ] && se_how=program
    fi
    /bin/rm -f "$se_file"
    [ "$se_how" = program ] && break
done
set -- /dev/fd/9 "$@"
if [ "$se_how" = interpreter ]; then
    case $se_line in
    *' '*) set -- "${{se_line%% *}}" "${{se_line#* }}" "$@" ;;
    *) set -- "$se_line" "$@" ;;
    esac
fi
if [ -n "$se_how" ]; then
    unset se_place se_file se_line se_how
    exec {run}"$@"
fi
echo "slurm-elastic: no directory for the job's script: /tmp, /dev/shm, /var/tmp, HOME" >&2
exit 126
{mark}
"""


def launchers(directory: str, program: str = PROGRAM) -> Mapping[str, str]:
    """The text before the script by method. ``directory`` is ``checkpoint.directory``."""
    plain = _PLAIN.format(mark=MARK, run="")
    sudo = {
        method: _SUDO.format(
            program=program, digits=RANDOM_DIGITS, method=method, directory=shlex.quote(directory),
            tries=round(UNFIT_S / _PAUSE_S), pause=_PAUSE_S,
        )
        for method in ("criu", "dmtcp")
    }  # fmt: skip
    return {
        **{method: text + plain for method, text in sudo.items()},
        "blcr": _BLCR.format(directory=directory)
        + _PLAIN.format(mark=MARK, run="$SLURM_ELASTIC_RUN "),
    }
