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

{{/* A text as the value of a label: 63 characters at most. */}}
{{- define "antiphon.labelValue" -}}
{{- . | replace "+" "_" | trunc 63 | trimAll "-_." -}}
{{- end -}}

{{/* The labels of an object: root, component (none when empty), more (maps of further labels, of which the last counts). One map, so that no key is there
twice. */}}
{{- define "antiphon.labels" -}}
{{- $labels := dict }}
{{- range prepend (.more | default list) .root.Values.commonLabels }}
{{- $labels = mergeOverwrite $labels (deepCopy (. | default dict)) }}
{{- end }}
{{- $_ := set $labels "helm.sh/chart" (include "antiphon.labelValue" (printf "%s-%s" .root.Chart.Name .root.Chart.Version)) }}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .root.Release.Service }}
{{- $_ := set $labels "app.kubernetes.io/version" (include "antiphon.labelValue" (.root.Values.image.tag | default .root.Chart.AppVersion)) }}
{{- $labels = mergeOverwrite $labels (include "antiphon.selector" . | fromYaml) }}
{{- toYaml $labels }}
{{- end -}}

{{/* The labels that find the pods of a release, or of a role: root, component. */}}
{{- define "antiphon.selector" -}}
app.kubernetes.io/name: {{ include "antiphon.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{/* Name, namespace, labels and annotations of an object: root, name (what follows the full name), component, more (labels), annotations. */}}
{{- define "antiphon.metadata" -}}
name: {{ include "antiphon.fullname" .root }}{{ with .name }}-{{ . }}{{ end }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "antiphon.labels" . | nindent 2 }}
{{- with .annotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What the migration needs is there before it, on the first installation too, and goes with it. */}}
{{- define "antiphon.hook" -}}
helm.sh/hook: pre-install,pre-upgrade
helm.sh/hook-weight: {{ . | quote }}
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{- define "antiphon.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Whether the cluster gives pods their user by itself, and refuses others. */}}
{{- define "antiphon.isOpenShift" -}}
{{- if kindIs "bool" .Values.openshift }}
{{- if .Values.openshift }}true{{ end }}
{{- else if .Capabilities.APIVersions.Has "security.openshift.io/v1" }}true{{ end }}
{{- end -}}

{{/* Where a port is listened on: root, port. */}}
{{- define "antiphon.address" -}}
{{- $address := .root.Values.bindAddress }}
{{- if contains ":" $address }}{{ printf "[%s]" $address }}{{ else }}{{ $address }}{{ end }}:{{ .port }}
{{- end -}}

{{/* The port of a URL. */}}
{{- define "antiphon.urlPort" -}}
{{- $url := urlParse . }}
{{- regexFind ":[0-9]+$" $url.host | trimPrefix ":" | default (ternary "443" "80" (eq $url.scheme "https")) }}
{{- end -}}

{{/* The service account of a role's pods: root, role, values. */}}
{{- define "antiphon.serviceAccount" -}}
{{- $all := .root.Values.serviceAccount }}
{{- $own := .values.serviceAccount | default dict }}
{{- $full := include "antiphon.fullname" .root }}
{{- if $own.create }}{{ $own.name | default (printf "%s-%s" $full .role) }}
{{- else if $own.name }}{{ $own.name }}
{{- else if not $all.create }}{{ $all.name | default "default" }}
{{- else if eq .role "migrate" }}{{ printf "%s-migrate" ($all.name | default $full) }}
{{- else }}{{ $all.name | default $full }}
{{- end }}
{{- end -}}

{{/* A PodDisruptionBudget of a role: root, role, values. */}}
{{- define "antiphon.disruptionBudget" -}}
{{- if .values.podDisruptionBudget.enabled }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "antiphon.metadata" (dict "root" .root "name" .role "component" .role) | nindent 2 }}
spec:
  maxUnavailable: {{ .values.podDisruptionBudget.maxUnavailable }}
  # A pod that is not ready, as a worker with an open incident, does not keep its node from being drained.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels:
      {{- include "antiphon.selector" (dict "root" .root "component" .role) | nindent 6 }}
{{- end }}
{{- end -}}

{{/* What scales a role by CPU, or with KEDA by a figure of its pods: root, role, values, metric, target (a pod's share of that figure; 0: CPU alone). */}}
{{- define "antiphon.autoscaler" -}}
{{- $scaling := .values.autoscaling }}
{{- $name := printf "%s-%s" (include "antiphon.fullname" .root) .role }}
{{- if and $scaling.enabled (not .target) }}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  {{- include "antiphon.metadata" (dict "root" .root "name" .role "component" .role) | nindent 2 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ $name }}
  minReplicas: {{ $scaling.minReplicas }}
  maxReplicas: {{ $scaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ $scaling.targetCPUUtilizationPercentage }}}
  behavior:
    scaleDown:
      # A pod that goes hands its partitions, streams or turns over: seldom is better.
      stabilizationWindowSeconds: 300
      policies: [{type: Pods, value: 1, periodSeconds: 60}]
{{- else if $scaling.enabled }}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  {{- include "antiphon.metadata" (dict "root" .root "name" .role "component" .role) | nindent 2 }}
spec:
  scaleTargetRef:
    name: {{ $name }}
  minReplicaCount: {{ $scaling.minReplicas }}
  maxReplicaCount: {{ $scaling.maxReplicas }}
  cooldownPeriod: 300
  triggers:
    - type: prometheus
      metadata:
        serverAddress: {{ required (printf "%s.autoscaling.prometheusAddress is required with %s" .role .targetName) $scaling.prometheusAddress | quote }}
        query: sum({{ .metric }}{namespace={{ .root.Release.Namespace | quote }},pod=~"{{ $name }}-.*"})
        threshold: {{ .target | quote }}
    - type: cpu
      metricType: Utilization
      metadata:
        value: {{ $scaling.targetCPUUtilizationPercentage | quote }}
{{- end }}
{{- end -}}

{{/* A Service of a role: root, role, values. */}}
{{- define "antiphon.service" -}}
{{- $service := .values.service }}
apiVersion: v1
kind: Service
metadata:
  {{- include "antiphon.metadata" (dict "root" .root "name" .role "component" .role "more" (list $service.labels) "annotations" $service.annotations) | nindent 2 }}
spec:
  type: {{ $service.type }}
  {{- range list "clusterIP" "externalTrafficPolicy" "internalTrafficPolicy" "ipFamilies" "ipFamilyPolicy" "loadBalancerClass" "loadBalancerIP" "loadBalancerSourceRanges" "sessionAffinity" }}
  {{- if get $service . }}
  {{- dict . (get $service .) | toYaml | nindent 2 }}
  {{- end }}
  {{- end }}
  ports:
    - {name: http, port: {{ $service.port }}, targetPort: http, protocol: TCP{{ with $service.nodePort }}, nodePort: {{ . }}{{ end }}}
  selector:
    {{- include "antiphon.selector" (dict "root" .root "component" .role) | nindent 4 }}
{{- end -}}
