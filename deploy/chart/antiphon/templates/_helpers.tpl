{{- define "antiphon.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "antiphon.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "antiphon.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "antiphon.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "antiphon.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Values.image.tag | default .Chart.AppVersion | quote }}
{{ include "antiphon.selector" . }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "antiphon.selector" -}}
app.kubernetes.io/name: {{ include "antiphon.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "antiphon.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Variables of every role. */}}
{{- define "antiphon.processEnv" -}}
- name: ANTIPHON_METRICS_ADDR
  value: 0.0.0.0:9464
- name: ANTIPHON_LOG
  value: {{ .Values.log.level | quote }}
- name: ANTIPHON_LOG_FORMAT
  value: {{ .Values.log.format | quote }}
{{- with .Values.otlp }}
{{- if .endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .endpoint | quote }}
{{- if .headers.existingSecret }}
- name: OTEL_EXPORTER_OTLP_HEADERS
  valueFrom:
    secretKeyRef:
      name: {{ .headers.existingSecret }}
      key: {{ .headers.key }}
{{- end }}
{{- range $name, $value := dict "OTEL_TRACES_SAMPLER" .sampler "OTEL_TRACES_SAMPLER_ARG" .samplerArg "OTEL_RESOURCE_ATTRIBUTES" .resourceAttributes }}
{{- if $value }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Of the roles that use Postgres. */}}
{{- define "antiphon.postgresEnv" -}}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ required "database.existingSecret is required: the secret with the URL of Postgres" .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
{{- end -}}

{{/* Of the roles that use NATS. */}}
{{- define "antiphon.natsEnv" -}}
- name: NATS_URL
{{- if .Values.nats.usersSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.nats.usersSecret }}
      key: {{ .user }}
- name: ANTIPHON_NATS_INBOX_PREFIX
  value: _INBOX_{{ .user }}
{{- else }}
  value: {{ required "nats.url or nats.usersSecret is required: where NATS is" .Values.nats.url | quote }}
{{- end }}
{{- if .Values.nats.credentials.existingSecret }}
- name: ANTIPHON_NATS_CREDENTIALS
  value: /etc/antiphon/nats/credentials/{{ .Values.nats.credentials.key }}
{{- end }}
{{- if .Values.nats.ca.existingSecret }}
- name: ANTIPHON_NATS_CA
  value: /etc/antiphon/nats/ca/{{ .Values.nats.ca.key }}
{{- end }}
{{- end -}}

{{/* Of what lays streams out, or compares their number. */}}
{{- define "antiphon.partitionsEnv" -}}
- name: ANTIPHON_PARTITIONS
  value: {{ .Values.partitions | quote }}
{{- end -}}

{{- define "antiphon.streamsEnv" -}}
- name: ANTIPHON_STREAM_REPLICAS
  value: {{ .Values.nats.streamReplicas | quote }}
- name: ANTIPHON_STREAM_MAX_BYTES
  value: {{ .Values.nats.streamMaxBytes | int64 | quote }}
{{- $workflows := .Values.nats.workflows }}
{{- if .Values.workflow.enabled }}
{{- $workflows = append $workflows .Values.workflow.name | uniq }}
{{- end }}
- name: ANTIPHON_WORKFLOWS
  value: {{ $workflows | join "," | quote }}
- name: ANTIPHON_INTEGRATORS
  value: {{ .Values.nats.integrators | join "," | quote }}
{{- end -}}

{{/* Files that are read at the start: what tokens cost, and limits of turns. */}}
{{- define "antiphon.pricesEnv" -}}
{{- if .Values.prices }}
- name: ANTIPHON_PRICES_FILE
  value: /etc/antiphon/files/prices.json
{{- end }}
{{- end -}}

{{- define "antiphon.turnLimitsEnv" -}}
{{- if .Values.turnLimits }}
- name: ANTIPHON_LIMITS_FILE
  value: /etc/antiphon/files/limits.json
{{- end }}
{{- end -}}

{{/* The endpoint that makes vectors of what agents remember. */}}
{{- define "antiphon.embeddingsEnv" -}}
{{- with .Values.embeddings }}
{{- if .url }}
- name: ANTIPHON_EMBEDDINGS_URL
  value: {{ .url | quote }}
