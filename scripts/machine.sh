# Sourced after lib.sh: a Debian in a directory, in which commands run as on a machine of their own.
#
# ROOT is the directory. passed_environment and copy_settings come first; they leave PASS, variables for
# inside, and BINDS, directories of this host that are shown there read-only.

# How this host reaches mirrors and package indexes: apt's transport settings, name service, pip's
# configuration, certificates. Nothing of it is kept in the cached tar file.
copy_settings() {
    local file
    apt-config dump | grep -E '^Acquire::(https?|Check-|Retries|ForceIPv|CA)' \
        >"$ROOT/etc/apt/apt.conf.d/00host" || true
    for file in /etc/resolv.conf /etc/hosts /etc/pip.conf /root/.config/pip/pip.conf /root/.pip/pip.conf; do
        copy_in "$file"
    done
    # Under a name of its own: installing ca-certificates there would write over the usual one.
    file=${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
    if [ -f "$file" ]; then
        cp -L "$file" "$ROOT/etc/host-ca.crt"
        PASS+=("PIP_CERT=/etc/host-ca.crt" "SSL_CERT_FILE=/etc/host-ca.crt")
    fi
    BINDS=()
    # A path in a setting is a file, to copy, or a directory of packages, to show read-only.
    for file in $(transport_settings | grep -oE '(file://)?/[^ ,:"]+' | sort -u); do
        case $file in
        file://*) BINDS+=("$(dirname "${file#file://}")") ;; # an index links to files beside it
        /etc/host-ca.crt) ;;
        *) if [ -d "$file" ]; then BINDS+=("$file"); else copy_in "$file"; fi ;;
        esac
    done
}

transport_settings() {
    printf '%s\n' "${PASS[@]#*=}"
    cat /etc/pip.conf /root/.config/pip/pip.conf /root/.pip/pip.conf 2>/dev/null | sed 's/^[^=]*=//' || true
}

copy_in() {
    [ ! -f "$1" ] || { mkdir -p "$ROOT$(dirname "$1")" && cp -L "$1" "$ROOT$1"; }
}

passed_environment() {
    local name
    PASS=()
    for name in $(compgen -e); do
        case $name in
        PIP_CERT) ;;
        PIP_* | http_proxy | https_proxy | no_proxy | CI) PASS+=("$name=${!name}") ;;
        esac
    done
}

# Runs a command in the machine: own mounts and processes, which all end with the command.
inside() {
    unshare --mount --pid --fork --kill-child /bin/bash -c '
        set -e
        root=$1; shift
        mount --bind "$root" "$root"
        mount -t proc proc "$root/proc"
        mount --rbind /sys "$root/sys"
        mount --rbind /dev "$root/dev"
        while [ "$1" != -- ]; do
            mkdir -p "$root$1"
            mount --bind "$1" "$root$1"
            mount -o remount,bind,ro "$root$1"
            shift
        done
        shift
        # Not chroot alone: in one, / is no mount point, and a namespace cannot be made.
        cd "$root"
        pivot_root . mnt
        exec chroot . /bin/sh -c "umount -l /mnt && cd / && exec \"\$@\"" inside "$@"' inside "$ROOT" "${BINDS[@]}" -- \
        /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
        TERM="${TERM:-dumb}" "${PASS[@]}" "$@" </dev/null
}

# A minimal Debian as ROOT, with this host's way to mirrors and indexes, and with new package lists.
make_root() { # release, directory
    local tar
    ROOT=$2
    tar=$("$REPO/containers/debian" "$1")
    mkdir -p "$CACHE/roots"
    chmod 700 "$CACHE/roots" # settings may hold a password
    rm -rf --one-file-system "$ROOT"
    mkdir "$ROOT"
    chmod 755 "$ROOT" # it becomes a machine's /
    tar -C "$ROOT" -xf "$tar"
    printf '#!/bin/sh\nexit 101\n' >"$ROOT/usr/sbin/policy-rc.d" # no service starts in a directory
    chmod 755 "$ROOT/usr/sbin/policy-rc.d"
    passed_environment
    copy_settings
    apt_there update || die "apt-get update failed in $ROOT"
}

apt_there() {
    quietly inside /usr/bin/env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 "$@"
}
