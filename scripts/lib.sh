# Sourced by the scripts beside it: root, Debian packages and the Python environment.
#
# set_up makes, once, what every script needs, and says what it does. Running it again is quick:
#   - Debian's Slurm, munge, Lua and Python packages, if a program of them is missing; no service is
#     started by installing them;
#   - a virtual environment of the system's own Python that user `slurm` can read, because the
#     daemons run as that user. It is .venv in the clone if everyone may enter the clone, else it is
#     below /var/cache/slurm-elastic, with a copy of the package in it.
# `set_up EXTRAS` installs these extras of pyproject.toml (default: dev, which has all of them).
# After set_up, $VENV is that environment and $REPO the clone.

set -euo pipefail
umask 022
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
PYTHON=/usr/bin/python3
PACKAGES=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge lua5.4
          python3 python3-venv util-linux)
CACHE=/var/cache/slurm-elastic
[ "$(id -u)" -eq 0 ] || CACHE=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/slurm-elastic
POLICY=/usr/sbin/policy-rc.d
POLICY_MARK="slurm-elastic: no service starts while its packages are installed"
# Debian's programs first: a Python in root's home cannot be run by user slurm.
PATH=/usr/sbin:/usr/bin:/sbin:/bin:${PATH:-}
export PATH

say() { printf '==> %s\n' "$*"; }
die() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }

need_root() { # the script's own arguments; comes back only as root
    [ "$(id -u)" -ne 0 ] || return 0
    command -v sudo >/dev/null || die "needs root: run it as root, or install sudo"
    local ask=() keep=() name
    [ -t 0 ] && [ -z "${CI:-}" ] || ask=(-n)
    for name in $(compgen -e); do # what pip, apt and CI go by
        case $name in CI | PIP_* | http_proxy | https_proxy | no_proxy) keep+=("$name=${!name}") ;; esac
    done
    sudo "${ask[@]}" true || die "needs root, and sudo did not give it"
    exec sudo "${ask[@]}" env "${keep[@]}" "$0" "$@"
}

set_up() { # extras of pyproject.toml
    mkdir -p "$CACHE"
    exec 9>"$CACHE/setup.lock"
    # Two scripts at once: the second finds the work done.
    flock -n 9 || { say "waiting for $(cat "$CACHE/setup.by" 2>/dev/null), which sets this machine up"; flock 9; }
    echo "$0 (process $$)" >"$CACHE/setup.by"
    if has_slurm; then say "Slurm, munge, Lua and Python: all there"; else install_packages "${PACKAGES[@]}"; fi
    make_venv "${1:-dev}"
    exec 9>&-
}

# The same for somebody who is not root: nothing is installed but the Python environment.
set_up_rootless() { # extras of pyproject.toml
    has_programs && find_python || die "needs Slurm, munge and Python, which only root can install: ${PACKAGES[*]}"
    mkdir -p "$CACHE"
    exec 9>"$CACHE/setup.lock"
    flock 9
    VENV=$REPO/.venv
    if stamped "$1" "$(hash_of "$REPO/pyproject.toml")" || [ -w "$REPO" ]; then
        install_python "$1" "$(hash_of "$REPO/pyproject.toml")" --editable "$REPO[$1]"
    else
        VENV=$(cached_venv)
        case $(readlink -m "$VENV") in /tmp/* | /run/*) # the namespaces have a /tmp and a /run of their own
            die "you may not write into $REPO, so the Python environment would be $VENV, and --rootless hides /tmp and /run; set XDG_CACHE_HOME to a directory elsewhere" ;;
        esac
        install_copy "$1"
    fi
    exec 9>&-
}

has_slurm() { has_programs && { there lua5.4 || there lua; } && id slurm >/dev/null 2>&1 && find_python; }

# Whether a sandbox has its programs, from whatever distribution or build. Plug-ins are a package of
# their own in Debian, so one of them is looked for, too.
has_programs() {
    there slurmctld slurmd sbatch munged setpriv unshare &&
        { compgen -G '/usr/lib*/slurm*/cred_munge.so' || compgen -G '/usr/lib*/*/slurm*/cred_munge.so'; } >/dev/null
}

