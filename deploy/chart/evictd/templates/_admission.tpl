{{/* What every policy of this chart begins with: the users it is for, and which node that agent's token names. */}}
{{- define "evictd.admissionCommon" -}}
failurePolicy: Fail
matchConditions:
  - name: is-an-agent
    expression: >-
      request.userInfo.username ==
      'system:serviceaccount:{{ .Release.Namespace }}:{{ include "evictd.serviceAccountName" . }}'
variables:
  # Signed into the token by the API server: the node of the pod that the token was made for. A token that was
  # made without a pod names none, and then nothing is allowed.
  - name: nodeName
    expression: >-
      has(request.userInfo.extra) && 'authentication.kubernetes.io/node-name' in request.userInfo.extra
      ? request.userInfo.extra['authentication.kubernetes.io/node-name'][0] : ''
{{- end -}}

{{- define "evictd.admissionBinding" -}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "evictd.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions:
    {{- toYaml .root.Values.admissionPolicy.validationActions | nindent 4 }}
{{- end -}}

{{/*
Part of an object is what it was, whatever fields it has or will have: every field but those that are listed. dyn(): the fields are
gone through by name, which no type has. An absent part has no fields.
*/}}
{{- define "evictd.unchanged" -}}
{{- $new := printf "(has(object.%[1]s) ? dyn(object.%[1]s) : {})" (index . 0) -}}
{{- $old := printf "(has(oldObject.%[1]s) ? dyn(oldObject.%[1]s) : {})" (index . 0) -}}
{{- $but := printf "field in ['%s']" (join "', '" (rest .)) -}}
{{ $new }}.all(field, {{ $but }} || (field in {{ $old }} && {{ $new }}[field] == {{ $old }}[field])) &&
{{ $old }}.all(field, {{ $but }} || field in {{ $new }})
{{- end -}}

{{/* Whether some nodes leave their evicted pods visible. */}}
{{- define "evictd.failsPods" -}}
{{- $fails := eq "Fail" (dig "cluster" "evictedPods" "" .Values.config) -}}
{{- range .Values.nodePools -}}
{{- $fails = or $fails (eq "Fail" (dig "config" "cluster" "evictedPods" "" .)) -}}
{{- end -}}
{{- if $fails }}true{{ end -}}
{{- end -}}

{{/* metadata but for what the API server itself writes. */}}
{{- define "evictd.unchangedMetadata" -}}
{{ include "evictd.unchanged" (list "metadata" "managedFields" "resourceVersion" "generation") }}
{{- end -}}

{{/* A list is what it was, but for the items for which the condition does not hold. */}}
{{- define "evictd.unchangedList" -}}
{{- $part := index . 0 -}}
{{- $path := index . 1 -}}
(has(object.{{ $part }}) && has(object.{{ $path }}) ? object.{{ $path }}.filter({{ index . 2 }}) : []) ==
(has(oldObject.{{ $part }}) && has(oldObject.{{ $path }}) ? oldObject.{{ $path }}.filter({{ index . 2 }}) : [])
{{- end -}}
