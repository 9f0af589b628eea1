#!/bin/sh
# Runs before `helm uninstall` removes the release: drains all hosts, so that their jobs save and wait, and waits until
# no rank is left, at most TRAINYARD_DRAIN_SECONDS (900). It gives up earlier if the coordinator does not answer
# TRAINYARD_DRAIN_TRIES times (5) in succession. It does not fail, because that would prevent the removal. After a new
# installation on the same volumes, allow-host.sh removes the cordons and the jobs resume.
# Environment: TRAINYARD_COORDINATOR; TRAINYARD_TOKEN_FILE.
set -uf
trainctl=${TRAINCTL:-/opt/trainyard/bin/trainctl}

# Drains the host of a line of `trainctl cluster --json`. A cordoned host may still have ranks, so it is drained, too,
# but only once, because it stays cordoned. An operator's cordon keeps its reason, so that allow-host.sh does not remove
# it.
drained=' '
drain() {
  name=$(printf '%s\n' "$1" | sed -n 's/^{"event":"host","name":"\([^"]*\)".*/\1/p')
  reason='pod is ending'
  case $1 in
    *'"cordoned":true'*'"jobs":[]'*) return ;;
    *'"cordoned":true'*)
      case $drained in *" $name "*) return ;; esac
      reason=$(printf '%s\n' "$1" | sed -n 's/.*"cordon_reason":"\(drained: \)\{0,1\}\([^"\\]*\)".*/\2/p')
      ;;
  esac
  if "$trainctl" --allow-plaintext drain "$name" --reason "${reason:-cordoned by an operator}"; then
    drained="$drained$name "
  fi
}

end=$(($(date +%s) + ${TRAINYARD_DRAIN_SECONDS:-900}))
failures=0
while [ "$(date +%s)" -lt "$end" ] && [ "$failures" -lt "${TRAINYARD_DRAIN_TRIES:-5}" ]; do
  failures=$((failures + 1))
  if hosts=$("$trainctl" --allow-plaintext cluster --json); then
    failures=0
    case $hosts in *'"jobs":["'*) ;; *) exit 0 ;; esac
    IFS='
'
    for line in $hosts; do drain "$line"; done
    unset IFS
  fi
  sleep 1
done
echo "drain-all.sh: ranks still run, or the coordinator does not answer; they restart from their last checkpoint" >&2
