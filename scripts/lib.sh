# Sourced by the scripts beside it: messages, and steps that show that they live.
# shellcheck shell=bash

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# A Go and a Node.js that scripts/install-deps put into .tools go first.
export PATH=$PWD/.tools/go/bin:$PWD/.tools/node/bin:$PATH

declare -A job_pid=() job_log=() job_began=()

# start NAME COMMAND…: runs a program in the background, to be waited for with finish.
# It has a session of its own, so that all that it started can be ended with it, and
# a log without a name, which is gone when the last process is.
start() {
	local name=$1 log fd
	shift
	log=$(mktemp)
	exec {fd}<>"$log"
	rm -f "$log"
	setsid "$@" >&"$fd" 2>&1 </dev/null &
	job_pid[$name]=$! job_log[$name]=$fd job_began[$name]=$SECONDS
}

# finish NAME: waits for a started program, says every few seconds that it still
# runs, and shows the tail of its output if it fails.
finish() {
	local name=$1 pid=${job_pid[$1]} fd=${job_log[$1]} took said every=10 status=0
	said=$((SECONDS - job_began[$name]))
	[ -t 1 ] && every=1
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.1
		took=$((SECONDS - job_began[$name]))
		if (( took - said >= every )); then
			said=$took
			if [ -t 1 ]; then printf '\r    %s … %d s ' "$name" "$took"; else printf '    %s … %d s\n' "$name" "$took"; fi
		fi
	done
	wait "$pid" || status=$?
	took=$((SECONDS - job_began[$name]))
	unset "job_pid[$name]" "job_log[$name]" "job_began[$name]"
	[ -t 1 ] && printf '\r\033[K'
	if (( status != 0 )); then
		printf '    %s failed (exit %d) after %d s. Its last lines:\n' "$name" "$status" "$took" >&2
		tail -n 40 "/proc/self/fd/$fd" >&2
	else
		printf '    %s: done in %d s\n' "$name" "$took"
	fi
	exec {fd}>&-
	return "$status"
}

# step NAME COMMAND…: start and finish.
step() { start "$@"; finish "$1"; }

# stop_jobs ends what was started and not finished, with all that it started. npm takes
# its time to undo what it began, and outlives the script that called it.
stop_jobs() {
	local pid
	for pid in "${job_pid[@]}"; do kill -TERM -- "-$pid" 2>/dev/null || true; done
	for pid in "${job_pid[@]}"; do
		for _ in $(seq 100); do
			kill -0 -- "-$pid" 2>/dev/null || continue 2
			sleep 0.1
		done
		kill -KILL -- "-$pid" 2>/dev/null || true
	done
	job_pid=()
}
trap stop_jobs EXIT
trap 'exit 130' INT TERM
