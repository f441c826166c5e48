{{/* What is set for every pod and for this one, as YAML, by name: root, values (of the role), name. Lists are joined, maps merged: the role's keys
count, and null takes one away. Of a text that of the role counts. */}}
{{- define "antiphon.joined" -}}
{{- $all := get .root.Values .name }}
{{- $own := get .values .name }}
{{- if or (kindIs "slice" $all) (kindIs "slice" $own) }}
{{- with concat ($all | default list) ($own | default list) }}
{{- toYaml . }}
{{- end }}
{{- else if or (kindIs "map" $all) (kindIs "map" $own) }}
{{- $merged := dict }}
{{- range list ($all | default dict) ($own | default dict) }}
{{- range $key, $value := . }}
{{- if kindIs "invalid" $value }}
{{- $_ := unset $merged $key }}
{{- else }}
{{- $_ := set $merged $key $value }}
{{- end }}
{{- end }}
{{- end }}
{{- with $merged }}
{{- toYaml . }}
{{- end }}
{{- else }}
{{- ternary $all $own (or (kindIs "invalid" $own) (eq (toString $own) "")) }}
{{- end }}
{{- end -}}

{{/* The securityContext of a pod. OpenShift gives each namespace ids of its own, and refuses those of the image. */}}
{{- define "antiphon.podSecurity" -}}
{{- $context := include "antiphon.joined" (dict "root" .root "values" .values "name" "podSecurityContext") | fromYaml }}
{{- if include "antiphon.isOpenShift" .root }}
{{- range list "runAsUser" "runAsGroup" "fsGroup" }}
{{- if eq (get $context . | toString) "65532" }}
{{- $_ := unset $context . }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $context }}
{{- end -}}

{{/* Volumes that hold a secret of values: name in the pod, folder, the value with its existingSecret, and the kind of variables that need it. As JSON. */}}
{{- define "antiphon.secretVolumes" -}}
{{- $volumes := list }}
{{- range list
  (dict "use" "nats" "name" "nats-credentials" "folder" "nats/credentials" "value" .Values.nats.credentials)
  (dict "use" "nats" "name" "nats-ca" "folder" "nats/ca" "value" .Values.nats.ca)
  (dict "use" "nats" "name" "nats-certificate" "folder" "nats/certificate" "value" .Values.nats.clientCertificate)
  (dict "use" "postgres" "name" "postgres-ca" "folder" "postgres-ca" "value" .Values.database.ca)
  (dict "use" "postgres" "name" "postgres-certificate" "folder" "postgres-certificate" "value" .Values.database.clientCertificate) }}
{{- if .value.existingSecret }}
{{- $volumes = append $volumes . }}
{{- end }}
{{- end }}
{{- toJson $volumes }}
{{- end -}}

{{/* Of a container that uses these kinds of variables: root, shared (where the values of every pod are), values (the role's), uses. */}}
{{- define "antiphon.volumeMounts" -}}
{{- range include "antiphon.secretVolumes" .root | fromJsonArray }}
{{- if has .use $.uses }}
- {name: {{ .name }}, mountPath: /etc/antiphon/{{ .folder }}, readOnly: true}
{{- end }}
{{- end }}
{{- if and (has "prices" .uses) (include "antiphon.files" .root) }}
- {name: files, mountPath: /etc/antiphon/files, readOnly: true}
{{- end }}
{{- with include "antiphon.joined" (dict "root" .shared "values" .values "name" "extraVolumeMounts") }}
{{ . }}
{{- end }}
{{- end -}}

