#!/bin/sh
# slurm-elastic: has slurmd run slurm-elastic-wipe after each job. slurm.conf is the same on all nodes,
# so its Epilog is a program that all nodes have. Here, and only here, more is at its place. If that
# fails, the machine joins without the wipe and says so on the console: each of its successors would
# fail in the same way, and each would cost money.
PATH=/usr/sbin:/usr/bin:/sbin:/bin
set -u
wipe=/usr/local/sbin/slurm-elastic-wipe both=/usr/local/sbin/slurm-elastic-epilog
site='@{site_epilog}'

skip() {
  echo "join.wipe does nothing on this machine: $1"
  echo "slurm-elastic: join.wipe does nothing on this machine: $1" >/dev/console 2>/dev/null || :
  exit 0
}

if [ -z "$site" ]; then
  # `conf install` has set a pattern that fits /usr/bin/true and this (slurm/conf/fragment.py).
  mkdir -p /var/bin && ln -sfn "$wipe" /var/bin/true && exit
  skip "/var/bin/true cannot be made"
fi
# A pattern stands for several programs, which slurmd runs one after the other: take the first.
set -- $site
[ -x "$1" ] || skip "the Epilog of slurm.conf, $site, is not on this machine"
real=$(readlink -f "$1")
! grep -q "^# slurm-elastic-epilog$" "$real" || exit 0
# The program itself may be on a shared file system. A mount over it changes this machine only.
own=/run/slurm-elastic/site-epilog
mkdir -p "$own"
mount --bind "${real%/*}" "$own" || skip "${real%/*} cannot be mounted at $own"
cat >"$both" <<END
#!/bin/sh
# slurm-elastic-epilog
status=0
"$own/${real##*/}" "\$@" || status=\$?
"$wipe" || status=\$?
exit \$status
END
chmod 755 "$both"
mount --bind "$both" "$real" || skip "$both cannot be mounted over $real"
