"""Alert rules for Prometheus and a dashboard for Grafana over the metrics of the extension. Pure: rendered from Python,
so that a test can hold every expression against the metrics that exist."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

RUNBOOK = "docs/page.md"


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert rule.

    Attributes:
        name: as it is paged.
        expression: fires while it yields anything.
        for_: how long it must hold.
        severity: "page" wakes somebody, "ticket" waits for the morning.
        says: what happened, in Prometheus' template words.
        do: what to do first.
    """

    name: str
    expression: str
    for_: str
    severity: str
    says: str
    do: str


ALERTS = (
    Alert(
        "MyriadNobodySteers",
        "sum(myriad_scheduler_leading) < 1 or absent(myriad_scheduler_leading)",
        "2m",
        "page",
        "No replica of the scheduler extension leads: jobs go on unsteered.",
        "kubectl -n myriad-system get pods,lease; kubectl -n myriad-system logs deploy/myriad-scheduler",
    ),
    Alert(
        "MyriadTwoLeaders",
        "sum(myriad_scheduler_leading) > 1",
        "1m",
        "page",
        "{{ $value }} replicas lead at once.",
        "kubectl -n myriad-system get lease myriad-scheduler -o yaml; compare the clocks of the nodes of the replicas",
    ),
    Alert(
        "MyriadCacheBehind",
        "min(myriad_scheduler_cache_in_step) < 1",
        "5m",
        "ticket",
        "A replica does not follow the cluster; its /readyz says which kind of object.",
        "kubectl -n myriad-system get pods; is the API server slow, or is a CRD of Kueue gone?",
    ),
    Alert(
        "MyriadBrakeOff",
        "min(myriad_scheduler_brake_on) < 1",
        "1m",
        "ticket",
        "The extension's brake is off: in an outage it taints domains as if the nodes were dead.",
        "Take MYRIAD_SCHEDULER_BRAKE out of scheduler_extension_env; it is for comparing the two and for nothing else.",
    ),
    Alert(
        "MyriadSlowAnswerToKueue",
        "histogram_quantile(0.99, sum by (le) (rate(myriad_scheduler_accept_seconds_bucket[10m]))) > 10",
        "10m",
        "ticket",
        "Gangs that Kueue has placed wait {{ $value | humanizeDuration }} (p99) for the extension's answer.",
        "Look at the panels of pass time and API latency; a slow API server shows in both.",
    ),
    Alert(
        "MyriadSlowPasses",
        "histogram_quantile(0.99, sum by (le) (rate(myriad_scheduler_pass_seconds_bucket[10m]))) > 2.5",
        "10m",
        "ticket",
        "One pass over all Workloads takes {{ $value | humanizeDuration }} (p99).",
        "How many Workloads are there? Lower MYRIAD_SCHEDULER_PLANNED_PER_QUEUE, or give the extension more CPU.",
    ),
    Alert(
        "MyriadWritesRefused",
        "increase(myriad_scheduler_refused_writes_total[15m]) > 10",
        "5m",
        "ticket",
        "The API server refuses what the extension writes.",
        "kubectl -n myriad-system logs deploy/myriad-scheduler; rights, a webhook, or another version of Kueue?",
    ),
    Alert(
        "MyriadKubernetesApiSlow",
        "histogram_quantile(0.99, sum by (le) (rate(myriad_kube_request_seconds_bucket[10m]))) > 2",
        "10m",
        "ticket",
        "Requests to the Kubernetes API take {{ $value | humanizeDuration }} (p99).",
        "Look at etcd's disk and at API priority and fairness.",
    ),
    Alert(
        "MyriadKubernetesApiFails",
        'sum(rate(myriad_kube_request_seconds_count{status="5xx"}[10m])) '
        "/ sum(rate(myriad_kube_request_seconds_count[10m])) > 0.05",
        "5m",
        "page",
        "{{ $value | humanizePercentage }} of the requests to the Kubernetes API fail.",
        "kubectl get --raw /readyz?verbose",
    ),
    Alert(
        "MyriadJobsNeverFit",
        'myriad_waiting_jobs_by_reason{reason="never"} > 0',
        "30m",
        "ticket",
        "{{ $value }} jobs wait that no state of this cluster can ever hold.",
        "`myriad queue` names them and says why; their owners have to change them.",
    ),
    Alert(
        "MyriadGpusMissing",
        'sum by (pool) (myriad_gpus{state="missing"}) > 0',
        "15m",
        "ticket",
        "{{ $value }} GPUs of pool {{ $labels.pool }} are described and not there.",
        "`myriad status` names the nodes; `myriad gate` says what their gates found.",
    ),
    Alert(
        "MyriadNodesLost",
        'sum by (pool) (myriad_nodes{state=~"not_ready|unhealthy"}) / sum by (pool) (myriad_nodes) > 0.05',
        "5m",
        "page",
        "{{ $value | humanizePercentage }} of the nodes of pool {{ $labels.pool }} are NotReady or unhealthy.",
        "Many at once point to the control plane, a switch or power: look there before at single nodes.",
    ),
    Alert(
        "MyriadQuotaCannotBeHonoured",
        'sum by (pool) (myriad_quota_gpus{kind="nominal"}) '
        '> on (pool) sum by (pool) (myriad_gpus{state=~"used|terminating|free"})',
        "30m",
        "ticket",
        "Pool {{ $labels.pool }} has promised {{ $value }} GPUs, more than its healthy nodes have.",
        "Bring nodes back, or lower quotas; the page shows whose quota is above what is there.",
    ),
    Alert(
        "MyriadIdleWhileJobsWait",
        'sum by (pool) (myriad_gpus{state="free"}) / sum by (pool) (myriad_gpus) > 0.2 '
        "and on (pool) sum by (pool) (myriad_waiting_jobs) > 0",
        "1h",
        "ticket",
        "{{ $value | humanizePercentage }} of the GPUs of pool {{ $labels.pool }} are free while jobs wait.",
        "Quota, fragmentation or a gate? The panel of reasons says which; `myriad why JOB` says it for one.",
    ),
    Alert(
        "MyriadBudgetNearlyUsedUp",
        "myriad_budget_left_gpu_hours < 100",
        "10m",
        "ticket",
        "Team {{ $labels.team }} has {{ $value | humanize }} GPU-hours left in pool {{ $labels.pool }}.",
        "Tell the team; `myriad report` shows where they went.",
    ),
)


