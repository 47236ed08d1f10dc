#!/bin/sh
# place.sh COMMAND...: run it in a place of its own: users of the drawn jobs, and /tmp, /run, processes and network.
# Started by unshare with namespaces for all of these, so that everything ends with COMMAND.
set -e
for name in tmp run dev/shm; do mount -t tmpfs -o mode=1777 tmpfs "/$name"; done
mkdir /run/real
cp /etc/passwd /etc/group /run/real
number=21000
for name in alice bob carol; do
    number=$((number + 1))
    echo "$name:x:$number:" >>/run/real/group
    echo "$name:x:$number:$number::/tmp:/bin/sh" >>/run/real/passwd
done
# Slurm without a database knows no account, so groups stand for the drawn accounts.
for name in physics biology; do
    number=$((number + 1))
    echo "$name:x:$number:alice,bob,carol" >>/run/real/group
done
for name in passwd group; do mount --bind "/run/real/$name" "/etc/$name"; done
ip link set lo up
# With 127.0.0.1 alone glibc resolves no host name (AI_ADDRCONFIG).
ip address add 192.0.2.1/32 dev lo
# The addresses that the clouds in memory give to their machines.
ip route add local 10.0.0.0/8 dev lo
exec "$@"