{{/* The volumes for these mounts. */}}
{{- define "antiphon.volumes" -}}
{{- range include "antiphon.secretVolumes" .root | fromJsonArray }}
{{- if has .use $.uses }}
- name: {{ .name }}
  secret: {secretName: {{ .value.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- end }}
{{- if and (has "prices" .uses) (include "antiphon.files" .root) }}
- name: files
  configMap: {name: {{ include "antiphon.fullname" .root }}-files, defaultMode: 0440}
{{- end }}
{{- with include "antiphon.joined" (dict "root" .shared "values" .values "name" "extraVolumes") }}
{{ . }}
{{- end }}
{{- end -}}

{{/* The secrets and ConfigMaps that the pods of a role read, as JSON: kind, name, key (all keys when empty). root, role, user, values, uses. */}}
{{- define "antiphon.references" -}}
{{- $found := list }}
{{- $root := .root.Values }}
{{- $values := list }}
{{- if has "postgres" .uses }}
{{- $values = concat $values (list $root.database.ca $root.database.clientCertificate) }}
{{- if $root.database.usersSecret }}
{{- $found = append $found (dict "kind" "Secret" "name" $root.database.usersSecret "key" (include "antiphon.databaseUser" .user)) }}
{{- else }}
{{- $values = append $values $root.database }}
{{- end }}
{{- end }}
{{- if has "nats" .uses }}
{{- $values = concat $values (list $root.nats.credentials $root.nats.ca $root.nats.clientCertificate) }}
{{- if $root.nats.usersSecret }}
{{- $found = append $found (dict "kind" "Secret" "name" $root.nats.usersSecret "key" .user) }}
{{- else }}
{{- $values = append $values $root.nats }}
{{- end }}
{{- end }}
{{- if has "embeddings" .uses }}
{{- $values = append $values $root.embeddings }}
{{- end }}
{{- if eq .role "workflow" }}
{{- $values = append $values .values.llm }}
{{- end }}
{{- range append $values $root.otlp.headers }}
{{- if .existingSecret }}
{{- $found = append $found (dict "kind" "Secret" "name" .existingSecret "key" (.key | default "")) }}
{{- end }}
{{- end }}
{{- range concat ($root.envFrom | default list) (.values.envFrom | default list) }}
{{- range $kind, $from := dict "Secret" .secretRef "ConfigMap" .configMapRef }}
{{- if $from }}
{{- $found = append $found (dict "kind" $kind "name" $from.name "key" "") }}
{{- end }}
{{- end }}
{{- end }}
{{- range concat ($root.extraEnv | default list) (.values.extraEnv | default list) }}
{{- range $kind, $from := dict "Secret" (dig "valueFrom" "secretKeyRef" dict .) "ConfigMap" (dig "valueFrom" "configMapKeyRef" dict .) }}
{{- if $from }}
{{- $found = append $found (dict "kind" $kind "name" $from.name "key" $from.key) }}
{{- end }}
{{- end }}
{{- end }}
{{- range concat ($root.extraVolumes | default list) (.values.extraVolumes | default list) }}
{{- range prepend (dig "projected" "sources" list .) . }}
{{- with .secret }}
{{- $found = append $found (dict "kind" "Secret" "name" (.secretName | default .name) "key" "") }}
{{- end }}
{{- with .configMap }}
{{- $found = append $found (dict "kind" "ConfigMap" "name" .name "key" "") }}
{{- end }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end -}}

{{/* A checksum of what these secrets hold now, so that pods restart when one of them is changed: those of extraObjects, and those of the cluster, which
only `helm install` and `helm upgrade` can ask for. Empty when nothing is known of them. */}}
{{- define "antiphon.secretsChecksum" -}}
{{- $known := list }}
{{- $objects := dict }}
{{- range .root.Values.extraObjects }}
{{- $object := tpl (ternary . (toYaml .) (kindIs "string" .)) $.root | fromYaml }}
{{- $_ := set $objects (printf "%s/%s" $object.kind (dig "metadata" "name" "" $object)) $object }}
{{- end }}
{{- range include "antiphon.references" . | fromJsonArray }}
{{- $object := get $objects (printf "%s/%s" .kind .name) }}
{{- if and (not $object) $.root.Values.restartOnSecretChange }}
{{- $object = lookup "v1" .kind $.root.Release.Namespace .name }}
{{- end }}
{{- if $object }}
{{- $data := merge dict (pick $object "data" "stringData" "binaryData") }}
{{- if .key }}
{{- $data = dict "data" (get ($object.data | default dict) .key) "stringData" (get ($object.stringData | default dict) .key) }}
{{- end }}
{{- $known = append $known (printf "%s/%s/%s %s" .kind .name .key (toJson $data)) }}
{{- end }}
{{- end }}
{{- if $known }}
{{- $known | uniq | sortAlpha | join "\n" | sha256sum }}
{{- end }}
{{- end -}}

