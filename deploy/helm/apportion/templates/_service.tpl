{{/* The image of all services. With a digest, the tag is only for people. */}}
{{- define "apportion.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The labels of an object of the component `name`: those that Kubernetes recommends, and commonLabels. */}}
{{- define "apportion.labels" -}}
app.kubernetes.io/name: apportion
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* The metadata of the pods of a component. Without a version: a new chart alone restarts no pod. */}}
{{- define "apportion.podMetadata" -}}
labels:
  app: {{ .name }}
  app.kubernetes.io/name: apportion
  app.kubernetes.io/instance: {{ .root.Release.Name }}
  app.kubernetes.io/component: {{ .name }}
{{- range list .root.Values.commonLabels .root.Values.podLabels }}
{{- with . }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with merge (.annotations | default dict) .root.Values.podAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* How a component's pods are spread: as its settings say, else over nodes, if there are several. */}}
{{- define "apportion.spread" -}}
{{- if .settings.affinity }}
affinity: {{- toYaml .settings.affinity | nindent 2 }}
{{- else if gt (int .settings.replicas) 1 }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {app: {{ .name }}, app.kubernetes.io/instance: {{ .root.Release.Name }}}
{{- end }}
{{- with .settings.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The Secret with the certificate of the ledger's servers. */}}
{{- define "apportion.natsTls" -}}
{{ .Values.nats.tls.secret | default "nats-tls" }}
{{- end }}

{{/* Whether clients get a CA to trust; empty if not. */}}
{{- define "apportion.natsCa" -}}
{{- if ternary .Values.nats.tls.enabled (ne .Values.nats.tls.secret "") .Values.nats.enabled }}yes{{ end }}
{{- end }}

{{/* Whether the server authenticates clients through the callout; empty if not. */}}
{{- define "apportion.callout" -}}
{{- if and .Values.callout.enabled .Values.nats.enabled }}yes{{ end }}
{{- end }}

{{/* Whether a role logs in with the token of its ServiceAccount; empty if it has a password. */}}
{{- define "apportion.byToken" -}}
{{- if and (include "apportion.callout" .root) (not (has .role (list "bootstrap" "callout"))) }}yes{{ end }}
{{- end }}

{{/* The URL of the ledger for a role: with the password in PASSWORD, or with the name that its token belongs to. */}}
{{- define "apportion.url" -}}
{{- $own := ternary "tls://nats:4222" "nats://nats:4222" .root.Values.nats.tls.enabled -}}
{{- $url := ternary $own .root.Values.nats.url .root.Values.nats.enabled -}}
{{- $parts := splitList "://" $url -}}
{{- $user := printf "%s:$(PASSWORD)" .role -}}
{{- if include "apportion.byToken" . -}}
{{- $user = "$(POD_NAME)" -}}
{{- end -}}
{{ first $parts }}://{{ $user }}@{{ last $parts }}
{{- end }}

{{/* Whether a role appends to the ledger, and so needs the key that hides the ids of messages; empty if not. */}}
{{- /* --max-bytes of a new ledger; for an existing server, only an explicit value. */ -}}
{{- define "apportion.maxBytes" -}}
{{- $set := int64 .Values.nats.maxBytes -}}
{{- if $set -}}
{{ $set }}
{{- else if .Values.nats.enabled -}}
{{- $unit := get (dict "KB" 1000 "MB" 1000000 "GB" 1000000000 "TB" 1000000000000) (regexFind "[KMGT]B$" .Values.nats.maxStore) -}}
{{ div (mul (regexFind "^[0-9]+" .Values.nats.maxStore | int64) (int64 $unit) 2) 5 }}
{{- end -}}
{{- end -}}

{{- /* 85 % of a quantity of memory, in bytes. */ -}}
{{- define "apportion.softLimit" -}}
{{- $units := dict "" 1 "k" 1000 "M" 1000000 "G" 1000000000 "T" 1000000000000 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := required (printf "nats.resources.limits.memory: %q; write a number with k, M, G, T, Ki, Mi, Gi or Ti" (toString .)) (get $units (regexReplaceAll "^[0-9.]+" (toString .) "")) -}}
{{ printf "%.0f" (mulf (regexFind "^[0-9.]+" (toString .) | float64) (float64 $unit) 0.85) }}
{{- end -}}

{{- define "apportion.appends" -}}
{{- if has .role (list "intake" "watcher" "scheduler" "binder" "gateway" "defrag") }}yes{{ end }}
{{- end }}

{{/* Whether a role's metrics need the services' token; the gateway's need a login. Empty if not. */}}
{{- define "apportion.scraped" -}}
{{- if not (has .role (list "bootstrap" "auditor" "defrag")) }}{{ if not (and (eq .role "gateway") (eq .root.Values.gateway.login "kubernetes")) }}yes{{ end }}{{ end }}
{{- end }}

{{/* The volumes and mounts with which a pod reaches the ledger. */}}
{{- define "apportion.natsVolumes" -}}
{{- if include "apportion.byToken" . }}
- name: nats-token
  projected:
    sources:
      - serviceAccountToken: {audience: apportion-nats, expirationSeconds: 3600, path: token}
{{- end }}
{{- if include "apportion.natsCa" .root }}
- name: nats-ca
  secret:
    secretName: {{ include "apportion.natsTls" .root }}
    items: [{key: ca.crt, path: ca.crt}]
{{- end }}
{{- if include "apportion.scraped" . }}
- name: metrics-token
  secret: {secretName: {{ .root.Values.monitoring.scrape.servicesSecret }}, optional: true}
{{- end }}
{{- if include "apportion.appends" . }}
- name: ledger-key
  secret:
    secretName: {{ .root.Values.passwords.secret }}
    items: [{key: APPORTION_LEDGER_KEY, path: ledger.key}]
{{- end }}
{{- end }}

{{- define "apportion.natsMounts" -}}
{{- if include "apportion.byToken" . }}
- {name: nats-token, mountPath: /var/run/apportion-nats, readOnly: true}
{{- end }}
{{- if include "apportion.natsCa" .root }}
- {name: nats-ca, mountPath: /etc/apportion/nats, readOnly: true}
{{- end }}
{{- if include "apportion.scraped" . }}
- {name: metrics-token, mountPath: /etc/apportion/metrics, readOnly: true}
{{- end }}
{{- if include "apportion.appends" . }}
- {name: ledger-key, mountPath: /etc/apportion/ledger, readOnly: true}
{{- end }}
{{- end }}

{{/* The environment of every service. */}}
{{- define "apportion.env" -}}
{{- if include "apportion.byToken" . -}}
- name: POD_NAME
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
- {name: APPORTION_NATS_TOKEN, value: /var/run/apportion-nats/token}
{{- else -}}
- name: PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .root.Values.passwords.secret }}, key: APPORTION_{{ upper .role }}_PASSWORD}
{{- end }}
- {name: APPORTION_NATS_URL, value: "{{ include "apportion.url" . }}"}
{{- if include "apportion.natsCa" .root }}
- {name: APPORTION_NATS_CA, value: /etc/apportion/nats/ca.crt}
{{- end }}
{{- if include "apportion.appends" . }}
- {name: APPORTION_LEDGER_KEY, value: /etc/apportion/ledger/ledger.key}
{{- end }}
- {name: APPORTION_LOG_FORMAT, value: json}
{{- with .health }}
- {name: APPORTION_HEALTH, value: "0.0.0.0:{{ . }}"}
{{- end }}
{{- if include "apportion.scraped" . }}
- {name: APPORTION_METRICS_TOKEN, value: /etc/apportion/metrics/token}
{{- end }}
{{- if .kubernetes }}
- {name: APPORTION_KUBERNETES, value: "1"}
{{- with .root.Values.kubernetes.host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ quote . }}}
{{- end }}
{{- with .root.Values.kubernetes.port }}
- {name: KUBERNETES_SERVICE_PORT, value: {{ quote . }}}
{{- end }}
{{- end }}
{{- end }}