- name: ANTIPHON_EMBEDDINGS_MODEL
  value: {{ required "embeddings.model is required with embeddings.url" .model | quote }}
{{- if .dimensions }}
- name: ANTIPHON_EMBEDDINGS_DIMENSIONS
  value: {{ .dimensions | int | quote }}
{{- end }}
- name: ANTIPHON_EMBEDDINGS_TIMEOUT_MS
  value: {{ .timeoutMs | int | quote }}
{{- if .existingSecret }}
- name: ANTIPHON_EMBEDDINGS_API_KEY
  valueFrom:
    secretKeyRef:
      name: {{ .existingSecret }}
      key: {{ .key }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "antiphon.files" -}}
{{- with .Values.prices }}
prices.json: {{ toJson . | quote }}
{{- end }}
{{- if .Values.turnLimits }}
{{- $limits := list }}
{{- $fields := dict "turnsAtOnce" "turns_at_once" "turnsPerMinute" "turns_per_minute" "tokensPerMinute" "tokens_per_minute" }}
{{- range .Values.turnLimits }}
{{- $limit := dict }}
{{- range $field, $value := . }}
{{- if hasKey $fields $field }}
{{- $_ := set $limit (get $fields $field) ($value | int64) }}
{{- else }}
{{- $_ := set $limit $field $value }}
{{- end }}
{{- end }}
{{- $limits = append $limits $limit }}
{{- end }}
limits.json: {{ dict "limits" $limits | toJson | quote }}
{{- end }}
{{- end -}}

{{/* The value that sets a variable, for the error of one that `env` names too. */}}
{{- define "antiphon.valueOf" -}}
{{- $values := dict
  "ANTIPHON_EMBEDDINGS_API_KEY" "embeddings.existingSecret"
  "ANTIPHON_EMBEDDINGS_DIMENSIONS" "embeddings.dimensions"
  "ANTIPHON_EMBEDDINGS_MODEL" "embeddings.model"
  "ANTIPHON_EMBEDDINGS_TIMEOUT_MS" "embeddings.timeoutMs"
  "ANTIPHON_EMBEDDINGS_URL" "embeddings.url"
  "ANTIPHON_HTTP_CLOSE_DELAY_SECONDS" "gateway.closeDelaySeconds"
  "ANTIPHON_HTTP_DRAIN_SECONDS" "gateway.drainSeconds"
  "ANTIPHON_INTEGRATORS" "nats.integrators"
  "ANTIPHON_LIMITS_FILE" "turnLimits"
  "ANTIPHON_LLM_API_KEY" "workflow.llm.existingSecret"
  "ANTIPHON_LLM_BASE_URL" "workflow.llm.baseUrl"
  "ANTIPHON_LLM_MODEL" "workflow.llm.model"
  "ANTIPHON_LOG" "log.level"
  "ANTIPHON_LOG_FORMAT" "log.format"
  "ANTIPHON_MAX_CONNECTIONS_PER_IP" "gateway.maxConnectionsPerIp"
  "ANTIPHON_MCP_HOSTS" "mcp.hosts"
  "ANTIPHON_NATS_CA" "nats.ca"
  "ANTIPHON_NATS_CREDENTIALS" "nats.credentials"
  "ANTIPHON_NATS_INBOX_PREFIX" "nats.usersSecret"
  "ANTIPHON_PARTITIONS" "partitions"
  "ANTIPHON_PRICES_FILE" "prices"
  "ANTIPHON_STREAM_MAX_BYTES" "nats.streamMaxBytes"
  "ANTIPHON_STREAM_REPLICAS" "nats.streamReplicas"
  "ANTIPHON_WORKFLOW" "workflow.name"
  "ANTIPHON_WORKFLOWS" "nats.workflows"
  "ANTIPHON_WORKFLOW_DRAIN_SECONDS" "workflow.drainSeconds"
  "DATABASE_URL" "database.existingSecret"
  "NATS_URL" "nats.url or nats.usersSecret"
  "OTEL_EXPORTER_OTLP_ENDPOINT" "otlp.endpoint"
  "OTEL_EXPORTER_OTLP_HEADERS" "otlp.headers"
  "OTEL_RESOURCE_ATTRIBUTES" "otlp.resourceAttributes"
  "OTEL_TRACES_SAMPLER" "otlp.sampler"
  "OTEL_TRACES_SAMPLER_ARG" "otlp.samplerArg" }}
{{- with get $values . }}set {{ . }}{{ else }}leave it out{{ end }}
{{- end -}}

