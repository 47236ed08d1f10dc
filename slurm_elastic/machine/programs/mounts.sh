#!/bin/sh
# slurm-elastic: mounts the directories of join.mounts by NFS 4, before slurmd starts. A line is PATH
# SOURCE OPTIONS REQUIRED. Exit 1 if a required directory is missing; the last line says why. The
# agent runs this again until it succeeds or the machine ends.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
set -fu
shown=/run/slurm-elastic/mounts.shown

# On the console, once: after the machine has ended, the console is what people can still read.
show() {
  echo "$1"
  ! grep -qxF "$1" "$shown" 2>/dev/null || return 0
  echo "$1" >>"$shown"
  echo "slurm-elastic: $1" >/dev/console 2>/dev/null || :
}

# The type of the file system that is mounted at a path; the last mount is the visible one.
type_at() {
  type=
  while read -r _ place kind _; do
    [ "$place" != "$1" ] || type=$kind
  done </proc/self/mounts
}

# Print why a directory cannot be mounted; nothing if it is mounted.
mounted() {
  type_at "$1"
  case $type in
    nfs4) return ;;
    ?*) echo "$type is mounted there already" && return ;;
  esac
  command -v mount.nfs4 >/dev/null || { echo "the image has no mount.nfs4 (nfs-common)" && return; }
  mkdir -p "$1" 2>&1 || return
  # retry=0: one try, whose failure is reported; the agent tries again.
  error=$(timeout -k 5 45 mount -t nfs4 -o "$3,retry=0" "$2" "$1" 2>&1 </dev/null) && return
  case $? in 124 | 137) error="no answer in 45 s" ;; esac
  error=${error#mount.nfs4: }
  echo "${error%%
*}"
}

while read -r path source options required; do
  reason=$(mounted "$path" "$source" "$options")
  [ -n "$reason" ] || continue
  if [ "$required" = no ]; then
    show "jobs run without $path of $source: $reason"
  else
    show "cannot mount $source at $path: $reason"
    exit 1
  fi
done <<'SLURM_ELASTIC_LINES'
@{mounts}
SLURM_ELASTIC_LINES
