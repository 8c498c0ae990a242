{{/* The variables of the service. */}}
{{- define "bert.env" -}}
{{- if .Values.models }}
- {name: BERT_MODELS, value: /etc/packbert-models/models.yaml}
{{- else if include "bert.oneCommand" . }}
- {name: BERT_MODEL, value: {{ include "bert.source" . | quote }}}
{{- else if include "bert.exports" . }}
- {name: BERT_MODEL, value: {{ include "bert.exported" . }}}
{{- else }}
- {name: BERT_MODEL, value: {{ clean (printf "/artifacts/%s" .Values.artifact.path) | quote }}}
{{- end }}
{{- if include "bert.oneCommand" . }}
- {name: BERT_PRECISION, value: {{ .Values.precision }}}
{{- end }}
- {name: BERT_HOST, value: 0.0.0.0}
- {name: BERT_PORT, value: "8080"}
- {name: BERT_DEVICE, value: {{ include "bert.device" . }}}
{{- if and (dig "requests" "cpu" "" .Values.resources) (not (dig "limits" "cpu" "" .Values.resources)) (not (hasKey .Values.settings "BERT_THREADS")) }}
# nothing else bounds the cores that a pod without a limit uses
{{- if gt (int .Values.workers) 1 }}
- {name: BERT_THREADS, value: {{ include "bert.threads" . | quote }}}
{{- else }}
- {name: BERT_THREADS, valueFrom: {resourceFieldRef: {resource: requests.cpu, divisor: "1"}}}
{{- end }}
{{- end }}
- {name: BERT_LINGER_SECONDS, value: {{ .Values.lingerSeconds | quote }}}
- {name: BERT_DRAIN_SECONDS, value: {{ .Values.drainSeconds | quote }}}
- {name: BERT_WORKERS, value: {{ .Values.workers | quote }}}
{{- if and (gt (int .Values.workers) 1) (not (include "bert.oneCommand" .)) }}
# the copy of the weights that the workers share; the container has no other folder that it can write
- {name: BERT_CACHE, value: /tmp/packbert}
{{- end }}
{{- with .Values.adminPort }}
- {name: BERT_ADMIN_PORT, value: {{ . | quote }}}
{{- end }}
{{- if .Values.apiKeys.secret }}
- {name: BERT_API_KEY_FILE, value: /etc/packbert/keys}
{{- end }}
{{- with .Values.adminKey.secret }}
- {name: BERT_ADMIN_KEY, valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $.Values.adminKey.key }}}}}
{{- end }}
{{- range $name, $value := .Values.settings }}
- {name: {{ $name }}, value: {{ include "bert.setting" $value | quote }}}
{{- end }}
{{- if include "bert.oneCommand" . }}{{ include "bert.hubToken" . }}{{ end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* A number as it was written: Helm reads all as floating-point numbers and prints large ones as 1e+06. */}}
{{- define "bert.setting" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}

{{- define "bert.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if gt (int .Values.gpu.count) 0 -}}
{{- $limits := get $resources "limits" | default dict -}}
{{- $_ := set $limits .Values.gpu.resource (int .Values.gpu.count) -}}
{{- $_ := set $resources "limits" $limits -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