{{/* The variables of a container: root, role, uses (kinds of variables), own (variables of the role), given (by name, of the role). */}}
{{- define "antiphon.env" -}}
{{- $parts := list }}
{{- range .uses }}
{{- $parts = append $parts (include (printf "antiphon.%sEnv" .) (dict "Values" $.root.Values "user" $.user) | trim) }}
{{- end }}
{{- $env := append $parts .own | compact | join "\n" }}
{{- $given := dict }}
{{- range list .root.Values.env .given }}
{{- range $name, $value := . }}
{{- /* A whole number may have been read as a float: as a text it would be 2.68e+08. */}}
{{- if and (kindIs "float64" $value) (eq (floor $value) $value) }}
{{- $value = int64 $value }}
{{- end }}
{{- $_ := set $given $name ($value | toString) }}
{{- end }}
{{- end }}
{{- range $name, $value := $given }}
{{- if regexMatch (printf "(?m)^- name: %s$" $name) $env }}
{{- fail (printf "env must not have %s, which the chart sets in pods of %s: %s" $name $.role (include "antiphon.valueOf" $name)) }}
{{- end }}
{{- $env = printf "%s\n- name: %s\n  value: %s" $env $name ($value | quote) }}
{{- end }}
{{- $env }}
{{- end -}}