def rules() -> Json:
    """A rule file of Prometheus."""
    return {
        "groups": [
            {
                "name": "myriad",
                "rules": [
                    {
                        "alert": a.name,
                        "expr": a.expression,
                        "for": a.for_,
                        "labels": {"severity": a.severity},
                        "annotations": {"summary": a.says, "description": f"First: {a.do}", "runbook": RUNBOOK},
                    }
                    for a in ALERTS
                ],
            }
        ]
    }


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph: title, unit of Grafana, and (expression, legend) pairs."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    stacked: bool = False


def _quantiles(metric: str) -> tuple[tuple[str, str], ...]:
    return tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[$__rate_interval])))", name)
        for q, name in ((0.5, "p50"), (0.99, "p99"))
    )


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "Queue",
        (
            Panel("Jobs that wait", "short", (("myriad_waiting_jobs", "{{team}} {{pool}}"),), True),
            Panel("GPUs that they ask for", "short", (("sum by (pool) (myriad_waiting_gpus)", "{{pool}}"),)),
            Panel("Why they wait", "short", (("myriad_waiting_jobs_by_reason > 0", "{{reason}}"),), True),
            Panel("Oldest", "s", (("max by (team, pool) (myriad_waiting_oldest_seconds)", "{{team}} {{pool}}"),)),
        ),
    ),
    (
        "Quota",
        (
            Panel("Used", "short", (('myriad_quota_gpus{kind="used"}', "{{team}} {{pool}}"),), True),
            Panel("Borrowed", "short", (('myriad_quota_gpus{kind="borrowed"} > 0', "{{team}} {{pool}}"),), True),
            Panel("GPU-hours left", "h", (("myriad_budget_left_gpu_hours", "{{team}} {{pool}}"),)),
        ),
    ),
    (
        "Cluster",
        (
            Panel("GPUs by state", "short", (("sum by (state) (myriad_gpus)", "{{state}}"),), True),
            Panel("Nodes by state", "short", (('sum by (state) (myriad_nodes{state!="ok"})', "{{state}}"),), True),
            Panel("Largest gang that fits", "short", (("myriad_largest_gang_gpus", "within one {{tier}}"),)),
            Panel("Evictions", "short",
                  (("sum by (reason) (increase(myriad_scheduler_evictions_total[1h]))", "{{reason}}"),)),
        ),
    ),
    (
        "The extension",
        (
            Panel("A pass over all Workloads", "s", _quantiles("myriad_scheduler_pass_seconds")),
            Panel("Answer to Kueue", "s", _quantiles("myriad_scheduler_accept_seconds")),
            Panel("Notice of an eviction", "s", _quantiles("myriad_scheduler_notice_seconds")),
            Panel("Kubernetes API", "s", _quantiles("myriad_kube_request_seconds")),
            Panel("The page", "s", _quantiles("myriad_page_request_seconds")),
            Panel(
                "Writes",
                "short",
                (
                    ("sum by (why) (rate(myriad_scheduler_check_writes_total[$__rate_interval]))", "{{why}}"),
                    ("rate(myriad_scheduler_conflicts_total[$__rate_interval])", "conflicts"),
                    ("rate(myriad_scheduler_refused_writes_total[$__rate_interval])", "refused"),
                    ("rate(myriad_scheduler_nudges_total[$__rate_interval])", "nudges"),
                ),
            ),
            Panel("Leader and step", "short", (("sum(myriad_scheduler_leading)", "leaders"),
                  ("min(myriad_scheduler_cache_in_step)", "in step"))),
            Panel("Clients of the stream", "short", (('sum(myriad_page_stream{what="clients"})', "clients"),)),
        ),
    ),
)  # fmt: skip


