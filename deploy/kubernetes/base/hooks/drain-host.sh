#!/bin/sh
# Runs before a worker's container is stopped: moves the jobs of this host to other hosts, each after a save, and waits
# until no rank is left. Kubernetes kills the container after terminationGracePeriodSeconds. A coordinator that does not
# answer may be restarting at the same time, so the script asks TRAINYARD_DRAIN_TRIES times (300), once a second, while
# this host has ranks. After the last try, trainers end with the container, and jobs restart from their last checkpoint.
# Environment: TRAINYARD_NAME, the name of this host; TRAINYARD_COORDINATOR; TRAINYARD_TOKEN_FILE; TRAINYARD_PROC, where
# the processes of this host are (/proc).
set -eu
trainctl=${TRAINCTL:-/opt/trainyard/bin/trainctl}

has_ranks() { cat "${TRAINYARD_PROC:-/proc}"/[0-9]*/comm 2>/dev/null | grep -qx trainyard-shim; }
host() { "$trainctl" --allow-plaintext cluster --json | grep -F "\"name\":\"$TRAINYARD_NAME\","; }

# A drain replaces the reason of a cordon. If an operator has cordoned the host, the drain gets the operator's reason:
# allow-host.sh removes only a cordon with the reason below.
tries=${TRAINYARD_DRAIN_TRIES:-300}
reason='pod is ending'
failures=0
until state=$(host); do
  has_ranks || exit 0
  failures=$((failures + 1))
  [ "$failures" -lt "$tries" ] || exit 1
  sleep 1
done
case $state in
  *'"cordoned":true'*)
    reason=$(printf '%s\n' "$state" | sed -n 's/.*"cordon_reason":"\(drained: \)\{0,1\}\([^"\\]*\)".*/\2/p')
    ;;
esac
# A coordinator whose disk is full answers questions, but refuses the drain.
failures=0
until "$trainctl" --allow-plaintext drain "$TRAINYARD_NAME" --reason "${reason:-cordoned by an operator}"; do
  has_ranks || exit 0
  failures=$((failures + 1))
  [ "$failures" -lt "$tries" ] || exit 1
  sleep 1
done
failures=0
while [ "$failures" -lt "$tries" ]; do
  if state=$(host); then
    failures=0
    case $state in *'"jobs":[]'*) exit 0 ;; esac
  else
    failures=$((failures + 1))
  fi
  sleep 1
done
