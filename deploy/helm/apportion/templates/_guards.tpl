{{/* The name of one of our accounts, as the API server has it. */}}
{{- define "apportion.account" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .name }}
{{- end }}

{{/* Who may write what other schedulers' device plugins obey, as a list of CEL. */}}
{{- define "apportion.writers" -}}
['{{ include "apportion.account" (dict "root" . "name" "binder") }}'{{ range .Values.guards.writers }}, '{{ . }}'{{ end }}]
{{- end }}

{{/* Annotations that device plugins of HAMi, Volcano and vcuda obey (RE2). tests/unit/core/admission holds it to what is written when a pod is bound. */}}
{{- define "apportion.pluginAnnotations" -}}
^(hami[.]io/(.+-devices-(allocated|to-allocate)|.+-mig-allocations|vgpu-(node|time)|bind-(phase|time))|volcano[.]sh/(vgpu-(ids-new|node|time)|devices-to-allocate|bind-(phase|time)|predicate-time)|(tencent|docker)[.]com/(predicate-.+|gpu-assigned)|huawei[.]com/(Ascend[0-9].*|ascend[0-9].*|npu-core))$
{{- end }}

{{/* Resources that are devices of ours (RE2): by domain, and what a configuration calls otherwise. */}}
{{- define "apportion.deviceNames" -}}
^((nvidia|volcano|tencent|docker|huawei|cambricon|apportion)[.](com|sh|dev)/.+{{ range .Values.guards.resources }}|{{ . | replace "." "[.]" }}{{ end }})$
{{- end }}

{{/* CEL: whether the pod asks for devices. */}}
{{- define "apportion.asksForDevices" -}}
(object.spec.containers + (has(object.spec.initContainers) ? object.spec.initContainers : []))
.exists(c, has(c.resources) && (
(has(c.resources.limits) && c.resources.limits.exists(k, k.matches({{ include "apportion.deviceNames" . | squote }})))
|| (has(c.resources.requests) && c.resources.requests.exists(k, k.matches({{ include "apportion.deviceNames" . | squote }})))))
{{- if .Values.dra.enabled }}
|| (has(object.spec.resourceClaims) && object.spec.resourceClaims.size() > 0)
{{- end }}
{{- end }}

{{/* CEL: whether the webhook must have seen a new pod. */}}
{{- define "apportion.isOurBusiness" -}}
{{ include "apportion.asksForDevices" . }}
|| (has(object.metadata.annotations) && object.metadata.annotations.exists(k, k.startsWith('apportion.dev/')))
{{- end }}

{{/* Folders of a node that a pod with a share may mount (RE2): those of the list and below, however many slashes and dots the path has. */}}
{{- define "apportion.hostPaths" -}}
^(
{{- range $at, $path := .Values.guards.hostPaths -}}
{{- if $at }}|{{ end }}
{{- range splitList "/" (trimAll "/" $path) -}}(/[.]?)+{{ . | replace "." "[.]" }}{{- end -}}
{{- end -}}
)(/.*)?$
{{- end }}

{{/* Capabilities that a container with a share may add, as a list of CEL: those of the Pod Security Standard baseline, and guards.capabilities. */}}
{{- define "apportion.capabilities" -}}
{{- $baseline := list "AUDIT_WRITE" "CHOWN" "DAC_OVERRIDE" "FOWNER" "FSETID" "KILL" "MKNOD" "NET_BIND_SERVICE" "SETFCAP" "SETGID" "SETPCAP" "SETUID" "SYS_CHROOT" -}}
{{- range $at, $name := concat $baseline .Values.guards.capabilities -}}
{{ if $at }}, {{ end }}'{{ $name }}', 'CAP_{{ $name }}'
{{- end -}}
{{- end }}

{{/* The webhook's certificate of the chart, as data of a Secret in JSON: the one that is there, or a new one, once. */}}
{{- define "apportion.admissionCertificate" -}}
{{- $there := (lookup "v1" "Secret" .Release.Namespace .Values.admission.certificates.secret).data | default dict }}
{{- if hasKey $there "ca.crt" -}}
{{- pick $there "ca.crt" "tls.crt" "tls.key" | toJson -}}
{{- else -}}
{{- $kept := get .Values "madeForAdmission" | default dict -}}
{{- if not $kept -}}
{{- $ca := genCA "apportion-admission" 3650 -}}
{{- $made := genSignedCert "admission" list (list (printf "admission.%s.svc" .Release.Namespace)) 3650 $ca -}}
{{- $kept = dict "ca.crt" (b64enc $ca.Cert) "tls.crt" (b64enc $made.Cert) "tls.key" (b64enc $made.Key) -}}
{{- $_ := set .Values "madeForAdmission" $kept -}}
{{- end -}}
{{- toJson $kept -}}
{{- end -}}
{{- end }}
