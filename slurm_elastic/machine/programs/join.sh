#!/bin/sh
# slurm-elastic: makes this machine the Slurm node whose name is in /run/slurm-elastic/node: slurmd
# with the configuration of the head, and the agent that ends the machine when nobody needs it.
# A site's own text (join.template) replaces all of it; docs/joining.md has the placeholders.
set -u
umask 022
dir=/run/slurm-elastic
mkdir -p "$dir" /etc/slurm
# An image may have both cloud-init and one-context, which both run this.
mkdir "$dir/joined" 2>/dev/null || exit 0
node=
read -r node <"$dir/node" || [ -n "$node" ] || exit 1
max_age= generation= stopped=
. "$dir/launch"
# cloud-init runs a script of user data once in a machine's life; this is for its next boots.
again=/var/lib/cloud/scripts/per-boot
if [ -d "$again" ] && [ -f "$0" ] && [ "$0" != "$again/slurm-elastic-join" ]; then
  install -m 700 "$0" "$again/slurm-elastic-join"
fi
# Jobs may read neither this machine's user data nor its role's credentials: only root may.
shut_metadata() {
  if command -v nft >/dev/null 2>&1; then
    nft -f - <<'END' && return
table inet slurm_elastic
delete table inet slurm_elastic
table inet slurm_elastic {
  chain output {
    type filter hook output priority 0;
    meta skuid != 0 ip daddr 169.254.169.254 meta l4proto tcp reject with tcp reset
    meta skuid != 0 ip6 daddr { fd00:ec2::254, fe80::a9fe:a9fe } meta l4proto tcp reject with tcp reset
  }
  chain forward {
    type filter hook forward priority 0;
    ip daddr 169.254.169.254 meta l4proto tcp reject with tcp reset
    ip6 daddr { fd00:ec2::254, fe80::a9fe:a9fe } meta l4proto tcp reject with tcp reset
  }
}
END
  fi
  for at in 169.254.169.254 fd00:ec2::254 fe80::a9fe:a9fe; do
    tool=iptables
    case $at in *:*) [ -e /proc/net/if_inet6 ] || continue && tool=ip6tables ;; esac
    for way in "OUTPUT -m owner --socket-exists ! --uid-owner 0" FORWARD; do
      rule="$way -p tcp -d $at -j REJECT --reject-with tcp-reset"
      $tool -w 10 -C $rule 2>/dev/null || $tool -w 10 -I $rule || return
    done
  done
}
if [ -z "@{open_metadata}" ] && ! shut_metadata; then
  echo "slurm-elastic: the metadata service is OPEN to jobs: neither nft nor iptables works" |
    tee /dev/console >&2
fi
# Whether a file has more than an empty line. A boot waits for this program: it starts few others.
filled() {
  read -r first <"$1" && [ -n "$first" ]
}
# The tunnel to the head, where there is one; slurmd starts when it is up. It begins before what may take seconds.
cat >"$dir/tunnel.json" <<'SLURM_ELASTIC_TUNNEL'
@{tunnel_settings}
SLURM_ELASTIC_TUNNEL
if filled "$dir/tunnel.json"; then
  cat >"$dir/tunnel.py" <<'SLURM_ELASTIC_TUNNEL'
@{tunnel}
SLURM_ELASTIC_TUNNEL
  set -- /usr/bin/env python3 -I "$dir/tunnel.py" "$dir/tunnel.json" "$dir/launch"
  if [ -d /run/systemd/system ]; then
    systemd-run --quiet --unit=slurm-elastic-tunnel --property=Restart=always \
      --property=RestartSec=2 --property=KillMode=process "$@"
  else
    setsid "$@" >"$dir/tunnel.log" 2>&1 </dev/null &
  fi
fi

# hostnamectl has a service start: only where the name is another.
read -r name </proc/sys/kernel/hostname
[ "$name" = "$node" ] || hostnamectl set-hostname "$node" 2>/dev/null || hostname "$node"
# sudo and others ask for it: where no name server knows it or answers, that takes half a minute.
if ! timeout 3 getent hosts "$node" >/dev/null 2>&1; then
  set -- $(hostname -I)
  echo "${1:-127.0.1.1} $node" >>/etc/hosts
