{{- define "milligpu.labels" -}}
app.kubernetes.io/name: milligpu
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "milligpu.tag" -}}
{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The node image; the one with the software GPU's compiler where it is needed. */ -}}
{{- define "milligpu.nodeImage" -}}
{{ .Values.image.repository }}/milligpu-node:{{ include "milligpu.tag" . }}{{ if .Values.softgpu.enabled }}-softgpu{{ end }}
{{- end }}

{{- define "milligpu.kubeSchedulerImage" -}}
{{ .Values.scheduler.kubeSchedulerImage | default (printf "registry.k8s.io/kube-scheduler:%s" (regexReplaceAll "[-+].*$" .Capabilities.KubeVersion.Version "")) }}
{{- end }}

{{- /* For containers that need nothing of the node. */ -}}
{{- define "milligpu.restricted" -}}
runAsNonRoot: true
runAsUser: 65534
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- /* A pod that runs `milligpu uninstall` once. */ -}}
{{- define "milligpu.uninstallPod" -}}
serviceAccountName: milligpu-uninstall
restartPolicy: Never
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.scheduler.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.scheduler.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: uninstall
    image: {{ .root.Values.image.repository }}/milligpu:{{ include "milligpu.tag" .root }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    command: [milligpu, uninstall]
    args: {{- toYaml .args | nindent 6 }}
    securityContext: {{- include "milligpu.restricted" .root | nindent 6 }}
{{- end }}
