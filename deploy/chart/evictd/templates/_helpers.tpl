{{- define "evictd.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "evictd.selectorLabels" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Without helm.sh/chart and managed-by: Helm adds the second by itself, and the plain manifests would lie. */}}
{{- define "evictd.labels" -}}
{{ include "evictd.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "evictd.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "evictd.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "evictd.image" -}}
{{- with .Values.image -}}
{{- printf "%s:%s" .repository (default $.Chart.AppVersion .tag) -}}
{{- if .digest }}@{{ .digest }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The agent's configuration file. */}}
{{- define "evictd.config" -}}
{{- $cluster := dict -}}
{{- with .Values.kubelet.configFile -}}
{{- $cluster = dict "kubeletConfig" . -}}
{{- end -}}
{{- with .Values.pause.configMap -}}
{{- $_ := set $cluster "pauseConfigMap" (printf "%s/%s" $.Release.Namespace .) -}}
{{- end -}}
{{- $filesystems := dict "nodefs" .Values.kubelet.rootDir "imagefs" .Values.containerRuntime.root -}}
{{- $config := dict "stateDir" .Values.stateDir "cluster" $cluster "filesystems" $filesystems -}}
{{- with .Values.containerRuntime -}}
{{- if .socketDir -}}
{{- $_ := set $config "cri" (dict "socket" (printf "%s/%s" .socketDir .socketName)) -}}
{{- else -}}
{{- $_ := set $config "cri" (dict "enabled" false) -}}
{{- end -}}
{{- end -}}
{{- if .Values.metrics.enabled -}}
{{- $address := .Values.metrics.address -}}
{{- if contains ":" $address -}}
{{- $address = printf "[%s]" $address -}}
{{- end -}}
{{- $_ := set $config "metricsAddress" (printf "%s:%d" $address (int .Values.metrics.port)) -}}
{{- end -}}
{{- mergeOverwrite $config (deepCopy .Values.config) | toYaml -}}
{{- end -}}
