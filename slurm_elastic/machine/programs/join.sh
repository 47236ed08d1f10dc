#!/bin/sh
# slurm-elastic: makes this machine the Slurm node whose name is in /run/slurm-elastic/node. Starts
# slurmd with the head's configuration, and the agent that ends the machine when it is not needed.
# A site's own text (join.template) replaces this file; docs/joining.md has the placeholders.
set -u
umask 022
dir=/run/slurm-elastic
mkdir -p "$dir" /etc/slurm
# An image may have both cloud-init and one-context, and both run this: only the first continues.
mkdir "$dir/joined" 2>/dev/null || exit 0
node=
read -r node <"$dir/node" || [ -n "$node" ] || exit 1
max_age= generation= stopped=
. "$dir/launch"
# cloud-init runs a user-data script once in a machine's life. The copy runs at its next boots.
again=/var/lib/cloud/scripts/per-boot
if [ -d "$again" ] && [ -f "$0" ] && [ "$0" != "$again/slurm-elastic-join" ]; then
  install -m 700 "$0" "$again/slurm-elastic-join"
fi
# Only root may read this machine's user data and its role's credentials, jobs may not. UDP stays
# open: some clouds answer DNS, DHCP and NTP at these addresses.
shut_metadata() {
  if command -v nft >/dev/null 2>&1; then
    nft -f - <<'END' && return
table inet slurm_elastic
delete table inet slurm_elastic
table inet slurm_elastic {
  chain metadata {
@{metadata_rules}
  }
  chain output {
    type filter hook output priority 0;
    meta skuid != 0 jump metadata
  }
  chain forward {
    type filter hook forward priority 0;
    jump metadata
  }
}
END
  fi
  for ip in @{metadata_addresses}; do
    tool=iptables
    case $ip in *:*) [ -e /proc/net/if_inet6 ] || continue && tool=ip6tables ;; esac
    for chain in "OUTPUT -m owner --socket-exists ! --uid-owner 0" FORWARD; do
      rule="$chain -p tcp -d $ip @{metadata_ports} -j REJECT --reject-with tcp-reset"
      $tool -w 10 -C $rule 2>/dev/null || $tool -w 10 -I $rule || return
    done
  done
}
if [ -z "@{open_metadata}" ] && ! shut_metadata; then
  echo "slurm-elastic: the metadata service is OPEN to jobs: neither nft nor iptables works" |
    tee /dev/console >&2
fi
# Whether a file has text. Builtins only: the boot waits for this script, and processes cost time.
filled() {
  read -r line <"$1" && [ -n "$line" ]
}
# The tunnel to the head, if there is one; slurmd waits for it. So start it before slow commands.
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

# hostnamectl starts a service: call it only if the name differs.
read -r name </proc/sys/kernel/hostname
[ "$name" = "$node" ] || hostnamectl set-hostname "$node" 2>/dev/null || hostname "$node"
# sudo and others look the name up. Without an answer that takes half a minute.
if ! timeout 3 getent hosts "$node" >/dev/null 2>&1; then
  set -- $(hostname -I)
  echo "${1:-127.0.1.1} $node # slurm-elastic" >>/etc/hosts
fi

cat >"$dir/agent.py" <<'SLURM_ELASTIC_AGENT'
@{agent}
SLURM_ELASTIC_AGENT

cat >"$dir/agent" <<'SLURM_ELASTIC_SETTINGS'
heartbeat_timeout=@{heartbeat_timeout}
owed=@{owed}
stop_command=@{stop_command}
metadata=@{metadata}
key_mark=@{key_mark}
check=@{check}
check_timeout=@{check_timeout}
SLURM_ELASTIC_SETTINGS
printf '%s=%s\n' node "$node" max_age "$max_age" generation "$generation" \
  start_command "/bin/sh $dir/start" >>"$dir/agent"

# The agent runs this before slurmd starts, and again until it succeeds.
cat >"$dir/prepare" <<'SLURM_ELASTIC_PREPARE'
@{prepare}
SLURM_ELASTIC_PREPARE
! filled "$dir/prepare" || echo "prepare=/bin/sh $dir/prepare" >>"$dir/agent"

cat >"$dir/wipe" <<'SLURM_ELASTIC_WIPE'
@{wipe}
SLURM_ELASTIC_WIPE
! filled "$dir/wipe" || install -m 755 "$dir/wipe" /usr/local/sbin/slurm-elastic-wipe

# Later boots of a machine that may be stopped skip cloud-init by this.
cat >"$dir/again.sh" <<'SLURM_ELASTIC_AGAIN'
@{later_boots}
SLURM_ELASTIC_AGAIN

