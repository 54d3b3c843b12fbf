{{/* What every policy of this chart begins with: whom it is for, and which node that agent's token names. */}}
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

{{/* `a == b` for a field that either side may lack. */}}
{{- define "evictd.same" -}}
(has(object.{{ . }}) ? has(oldObject.{{ . }}) && object.{{ . }} == oldObject.{{ . }} : !has(oldObject.{{ . }}))
{{- end -}}
