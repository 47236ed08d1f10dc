#!/bin/sh
# slurm-elastic: later boots of this same machine skip cloud-init, which has no work left there.
# `install`, when it joins: write units. `keep`, after slurmd runs and cloud-init is done: record
# the machine's identity. `boot`, before cloud-init starts: if it is still the recorded machine,
# disable cloud-init for this boot and restore node and launch, which the provider's part wrote;
# else run ds-identify, which our generator has skipped. `online`, before it joins: wait for an
# address. In any doubt, and after a boot that did not reach `keep`, cloud-init runs as usual.
set -u
umask 022
run=/run/slurm-elastic
mark=$run/again
place=/var/lib/slurm-elastic-node
record=$place/machine
cloud=/var/lib/cloud
units=/etc/systemd/system
generator=systemd/system-generators/cloud-init-generator
identify=/usr/lib/cloud-init/ds-identify
identified=/run/cloud-init/.ds-identify.result
join=$cloud/scripts/per-boot/slurm-elastic-join

# The first line of a file. Builtins only: the boot waits for this script.
line() {
  text=
  read -r text <"$1" || [ -n "$text" ] || return
  echo "$text"
}

# The identity: another machine made from this disk differs in at least one line.
machine() {
  line /sys/class/dmi/id/product_uuid && line /etc/machine-id && line "$cloud/data/instance-id" ||
    return
  for field in product_serial board_asset_tag; do
    [ ! -r "/sys/class/dmi/id/$field" ] || line "/sys/class/dmi/id/$field"
  done
  for card in /sys/class/net/*/device; do
    [ ! -e "$card" ] || line "${card%device}address" || return
  done | sort
  for drive in /dev/disk/by-label/CONTEXT /dev/disk/by-label/config-2 /dev/disk/by-label/[cC][iI]*; do
    [ ! -e "$drive" ] || head -c 4194304 "$drive" | sha256sum || return
  done
  for disk in /sys/block/*/device; do
    [ ! -e "$disk" ] || line "${disk%device}size" || return
  done
}

