#!/bin/sh
# Runs before `helm uninstall` removes the release: drains all hosts, so that their jobs save and wait, and waits until
# no rank is left, at most TRAINYARD_DRAIN_SECONDS (900). It gives up earlier if the coordinator does not answer
# TRAINYARD_DRAIN_TRIES times (5) in succession. It does not fail, because that would prevent the removal. After a new
# installation on the same volumes, allow-host.sh removes the cordons and the jobs resume.
# Environment: TRAINYARD_COORDINATOR; TRAINYARD_TOKEN_FILE.
set -u
trainctl=${TRAINCTL:-/opt/trainyard/bin/trainctl}

end=$(($(date +%s) + ${TRAINYARD_DRAIN_SECONDS:-900}))
failures=0
while [ "$(date +%s)" -lt "$end" ] && [ "$failures" -lt "${TRAINYARD_DRAIN_TRIES:-5}" ]; do
  failures=$((failures + 1))
  if hosts=$("$trainctl" --allow-plaintext cluster --json); then
    failures=0
    case $hosts in *'"jobs":["'*) ;; *) exit 0 ;; esac
    for host in $(printf '%s\n' "$hosts" | grep -F '"cordoned":false' | sed -n 's/.*"name":"\([^"]*\)".*/\1/p'); do
      "$trainctl" --allow-plaintext drain "$host" --reason 'pod is ending'
    done
  fi
  sleep 1
done
echo "drain-all.sh: ranks still run, or the coordinator does not answer; they restart from their last checkpoint" >&2
