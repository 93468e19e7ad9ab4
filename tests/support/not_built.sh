#!/bin/sh
# Stands in for a test program that this build leaves out: says why, and is skipped.
echo "not built: $*"
exit 77