# Keeps the names of other nodes in /etc/hosts.
cat >"$dir/names.py" <<'SLURM_ELASTIC_NAMES'
@{names}
SLURM_ELASTIC_NAMES

# slurmd's unit and Debian's /etc/default/slurmd use this variable.
options="-N $node --conf-server @{conf_server}"
echo "SLURMD_OPTIONS=$options" >"$dir/slurmd"

# Slurm uses its own keys (auth/slurm) if they exist, else munge.
keys="[ -e @{slurm_keys} ] || [ -e /etc/slurm/slurm.key ]"
check=:
# Without a configuration, scontrol gets the head's only by SLURM_CONF_SERVER: slurmd has not run.
grep -Eq '^(check|prepare)=.' "$dir/agent" &&
  check="/usr/bin/env SLURM_CONF_SERVER=@{conf_server} python3 -I $dir/agent.py $dir/agent check"
# If the keys of an earlier boot exist, start slurmd now: no new key and no agent to wait for.
marks="@{key_mark}" munge=start
[ -n "$marks" ] || munge=restart
for mark in $marks; do
  [ -e "$mark" ] || munge=restart
done
if [ -d /run/systemd/system ]; then
  drop_in=/run/systemd/system/slurmd.service.d
  mkdir -p "$drop_in"
  # slurmd ends after some seconds if it gets no configuration, as while slurmctld restarts. Where the
  # unit is Type=simple, its start has succeeded by then, so nobody else would start it again.
  printf '[Unit]\nConditionPathExists=\n[Service]\nEnvironmentFile=-%s/slurmd\n%s\n%s\n' "$dir" \
    Restart=on-failure RestartSec=5 >"$drop_in/slurm-elastic.conf"
  joined=
  if [ -n "$stopped" ] && [ -e "$again/slurm-elastic-join" ] && filled "$dir/again.sh"; then
    sh "$dir/again.sh" install && joined="&& systemctl --no-block start slurm-elastic-keep.service"
  fi
  # A reload runs all generators again. It is not needed if systemd knows the drop-in.
  systemctl show --property=DropInPaths --value slurmd.service | grep -q "$drop_in/" ||
    systemctl daemon-reload
  # With -b slurmd reports its own start as the boot. slurmctld sets a node DOWN and ends its jobs
  # if the reported boot looks later than its last contact (unless ReturnToService is 2). For
  # minutes that contact is the registration, so after -b a boot that looks one second later at a
  # reconfigure is enough. But slurmctld refuses a machine that booted before it told the node to
  # power up. So -b is only for a container, which has its host's uptime, and for a machine that
  # was refused. A later start (an update, a crash) never has it.
  # If slurmd does not start, the agent runs this again, so systemd must not start it, too.
  boot=
  [ -e /run/systemd/container ] && boot=-b
  echo "boot_command=/bin/sh $dir/start -b" >>"$dir/agent"
  cat >"$dir/start" <<END
$keys || systemctl $munge munge.service || exit
$check || exit
echo "SLURMD_OPTIONS=\${1:-$boot} $options" >$dir/slurmd
systemctl restart slurmd.service || { systemctl stop slurmd.service; exit 1; }
echo "SLURMD_OPTIONS=$options" >$dir/slurmd $joined
END
  if [ "$munge" = start ] && [ "$check" = : ]; then
    timeout 60 sh "$dir/start" && : >"$dir/agent.started"
  fi
  # Mounts, the Epilog of wipe and the check are the agent's children and need all of root's rights,
  # which the unit of an image does not have. systemd-run refuses the name of a unit that has a file.
  if [ "$check" = : ] && [ -e /etc/systemd/system/slurm-elastic-agent.service ]; then
    systemctl --no-block start slurm-elastic-agent.service
  else
    systemd-run --quiet --unit=slurm-elastic-agent-root --property=Restart=always \
      --property=RestartSec=10 /usr/bin/env python3 -I "$dir/agent.py" "$dir/agent"
  fi
  systemd-run --quiet --unit=slurm-elastic-names --property=Restart=always \
    --property=RestartSec=10 /usr/bin/env python3 -I "$dir/names.py" "$dir/agent" "$dir/tunnel.json"
else
  cat >"$dir/start" <<END
if ! { $keys; }; then
  pkill -x munged && sleep 1
  mkdir -p -m 755 /run/munge && chown munge:munge /run/munge
  setpriv --reuid=munge --regid=munge --clear-groups munged --force
fi
mkdir -p /run/slurm
$check || exit
slurmd -b $options
END
  setsid python3 -I "$dir/agent.py" "$dir/agent" >"$dir/agent.log" 2>&1 </dev/null &
  setsid python3 -I "$dir/names.py" "$dir/agent" "$dir/tunnel.json" \
    >"$dir/names.log" 2>&1 </dev/null &
fi
