{{- /* An ordinary user. Without service links, as those of a Service named scamp would set SCAMP_PORT to a URL. */ -}}
{{- define "scamp.pod" -}}
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 1000
  runAsGroup: 1000
  fsGroup: 1000
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "scamp.container" -}}
image: {{ .Values.image }}
imagePullPolicy: {{ .Values.imagePullPolicy }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- /* Variables of all that trains or reads checkpoints. HOME is writable, as caches of compilers lie there. */ -}}
{{- define "scamp.env" -}}
- {name: HOME, value: /tmp}
- {name: RAY_USAGE_STATS_ENABLED, value: "0"}
- {name: RAY_ROTATION_MAX_BYTES, value: "2097152"}
- {name: RAY_ROTATION_BACKUP_COUNT, value: "1"}
- {name: SCAMP_CHECKPOINT_DIR, value: {{ .Values.checkpoints.url | default "/mnt/scamp" | quote }}}
{{- end -}}

{{- define "scamp.mounts" -}}
- {name: tmp, mountPath: /tmp}
{{- if not .Values.checkpoints.url }}
- {name: checkpoints, mountPath: /mnt/scamp}
{{- end }}
{{- end -}}

{{- define "scamp.volumes" -}}
- {name: tmp, emptyDir: {}}
{{- if not .Values.checkpoints.url }}
- name: checkpoints
  persistentVolumeClaim: {claimName: {{ .Release.Name }}-checkpoints}
{{- end }}
{{- end -}}

{{- /* All nodes of Ray, one of which is the pod of the service. */ -}}
{{- define "scamp.nodes" -}}
- podSelector:
    matchLabels: {ray.io/cluster: {{ .Release.Name }}}
- podSelector:
    matchLabels: {app.kubernetes.io/name: scamp, app.kubernetes.io/instance: {{ .Release.Name }}}
{{- end -}}
