# Sourced by the scripts beside it: messages, and a step that shows that it lives.
# shellcheck shell=bash

say() { printf '\033[1m==>\033[0m %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# step NAME COMMAND…: runs the command with its output in a file, says every few
# seconds that it still runs, and shows the output's tail if it fails.
step() {
	local name=$1 log pid start status=0 every=10
	shift
	log=$(mktemp)
	start=$SECONDS
	[ -t 1 ] && every=1
	"$@" >"$log" 2>&1 &
	pid=$!
	# Ctrl-C ends the step too: a background child of a script ignores SIGINT.
	trap 'kill -TERM "$pid" 2>/dev/null; wait "$pid" 2>/dev/null || true; rm -f "$log"; exit 130' INT TERM
	while kill -0 "$pid" 2>/dev/null; do
		sleep 0.2
		if (( SECONDS - start >= every )); then
			if [ -t 1 ]; then
				printf '\r    %s … %d s ' "$name" $((SECONDS - start))
			else
				printf '    %s … %d s\n' "$name" $((SECONDS - start)); every=$((every + 10))
			fi
		fi
	done
	wait "$pid" || status=$?
	trap - INT TERM
	[ -t 1 ] && printf '\r\033[K'
	if (( status != 0 )); then
		printf '    %s failed (exit %d) after %d s. Its last lines:\n' "$name" "$status" $((SECONDS - start)) >&2
		tail -n 40 "$log" >&2
		rm -f "$log"
		return "$status"
	fi
	printf '    %s: done in %d s\n' "$name" $((SECONDS - start))
	rm -f "$log"
}
