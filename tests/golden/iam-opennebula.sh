#!/bin/sh
# run it as oneadmin, with the account that slurm-elastic uses: sh FILE ACCOUNT
set -e
account=$(oneuser show "${1:?name the account}")
account=$(echo "$account" | sed -n 's/^ID *: *//p')
allow() {
  said=$(oneacl create "#${account:?the account has no id} $1" 2>&1) && return
  # The rule may be of an earlier run, or of another template.
  case $said in
  *"already exists"*) ;;
  *) echo "$said" >&2; exit 1 ;;
  esac
}
each() {
  shown=$(onetemplate show "$1")
  echo "$shown" | sed -n "s/.*$2=\"\([0-9][0-9]*\)\".*/\1/p" | sort -u
}
allow "VM/* CREATE"
allow "TEMPLATE/#12 USE"
ids=$(each 12 IMAGE_ID)
for id in $ids; do allow "IMAGE/#$id USE"; done
ids=$(each 12 NETWORK_ID)
for id in $ids; do allow "NET/#$id USE"; done
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
