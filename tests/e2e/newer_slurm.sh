#!/bin/sh
# newer_slurm.sh OPT RELEASE COMMAND...: run it where OPT/RELEASE is the Slurm that is installed, for it alone.
# Started by unshare --mount: this machine's own directories stay as they are.
set -e
opt=$1 prefix=/opt/$2
shift 2
lay() { mount -t overlay overlay -o "lowerdir=$1:$2" "$2"; }
lay "$opt" /opt
lay "$prefix/bin" /usr/bin
lay "$prefix/sbin" /usr/sbin
mount --bind "$prefix/lib/slurm" "$(dirname "$(find /usr/lib/*/slurm-wlm/libslurmfull.so)")"
exec "$@"
