#!/bin/sh
# Runs a command in a user namespace of its own in which Linux starts programs for aarch64 under qemu-user.
#
#   tools/arm64.sh ROOT COMMAND...    ROOT: the folder of arm64_root.py, in which they find their libraries
#
# Needs qemu-user-static, and Linux 6.7 or later (a namespace has binfmt_misc of its own).
set -eu
QEMU_LD_PREFIX=$(realpath "$1") # programs start in any folder
export QEMU_LD_PREFIX
shift
magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
export WEFT_ARM64_FORMAT=":aarch64:M::$magic:$mask:$(command -v qemu-aarch64-static):F"
# Ranks reserve all the address space that they may need, of which qemu keeps a table page by page: gigabytes.
ulimit -v 16777216
exec unshare --user --map-root-user --mount sh -ec '
  mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc
  printf %s "$WEFT_ARM64_FORMAT" >/proc/sys/fs/binfmt_misc/register
  unset WEFT_ARM64_FORMAT
  exec "$@"' sh "$@"