# The system's Python; on a distribution whose python3 is too old, a later one beside it.
find_python() {
    local name
    for name in /usr/bin/python3 /usr/bin/python3.1[1-9]; do
        if "$name" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            PYTHON=$name
            return 0
        fi
    done
    return 1
}

# What the tests need besides: an SSH server to log in to, a compiler; and how many run side by side. After it
# a test that is skipped for want of a package fails (tests/needs.py).
set_up_tests() {
    install_compiler
    set_up
    build_core
    there sshd || { # it is not started, now or at boot
        install_packages openssh-server
        ! command -v systemctl >/dev/null || systemctl --quiet disable ssh.service ssh.socket || true
    }
    there systemd-analyze || install_packages systemd # for what it says of our units
    there wg wireguard-go nft ip ping || # a tunnel, and a router
        install_packages wireguard-tools wireguard-go nftables iproute2 iputils-ping
    there sudo mpicc.mpich mpirun.mpich mpicc.openmpi mpirun.openmpi || # jobs of several nodes
        install_packages sudo libmpich-dev mpich libopenmpi-dev openmpi-bin
    there iptables || install_packages iptables # what a machine without nft has
    there tmux || install_packages tmux # a terminal, for what commands look like on one
    there valgrind || install_packages valgrind # a program that is not saved
    there man zsh fish || install_packages man-db zsh fish # for man pages and completions
    there promtool || { # for what it says of our metrics and alerts; neither started now nor at boot
        install_packages prometheus
        ! command -v systemctl >/dev/null || systemctl --quiet disable prometheus.service || true
    }
    there ansible-playbook git || install_packages ansible-core git # for the playbook in ansible/
    there rpmspec || install_packages rpm # for what it says of packaging/slurm-elastic.spec
    there chromium chromedriver || install_packages chromium chromium-driver # for the page as a browser has it
    there firefox-esr || install_packages firefox-esr # the same in the other browser
    # A hypervisor's daemon, which tests start for themselves; on trixie its storage driver is a package of its own.
    { there libvirtd qemu-system-x86_64 && /usr/bin/python3 -c 'import libvirt'; } 2>/dev/null || {
        local storage
        storage=$(apt-cache pkgnames libvirt-daemon-driver-storage 2>/dev/null | grep -x libvirt-daemon-driver-storage || true)
        install_packages libvirt-daemon libvirt-daemon-driver-qemu $storage qemu-system-x86 qemu-utils python3-libvirt
        ! command -v systemctl >/dev/null || systemctl --quiet disable libvirtd.service libvirtd.socket || true
    }
    # For images: built, made bootable, booted.
    { there mmdebstrap mke2fs sfdisk grub-mkimage qemu-img dnsmasq xorriso && [ -e /usr/lib/grub/i386-pc/boot.img ]; } ||
        install_packages mmdebstrap e2fsprogs fdisk grub-common grub-pc-bin qemu-system-x86 qemu-utils dnsmasq-base iproute2 xorriso
    ls /usr/lib/*/liblua5.4.so.0 >/dev/null 2>&1 || install_packages liblua5.4-0 # for a Slurm that is newer than Debian's
    cd "$REPO"
    export SLURM_ELASTIC_SET_UP=1
    export PATH=$VENV/bin:$PATH
    # Every process of a test would else compile what it imports, each time.
    unset PYTHONDONTWRITEBYTECODE
    "$VENV/bin/python" -m compileall -q "$REPO/slurm_elastic" || die "the package does not compile"
    # Tests on a real slurmctld mostly wait (a cluster takes 3 % of a processor), so more of them run
    # at once than there are processors, if each has its gigabyte. Those of one file share a cluster and
    # stay together; tests/order.py says which file starts when.
    local processors memory
    processors=$(nproc)
    memory=$(awk '/^MemAvailable/ { print int($2 / 1048576) + 1 }' /proc/meminfo)
    SIDE_BY_SIDE=(-n "$(least $((processors * 4)) 24 "$memory")" "${BY_FILE[@]}")
    BUSY_SIDE_BY_SIDE=(-n "$(least $((processors * 2)) 16 "$memory")" "${BY_FILE[@]}")
}
BY_FILE=(--dist loadfile --no-loadscope-reorder)

# For the compiled part of the simulator, without which simulations only take longer; and for a test that hides a
# control group hierarchy from slurmd.
install_compiler() {
    mkdir -p "$CACHE"
    has_compiler || install_packages gcc libc6-dev python3-dev
}

has_compiler() {
    there gcc && [ -e /usr/include/stdio.h ] && find_python &&
        "$PYTHON" -c 'import pathlib, sys, sysconfig; sys.exit(not pathlib.Path(sysconfig.get_path("include"), "Python.h").exists())'
}

# pip compiles it once; sources that changed since are compiled here. A copy of the package is made whole by pip.
build_core() {
    [ "$VENV" = "$REPO/.venv" ] || return 0
    (cd "$REPO" && quietly "$VENV/bin/python" setup.py build_ext --inplace) || die "the simulator's core does not compile"
}

there() { # whether all these programs are
    local name
    for name in "$@"; do PATH=/usr/sbin:/usr/bin:/sbin:/bin type -P "$name" >/dev/null || return 1; done
}

least() { printf '%s\n' "$@" | sort -n | head -n 1; }

# --- Debian packages -------------------------------------------------------------------------

install_packages() {
    restore_policy # what a killed run may have left
    local missing
    missing=$(not_installed "$@")
    if [ -z "$missing" ]; then
        say "Debian packages: all there"
        return
    fi
    command -v apt-get >/dev/null || die "there is no apt-get here; install by hand what these packages of Debian have, and make a user slurm:" $missing
    say "Debian packages to install:" $missing
    trap restore_policy EXIT
    deny_services
    apt_install $missing || die "apt-get could not install: $(echo $missing)"
    restore_policy
    trap - EXIT
}

not_installed() {
    local name
    for name in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] || echo "$name"
    done
}

apt_install() {
    local name
    for name in "$@"; do
        if ! apt-cache show "$name" >/dev/null 2>&1; then
            apt_update
            break
        fi
    done
    apt_get install "$@" && return
    # Package lists may be older than the mirror: once more with new ones.
    apt_update
    apt_get install "$@"
}

apt_update() {
    say "apt-get update"
    apt_get update || die "apt-get update failed"
}

apt_get() {
    DEBIAN_FRONTEND=noninteractive quietly apt-get -qq -y --no-install-recommends \
        -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}

quietly() { # what a command says is of interest only if it fails; it shall not inherit the lock
    "$@" </dev/null >"$CACHE/setup.log" 2>&1 9>&- && return
    tail -n 15 "$CACHE/setup.log" >&2
    return 1
}

deny_services() {
    # A link or file that is there is moved aside and back, so that it returns just as it was.
    if [ -e "$POLICY" ] || [ -L "$POLICY" ]; then
        mv "$POLICY" "$POLICY.before-slurm-elastic"
    fi
    printf '#!/bin/sh\n# %s\nexit 101\n' "$POLICY_MARK" >"$POLICY"
    chmod 755 "$POLICY"
}

restore_policy() {
    if grep -qsF "$POLICY_MARK" "$POLICY"; then
        rm -f "$POLICY"
    fi
    if [ -e "$POLICY.before-slurm-elastic" ] || [ -L "$POLICY.before-slurm-elastic" ]; then
        mv "$POLICY.before-slurm-elastic" "$POLICY"
    fi
}

# --- Python environment ----------------------------------------------------------------------

make_venv() { # extras
    find_python || die "needs Python 3.11 or later with venv below /usr/bin; $PYTHON is $("$PYTHON" -V 2>&1)"
    find_venv
    if [ "$VENV" = "$REPO/.venv" ]; then
        install_python "$1" "$(hash_of "$REPO/pyproject.toml")" --editable "$REPO[$1]"
    else
        install_copy "$1"
    fi
    readable_by_slurm || die "user slurm cannot read the package through $VENV"
}

find_venv() { # where the environment is or will be
    VENV=$REPO/.venv
    open_to_all || VENV=$(cached_venv)
}

cached_venv() { echo "$CACHE/venv-$(printf %s "$REPO" | sha256sum | cut -c1-12)"; }

# Whether user slurm could read the clone: each directory up to it can be entered by all, and no
# file of the package is closed (as with a umask of 077).
open_to_all() {
    local directory=$REPO
    while [ "$directory" != / ]; do
        [ -n "$(find "$directory" -maxdepth 0 -perm -o=x)" ] || return 1
        directory=$(dirname "$directory")
    done
    [ -z "$(find "$REPO/slurm_elastic" ! -perm -o=r -name '*.py' -print -quit)" ] &&
        [ -z "$(find "$REPO/slurm_elastic" -type d ! -perm -o=x -print -quit)" ]
}

hash_of() { { "$PYTHON" -V; cat "$@"; } | sha256sum | cut -d' ' -f1; }

# A stamp per extra: an environment with other extras is completed, not taken for complete.
stamp_of() { echo "$VENV/slurm-elastic.$1.stamp"; } # extras

stamped() { # extras, stamp
    [ "$(cat "$(stamp_of "$1")" "$(stamp_of dev)" 2>/dev/null | grep -cx "$2")" -gt 0 ]
}

install_python() { # extras, stamp, then what pip is to install
    local extras=$1 stamp=$2
    shift 2
    if stamped "$extras" "$stamp"; then
        say "Python environment: $VENV"
        return
    fi
    say "Python environment: making $VENV with $extras (takes about a minute)"
    rm -f "$(stamp_of "$extras")" "$VENV/slurm-elastic.stamp"
    usable_venv || "$PYTHON" -m venv --clear "$VENV" || die "could not make $VENV"
    quietly "$VENV/bin/pip" install --disable-pip-version-check "$@" ||
        die "pip could not install what pyproject.toml asks for"
    echo "$stamp" >"$(stamp_of "$extras")"
}

usable_venv() {
    [ -x "$VENV/bin/pip" ] && [ "$(readlink -f "$VENV/bin/python")" = "$(readlink -f "$PYTHON")" ]
}

# The clone is closed to user slurm: the package is copied, again whenever its sources changed.
install_copy() { # extras
    local dependencies sources work file=$VENV/slurm-elastic.sources
    dependencies=$(hash_of "$REPO/pyproject.toml")
    sources=$(cd "$REPO" && find pyproject.toml setup.py README.md slurm_elastic -type f \
        ! -path '*/__pycache__/*' ! -name '*.so' -print0 | sort -z | xargs -0 sha256sum | sha256sum)
    # Installed from another copy, so that nothing is built in the clone, nor from what lies there.
    work=$(mktemp -d)
    (cd "$REPO" && cp -R pyproject.toml setup.py README.md slurm_elastic "$work") && chmod -R go+rX "$work"
    if stamped "$1" "$dependencies" && [ "$(cat "$file" 2>/dev/null)" != "$sources" ]; then
        say "Python environment: copying the package"
        quietly "$VENV/bin/pip" install --no-deps --force-reinstall "$work" ||
            { rm -rf "$work"; die "pip could not install the package into $VENV"; }
    fi
    install_python "$1" "$dependencies" "$work[$1]"
    rm -rf "$work"
    mkdir -p "$VENV/doc" && cp "$REPO"/docs/*.md "$VENV/doc" # for slurm-elastic help
    echo "$sources" >"$file"
}

readable_by_slurm() {
    (cd / && setpriv --reuid=slurm --regid=slurm --clear-groups env -i \
        "$VENV/bin/python" -c 'import slurm_elastic.config') >/dev/null
}
