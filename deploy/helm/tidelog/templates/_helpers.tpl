{{/* The URLs of all controllers, as JSON. */}}
{{- define "tidelog.controllers" -}}
{{- $urls := list -}}
{{- range $number := until (int .Values.controller.replicas) -}}
{{- $urls = append $urls (printf "wss://controller-%d.controller:9192" $number) -}}
{{- end -}}
{{- toJson $urls -}}
{{- end }}

{{/* The TOML file of a role: what the chart sets, and over it what the values say. */}}
{{- define "tidelog.config" -}}
{{- $own := dict -}}
{{- if eq .role "controller" -}}
{{- $peers := dict -}}
{{- range $number, $url := include "tidelog.controllers" .root | fromJsonArray -}}
{{- $_ := set $peers (printf "controller-%d" $number) $url -}}
{{- end -}}
{{- $own = dict "cluster" .root.Values.cluster "peers" $peers -}}
{{- else -}}
{{- $own = dict "controllers" (include "tidelog.controllers" .root | fromJsonArray) -}}
{{- end -}}
{{- mergeOverwrite $own (deepCopy (index .root.Values .role).config) | dict "settings" | include "tidelog.toml" | trim -}}
{{- end }}

{{/* Settings as TOML: a scalar or a list is written as in JSON, which keeps whole numbers whole; a map is a table. */}}
{{- define "tidelog.toml" -}}
{{- range $name, $value := .settings }}
{{- if not (kindIs "map" $value) }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{- range $name, $value := .settings }}
{{- if kindIs "map" $value }}

[{{ $.table }}{{ $name }}]
{{- include "tidelog.toml" (dict "settings" $value "table" (printf "%s%s." ($.table | default "") $name)) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidelog.image" -}}
{{- with .root.Values.image.registry }}{{ . }}/{{ end }}{{ (index .root.Values .role).image }}:{{ .root.Values.image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{/* What stands in every pod before its containers: rights, and where it runs. */}}
{{- define "tidelog.pod" -}}
{{- $values := index .root.Values .role -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {app.kubernetes.io/name: {{ .role }}, app.kubernetes.io/part-of: tidelog}
{{- end }}

{{/* What every container has: its image, its file, and its certificate. */}}
{{- define "tidelog.container" -}}
image: {{ include "tidelog.image" . }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
args: [--config, /etc/tidelog/config/{{ .role }}.toml]
resources: {{ toJson (index .root.Values .role).resources }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "tidelog.env" -}}
- name: TIDELOG_NODE
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- {name: TIDELOG_TLS_CA, value: /etc/tidelog/tls/ca.pem}
- {name: TIDELOG_TLS_CERT, value: /etc/tidelog/tls/{{ .role }}-$(TIDELOG_NODE).pem}
- {name: TIDELOG_TLS_KEY, value: /etc/tidelog/tls/{{ .role }}-$(TIDELOG_NODE).key}
{{- if ne .role "controller" }}
# the zone, which clusters of 1.35 and newer show to pods; elsewhere it is empty: each server its own rack
- name: TIDELOG_RACK
  valueFrom: {fieldRef: {fieldPath: "metadata.labels['topology.kubernetes.io/zone']"}}
{{- end }}
{{- end }}

{{/* Probes of a service that asks for certificates, which the kubelet does not have: they run in the pod. */}}
{{- define "tidelog.probes" -}}
startupProbe:
  exec: {command: [python, -m, tidelog.probe]}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 60
livenessProbe:
  exec: {command: [python, -m, tidelog.probe]}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  exec: {command: [python, -m, tidelog.probe, --ready]}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}

{{- define "tidelog.mounts" -}}
- {name: config, mountPath: /etc/tidelog/config, readOnly: true}
- {name: tls, mountPath: /etc/tidelog/tls, readOnly: true}
- {name: tmp, mountPath: /tmp}
{{- range (index .root.Values .role).secrets }}
- {name: {{ .name }}, mountPath: {{ .path }}, readOnly: true}
{{- end }}
{{- end }}

{{- define "tidelog.volumes" -}}
- name: config
  configMap: {name: {{ .role }}}
- name: tls
  secret: {secretName: {{ (index .root.Values .role).tlsSecret }}, defaultMode: 0440}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
{{- range (index .root.Values .role).secrets }}
- name: {{ .name }}
  secret: {secretName: {{ .name }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "tidelog.claims" -}}
- metadata:
    name: data
  spec:
    accessModes: [ReadWriteOnce]
    {{- with (index .root.Values .role).storageClass }}
    storageClassName: {{ . }}
    {{- end }}
    resources:
      requests: {storage: {{ (index .root.Values .role).storage }}}
{{- end }}