{{/* Of a container that uses these kinds of variables: root, values (the role's), uses. */}}
{{- define "antiphon.volumeMounts" -}}
{{- $nats := .root.Values.nats }}
{{- if and (has "nats" .uses) $nats.credentials.existingSecret }}
- {name: nats-credentials, mountPath: /etc/antiphon/nats/credentials, readOnly: true}
{{- end }}
{{- if and (has "nats" .uses) $nats.ca.existingSecret }}
- {name: nats-ca, mountPath: /etc/antiphon/nats/ca, readOnly: true}
{{- end }}
{{- if and (has "prices" .uses) (include "antiphon.files" .root) }}
- {name: files, mountPath: /etc/antiphon/files, readOnly: true}
{{- end }}
{{- with .values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "antiphon.volumes" -}}
{{- $nats := .root.Values.nats }}
{{- if and (has "nats" .uses) $nats.credentials.existingSecret }}
- name: nats-credentials
  secret: {secretName: {{ $nats.credentials.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- if and (has "nats" .uses) $nats.ca.existingSecret }}
- name: nats-ca
  secret: {secretName: {{ $nats.ca.existingSecret | quote }}, defaultMode: 0440}
{{- end }}
{{- if and (has "prices" .uses) (include "antiphon.files" .root) }}
- name: files
  configMap: {name: {{ include "antiphon.fullname" .root }}-files, defaultMode: 0440}
{{- end }}
{{- with .values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "antiphon.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "antiphon.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* The port of a URL. */}}
{{- define "antiphon.urlPort" -}}
{{- $url := urlParse . }}
{{- regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- end -}}

{{/* A Deployment of a role: root, role (its name), values (the role's), uses (kinds of variables), ports, env, grace. */}}
{{- define "antiphon.deployment" -}}
{{- $root := .root -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "antiphon.fullname" $root }}-{{ .role }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "antiphon.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  {{- if not .isScaled }}
  replicas: {{ .values.replicas }}
  {{- end }}
  strategy:
    type: RollingUpdate
    rollingUpdate: {maxSurge: 1, maxUnavailable: 0}
  selector:
    matchLabels:
      {{- include "antiphon.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
  template:
    metadata:
      labels:
        {{- include "antiphon.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ .role }}
      {{- $files := and (has "prices" .uses) (include "antiphon.files" $root | trim) }}
      {{- if or .values.podAnnotations $files }}
      annotations:
        {{- with .values.podAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
        {{- if $files }}
        # They are read at the start: other ones want other pods.
        checksum/files: {{ $files | sha256sum }}
        {{- end }}
      {{- end }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ .grace }}
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      securityContext:
        {{- include "antiphon.podSecurity" $root | nindent 8 }}
      containers:
        - name: {{ .role }}
          image: {{ include "antiphon.image" $root }}
          imagePullPolicy: {{ $root.Values.image.pullPolicy }}
          args: [{{ .role }}]
          env:
            {{- include "antiphon.env" (dict "root" $root "role" .role "user" .role "uses" .uses "own" .env "given" .values.env) | nindent 12 }}
          {{- with .values.envFrom }}
          envFrom:
            {{- toYaml . | nindent 12 }}
          {{- end }}
          ports:
            {{- range $name, $port := .ports }}
            - {name: {{ $name }}, containerPort: {{ $port }}}
            {{- end }}
            - {name: metrics, containerPort: 9464}
          # No startup probe: both probes are answered from the start on, and a pod waits for NATS and Postgres as long as they are away.
          livenessProbe:
            httpGet: {path: /livez, port: metrics}
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 3
          readinessProbe:
            httpGet: {path: /readyz, port: metrics}
            periodSeconds: 2
            timeoutSeconds: 2
            failureThreshold: 1
          resources:
            {{- toYaml .values.resources | nindent 12 }}
          securityContext:
            {{- include "antiphon.containerSecurity" $root | nindent 12 }}
          {{- $mounts := include "antiphon.volumeMounts" (dict "root" $root "values" .values "uses" .uses) | trim }}
          {{- if $mounts }}
          volumeMounts:
            {{- $mounts | nindent 12 }}
          {{- end }}
      {{- $volumes := include "antiphon.volumes" (dict "root" $root "values" .values "uses" .uses) | trim }}
      {{- if $volumes }}
      volumes:
        {{- $volumes | nindent 8 }}
      {{- end }}
      topologySpreadConstraints:
        {{- if .values.topologySpreadConstraints }}
        {{- toYaml .values.topologySpreadConstraints | nindent 8 }}
        {{- else }}
        {{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
        - maxSkew: 1
          topologyKey: {{ $key }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels:
              {{- include "antiphon.selector" $root | nindent 14 }}
              app.kubernetes.io/component: {{ $.role }}
        {{- end }}
        {{- end }}
      {{- with .values.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.tolerations }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .values.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
{{- end -}}

{{/* A PodDisruptionBudget of a role: root, role, values. */}}
{{- define "antiphon.disruptionBudget" -}}
{{- if .values.podDisruptionBudget.enabled }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "antiphon.fullname" .root }}-{{ .role }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "antiphon.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  maxUnavailable: {{ .values.podDisruptionBudget.maxUnavailable }}
  # A pod that is not ready, as a worker with an open incident, does not keep its node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "antiphon.selector" .root | nindent 6 }}
      app.kubernetes.io/component: {{ .role }}
{{- end }}
{{- end -}}

{{/* A HorizontalPodAutoscaler on CPU: root, role, values. */}}
{{- define "antiphon.autoscaler" -}}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "antiphon.fullname" .root }}-{{ .role }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "antiphon.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "antiphon.fullname" .root }}-{{ .role }}
  minReplicas: {{ .values.autoscaling.minReplicas }}
  maxReplicas: {{ .values.autoscaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ .values.autoscaling.targetCPUUtilizationPercentage }}}
  behavior:
    scaleDown:
      # A pod that goes hands its partitions or streams over: seldom is better.
      stabilizationWindowSeconds: 300
      policies: [{type: Pods, value: 1, periodSeconds: 60}]
{{- end -}}

{{/* A Service of a role: root, role, values, port (the container's name of it). */}}
{{- define "antiphon.service" -}}
apiVersion: v1
kind: Service
metadata:
  name: {{ include "antiphon.fullname" .root }}-{{ .role }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "antiphon.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
  {{- with .values.service.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ .values.service.type }}
  ports:
    - {name: http, port: {{ .values.service.port }}, targetPort: http, protocol: TCP}
  selector:
    {{- include "antiphon.selector" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
{{- end -}}
