#!/bin/bash
# Shows what sockwatch sees: two network namespaces joined by a veth pair, a
# transfer between them, a link that is cut for 20 seconds, a refused
# connection and one that is closed with unread data; then the smallest of the
# experiments.
#
# It touches nothing but the namespaces it makes, and removes them.
set -euo pipefail

cut_seconds=${CUT_SECONDS:-20}
client=sw-demo-a
server=sw-demo-b

cd "$(dirname "$0")/.."

if [[ $(id -u) -ne 0 ]]; then
	echo "make demo needs root to make network namespaces and to load BPF programs: sudo make demo" >&2
	exit 1
fi
go=$(command -v go || echo /usr/local/go/bin/go)
if [[ ! -x $go ]]; then
	echo "make demo needs Go: https://go.dev/dl" >&2
	exit 1
fi
if ! command -v ip >/dev/null; then
	echo "installing iproute2"
	apt-get -qq update && apt-get -qq install -y iproute2 >/dev/null
fi
for ns in $client $server; do
	if [[ -e /run/netns/$ns ]]; then
		echo "network namespace $ns exists: is another demo running? If not: ip netns del $ns" >&2
		exit 1
	fi
done

tmp=$(mktemp -d)
pids=()
made=()

cleanup() {
	local status=$?
	trap - EXIT INT TERM HUP
	for pid in "${pids[@]}"; do
		kill "$pid" 2>/dev/null || true
	done
	for pid in "${pids[@]}"; do
		wait "$pid" 2>/dev/null || true
	done
	for ns in "${made[@]}"; do
		ip netns del "$ns" || true
	done
	rm -rf "$tmp"
	exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# Background processes are in sessions of their own: Ctrl-C is for this script,
# which ends them in order. Waiting is done where a signal interrupts it.
pause() {
	sleep "$1" &
	wait $!
}
say() { printf '\n# %s\n' "$*"; }
# await SECONDS WHAT COMMAND...: until the command succeeds.
await() {
	local deadline=$((SECONDS + $1)) what=$2
	shift 2
	until "$@"; do
		if ((SECONDS >= deadline)); then
			echo "demo: waited in vain for $what" >&2
			exit 1
		fi
		pause 0.1
	done
}

say "building (the BPF objects are committed: no clang)"
make --no-print-directory build GO="$go"
CGO_ENABLED=0 "$go" build -o "$tmp/demo" ./hack/demo

say "two namespaces, $client (198.18.0.1) and $server (198.18.0.2), joined by a veth pair"
for ns in $client $server; do
	ip netns add "$ns"
	made+=("$ns")
	ip -n "$ns" link set lo up
done
ip -n $client link add eth0 address 02:00:00:00:00:0a type veth peer name eth0 address 02:00:00:00:00:0b netns $server
ip -n $client addr add 198.18.0.1/24 dev eth0
ip -n $server addr add 198.18.0.2/24 dev eth0
ip -n $client link set eth0 up
ip -n $server link set eth0 up
# Neighbours that need no resolution: what is cut is the wire, and nothing on
# this machine tells TCP of it.
ip -n $client neigh replace 198.18.0.2 lladdr 02:00:00:00:00:0b dev eth0 nud permanent
ip -n $server neigh replace 198.18.0.1 lladdr 02:00:00:00:00:0a dev eth0 nud permanent

mkdir -p dist
evidence=$PWD/dist/demo.jsonl
say "sockwatch --netns $client -o dist/demo.jsonl"
setsid ./sockwatch --netns $client -o "$evidence" --force --format text --ready-file "$tmp/ready" &
sockwatch=$!
pids+=("$sockwatch")
await 20 "sockwatch" test -e "$tmp/ready" -o ! -d /proc/$sockwatch
test -e "$tmp/ready" || { wait $sockwatch; exit; }

setsid ip netns exec $server "$tmp/demo" serve 198.18.0.2:7000 198.18.0.2:7001 >"$tmp/listening" &
pids+=($!)
await 10 "the server" grep -q listening "$tmp/listening"

say "a transfer from $client to $server, ten kilobytes a second"
mkfifo "$tmp/stop"
setsid ip netns exec $client "$tmp/demo" transfer 198.18.0.2:7000 <"$tmp/stop" >"$tmp/transfer" &
transfer=$!
pids+=("$transfer")
exec 3>"$tmp/stop"
pause 2

say "the link is cut for $cut_seconds seconds"
./sockwatch mark --kind intended "cut the link"
ip -n $server link set eth0 down
./sockwatch mark --kind applied "cut the link"
pause "$cut_seconds"

say "the link is healed; the next retransmission finds it"
./sockwatch mark --kind heal-intended "heal the link"
ip -n $server link set eth0 up
./sockwatch mark --kind healed "heal the link"
await 60 "the recovery" grep -q '"type":"recovered"' "$evidence"
exec 3>&-
wait "$transfer"
echo "transfer: $(cat "$tmp/transfer")"

say "a connection to a port where nobody listens: a reset, received"
ip netns exec $client "$tmp/demo" refused 198.18.0.2:7009
pause 0.5

say "a connection closed with unread data: a reset, sent, and an abort"
ip netns exec $client "$tmp/demo" unread 198.18.0.2:7001
pause 0.5

say "Ctrl-C"
kill -INT "$sockwatch"
wait "$sockwatch"

say "an experiment: does a request that its client abandoned still land? about a minute"
rm -rf dist/quick
./sockwatch measure quick -o dist/quick &
measure=$!
pids+=("$measure")
wait "$measure"
sed -n '/^| cell/,/^$/p; /^- /p' dist/quick/summary.md

if [[ -n ${SUDO_UID:-} && -n ${SUDO_GID:-} ]]; then
	chown -R "$SUDO_UID:$SUDO_GID" "$evidence" dist sockwatch
fi
say "the evidence, $(wc -l <"$evidence") lines: $evidence"
echo "  for example:  grep '\"type\":\"retransmit\"' dist/demo.jsonl | head -n 1"
