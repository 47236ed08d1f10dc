#!/bin/sh
# run it as oneadmin, with the account that uploads images: sh FILE ACCOUNT
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
allow "IMAGE/* CREATE"
allow "DATASTORE/#1 USE"