{{/* No privileges, no capabilities, and a read-only root file system. */}}
{{- define "apportion.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "apportion.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: health}
  periodSeconds: 2
  timeoutSeconds: {{ .root.Values.probes.timeoutSeconds }}
  failureThreshold: {{ max 1 (div .root.Values.probes.startupSeconds 2) }}
readinessProbe:
  httpGet: {path: /readyz, port: health}
livenessProbe:
  httpGet: {path: /healthz, port: health}
  timeoutSeconds: {{ .root.Values.probes.timeoutSeconds }}
{{- end }}

{{/* A pod's image pull secrets and its node selection. */}}
{{- define "apportion.pod" -}}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - {name: {{ . }}}
  {{- end }}
{{- end }}
{{- if and .root.Values.networkHost (not .node) }}
hostNetwork: true
{{- end }}
securityContext:
  {{- if not .node }}
  runAsNonRoot: true
  runAsUser: 10001 # the image's user, in a number: not every runtime tells the kubelet
  runAsGroup: 10001
  {{- end }}
  {{- if .group }}
  fsGroup: 10001 # writes to a volume, and reads a Secret that is not everybody's
  {{- end }}
  seccompProfile: {type: RuntimeDefault}
{{- with .settings.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* The Deployment of a service, without its own ports and variables. */}}
{{- define "apportion.deployment" -}}
{{- $settings := get .root.Values .name -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "apportion.labels" . | nindent 4 }}
spec:
  replicas: {{ $settings.replicas }}
  {{- if .root.Values.networkHost }}
  strategy:
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1} # two would want one port
  {{- end }}
  selector:
    matchLabels: {app: {{ .name }}, app.kubernetes.io/instance: {{ .root.Release.Name }}}
  template:
    metadata:
      {{- include "apportion.podMetadata" . | nindent 6 }}
    spec:
      serviceAccountName: {{ .name }}
      {{- with .root.Values.priorityClassName }}
      priorityClassName: {{ . }}
      {{- end }}
      terminationGracePeriodSeconds: 25
      {{- with include "apportion.pod" (dict "root" .root "settings" $settings) | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- with include "apportion.spread" (dict "root" .root "name" .name "settings" $settings) | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      containers:
        - name: {{ .name }}
          image: {{ include "apportion.image" .root }}
          imagePullPolicy: {{ .root.Values.image.pullPolicy }}
          args: {{ concat (list .name) .args $settings.args | toJson }}
          ports:
            - {name: health, containerPort: {{ $settings.health }}}
            {{- range .ports }}
            - {name: {{ .name }}, containerPort: {{ .port }}}
            {{- end }}
          env:
            {{- include "apportion.env" (dict "root" .root "role" .name "health" $settings.health "kubernetes" .kubernetes) | nindent 12 }}
            {{- range .env }}
            - {{ toJson . }}
            {{- end }}
          {{- include "apportion.probes" . | nindent 10 }}
          {{- include "apportion.confined" . | nindent 10 }}
          {{- with $settings.resources }}
          resources: {{- toYaml . | nindent 12 }}
          {{- end }}
          {{- $mounts := include "apportion.natsMounts" (dict "root" .root "role" .name) | trim }}
          {{- if or .scratch .secret $mounts }}
          volumeMounts:
            {{- with .scratch }}
            - {name: scratch, mountPath: /tmp}
            {{- end }}
            {{- with .secret }}
            - {name: tls, mountPath: /etc/apportion/tls, readOnly: true}
            {{- end }}
            {{- with $mounts }}
            {{- . | nindent 12 }}
            {{- end }}
          {{- end }}
      {{- $volumes := include "apportion.natsVolumes" (dict "root" .root "role" .name) | trim }}
      {{- if or .scratch .secret $volumes }}
      volumes:
        {{- with .scratch }}
        - {name: scratch, emptyDir: {sizeLimit: {{ . }}}}
        {{- end }}
        {{- with .secret }}
        - {name: tls, secret: {secretName: {{ . }}}}
        {{- end }}
        {{- with $volumes }}
        {{- . | nindent 8 }}
        {{- end }}
      {{- end }}
{{- if and .root.Values.budgets (gt (int $settings.replicas) 1) }}
---
apiVersion: policy/{{ ternary "v1" "v1beta1" (semverCompare ">=1.21-0" .root.Capabilities.KubeVersion.Version) }}
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
  labels: {{- include "apportion.labels" . | nindent 4 }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {app: {{ .name }}, app.kubernetes.io/instance: {{ .root.Release.Name }}}
{{- end }}
{{- end }}