fi

cat >"$dir/agent.py" <<'SLURM_ELASTIC_AGENT'
@{agent}
SLURM_ELASTIC_AGENT

cat >"$dir/agent" <<'SLURM_ELASTIC_SETTINGS'
heartbeat_timeout=@{heartbeat_timeout}
stop_command=@{stop_command}
metadata=@{metadata}
key_mark=@{key_mark}
check=@{check}
check_timeout=@{check_timeout}
SLURM_ELASTIC_SETTINGS
printf '%s=%s\n' node "$node" max_age "$max_age" generation "$generation" \
  start_command "/bin/sh $dir/start" >>"$dir/agent"

# The site's Epilog runs this where it is there.
cat >"$dir/wipe" <<'SLURM_ELASTIC_WIPE'
@{wipe}
SLURM_ELASTIC_WIPE
! filled "$dir/wipe" || install -m 755 "$dir/wipe" /usr/local/sbin/slurm-elastic-wipe

# By this, later boots of a machine that may be stopped do without cloud-init.
cat >"$dir/again.sh" <<'SLURM_ELASTIC_AGAIN'
@{later_boots}
SLURM_ELASTIC_AGAIN

# What slurmd's unit and Debian's /etc/default/slurmd call it.
echo "SLURMD_OPTIONS=-b -N $node --conf-server @{head}" >"$dir/slurmd"

# Slurm goes by keys of its own (auth/slurm) where they are, else by munge.
keys="[ -e /etc/slurm/slurm.jwks ] || [ -e /etc/slurm/slurm.key ]"
check=:
grep -q '^check=.' "$dir/agent" && check="/usr/bin/env python3 -I $dir/agent.py $dir/agent check"
# Keys of an earlier boot are there before munged begins: slurmd waits neither for another one nor for the agent.
known="@{key_mark}" munge=start
[ -n "$known" ] || munge=restart
for mark in $known; do
  [ -e "$mark" ] || munge=restart
done
if [ -d /run/systemd/system ]; then
  drop_in=/run/systemd/system/slurmd.service.d
  mkdir -p "$drop_in"
  printf '[Unit]\nConditionPathExists=\n[Service]\nEnvironmentFile=-%s/slurmd\n' "$dir" \
    >"$drop_in/slurm-elastic.conf"
  joined=
  if [ -n "$stopped" ] && [ -e "$again/slurm-elastic-join" ] && filled "$dir/again.sh"; then
    sh "$dir/again.sh" install && joined="&& systemctl --no-block start slurm-elastic-keep.service"
  fi
  # A reload has all generators run again; a slurmd that systemd has not looked at needs none.
  systemctl show --property=DropInPaths --value slurmd.service | grep -q "$drop_in/" ||
    systemctl daemon-reload
  cat >"$dir/start" <<END
$keys || systemctl $munge munge.service || exit
$check && systemctl restart slurmd.service $joined
END
  if [ "$munge" = start ] && [ "$check" = : ]; then
    timeout 60 sh "$dir/start" && : >"$dir/agent.started"
  fi
  if [ -e /etc/systemd/system/slurm-elastic-agent.service ]; then
    systemctl --no-block start slurm-elastic-agent.service
  else
    systemd-run --quiet --unit=slurm-elastic-agent --property=Restart=always \
      --property=RestartSec=10 /usr/bin/env python3 -I "$dir/agent.py" "$dir/agent"
  fi
else
  cat >"$dir/start" <<END
if ! { $keys; }; then
  pkill -x munged && sleep 1
  mkdir -p -m 755 /run/munge && chown munge:munge /run/munge
  setpriv --reuid=munge --regid=munge --clear-groups munged --force
fi
mkdir -p /run/slurm
$check || exit
slurmd -b -N $node --conf-server @{head}
END
  setsid python3 -I "$dir/agent.py" "$dir/agent" >"$dir/agent.log" 2>&1 </dev/null &
fi
