"""Telemetry of requests: metrics, access log and traces, without any text of the requests.

RequestRecord ─┬─▶ RequestStats ─▶ Snapshot ─▶ /metrics (prometheus), /status
               ├─▶ access_log ─▶ logging_setup ─▶ stderr
               └─▶ tracing ─▶ OpenTelemetry collector
"""
