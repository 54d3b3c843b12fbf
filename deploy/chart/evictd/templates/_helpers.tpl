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
{{- include "evictd.commonLabels" . }}
{{- end -}}

{{/* Those of the agents' pods: with the version that runs there, so that a pool whose image is pinned stays as it is when the chart
changes. */}}
{{- define "evictd.podLabels" -}}
{{ include "evictd.selectorLabels" . }}
{{- $version := .Chart.AppVersion -}}
{{- with .Values.image -}}
{{- $version = .tag | default (.digest | trunc 19 | replace ":" "-") | default $version -}}
{{- end }}
app.kubernetes.io/version: {{ $version | trunc 63 | trimAll "-_." | quote }}
{{- include "evictd.commonLabels" . }}
{{- end -}}

{{- define "evictd.commonLabels" -}}
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
{{- .repository -}}
{{- if or .tag (not .digest) -}}:{{ default $.Chart.AppVersion .tag }}{{- end -}}
{{- with .digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* An address and a port, as the agent reads them. */}}
{{- define "evictd.socket" -}}
{{- $address := index . 0 -}}
{{- printf (ternary "[%s]:%d" "%s:%d" (contains ":" $address)) $address (int (index . 1)) -}}
{{- end -}}

{{/* Where probes are answered: in the node's own network only where the kubelet alone can ask. */}}
{{- define "evictd.healthAddress" -}}
{{- default (ternary "127.0.0.1" "0.0.0.0" .Values.hostNetwork) .Values.health.address -}}
{{- end -}}

{{/* The address that the kubelet has to be told: the pod's own unless the agent listens on loopback. */}}
{{- define "evictd.probeHost" -}}
{{- $address := include "evictd.healthAddress" . -}}
{{- if or (hasPrefix "127." $address) (eq "::1" $address) -}}
host: {{ $address | quote }}
{{- end -}}
{{- end -}}

{{/* The agent's configuration file. */}}
{{- define "evictd.config" -}}
{{- $cluster := dict -}}
{{- with .Values.kubelet.configFile -}}
{{- $cluster = dict "kubeletConfig" . -}}
{{- end -}}
{{- with .Values.kubelet.configDir -}}
{{- $_ := set $cluster "kubeletConfigDir" . -}}
{{- end -}}
{{- with .Values.pause.configMap -}}
{{- $_ := set $cluster "pauseConfigMap" (printf "%s/%s" $.Release.Namespace .) -}}
{{- end -}}
{{- with .Values.fleetBrake -}}
{{- if .enabled -}}
{{- $map := printf "%s/%s-fleet" $.Release.Namespace (include "evictd.fullname" $) -}}
{{- $_ := set $cluster "fleetBrake" (mergeOverwrite (dict "configMap" $map) (omit . "enabled")) -}}
{{- end -}}
{{- end -}}
{{- with .Values.admissionPolicy -}}
{{- /* Agents test whether the policies hold them. */ -}}
{{- if not (and .enabled (has "Deny" .validationActions)) -}}
{{- $_ := set $cluster "admissionPolicies" false -}}
{{- end -}}
{{- end -}}
{{- if .Values.tenantPolicies.enabled -}}
{{- $_ := set $cluster "tenantPolicies" (dict "maxGrace" .Values.tenantPolicies.maxGrace) -}}
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
{{- $_ := set $config "metricsAddress" (include "evictd.socket" (list .Values.metrics.address .Values.metrics.port)) -}}
{{- with .Values.metrics.tls -}}
{{- if .enabled -}}
{{- $tls := dict "authorization" .authorization -}}
{{- if .secretName -}}
{{- $_ := set $tls "certificateFile" "/etc/evictd-metrics/tls.crt" -}}
{{- $_ := set $tls "privateKeyFile" "/etc/evictd-metrics/tls.key" -}}
{{- end -}}
{{- $_ := set $config "metricsTls" $tls -}}
{{- end -}}
{{- end -}}
{{- else if .Values.metrics.tls.enabled -}}
{{- fail "metrics.tls.enabled needs metrics.enabled" -}}
{{- end -}}
{{- if .Values.gateSecrets.secretName -}}
{{- $_ := set $config "gateSecrets" "/etc/evictd-gates" -}}
{{- end -}}
{{- if and .Values.metrics.enabled .Values.health.enabled (eq (int .Values.metrics.port) (int .Values.health.port)) -}}
{{- fail (printf "health.port: %d is metrics.port too: each has a port of its own" (int .Values.health.port)) -}}
{{- end -}}
{{- if .Values.health.enabled -}}
{{- $_ := set $config "healthAddress" (include "evictd.socket" (list (include "evictd.healthAddress" .) .Values.health.port)) -}}
{{- end -}}
{{- $config = mergeOverwrite $config (deepCopy .Values.config) -}}
{{- with $config.cluster -}}
{{- include "evictd.checkFleetBrake" .fleetBrake -}}
{{- end -}}
{{- with $config.graduatedAction -}}
{{- if not (or (kindIs "invalid" .brake) (kindIs "invalid" .throttle)) -}}
{{- fail "config.graduatedAction.brake: is the former name of throttle, which is set too" -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* What the schema cannot see, and each agent would refuse: the limits of durations, and fewer nodes for a pause than to be slow. */}}
{{- define "evictd.checkFleetBrake" -}}
{{- $brake := default dict . -}}
{{- range $field := list "window" "pause" "slowInterval" -}}
{{- $text := toString (get $brake $field) -}}
{{- if regexMatch "^([0-9]+[hms])+$" $text -}}
{{- $seconds := 0.0 -}}
{{- range regexFindAll "[0-9]+[hms]" $text -1 -}}
{{- $unit := get (dict "h" 3600 "m" 60 "s" 1) (trunc -1 .) -}}
{{- $seconds = addf $seconds (mulf (float64 (regexFind "[0-9]+" .)) $unit) -}}
{{- end -}}
{{- if or (lt $seconds 1.0) (gt $seconds 86400.0) -}}
{{- fail (printf "fleetBrake.%s: %s: must lie between 1s and 24h" $field $text) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $slow := default 10 $brake.slowNodes -}}
{{- $pause := default 20 $brake.pauseNodes -}}
{{- if lt (int $pause) (int $slow) -}}
{{- fail (printf "fleetBrake.pauseNodes: %v: must not be below slowNodes, which is %v" $pause $slow) -}}
{{- end -}}
{{- end -}}
