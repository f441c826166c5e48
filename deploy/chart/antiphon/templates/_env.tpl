{{/* Variables of every role. */}}
{{- define "antiphon.processEnv" -}}
- name: ANTIPHON_METRICS_ADDR
  value: {{ include "antiphon.address" (dict "root" . "port" 9464) | toYaml }}
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
{{- /* The number 0 is a value. */}}
{{- if ne (toString $value) "" }}
- name: {{ $name }}
  value: {{ $value | toString | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Whose URL of database.usersSecret a role has: those of deploy/postgres-roles.sql. */}}
{{- define "antiphon.databaseUser" -}}
{{- get (dict "worker" "worker" "gateway" "gateway" "mcp" "gateway" "operator" "owner") . }}
{{- end -}}

{{/* Of the roles that use Postgres. */}}
{{- define "antiphon.postgresEnv" -}}
- name: DATABASE_URL
  valueFrom:
    secretKeyRef:
      {{- if .Values.database.usersSecret }}
      name: {{ .Values.database.usersSecret }}
      key: {{ include "antiphon.databaseUser" .user }}
      {{- else }}
      name: {{ required "database.existingSecret or database.usersSecret is required: the secret with the URL of Postgres" .Values.database.existingSecret }}
      key: {{ .Values.database.key }}
      {{- end }}
{{- with .Values.database }}
{{- with .sslMode | default (ternary "verify-full" "" (ne .ca.existingSecret "")) }}
- name: PGSSLMODE
  value: {{ . }}
{{- end }}
{{- if .ca.existingSecret }}
- name: PGSSLROOTCERT
  value: /etc/antiphon/postgres-ca/{{ .ca.key }}
{{- end }}
{{- if .clientCertificate.existingSecret }}
- name: PGSSLCERT
  value: /etc/antiphon/postgres-certificate/{{ .clientCertificate.certificateKey }}
- name: PGSSLKEY
  value: /etc/antiphon/postgres-certificate/{{ .clientCertificate.privateKey }}
{{- end }}
{{- end }}
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
{{- else if .Values.nats.existingSecret }}
  valueFrom:
    secretKeyRef:
      name: {{ .Values.nats.existingSecret }}
      key: {{ .Values.nats.key }}
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
{{- with .Values.nats.clientCertificate }}
{{- if .existingSecret }}
- name: ANTIPHON_NATS_CERTIFICATE
  value: /etc/antiphon/nats/certificate/{{ .certificateKey }}
- name: ANTIPHON_NATS_CERTIFICATE_KEY
  value: /etc/antiphon/nats/certificate/{{ .privateKey }}
{{- end }}
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
  "ANTIPHON_LLM_INTERFACE" "workflow.llm.interface"
  "ANTIPHON_LLM_MODEL" "workflow.llm.model"
  "ANTIPHON_LLM_RETRY_SECONDS" "workflow.llm.retrySeconds"
  "ANTIPHON_LOG" "log.level"
  "ANTIPHON_LOG_FORMAT" "log.format"
  "ANTIPHON_MAX_CONNECTIONS_PER_IP" "gateway.maxConnectionsPerIp"
  "ANTIPHON_MCP_HOSTS" "mcp.hosts"
  "ANTIPHON_NATS_CA" "nats.ca"
  "ANTIPHON_NATS_CERTIFICATE" "nats.clientCertificate"
  "ANTIPHON_NATS_CERTIFICATE_KEY" "nats.clientCertificate"
  "ANTIPHON_NATS_CREDENTIALS" "nats.credentials"
  "ANTIPHON_NATS_INBOX_PREFIX" "nats.usersSecret"
  "ANTIPHON_PARTITIONS" "partitions"
  "ANTIPHON_PRICES_FILE" "prices"
  "ANTIPHON_STREAM_MAX_BYTES" "nats.streamMaxBytes"
  "ANTIPHON_STREAM_REPLICAS" "nats.streamReplicas"
  "ANTIPHON_WORKFLOW" "workflow.name"
  "ANTIPHON_WORKFLOWS" "nats.workflows"
  "ANTIPHON_WORKFLOW_DRAIN_SECONDS" "workflow.drainSeconds"
  "DATABASE_URL" "database.existingSecret or database.usersSecret"
  "NATS_URL" "nats.url or nats.usersSecret"
  "OTEL_EXPORTER_OTLP_ENDPOINT" "otlp.endpoint"
  "OTEL_EXPORTER_OTLP_HEADERS" "otlp.headers"
  "OTEL_RESOURCE_ATTRIBUTES" "otlp.resourceAttributes"
  "OTEL_TRACES_SAMPLER" "otlp.sampler"
  "OTEL_TRACES_SAMPLER_ARG" "otlp.samplerArg"
  "PGSSLCERT" "database.clientCertificate"
  "PGSSLKEY" "database.clientCertificate"
  "PGSSLMODE" "database.sslMode"
  "PGSSLROOTCERT" "database.ca" }}
{{- with get $values . }}set {{ . }}{{ else }}leave it out{{ end }}
{{- end -}}

{{/* The variables of a container: root, role, uses (kinds of variables), own (variables of the role), given (by name, of the
role), extra (a list with sources of values). */}}
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
{{- $known := .root.Files.Get "files/variables.txt" | splitList "\n" }}
{{- range $name, $value := $given }}
{{- if regexMatch (printf "(?m)^- name: %s$" $name) $env }}
{{- fail (printf "env must not have %s, which the chart sets in pods of %s: %s" $name $.role (include "antiphon.valueOf" $name)) }}
{{- end }}
{{- include "antiphon.check" (dict "at" "a name in env" "text" $name "pattern" "^[A-Z][A-Z0-9_]*$" "words" "a name of a variable: capital letters, digits and _") }}
{{- if and (hasPrefix "ANTIPHON" $name) (not (has $name $known)) }}
{{- fail (printf "env has %s, which is no variable of Antiphon: deploy/REFERENCE.md lists all" $name) }}
{{- end }}
{{- $env = printf "%s\n- name: %s\n  value: %s" $env $name ($value | quote) }}
{{- end }}
{{- range .extra }}
{{- if regexMatch (printf "(?m)^- name: %s$" .name) $env }}
{{- fail (printf "extraEnv must not have %s, which the chart or env sets in pods of %s: %s" .name $.role (include "antiphon.valueOf" .name)) }}
{{- end }}
{{- if and (hasPrefix "ANTIPHON" .name) (not (has .name $known)) }}
{{- fail (printf "extraEnv has %s, which is no variable of Antiphon: deploy/REFERENCE.md lists all" .name) }}
{{- end }}
{{- end }}
{{- $env }}
{{- with .extra }}
{{ toYaml . }}
{{- end }}
{{- end -}}