def expressions() -> list[str]:
    """Every expression of the rules and the dashboard."""
    return [a.expression for a in ALERTS] + [q for _, panels in ROWS for p in panels for q, _ in p.queries]


def dashboard() -> Json:
    """A dashboard of Grafana (schema 39); the data source is chosen in it."""
    panels: list[Json] = []
    y = 0
    for title, row in ROWS:
        panels.append({"type": "row", "title": title, "gridPos": {"x": 0, "y": y, "w": 24, "h": 1}, "panels": []})
        y += 1
        for i, panel in enumerate(row):
            panels.append(_panel(panel, x=(i % 3) * 8, y=y + i // 3 * 8))
        y += (len(row) + 2) // 3 * 8
    for number, panel_json in enumerate(panels, start=1):
        panel_json["id"] = number
    return {
        "uid": "myriad",
        "title": "Myriad",
        "tags": ["gpu", "scheduling"],
        "schemaVersion": 39,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Prometheus", "refresh": 1}
            ]
        },
        "panels": panels,
    }


def _panel(panel: Panel, *, x: int, y: int) -> Json:
    source = {"type": "prometheus", "uid": "${source}"}
    custom: Json = {"fillOpacity": 20 if panel.stacked else 0, "lineWidth": 1}
    if panel.stacked:
        custom["stacking"] = {"mode": "normal", "group": "A"}
    return {
        "type": "timeseries",
        "title": panel.title,
        "datasource": source,
        "gridPos": {"x": x, "y": y, "w": 8, "h": 8},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {"refId": chr(ord("A") + i), "expr": expression, "legendFormat": legend, "datasource": source}
            for i, (expression, legend) in enumerate(panel.queries)
        ],
    }
