{{/* The API server's user name of one of our ServiceAccounts. */}}
{{- define "apportion.account" -}}
system:serviceaccount:{{ .root.Release.Namespace }}:{{ .name }}
{{- end }}

{{/* CEL list: users that may write the annotations which other schedulers' device plugins obey. */}}
{{- define "apportion.writers" -}}
['{{ include "apportion.account" (dict "root" . "name" "binder") }}'{{ range .Values.guards.writers }}, '{{ . }}'{{ end }}]
{{- end }}

{{/* RE2: annotations that device plugins of HAMi, Volcano and vcuda obey. tests/unit/core/admission compares it with what the binder writes. */}}
{{- define "apportion.pluginAnnotations" -}}
^(hami[.]io/(.+-devices-(allocated|to-allocate)|kunlun-allocated|.+-mig-allocations|vgpu-(node|time)|bind-(phase|time))|volcano[.]sh/(vgpu-(ids-new|node|time)|devices-to-allocate|bind-(phase|time)|predicate-time)|(tencent|docker|iluvatar|mthreads|metax-tech|enflame)[.](com|ai)/(predicate-.+|gpu-(assigned|index|devices-allocated)|gcu-.+|assigned-containers)|aws[.]amazon[.]com/predicate-node|(AWS_NEURON|NEURON|CAMBRICON|BAIDU_COM)_.+|huawei[.]com/(Ascend[0-9].*|ascend[0-9].*|npu-core))$
{{- end }}

{{/* RE2: resource names of our devices, by domain, and those that a configuration renames. */}}
{{- define "apportion.deviceNames" -}}
^((nvidia|volcano|tencent|docker|huawei|cambricon|hygon|iluvatar|metax-tech|mthreads|kunlunxin|enflame|birentech|vastaitech|amd|apportion)[.](com|sh|dev|ai)/.+|aws[.]amazon[.]com/neuron(core)?{{ range .Values.guards.resources }}|{{ . | replace "." "[.]" }}{{ end }})$
{{- end }}

{{/* CEL: whether the pod requests devices. */}}
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

{{/* RE2: folders of a node that a pod with a share may mount, and their subfolders, with any number of slashes and dots in the path. */}}
{{- define "apportion.hostPaths" -}}
^(
{{- range $at, $path := .Values.guards.hostPaths -}}
{{- if $at }}|{{ end }}
{{- range splitList "/" (trimAll "/" $path) -}}(/[.]?)+{{ . | replace "." "[.]" }}{{- end -}}
{{- end -}}
)(/.*)?$
{{- end }}

{{/* CEL list: capabilities that a container with a share may add: those of the Pod Security Standard baseline, and guards.capabilities. */}}
{{- define "apportion.capabilities" -}}
{{- $baseline := list "AUDIT_WRITE" "CHOWN" "DAC_OVERRIDE" "FOWNER" "FSETID" "KILL" "MKNOD" "NET_BIND_SERVICE" "SETFCAP" "SETGID" "SETPCAP" "SETUID" "SYS_CHROOT" -}}
{{- range $at, $name := concat $baseline .Values.guards.capabilities -}}
{{ if $at }}, {{ end }}'{{ $name }}', 'CAP_{{ $name }}'
{{- end -}}
{{- end }}

{{/* The chart's certificate of the webhook, as data of a Secret in JSON: the existing one, or a new one. */}}
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
