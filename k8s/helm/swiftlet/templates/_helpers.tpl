{{/* The name of the resources: the release's, with the chart's name unless it is part of it. 40 characters leave room for suffixes. */}}
{{- define "swiftlet.fullname" -}}
{{- $default := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) }}
{{- .Values.fullnameOverride | default $default | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* The first label is also the job in Prometheus, by which the rules select. It is the same in all releases. */}}
{{- define "swiftlet.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "swiftlet.labels" -}}
{{ include "swiftlet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "swiftlet.metadata" -}}
name: {{ include "swiftlet.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "swiftlet.labels" . | nindent 2 }}
{{- end }}

{{- define "swiftlet.image" -}}
{{- $tag := printf "%s-%s" .Chart.AppVersion (.Values.gpu.enabled | ternary "gpu" "cpu") }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default $tag) }}
{{- end }}
{{- end }}

{{- define "swiftlet.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "swiftlet.fullname" .) "default") }}
{{- end }}

{{- define "swiftlet.autoscaling" -}}
{{- $type := .Values.autoscaling.type | default (.Values.gpu.enabled | ternary "none" "cpu") }}
{{- if and .Values.gpu.enabled (eq $type "cpu") }}
{{- fail "The CPU of a GPU pod does not show its load. Set autoscaling.type to keda or none." }}
{{- end }}
{{- $type }}
{{- end }}

{{- define "swiftlet.keysSecret" -}}
{{- if .Values.apiKeys.existingSecret }}{{ .Values.apiKeys.existingSecret }}
{{- else if .Values.apiKeys.lines }}{{ include "swiftlet.fullname" . }}-keys
{{- end }}
{{- end }}

{{- define "swiftlet.tlsSecret" -}}
{{- if .Values.tls.existingSecret }}{{ .Values.tls.existingSecret }}
{{- else if .Values.tls.certificate }}{{ include "swiftlet.fullname" . }}-tls
{{- end }}
{{- end }}

{{/* The value of a setting as the server reads it. YAML numbers are floats in Helm, and must not become 1e+06. */}}
{{- define "swiftlet.setting" -}}
{{- if kindIs "slice" . }}{{ join "," . }}
{{- else if and (kindIs "float64" .) (eq . (floor .)) }}{{ printf "%.0f" . }}
{{- else }}{{ toString . }}
{{- end }}
{{- end }}

{{/* The settings that the chart derives from other values. */}}
{{- define "swiftlet.ownSettings" -}}
{{- with .Values.models.serve }}
models: {{ join "," . | quote }}
{{- end }}
{{- if include "swiftlet.keysSecret" . }}
api_keys_file: /etc/swiftlet/keys/{{ .Values.apiKeys.secretKey }}
{{- end }}
{{- if include "swiftlet.tlsSecret" . }}
tls_cert: /etc/swiftlet/tls/tls.crt
tls_key: /etc/swiftlet/tls/tls.key
{{- end }}
{{- if .Values.grpc.enabled }}
grpc_port: {{ .Values.grpc.port | quote }}
{{- end }}
{{- with .Values.traces.endpoint }}
traces_endpoint: {{ . | quote }}
{{- end }}
{{- end }}

{{/* Refuses combinations of values that the schema cannot. */}}
{{- define "swiftlet.check" -}}
{{- $values := dict "models" "models.serve" "api_keys_file" "apiKeys" "tls_cert" "tls" "tls_key" "tls" "grpc_port" "grpc" "traces_endpoint" "traces.endpoint" }}
{{- range $name, $value := $values }}
{{- if hasKey $.Values.settings $name }}
{{- fail (printf "The chart sets settings.%s. Use the value %s." $name $value) }}
{{- end }}
{{- end }}
{{- range list "host" "port" "admin_host" "admin_port" "reuse_port" }}
{{- if hasKey $.Values.settings . }}
{{- fail (printf "Remove settings.%s. The image sets it, and the probes and Services rely on it." .) }}
{{- end }}
{{- end }}
{{- if and .Values.apiKeys.existingSecret .Values.apiKeys.lines }}
{{- fail "Set either apiKeys.existingSecret or apiKeys.lines." }}
{{- end }}
{{- if and .Values.tls.existingSecret .Values.tls.certificate }}
{{- fail "Set either tls.existingSecret or tls.certificate." }}
{{- end }}
{{- if ne (empty .Values.tls.certificate) (empty .Values.tls.privateKey) }}
{{- fail "Set both tls.certificate and tls.privateKey." }}
{{- end }}
{{- if and .Values.models.existingClaim .Values.models.init.image }}
{{- fail "Set either models.existingClaim or models.init.image." }}
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
{{- fail "httpRoute needs parentRefs: the gateway that serves the route." }}
{{- end }}
{{- end }}
