#!/bin/sh -e
# run it as oneadmin, with the account that uploads images: sh FILE ACCOUNT
account=$(oneuser show "${1:?name the account}" | sed -n 's/^ID *: *//p')
oneacl create "#$account IMAGE/* CREATE"
oneacl create "#$account DATASTORE/#1 USE"
