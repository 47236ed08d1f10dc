#!/bin/sh -e
# run it as oneadmin, with the account that slurm-elastic uses: sh FILE ACCOUNT
account=$(oneuser show "${1:?name the account}" | sed -n 's/^ID *: *//p')
allow() { oneacl create "#$account $1"; }
each() {
  onetemplate show "$1" | sed -n "s/.*$2=\"\([0-9][0-9]*\)\".*/\1/p" | sort -u
}
allow "VM/* CREATE"
allow "TEMPLATE/#12 USE"
for id in $(each 12 IMAGE_ID); do allow "IMAGE/#$id USE"; done
for id in $(each 12 NETWORK_ID); do allow "NET/#$id USE"; done
allow "HOST/* USE"  # to see them: room is known before an order, and hosts taken out
quota=$(mktemp)
cat > "$quota" <<'END'
VM=[
  VMS="16",
  CPU="64",
  MEMORY="131072" ]
END
oneuser quota "$account" "$quota"
rm -f "$quota"