# Whether cloud-init has work at each boot, failed, or the machine's UUID is not unique.
in_doubt() {
  case $(cat /sys/class/dmi/id/product_uuid) in
    *[!-0-9A-Fa-f]* | 0000* | [fF][fF][fF][fF]* | 03000200-0400-0500-* | "") return 0 ;;
  esac
  [ "$(ls -A "$cloud/scripts/per-boot")" = slurm-elastic-join ] || return 0
  [ "$(ls -A "$cloud/instance/boothooks" 2>/dev/null | wc -l)" -lt 2 ] || return 0
  grep -qsE '^[^#]*("?(bootcmd|updates)"? *:|\balways\b)' /etc/cloud/cloud.cfg \
    /etc/cloud/cloud.cfg.d/* "$cloud/instance/cloud-config.txt" \
    "$cloud/instance/vendor-cloud-config.txt" "$cloud/instance/vendor2-cloud-config.txt" && return 0
  [ ! -e "$mark" ] && ! tr -d ' \n' </run/cloud-init/result.json | grep -q '"errors":\[\]'
}

changed() {
  [ -n "$(find /etc/cloud "$cloud/scripts" "$cloud/seed" -newer "$record" 2>/dev/null)" ]
}

install_units() {
  install -D -m 700 "$0" "$place/again"
  cat >"$units/slurm-elastic-again.service" <<END
[Unit]
Description=slurm-elastic: is this the machine that has joined before
DefaultDependencies=no
ConditionVirtualization=vm
ConditionPathExists=$record
RequiresMountsFor=$place $cloud
After=systemd-remount-fs.service systemd-udevd-control.socket systemd-udevd-kernel.socket
Before=cloud-init-main.service cloud-init-local.service network-pre.target sysinit.target
Before=shutdown.target
Conflicts=shutdown.target
[Service]
Type=oneshot
ExecStart=/bin/sh $place/again boot
END
  cat >"$units/slurm-elastic-join.service" <<END
[Unit]
Description=slurm-elastic: join without cloud-init
ConditionPathExists=$mark
Wants=network-online.target
After=network.target
FailureAction=reboot
[Service]
Type=oneshot
RemainAfterExit=yes
KillMode=process
Nice=-10
StandardOutput=journal+console
ExecStartPre=/bin/sh $place/again online
ExecStart=/bin/sh $join
END
  cat >"$units/slurm-elastic-keep.service" <<END
[Unit]
Description=slurm-elastic: this machine has joined
After=cloud-final.service
[Service]
Type=oneshot
ExecStart=/bin/sh $place/again keep
END
  for stage in cloud-init-main cloud-init-local cloud-init cloud-init-network cloud-config \
    cloud-final; do
    mkdir -p "$units/$stage.service.d"
    printf '[Unit]\nConditionPathExists=!%s\n' "$mark" >"$units/$stage.service.d/slurm-elastic.conf"
  done
  # Logins start after slurmd, so that slurmd gets the processor first.
  for login in ssh sshd systemd-logind systemd-user-sessions getty@ serial-getty@; do
    mkdir -p "$units/$login.service.d"
    printf '[Unit]\nAfter=slurm-elastic-join.service\n' \
      >"$units/$login.service.d/slurm-elastic.conf"
  done
  mkdir -p "$units/sysinit.target.wants" "$units/multi-user.target.wants"
  ln -sf ../slurm-elastic-again.service "$units/sysinit.target.wants/"
  ln -sf ../slurm-elastic-join.service "$units/multi-user.target.wants/"
}

# systemd waits for generators, and cloud-init's runs ds-identify, which takes a second.
install_generator() {
  [ -x "/usr/lib/$generator" ] && [ -x "$identify" ] || return 0
  mkdir -p "/etc/${generator%/*}"
  cat >"/etc/$generator" <<END
#!/bin/sh
# slurm-elastic: see $place/again
[ -e $record ] || exec /usr/lib/$generator "\$@"
mkdir -p "\$2/multi-user.target.wants" /run/cloud-init
: >/run/cloud-init/enabled
exec ln -sf /lib/systemd/system/cloud-init.target "\$2/multi-user.target.wants/"
END
  chmod 755 "/etc/$generator"
}

keep() {
  if in_doubt; then
    echo "slurm-elastic: cloud-init runs at the next boot of this machine, too"
    return
  fi
  cp "$run/node" "$run/launch" "$place/" && sync "$place/node" "$place/launch" || return
  machine >"$record.new" && mv "$record.new" "$record"
}

boot() {
  [ -e "$record" ] && ! changed || return
  recorded=$(cat "$record")
  # Removed until `keep`: if this boot fails, the next one runs cloud-init.
  rm "$record" || return
  if [ "$recorded" != "$(machine)" ]; then
    # Usually the initrd has found cards and drives. If not, have udev find them.
    udevadm trigger --type=devices --action=add
    udevadm settle --timeout=60
    [ "$recorded" = "$(machine)" ] || return
  fi
  mkdir -p "$run" /run/cloud-init
  [ -s "$place/node" ] && cp "$place/node" "$place/launch" "$run/" || return
  rm -f /run/cloud-init/enabled
  : >/run/cloud-init/disabled
  : >"$mark"
}

# If the network does not come up, the unit fails and reboots; that boot runs cloud-init.
online() {
  tries=300
  until hostname -I | grep -q '[0-9a-f]'; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || return 1
    sleep 0.2
  done
}

case $1 in
  install) [ -e "$mark" ] || { install_units && install_generator; } ;;
  keep) keep || echo "slurm-elastic: this machine is not written down" ;;
  online) online ;;
  boot)
    boot && exit
    echo "slurm-elastic: cloud-init runs at this boot"
    [ -e "$identified" ] || [ ! -x "$identify" ] || "$identify" || :
    ;;
esac
