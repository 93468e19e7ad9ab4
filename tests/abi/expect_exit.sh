#!/bin/sh
# expect_exit.sh CODE PROGRAM: succeeds if the program exits with this code within 20 s.
timeout 20 "$2"
code=$?
[ "$code" = "$1" ] || { echo "exit code $code, expected $1"; exit 1; }