{{/* Labels and annotations of a pod: root, role, values, uses, user. */}}
{{- define "antiphon.podMetadata" -}}
labels:
  {{- include "antiphon.labels" (dict "root" .root "component" .role "more" (list .root.Values.podLabels .values.podLabels)) | nindent 2 }}
{{- $annotations := include "antiphon.joined" (dict "root" .root "values" .values "name" "podAnnotations") | fromYaml }}
{{- /* Files and variables are read at the start: other ones want other pods. */}}
{{- if has "prices" .uses }}
{{- with include "antiphon.files" .root | trim }}
{{- $_ := set $annotations "checksum/files" (sha256sum .) }}
{{- end }}
{{- end }}
{{- with include "antiphon.secretsChecksum" . }}
{{- $_ := set $annotations "checksum/secrets" . }}
{{- end }}
{{- with $annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What every pod has, but for its container: root, role, values, uses, container (text), isBare (no volumes and sidecars but its own), spread (text). */}}
{{- define "antiphon.podSpec" -}}
{{- $root := .root }}
{{- $scope := dict "root" .root "values" .values }}
{{- $shared := ternary (dict "Values" dict) $root .isBare }}
serviceAccountName: {{ include "antiphon.serviceAccount" . }}
automountServiceAccountToken: {{ include "antiphon.joined" (merge (dict "name" "automountServiceAccountToken") $scope) }}
enableServiceLinks: false
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- range $field := list "priorityClassName" "runtimeClassName" "schedulerName" "dnsPolicy" }}
{{- with include "antiphon.joined" (merge (dict "name" $field) $scope) }}
{{ $field }}: {{ . }}
{{- end }}
{{- end }}
securityContext:
  {{- include "antiphon.podSecurity" $scope | nindent 2 }}
{{- with include "antiphon.joined" (dict "root" $shared "values" .values "name" "initContainers") }}
initContainers:
  {{- . | nindent 2 }}
{{- end }}
containers:
  - {{ .container | nindent 4 | trim }}
    resources:
      {{- toYaml .values.resources | nindent 6 }}
    {{- with include "antiphon.joined" (merge (dict "name" "securityContext") $scope) }}
    securityContext:
      {{- . | nindent 6 }}
    {{- end }}
    {{- with include "antiphon.joined" (dict "root" $shared "values" .values "name" "envFrom") }}
    envFrom:
      {{- . | nindent 6 }}
    {{- end }}
    {{- with include "antiphon.volumeMounts" (dict "root" $root "shared" $shared "values" .values "uses" .uses) | trim }}
    volumeMounts:
      {{- . | nindent 6 }}
    {{- end }}
  {{- /* A Job would wait for the end of a sidecar, so those of every pod are for Deployments. */}}
  {{- with include "antiphon.joined" (dict "root" (ternary $root (dict "Values" dict) (hasKey . "spread")) "values" .values "name" "extraContainers") }}
  {{- . | nindent 2 }}
  {{- end }}
{{- with include "antiphon.volumes" (dict "root" $root "shared" $shared "values" .values "uses" .uses) | trim }}
volumes:
  {{- . | nindent 2 }}
{{- end }}
{{- range list "affinity" "dnsConfig" "topologySpreadConstraints" }}
{{- if get $.values . | default (get $root.Values .) }}
{{ dict . (get $.values . | default (get $root.Values .)) | toYaml }}
{{- else if eq . "topologySpreadConstraints" }}
{{- with $.spread }}
topologySpreadConstraints:
  {{- . | trim | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- range $field := list "hostAliases" "nodeSelector" "tolerations" }}
{{- with include "antiphon.joined" (merge (dict "name" $field) $scope) }}
{{ $field }}:
  {{- . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The objects of a role: its Deployment, what scales it, its disruption budget and its service account. root, role, values, uses (kinds of variables),
ports, env, grace, and for KEDA metric, target and targetName. */}}
{{- define "antiphon.role" -}}
{{- $root := .root -}}
{{- $values := .values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "antiphon.metadata" (dict "root" $root "name" .role "component" .role "annotations" (include "antiphon.joined" (dict "root" $root "values" $values "name" "annotations") | fromYaml)) | nindent 2 }}
spec:
  {{- if not $values.autoscaling.enabled }}
  replicas: {{ $values.replicas }}
  {{- end }}
  strategy:
    {{- toYaml ($values.strategy | default $root.Values.strategy) | nindent 4 }}
  selector:
    matchLabels:
      {{- include "antiphon.selector" (dict "root" $root "component" .role) | nindent 6 }}
  template:
    metadata:
      {{- include "antiphon.podMetadata" (merge (dict "user" .role) .) | nindent 6 }}
    spec:
      terminationGracePeriodSeconds: {{ .grace }}
      {{- include "antiphon.podSpec" (merge (dict "isBare" false "container" (include "antiphon.container" .) "spread" (include "antiphon.spread" .)) .) | trim | nindent 6 }}
{{- with include "antiphon.autoscaler" . | trim }}
---
{{ . }}
{{- end }}
{{- with include "antiphon.disruptionBudget" . | trim }}
---
{{ . }}
{{- end }}
{{- if dig "create" false $values.serviceAccount }}
---
{{ include "antiphon.serviceAccountObject" (merge (dict "component" .role) .) }}
{{- end }}
{{- end -}}

