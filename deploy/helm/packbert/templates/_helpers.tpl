{{- define "bert.name" -}}
{{- $own := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- .Values.fullnameOverride | default $own | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "bert.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "bert.labels" -}}
{{ include "bert.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* What each of `models` is: "hub", "checkpoint" or "artifact", one after another; fails where its claim is missing. */}}
{{- define "bert.kinds" -}}
{{- range .Values.models -}}
{{- $kind := ternary "artifact" (ternary "checkpoint" "hub" (hasPrefix "/checkpoint/" .model)) (hasPrefix "/artifacts/" .model) -}}
{{- if and (ne $kind "hub") (not (get (get $.Values $kind) "claim")) -}}
{{- fail (printf "models: %s is %s: set %s.claim, whose folders they are" .name .model $kind) -}}
{{- end -}}
{{- $kind }} {{ end -}}
{{- end -}}

{{/* "true" where this pod exports a model; fails where the values name no model, or two. */}}
{{- define "bert.exports" -}}
{{- $set := list -}}
{{- if .Values.model -}}{{- $set = append $set "model" -}}{{- end -}}
{{- if .Values.models -}}{{- $set = append $set "models" -}}{{- end -}}
{{- if and .Values.checkpoint.claim (not .Values.models) -}}{{- $set = append $set "checkpoint.claim" -}}{{- end -}}
{{- if .Values.checkpoint.uri -}}{{- $set = append $set "checkpoint.uri" -}}{{- end -}}
{{- if and .Values.artifact.claim (not .Values.models) -}}{{- $set = append $set "artifact.claim" -}}{{- end -}}
{{- if not $set -}}{{- fail "set model (a hub id), models, checkpoint.claim, checkpoint.uri or artifact.claim" -}}{{- end -}}
{{- if gt (len $set) 1 -}}{{- fail (printf "%s are set: leave one of them" (join " and " $set)) -}}{{- end -}}
{{- if and .Values.export.initContainer (not .Values.model) -}}
{{- fail "export.initContainer exports model once, by its name: set model, or leave out export.initContainer" -}}
{{- end -}}
{{- if and (eq .Values.precision "bf16") (gt (int .Values.gpu.count) 0) -}}
{{- fail "precision bf16 is of CPUs: set fp16 for a GPU" -}}
{{- end -}}
{{- $kinds := include "bert.kinds" . -}}
{{- if or (contains "hub" $kinds) (contains "checkpoint" $kinds) (not (or .Values.models .Values.artifact.claim)) -}}true{{- end -}}
{{- end -}}

{{/* "true" where the pod needs the network for its model. */}}
{{- define "bert.downloads" -}}
{{- $one := and (include "bert.exports" .) (not (or .Values.models .Values.checkpoint.claim)) -}}
{{- if or $one (contains "hub" (include "bert.kinds" .)) -}}true{{- end -}}
{{- end -}}

{{/* What is exported: a hub id, or the folder of the checkpoint in the pod. */}}
{{- define "bert.source" -}}
{{- if .Values.model -}}{{ .Values.model }}
{{- else if include "bert.fetches" . -}}/checkpoint
{{- else -}}{{ clean (printf "/checkpoint/%s" .Values.checkpoint.path) }}
{{- end -}}
{{- end -}}

{{/* "true" where an initContainer fetches the checkpoint. */}}
{{- define "bert.fetches" -}}
{{- if and .Values.checkpoint.uri (not (hasPrefix "oci://" .Values.checkpoint.uri)) -}}true{{- end -}}
{{- end -}}

{{/* What is served, in words. */}}
{{- define "bert.served" -}}
{{- with .Values.checkpoint -}}
{{- if $.Values.models -}}{{ range $at, $one := $.Values.models }}{{ if $at }}, {{ end }}{{ $one.name }}{{ end }}
{{- else if $.Values.model -}}{{ $.Values.model }}
{{- else if .uri -}}{{ .uri }}
{{- else if .claim -}}{{ .path }} of the claim {{ .claim }}
{{- else -}}{{ $.Values.artifact.path }} of the claim {{ $.Values.artifact.claim }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" where the model is served by the image that has the exporter. */}}
{{- define "bert.oneCommand" -}}
{{- if and (include "bert.exports" .) (not .Values.export.initContainer) -}}true{{- end -}}
{{- end -}}

{{/* Of the claim for the cache; empty where each pod has its own volume. */}}
{{- define "bert.cacheClaim" -}}
{{- with .Values.cache.claim -}}
{{- if .name -}}{{ .name }}{{- else if .create -}}{{ include "bert.name" $ }}-cache{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" where one node at a time can mount the cache; fails where several replicas would. */}}
{{- define "bert.oneNode" -}}
{{- $claimed := and (include "bert.exports" .) (include "bert.cacheClaim" .) -}}
{{- if and $claimed (ne .Values.cache.claim.accessMode "ReadWriteMany") -}}
{{- if or (gt (int .Values.replicas) 1) (ne .Values.autoscaling.kind "none") -}}
{{- fail (printf "cache.claim.accessMode is %s: several replicas need ReadWriteMany, or no claim" .Values.cache.claim.accessMode) -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{/* The folder of the artifact that the initContainer writes: another one for another export. */}}
{{- define "bert.exported" -}}
/data/artifacts/{{ list .Values.model .Values.precision (include "bert.device" .) | join " " | sha256sum | trunc 16 }}
{{- end -}}

{{- define "bert.device" -}}{{ ternary "cuda" "cpu" (gt (int .Values.gpu.count) 0) }}{{- end -}}

{{/* The tag of the images. */}}
{{- define "bert.tag" -}}
{{ with .Values.image.version }}{{ . }}-{{ end }}{{ ternary "openvino" (include "bert.device" .) (eq .Values.precision "bf16") }}
{{- end -}}

{{- define "bert.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "bert.name" .) "" .Values.serviceAccount.create) -}}
{{- end -}}

{{- define "bert.prefix" -}}{{ with .Values.image.registry }}{{ trimSuffix "/" . }}/{{ end }}{{- end -}}

{{- define "bert.image" -}}
{{- $one := eq (include "bert.oneCommand" .) "true" -}}
{{- $name := ternary "packbert" "packbert-serve" $one -}}
{{- get .Values.image (ternary "service" "serve" $one) | default (printf "%s%s:%s" (include "bert.prefix" .) $name (include "bert.tag" .)) -}}
{{- end -}}

{{- define "bert.exportImage" -}}{{ .Values.image.export | default (printf "%spackbert-export:%s" (include "bert.prefix" .) (include "bert.tag" . | replace "cuda" "cpu")) }}{{- end -}}

{{/* Of each worker: its share of the requested cores, rounded up. */}}
{{- define "bert.threads" -}}
{{- $cores := toString .Values.resources.requests.cpu -}}
{{- $millis := ternary (trimSuffix "m" $cores | float64) (mulf (float64 $cores) 1000) (hasSuffix "m" $cores) -}}
{{- divf $millis 1000 .Values.workers | ceil | int -}}
{{- end -}}

{{/* preStop, BERT_LINGER_SECONDS and BERT_DRAIN_SECONDS, 10 s for the last responses, 10 more until the supervisor
     of several workers has killed one that does not end. */}}
{{- define "bert.graceSeconds" -}}
{{- $margin := ternary 20 10 (gt (int .Values.workers) 1) -}}
{{- add .Values.preStopSeconds .Values.lingerSeconds .Values.drainSeconds $margin -}}
{{- end -}}

{{- define "bert.metricsPort" -}}{{ ternary "admin" "http" (gt (int .Values.adminPort) 0) }}{{- end -}}

{{/* The series of this release, by the labels that the Prometheus Operator adds. */}}
{{- define "bert.series" -}}
{namespace="{{ .Release.Namespace }}",service="{{ include "bert.name" . }}"}
{{- end -}}

{{- define "bert.hubToken" -}}
{{- with .Values.hubToken.secret }}
- name: HF_TOKEN
  valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.hubToken.key }}}}
{{- end }}
{{- end -}}

{{- define "bert.confined" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}
