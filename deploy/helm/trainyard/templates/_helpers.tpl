{{/* Labels that select the objects of a release. Arguments: root, component or "". */}}
{{- define "trainyard.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: trainyard
app.kubernetes.io/instance: {{ $root.Release.Name }}
{{- with index . 1 }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end }}

{{/* Labels of an object. Arguments: as above. Kubernetes limits the length of names, hence the check. */}}
{{- define "trainyard.labels" -}}
{{- $root := index . 0 -}}
{{- if gt (len $root.Release.Name) 40 }}
{{- fail (printf "the name of the release has %d characters, but names of objects begin with it; use at most 40" (len $root.Release.Name)) }}
{{- end -}}
{{ include "trainyard.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{/* The reference of an image. Arguments: root, coordinator or worker. */}}
{{- define "trainyard.image" -}}
{{- $root := index . 0 -}}
{{- $image := index $root.Values.images (index . 1) -}}
{{- if $image.digest -}}
{{ printf "%s@%s" $image.repository $image.digest | quote }}
{{- else -}}
{{ printf "%s:%s" $image.repository ($image.tag | default $root.Chart.AppVersion) | quote }}
{{- end -}}
{{- end }}

{{/* Where pods may run. Argument: the values of the coordinator or of the workers. */}}
{{- define "trainyard.scheduling" -}}
{{- $chosen := dict }}
{{- range $key := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" }}
{{- with index $ $key }}{{ $_ := set $chosen $key . }}{{ end }}
{{- end }}
{{- if $chosen }}{{ toYaml $chosen }}{{ end }}
{{- end }}

{{/* Requests and limits of a worker, with its GPUs. */}}
{{- define "trainyard.workerResources" -}}
{{- $resources := mustDeepCopy .Values.workers.resources -}}
{{- if gt (int .Values.workers.gpus.count) 0 }}
{{- range $kind := list "requests" "limits" }}
{{- $amounts := index $resources $kind | default dict }}
{{- $_ := set $amounts $.Values.workers.gpus.resource (toString $.Values.workers.gpus.count) }}
{{- $_ := set $resources $kind $amounts }}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* The field with the name of a host. A pod of a DaemonSet has a new name after each restart; its node keeps its own. */}}
{{- define "trainyard.hostName" -}}
{{ ternary "spec.nodeName" "metadata.name" (eq .Values.workers.kind "DaemonSet") }}
{{- end }}

{{/* The scripts that run before a worker starts and ends. */}}
{{- define "trainyard.hooks" -}}
{{- range $path, $content := .Files.Glob "hooks/*.sh" }}
{{ base $path }}: |
  {{- $content | toString | nindent 2 }}
{{- end }}
{{- end }}

{{/* The specification of a pod that runs one command of a client. Arguments: root, name of the container, command. */}}
{{- define "trainyard.clientPod" -}}
{{- $root := index . 0 -}}
automountServiceAccountToken: false
enableServiceLinks: false
restartPolicy: Never
{{- with $root.Values.images.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "trainyard.scheduling" $root.Values.coordinator }}
{{ . }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  seccompProfile: {type: RuntimeDefault}
containers:
  - name: {{ index . 1 }}
    image: {{ include "trainyard.image" (list $root "worker") }}
    {{- with $root.Values.images.pullPolicy }}
    imagePullPolicy: {{ . }}
    {{- end }}
    command: {{ index . 2 | toJson }}
    env:
      - {name: TRAINYARD_COORDINATOR, value: "{{ $root.Release.Name }}-coordinator:7070"}
      - {name: TRAINYARD_TOKEN_FILE, value: /etc/trainyard/secret/token}
      - name: TRAINYARD_DRAIN_SECONDS
        value: {{ $root.Values.workers.terminationGracePeriodSeconds | toString | toJson }}
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {memory: 256Mi}
    securityContext:
      allowPrivilegeEscalation: false
      readOnlyRootFilesystem: true
      capabilities: {drop: [ALL]}
    volumeMounts:
      - {name: token, mountPath: /etc/trainyard/secret, readOnly: true}
      - {name: hooks, mountPath: /etc/trainyard/hooks, readOnly: true}
volumes:
  - name: token
    secret:
      secretName: {{ $root.Values.tokenSecret }}
      defaultMode: 0440
  - name: hooks
    configMap: {name: {{ $root.Release.Name }}-hooks}
{{- end }}
