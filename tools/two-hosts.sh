#!/usr/bin/env bash
# Runs a command as the ranks of several simulated hosts on one machine. Each "host" has namespaces of its own (network,
# IPC, mounts, host name), a link (a veth pair) to one switch (a bridge), and a limit on the link's bandwidth.
# Called by users and by tests/launchers/test_hosts.py; docs/dev/simulated-hosts.md shows it. Needs root.
#
# It has three parts, each started by the previous one. `outside` forwards signals and returns the exit code. `switch`
# makes the hosts and starts `weft run` beside them. Each of its ranks begins as `enter` and becomes the command, in its
# host.
#
# Nothing is left behind, however the script ends. The namespaces have no names, so the kernel removes each of them,
# with its bridge, veths and mounts, when its last process ends. All processes from `switch` on are in one process
# namespace. When `outside` ends, the kernel kills the namespace's first process (`switch`), and thereby all others.
set -euo pipefail

self=$(realpath "${BASH_SOURCE[0]}")
readonly self
readonly cannot=125 # the exit code of failures outside the command
readonly network=10.87.0 port=7087
readonly attentive=(env --default-signal=INT,QUIT) # bash starts background processes with these signals ignored

usage() {
  cat <<TEXT
Usage: tools/two-hosts.sh [OPTIONS] [--] COMMAND [ARGUMENTS...]

Run COMMAND as the ranks of several hosts, which are namespaces of this machine: they share its kernel, but no shared
memory, no network besides their rate-limited links to one switch, and no cores while there is one for each.

  --hosts N            number of hosts, 1 to 64 (default 2)
  --ranks-per-host R   ranks on each (default 2)
  --rate RATE[,...]    of each link in each direction, as tc(8) writes it: 1gbit, 200mbit (default 1gbit);
                       none: no limit. One for all links, or one for each host in order: 1gbit,1gbit,100mbit
  --delay TIME         that each link adds in each direction, as tc(8) writes it: 1ms (default: none)
  --prefix WHICH       ranks whose output lines start with [rank]: all (default), others (all but rank 0) or none
  --timeout SECONDS    end the job after this number of seconds, with exit code 124
  --grace SECONDS      time that the other ranks have to end after the first failure (default 2)
  --counters           print at the end, on standard error, the bytes that each link carried, and the segments that
                       each host's TCP sent again
  --weft PATH          the weft command (default: \$WEFT, build/tools/weft beside this script, or that in PATH)
  --help

The hosts are host0, host1 ... and know each other by these names; rank 0 is on host0. Each rank has WEFT_RANK,
WEFT_SIZE, WEFT_LOCAL_RANK, WEFT_LOCAL_SIZE, WEFT_STORE, WEFT_SECRET_FILE and this script's environment. Output, the end
after the first failure and the exit code are those of \`weft run\`; $cannot: the hosts cannot be made. TCP's congestion control is
cubic, the kernel's default, whatever this machine prefers.
Needs: Linux, root, bash, iproute2 (ip, tc), util-linux (unshare, nsenter, setpriv, setsid, taskset, mount), and in the
kernel namespaces, veth, bridge, sch_tbf (for --rate) and sch_netem (for --delay).

Example: tools/two-hosts.sh --rate 200mbit -- build/examples/hello_allreduce
         tools/two-hosts.sh --hosts 3 --rate 1gbit,none,100mbit -- build/examples/hello_allreduce
TEXT
}

fail() { # TEXT [CODE]
  echo "two-hosts: $1" >&2
  exit "${2:-$cannot}"
}

# Runs a command that the hosts need. If it fails, prints its purpose and the kernel's error, and exits.
must() { # PURPOSE COMMAND...
  local said
  said=$("${@:2}" 2>&1) || fail "cannot $1: $said"
}

number() { # NAME VALUE
  [[ $2 =~ ^[0-9]{1,2}$ ]] && (($2 >= 1 && $2 <= 64)) || fail "$1 is $2, but must be a number from 1 to 64" 2
}

# Sets the array `rates` to one rate for each host; empty where none was given.
spread_rate() { # RATE[,RATE...]
  local one
  IFS=, read -ra rates <<<"$1,"
  ((${#rates[@]} > 0)) || rates=('')
  ((${#rates[@]} == 1 || ${#rates[@]} == hosts)) ||
    fail "--rate $1 names ${#rates[@]} links, but there are $hosts hosts: give one rate for all, or one for each" 2
  for one in "${rates[@]}"; do
    [[ -n $one || -z $1 ]] || fail "--rate $1 has an empty entry: give each host its rate, or none for no limit" 2
  done
  while ((${#rates[@]} < hosts)); do rates+=("${rates[0]}"); done
}

parse() {
  local rate=''
  hosts=2 ranks=2 delay='' counters=0 weft=${WEFT:-} run_options=()
  while (($#)); do
    case $1 in
      --help | -h) usage && exit 0 ;;
      --counters) counters=1 && shift && continue ;;
      --) shift && break ;;
      -*) (($# > 1)) || fail "$1 needs a value, or is not an option; see --help" 2 ;;
      *) break ;;
    esac
    case $1 in
      --hosts) number "$1" "$2" && hosts=$2 ;;
      --ranks-per-host) number "$1" "$2" && ranks=$2 ;;
      --rate) rate=$2 ;;
      --delay) delay=$2 ;;
      --prefix | --timeout | --grace) run_options+=("$1" "$2") ;;
      --weft) weft=$2 ;;
      *) fail "unknown option $1; see --help" 2 ;;
    esac
    shift 2
  done
  spread_rate "$rate"
  (($#)) || fail "the command to start is missing; see --help" 2
  command=("$@")
}

# ---- outside

check_needs() {
  local program missing=()
  for program in ip tc unshare nsenter setpriv setsid taskset mount; do
    command -v "$program" >/dev/null || missing+=("$program")
  done
  ((${#missing[@]} == 0)) || fail "needs ${missing[*]} (Debian: apt install iproute2 util-linux)"
  (($(id -u) == 0)) || fail "needs root, because it makes network namespaces (sudo -E keeps WEFT_BACKEND and others)"
  must "make namespaces, which takes CAP_SYS_ADMIN (in a container: --privileged)" \
    unshare --net --mount --ipc --uts --pid --fork true
}

find_weft() {
  local beside
  beside=$(dirname "$self")/../build/tools/weft
  if [ -z "$weft" ] && [ -x "$beside" ]; then weft=$beside; fi
  weft=$(command -v "${weft:-weft}") || fail "found no weft command: build it, or give its path with --weft"
  weft=$(realpath "$weft")
}

child_of() { # PROCESS: the first process that it has started, or nothing
  local children=()
  read -ra children <"/proc/$1/task/$1/children" || true
  echo "${children[0]:-}"
}

outside() {
  parse "$@"
  check_needs
  find_weft
  # `switch` runs in a session of its own, so a terminal's Ctrl-C arrives only here, and is forwarded once. Until
  # `switch` can handle signals, they end this process, and with it everything.
  local out up inner code=0 name
  exec {out}>&1
  exec {up}< <(WEFT=$weft exec setsid "${attentive[@]}" setpriv --pdeathsig KILL unshare --net --mount --pid --fork \
    --kill-child --mount-proc bash "$self" :switch "$@" 3>&1 >&"$out" {out}>&- </dev/null)
  inner=$!
  read -r <&"$up" || true
  for name in INT TERM HUP; do
    # shellcheck disable=SC2064
    trap "kill -$name \"\$(child_of $inner)\" 2>/dev/null || kill -KILL $inner" "$name"
  done
  while kill -0 "$inner" 2>/dev/null; do
    wait "$inner" && code=0 || code=$?
  done
  exit "$code"
}

# ---- switch: the first process of its namespace

# Makes one host: its first process, which keeps its namespaces, its link, and the link's limits at both ends. Each end
# limits what it sends: the host's end traffic from the host, the switch's end traffic to it.
make_host() { # INDEX
  local said keeper ready=
  exec {said}< <(exec unshare --net --mount --ipc --uts bash "$self" :keep "$1" "$hosts")
  keeper=$!
  read -r ready <&"$said" || true
  exec {said}<&-
  [ "$ready" = ready ] || fail "host $1 did not start"
  keepers+=("$keeper")
  must "make the link of host $1 (veth)" ip link add "host$1" type veth peer name eth0 netns "$keeper"
  must "connect the link of host $1 to the switch" ip link set "host$1" master switch up
  must "set host $1's address" nsenter --target "$keeper" --net ip addr add "$network.$(($1 + 1))/24" dev eth0
  must "bring host $1's network up" nsenter --target "$keeper" --net ip link set eth0 up
  choose_congestion_control "$1" nsenter --target "$keeper" --net
  rate=${rates[$1]}
  limit "host$1"
  limit eth0 nsenter --target "$keeper" --net
}

# The host's first process: keeps its namespaces until they are no longer needed.
keep() { # INDEX HOSTS
  mount -t sysfs sysfs /sys # the devices of this network namespace: UCX looks there
  mount -t tmpfs tmpfs /dev/shm
  hostname "host$1"
  for ((index = 0; index < $2; index++)); do echo "$network.$((index + 1)) host$index"; done >/dev/shm/hosts
  echo "127.0.0.1 localhost" >>/dev/shm/hosts
  mount --bind /dev/shm/hosts /etc/hosts
  rm /dev/shm/hosts
  ip link set lo up
  echo ready
  exec sleep infinity
}

# Limits a device to `rate`, with bursts of up to `burst`; segments of 64 KiB (GSO) would not fit into them.
limit() { # DEVICE [COMMAND THAT ENTERS ITS NAMESPACE...]
  local said burst=32kb segment=30000
  # A fast link would empty a small bucket before the kernel refills it.
  if [[ $rate =~ ^([0-9]+)gbit$ ]] && ((BASH_REMATCH[1] >= 4)); then burst=192kb segment=65000; fi
  local at=("${@:2}") bucket=(tbf rate "${rate:-1gbit}" burst "$burst" latency 50ms) parent=(root)
  if [ "$rate" != none ]; then
    must "limit segments" "${at[@]}" ip link set "$1" gso_max_size "$segment"
    if said=$("${at[@]}" tc qdisc add dev "$1" root handle 1: "${bucket[@]}" 2>&1); then
      parent=(parent 1:1)
    elif [ -n "$rate" ]; then
      fail "cannot limit a link to $rate; the kernel needs sch_tbf (CONFIG_NET_SCH_TBF): $said"
    else
      rate=none
      rates=("${rates[@]/#*/none}")
      echo "two-hosts: the links have no rate limit; the kernel needs sch_tbf (CONFIG_NET_SCH_TBF): $said" >&2
    fi
  fi
  [ -z "$delay" ] || must "delay a link by $delay; the kernel needs sch_netem (CONFIG_NET_SCH_NETEM)" \
    "${at[@]}" tc qdisc add dev "$1" "${parent[@]}" netem delay "$delay" limit 100000
}

# Chooses the kernel's default congestion control, whatever this machine prefers: BBR, which paces by timers, is slower at
# 10 Gbit/s. It is set by route, because a namespace's own default is limited to what the machine allows.
choose_congestion_control() { # INDEX COMMAND THAT ENTERS ITS NAMESPACE...
  grep -qw cubic /proc/sys/net/ipv4/tcp_available_congestion_control || return 0
  must "choose host $1's congestion control" "${@:2}" \
    ip route replace "$network.0/24" dev eth0 proto kernel scope link src "$network.$(($1 + 1))" congctl cubic
}

# Prints a TCP counter of a host. The kernel writes a line of names and a line of values for each group of counters.
tcp_counter() { # NAME INDEX
  local names values at
  while read -ra names && read -ra values; do
    for at in "${!names[@]}"; do
      [ "${names[at]}" != "$1" ] || echo "${values[at]}"
    done
  done < <(nsenter --target "${keepers[$2]}" --net cat /proc/net/snmp /proc/net/netstat)
}

tell_counters() {
  local name from to index _
  while read -r name from _ _ _ _ _ _ _ to _; do
    [[ $name == host*: ]] || continue
    echo "two-hosts: ${name/host/host }" "$from bytes sent, $to bytes received" >&2
  done </proc/net/dev
  for index in "${!keepers[@]}"; do
    echo "two-hosts: host $index: $(tcp_counter RetransSegs "$index") segments sent again," \
      "$(tcp_counter TCPTimeouts "$index") of them after a timeout, $(tcp_counter TCPLostRetransmit "$index") lost twice;" \
      "$(tcp_counter TCPDSACKRecv "$index") reports of segments sent again that had arrived before" >&2
  done
}

switch() {
  local name code=0
  parse "$@"
  keepers=()
  for name in INT TERM HUP; do
    # shellcheck disable=SC2064
    trap "((run)) && kill -$name \$run || exit $((128 + $(kill -l "$name")))" "$name"
  done
  run=0
  echo up >&3
  exec 3>&-
  must "make a switch (bridge)" ip link add switch type bridge
  ip link set switch up
  for ((index = 0; index < hosts; index++)); do make_host "$index"; done
  "${attentive[@]}" "$weft" run -n $((hosts * ranks)) --store "tcp://$network.1:$port" "${run_options[@]}" -- \
    bash "$self" :enter "$ranks" "${keepers[*]}" "${command[@]}" &
  run=$!
  while kill -0 "$run" 2>/dev/null; do
    wait "$run" && code=0 || code=$?
  done
  ((counters == 0)) || tell_counters
  exit "$code"
}

# ---- enter: a rank, on its way into its host

# Prints the cores of a host; the cores are divided as evenly as possible. Ranks of one host exchange their numbers of cores,
# and do not spin while another of them needs the core. They would not know of other hosts' ranks on their cores.
cores_of() { # HOST HOSTS: a list for taskset(1)
  local part cores=() own=()
  for part in $(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/self/status | tr , ' '); do
    mapfile -t -O ${#cores[@]} cores < <(seq "${part%-*}" "${part#*-}")
  done
  for ((index = $1 % ${#cores[@]}; index < ${#cores[@]}; index += $2)); do own+=("${cores[index]}"); done
  (IFS=, && echo "${own[*]}")
}

enter() { # RANKS_PER_HOST "HOSTS' FIRST PROCESSES" COMMAND...
  local keepers host=$((WEFT_RANK / $1))
  read -ra keepers <<<"$2"
  export WEFT_LOCAL_SIZE=$1 WEFT_LOCAL_RANK=$((WEFT_RANK % $1))
  exec taskset --cpu-list "$(cores_of $host ${#keepers[@]})" \
    nsenter --target "${keepers[host]}" --net --mount --ipc --uts -- env -C "$PWD" -- "${@:3}"
}

case ${1:-} in
  :switch) switch "${@:2}" ;;
  :keep) keep "${@:2}" ;;
  :enter) enter "${@:2}" ;;
  *) outside "$@" ;;
esac
