#!/bin/sh
# Runs before a worker daemon starts: removes the cordon that drain-host.sh left when the previous pod of this name
# ended. A cordon with another reason was set by an operator, and remains. Waits for the coordinator.
# Environment: TRAINYARD_NAME, the name of this host; TRAINYARD_COORDINATOR and TRAINYARD_TOKEN_FILE, for trainctl.
set -eu
trainctl=${TRAINCTL:-/opt/trainyard/bin/trainctl}

until hosts=$("$trainctl" --allow-plaintext cluster --json); do sleep 2; done
host=$(printf '%s\n' "$hosts" | grep -F "\"name\":\"$TRAINYARD_NAME\",") || exit 0
case $host in
  *'"cordon_reason":"drained: pod is ending"'*) "$trainctl" --allow-plaintext uncordon "$TRAINYARD_NAME" ;;
esac