{{- define "antiphon.spread" -}}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- maxSkew: 1
  topologyKey: {{ $key }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "antiphon.selector" (dict "root" $.root "component" $.role) | nindent 6 }}
{{- end }}
{{- end -}}

{{/* The container of a role, but for what every container has. */}}
{{- define "antiphon.container" -}}
name: {{ .role }}
image: {{ include "antiphon.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [{{ .role }}]
env:
  {{- include "antiphon.env" (dict "root" .root "role" .role "user" .role "uses" .uses "own" .env "given" .values.env "extra" (include "antiphon.joined" (dict "root" .root "values" .values "name" "extraEnv") | fromYamlArray)) | nindent 2 }}
ports:
  {{- range $name, $port := .ports }}
  - {name: {{ $name }}, containerPort: {{ $port }}}
  {{- end }}
  - {name: metrics, containerPort: 9464}
# No startup probe: both probes are answered from the start on, and a pod waits for NATS and Postgres as long as they are away.
{{- range $probe, $path := dict "livenessProbe" "/livez" "readinessProbe" "/readyz" }}
{{ $probe }}:
  httpGet: {path: {{ $path }}, port: metrics}
  {{- include "antiphon.joined" (dict "root" $.root "values" $.values "name" $probe) | nindent 2 }}
{{- end }}
{{- with .values.lifecycle | default .root.Values.lifecycle }}
lifecycle:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A service account: root, role (none for that of the fleet), values (of the role), annotations (of a hook). */}}
{{- define "antiphon.serviceAccountObject" -}}
{{- $all := .root.Values.serviceAccount }}
{{- $own := .values.serviceAccount | default dict }}
{{- $annotations := mergeOverwrite dict (.annotations | default dict) ($all.annotations | default dict) ($own.annotations | default dict) }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ include "antiphon.serviceAccount" . }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "antiphon.labels" (dict "root" .root "component" .role "more" (list $all.labels $own.labels)) | nindent 4 }}
  {{- with $annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
automountServiceAccountToken: false
{{- end -}}
