{{/*
Renders a template for each node pool, and at the end for the nodes that are in none of them (the pool "default"). The template
sees the chart's values with the pool's on top, the pool as .pool, and as .earlier the pools that take nodes before it.
*/}}
{{- define "evictd.forEachPool" -}}
{{- $root := index . 0 -}}
{{- $template := index . 1 -}}
{{- include "evictd.checkPools" $root -}}
{{- $pools := $root.Values.nodePools -}}
{{- range $index, $pool := append $pools (dict "name" "default") -}}
{{- $values := mergeOverwrite (deepCopy $root.Values) (omit (deepCopy $pool) "name" "nodeLabel") -}}
{{- /* What goes with another choice of the chart's values is none of the pool's. */ -}}
{{- $image := default dict $pool.image -}}
{{- if and $image.tag (not $image.digest) }}{{ $_ := set $values.image "digest" "" }}{{ end -}}
{{- if and $image.digest (not $image.tag) }}{{ $_ := set $values.image "tag" "" }}{{ end -}}
{{- range $field := list "seccompProfile" "appArmorProfile" -}}
{{- $profile := get $values.security $field -}}
{{- if ne $profile.type "Localhost" }}{{ $_ := unset $profile "localhostProfile" }}
{{- else if not $profile.localhostProfile -}}
{{- fail (printf "security.%s.localhostProfile of pool %s: is needed with type Localhost" $field $pool.name) -}}
{{- end -}}
{{- end -}}
{{- include $template (dict "Values" $values "Chart" $root.Chart "Release" $root.Release "pool" $pool "earlier" (slice $pools 0 $index)) -}}
{{- end -}}
{{- end -}}

{{/* What the schema cannot see: two pools of one name, and a pool whose nodes an earlier one takes. */}}
{{- define "evictd.checkPools" -}}
{{- $names := dict "default" "the name of the nodes that are in no pool" -}}
{{- $taken := dict -}}
{{- range $index, $pool := .Values.nodePools -}}
{{- with get $names $pool.name -}}
{{- fail (printf "nodePools[%d].name: %q is %s" $index $pool.name .) -}}
{{- end -}}
{{- $_ := set $names $pool.name (printf "the name of nodePools[%d]" $index) -}}
{{- range $pool.nodeLabel.values -}}
{{- $label := printf "%s=%s" $pool.nodeLabel.key . -}}
{{- with get $taken $label -}}
{{- fail (printf "nodePools[%d].nodeLabel.values: nodes with %s are in %s" $index $label .) -}}
{{- end -}}
{{- $_ := set $taken $label (printf "nodePools[%d]" $index) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "evictd.poolName" -}}
{{- if eq .pool.name "default" -}}
{{- include "evictd.fullname" . -}}
{{- else -}}
{{- printf "%s-%s" (include "evictd.fullname" . | trunc 42 | trimSuffix "-") .pool.name -}}
{{- end -}}
{{- end -}}

{{- define "evictd.configMapName" -}}
{{- printf "%s-%s" (include "evictd.poolName" .) (include "evictd.config" . | sha256sum | trunc 12) -}}
{{- end -}}

{{/*
The affinity of the values, narrowed down to the pool's nodes: a node is in the first pool that names its label. A node of EKS on Fargate,
or one of virtual-kubelet such as those of AKS, is none on which an agent can run: it tolerates every taint, and its pod would stay Pending
there and count as unavailable in each rollout.
*/}}
{{- define "evictd.affinity" -}}
{{- $expressions := list
      (dict "key" "eks.amazonaws.com/compute-type" "operator" "NotIn" "values" (list "fargate"))
      (dict "key" "type" "operator" "NotIn" "values" (list "virtual-kubelet")) -}}
{{- with .pool.nodeLabel -}}
{{- $expressions = append $expressions (dict "key" .key "operator" "In" "values" .values) -}}
{{- end -}}
{{- range .earlier -}}
{{- $expressions = append $expressions (dict "key" .nodeLabel.key "operator" "NotIn" "values" .nodeLabel.values) -}}
{{- end -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- $required := dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" dict $affinity -}}
{{- $terms := list -}}
{{- range default (list dict) $required.nodeSelectorTerms -}}
{{- $terms = append $terms (set . "matchExpressions" (concat (default list .matchExpressions) $expressions)) -}}
{{- end -}}
{{- $affinity = mergeOverwrite $affinity (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms))) -}}
{{- toYaml $affinity -}}
{{- end -}}

{{/* Directories of the kubelet's configuration outside of its root directory, by the volume's name. */}}
{{- define "evictd.kubeletDirectories" -}}
{{- $inside := printf "%s/" .Values.kubelet.rootDir -}}
{{- $directories := dict -}}
{{- with .Values.kubelet.configFile -}}
{{- if not (hasPrefix $inside .) }}{{ $_ := set $directories "kubelet-config" (dir .) }}{{ end -}}
{{- end -}}
{{- with .Values.kubelet.configDir -}}
{{- $of_file := printf "%s/" (get $directories "kubelet-config") -}}
{{- if not (or (hasPrefix $inside .) (and (ne $of_file "/") (hasPrefix $of_file (printf "%s/" .)))) -}}
{{- $_ := set $directories "kubelet-config-dir" . -}}
{{- end -}}
{{- end -}}
{{- toYaml $directories -}}
{{- end -}}
