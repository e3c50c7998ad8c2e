{{/* The image of all services. */}}
{{- define "apportion.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The URL of the ledger for a role, whose password is in PASSWORD. */}}
{{- define "apportion.url" -}}
{{- $url := ternary "nats://nats:4222" .root.Values.nats.url .root.Values.nats.enabled -}}
{{- $parts := splitList "://" $url -}}
{{ first $parts }}://{{ .role }}:$(PASSWORD)@{{ last $parts }}
{{- end }}

{{/* What every service has in its environment. */}}
{{- define "apportion.env" -}}
- name: PASSWORD
  valueFrom:
    secretKeyRef: {name: {{ .root.Values.passwords.secret }}, key: APPORTION_{{ upper .role }}_PASSWORD}
- {name: APPORTION_NATS_URL, value: "{{ include "apportion.url" . }}"}
- {name: APPORTION_LOG_FORMAT, value: json}
{{- with .health }}
- {name: APPORTION_HEALTH, value: "0.0.0.0:{{ . }}"}
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

{{/* No privilege, no capability, no root file system to write to. */}}
{{- define "apportion.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{- define "apportion.probes" -}}
readinessProbe:
  httpGet: {path: /readyz, port: health}
livenessProbe:
  httpGet: {path: /healthz, port: health}
{{- end }}

{{/* Where a pod's image comes from, and where it may run. */}}
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
{{- with .settings.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .settings.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A Deployment of one of our services, but for its own ports and variables. */}}
{{- define "apportion.deployment" -}}
{{- $settings := get .root.Values .name -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
spec:
  replicas: {{ $settings.replicas }}
  {{- if .root.Values.networkHost }}
  strategy:
    rollingUpdate: {maxSurge: 0, maxUnavailable: 1} # two would want one port
  {{- end }}
  selector:
    matchLabels: {app: {{ .name }}}
  template:
    metadata:
      labels: {app: {{ .name }}}
    spec:
      serviceAccountName: {{ .name }}
      priorityClassName: system-cluster-critical
      terminationGracePeriodSeconds: 25
      {{- with include "apportion.pod" (dict "root" .root "settings" $settings) }}
      {{- . | nindent 6 }}
      {{- end }}
      {{- if gt (int $settings.replicas) 1 }}
      # Not on one node, where there are others.
      affinity:
        podAntiAffinity:
          preferredDuringSchedulingIgnoredDuringExecution:
            - weight: 100
              podAffinityTerm:
                topologyKey: kubernetes.io/hostname
                labelSelector:
                  matchLabels: {app: {{ .name }}}
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
          {{- if or .scratch .secret }}
          volumeMounts:
            {{- if .scratch }}
            - {name: scratch, mountPath: /tmp}
            {{- end }}
            {{- if .secret }}
            - {name: tls, mountPath: /etc/apportion/tls, readOnly: true}
            {{- end }}
      volumes:
        {{- with .scratch }}
        - {name: scratch, emptyDir: {sizeLimit: {{ . }}}}
        {{- end }}
        {{- with .secret }}
        - {name: tls, secret: {secretName: {{ . }}}}
        {{- end }}
          {{- end }}
{{- if and .root.Values.budgets (gt (int $settings.replicas) 1) }}
---
apiVersion: policy/{{ ternary "v1" "v1beta1" (semverCompare ">=1.21-0" .root.Capabilities.KubeVersion.Version) }}
kind: PodDisruptionBudget
metadata:
  name: {{ .name }}
  namespace: {{ .root.Release.Namespace }}
spec:
  maxUnavailable: 1
  selector:
    matchLabels: {app: {{ .name }}}
{{- end }}
{{- end }}
