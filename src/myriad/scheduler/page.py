"""The page as HTML: queue, quotas, map, job, decisions. Pure.

Every view is whole without scripts; the scripts of `web/static` keep it live, draw the map and filter. Nothing is shown
by colour alone, there is no inline style or script (the Content-Security-Policy forbids both), and every link is
relative, so that the page works below any prefix (`kubectl proxy`, an ingress).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import quote

from myriad.scheduler.explain import duration
from myriad.scheduler.web.rows import NODE_STATES
from myriad.scheduler.web.scope import THEIR_JOB

Json = dict[str, Any]

TITLES = {
    "queue": "Queue and quotas",
    "map": "Cluster map",
    "decisions": "Decision log",
    "preemptions": "Preemptions",
    "job": "Job",
    "login": "Log in",
    "problem": "Not shown",
}
_NAVIGATION = (
    ("queue", "./", "Queue"),
    ("map", "map", "Map"),
    ("decisions", "decisions", "Decisions"),
    ("preemptions", "preemptions", "Preemptions"),
)
_MOST_ROWS = 2000

GLYPHS = {
    "ok": "●",
    "reserved": "◆",
    "cordoned": "▲",
    "gate_closed": "■",
    "unhealthy": "✚",
    "not_ready": "✖",
}
"""The sign of each node state: states differ by shape before they differ by colour."""


@dataclass(frozen=True, slots=True)
class Frame:
    """What surrounds a view.

    Attributes:
        root: what a relative link begins with.
        user: who is logged in, "" where nobody has to be.
        assets: version of the page's files.
    """

    root: str = ""
    user: str = ""
    can_log_out: bool = False
    assets: str = ""


def render(view: str, data: Json, frame: Frame) -> str:
    """A whole document of one view."""
    body = {
        "queue": _queue_view,
        "map": _map_view,
        "job": _job_view,
        "decisions": _decisions_view,
        "preemptions": _preemptions_view,
    }[view](data, frame)
    title = f"{data['namespace']}/{data['job']}" if view == "job" else TITLES[view]
    return _document(view, title, body, frame)


def login(problem: str, frame: Frame) -> str:
    """The form that takes a token; it works without scripts."""
    told = f'<p class="note bad" role="alert">{escape(problem)}</p>' if problem else ""
    body = f"""{told}
<form method="post" action="{frame.root}login" class="login">
<label for="token">Kubernetes token</label>
<textarea id="token" name="token" rows="5" required autocomplete="off" spellcheck="false" autofocus
 aria-describedby="token-help"></textarea>
<p id="token-help" class="dim">It is kept in a cookie that no script can read, for eight hours. You see the namespaces
whose Kueue Workloads you may list. To make one for this page alone:</p>
<pre><code>kubectl create token NAME -n NAMESPACE --audience myriad.dev/page</code></pre>
<button type="submit">Log in</button>
</form>"""
    return _document("login", TITLES["login"], body, frame)


def problem(status: int, message: str, hint: str, frame: Frame) -> str:
    """What went wrong, and what to do."""
    body = f'<p class="note bad" role="alert">{escape(message)}</p>'
    if hint:
        body += f"<p>{escape(hint)}</p>"
    return _document("problem", f"{TITLES['problem']} ({status})", body, frame)


def _document(view: str, title: str, body: str, frame: Frame) -> str:
    links = "".join(
        f'<li><a href="{frame.root}{href}"{" aria-current=page" if name == view else ""}>{text}</a></li>'
        for name, href, text in _NAVIGATION
    )
    who = f'<span class="user">{escape(frame.user)}</span>' if frame.user else ""
    out = (
        f'<form method="post" action="{frame.root}logout"><button type="submit" class="plain">Log out</button></form>'
        if frame.can_log_out
        else ""
    )
    live = view in ("queue", "map", "decisions")
    script = "".join(
        f'<script src="{frame.root}static/{name}?v={frame.assets}" defer></script>'
        for name in (("map.js", "app.js") if view in ("map", "job") else ("app.js",))
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} - Myriad</title>
<link rel="icon" href="{frame.root}static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="{frame.root}static/style.css?v={frame.assets}">
{script}
</head>
<body data-view="{view}" data-root="{frame.root}"{' data-live=""' if live else ""}>
<a class="skip" href="#main">Skip to the content</a>
<header>
<p class="brand"><a href="{frame.root or "./"}">Myriad</a></p>
<nav aria-label="Views"><ul>{links}</ul></nav>
<div class="tools">
<p id="live" class="live" role="status" aria-live="polite" hidden></p>
<button type="button" id="theme" class="plain" hidden>Dark</button>
{who}{out}
</div>
</header>
<main id="main" tabindex="-1">
<h1>{escape(title)}</h1>
{body}
</main>
<p id="said" class="visually-hidden" role="status" aria-live="polite"></p>
</body>
</html>
"""


# Parts


def _number(head: str) -> str:
    return ' class="n"' if head.endswith("#") else ""


def table(
    identity: str,
    caption: str,
    heads: Sequence[str],
    rows: Iterable[tuple[str, Sequence[str]]],
    empty: str,
    *,
    laid_out: bool = False,
) -> str:
    """A table whose rows have keys; its scripts find it by `identity`. A head that ends in # is of numbers.

    Args:
        identity, caption, heads, rows, empty: of the table; the last is said where it has no rows.
        laid_out: the style sheet lays its rows out otherwise, so that browsers have to be told what they are.
    """

    def role(name: str) -> str:
        return f' role="{name}"' if laid_out else ""

    col, line, first, cell_role = role("columnheader"), role("row"), role("rowheader"), role("cell")
    head = "".join(f'<th scope="col"{_number(h)}{col}>{escape(h.rstrip("#"))}</th>' for h in heads)
    body = "".join(
        f'<tr data-key="{escape(key)}"{line}>'
        + "".join(
            f'<th scope="row"{first}>{cell}</th>' if i == 0 else f"<td{_number(h)}{cell_role}>{cell}</td>"
            for i, (h, cell) in enumerate(zip(heads, cells, strict=True))
        )
        + "</tr>"
        for key, cells in rows
    )
    hidden = " hidden" if body else ""
    return f"""<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">
<table id="{identity}"{role("table")}><caption>{escape(caption)}</caption>
<thead{role("rowgroup")}><tr{line}>{head}</tr></thead><tbody{role("rowgroup")}>{body}</tbody></table>
</div>
<p class="dim empty" data-empty="{identity}"{hidden}>{escape(empty)}</p>"""


def job_link(namespace: str, job: str, frame: Frame) -> str:
    """A link to a job's view."""
    href = f"{frame.root}jobs/{quote(namespace, safe='')}/{quote(job, safe='')}"
    return f'<a href="{href}">{escape(namespace)}/{escape(job)}</a>'


def when(text: str) -> str:
    """A time; scripts show its age beside it."""
    return f'<time datetime="{escape(text)}">{escape(text[:19].replace("T", " "))}</time>' if text else ""


def eta_text(eta: Any) -> str:
    """An estimate in words: "in 20 min to 1 h"; "" where there is none."""
    if not isinstance(eta, Mapping):
        return ""
    low, high = eta.get("low_s"), eta.get("high_s")
    if low is None or high is None:
        return ""
    return f"in {duration(float(low))} to {duration(float(high))}"


def _notes(status: Json) -> str:
    extension = status["extension"]
    notes = []
    if extension["cache_behind"]:
        notes.append(f"The cache does not follow yet: {', '.join(extension['cache_behind'])}.")
    if not extension["leader"]:
        notes.append("No replica leads: nothing is steered.")
    if extension.get("shadow"):
        notes.append("Shadow: what is planned here is recorded and changes nothing.")
    elif status["queues_not_steered"]:
        since = f" ({status['unsteered']})" if status["unsteered"] else ""
        notes.append(f"Not steered: {', '.join(status['queues_not_steered'])}{since}.")
    if not extension.get("brake", True):
        notes.append("The brake is off: domains are tainted in the middle of an outage too.")
    items = "".join(f'<p class="note bad">{escape(n)}</p>' for n in notes)
    return f'<div id="notes">{items}</div>'


def _figures(pairs: Sequence[tuple[str, str, str]]) -> str:
    cells = "".join(f'<div><dt>{text}</dt><dd id="{name}">{value}</dd></div>' for name, text, value in pairs)
    return f'<dl class="figures">{cells}</dl>'


def _filter(identity: str, of: str, label: str) -> str:
    return (
        f'<p class="filter" hidden data-filter-of="{of}"><label for="{identity}">{label}</label>'
        f'<input id="{identity}" type="search" autocomplete="off" spellcheck="false"></p>'
    )


# Queue


def _queue_view(data: Json, frame: Frame) -> str:
    status, report, others = data["status"], data["report"], data["others"]
    figures = _figures(
        [
            ("f-nodes", "GPU nodes that take work", f"{status['nodes_taking_work']} of {status['nodes_total']}"),
            ("f-gpus", "GPUs in use", f"{status['gpus_used']} of {status['gpus_allocatable']}"),
            ("f-running", "jobs hold quota", str(status["jobs_running"])),
            ("f-waiting", "jobs wait", str(status["jobs_waiting"])),
        ]
    )
    leader = escape(status["extension"]["leader"] or "none")
    return f"""{_notes(status)}
{figures}
<section aria-labelledby="h-waiting"><h2 id="h-waiting">Waiting</h2>
{_filter("find", "waiting running", "Find a job, team, pool or reason")}
{_waiting(report, frame)}</section>
<section aria-labelledby="h-quotas"><h2 id="h-quotas">Quotas</h2>
{_quotas(report, others)}</section>
{_budgets(data.get("accounts") or {})}
<section aria-labelledby="h-running"><h2 id="h-running">Holding quota</h2>
{_running(report, frame)}</section>
<section aria-labelledby="h-fits"><h2 id="h-fits">Largest gang that fits now</h2>
{_fits(status["fits_now"])}</section>
<p class="dim">Leader: {leader}</p>"""


def _waiting(report: Sequence[Json], frame: Frame) -> str:
    rows: list[tuple[str, Sequence[str]]] = []
    for entry in report:
        for job in entry["waiting"]:
            refused = "<strong class=bad>never: </strong>" if job.get("state") == "never" else ""
            cells = [
                job_link(job["namespace"], job["job"], frame),
                escape(entry["team"] or entry["cluster_queue"]),
                escape(entry["pool"]),
                str(job["position"]),
                escape(job["size"]),
                str(job["priority"]),
                duration(job["waiting_s"]),
                escape(eta_text(job.get("eta"))),
                refused + escape(job["reason"]),
            ]
            rows.append((f"{job['namespace']}/{job['job']}", cells))
    heads = ["job", "team", "pool", "place#", "size", "priority#", "for#", "may start", "why"]
    return table("waiting", "Jobs that wait, in the order of their queues", heads, rows[:_MOST_ROWS], "Nothing waits.")


def meter(used: int, nominal: int, text: str) -> str:
    """A bar with its numbers in words beside it."""
    return f'<meter min="0" max="{max(nominal, used, 1)}" value="{used}" aria-hidden="true"></meter> {escape(text)}'


def steered(queue: Json) -> str:
    """Whether gangs of a queue are steered, as the table says it."""
    if not queue["steered"]:
        return "<strong class=bad>no</strong>"
    return "yes" if queue["asks"] else "when a gang waits"


def _quotas(report: Sequence[Json], others: Json) -> str:
    rows: list[tuple[str, Sequence[str]]] = []
    for q in report:
        waiting = len(q["waiting"]) + q.get("waiting_of_others", 0)
        running = len(q["running"]) + q.get("running_of_others", 0)
        left = max(0, q["nominal_gpus"] - q["used_gpus"])
        cells = [
            escape(q["team"] or q["cluster_queue"]),
            escape(q["pool"]),
            meter(q["used_gpus"], q["nominal_gpus"], f"{q['used_gpus']} of {q['nominal_gpus']}"),
            str(q["borrowed_gpus"]),
            str(left),
            str(q["lent_by_others_now"]),
            str(running),
            str(waiting),
            steered(q),
        ]
        rows.append((q["cluster_queue"], cells))
    heads = ["team", "pool", "GPUs in use", "borrowed#", "left#", "to borrow now#", "running#", "waiting#", "steered"]
    shown = table("quotas", "Quota, use and borrowing by team and pool", heads, rows, "No queue is known.")
    if others["queues"]:
        shown += (
            f'<p id="others">Queues of other teams: {others["used_gpus"]} of {others["nominal_gpus"]} GPUs in use, '
            f"{others['running']} jobs hold quota, {others['waiting']} wait.</p>"
        )
    return shown


_BUDGET_STATES = {"ok": "", "short": "short", "used_up": "used up"}


def _budgets(accounts: Json) -> str:
    """GPU-hours, where the site has budgets; a page without them is as it was."""
    if accounts.get("error"):
        return f'<p class="note bad">GPU-hours are not shown: {escape(accounts["error"])}</p>'
    rows: list[tuple[str, Sequence[str]]] = []
    for b in accounts.get("budgets") or []:
        state = _BUDGET_STATES[b["state"]]
        said = f"{b['sentence']}{'; held: ' + ', '.join(b['held']) if b['held'] else ''}"
        cells = [
            escape(f"{b['team']}, project {b['project']}" if b["project"] else b["team"]),
            escape(b["pool"]),
            escape(b["period_name"]),
            meter(round(b["used_h"]), b["budget_h"], f"{b['used_h']:,.1f} of {b['budget_h']:,}"),
            f"{b['left_h']:,.1f}",
            when(b["period_end"]),
            (f"<strong class=bad>{state}: </strong>" if b["state"] == "used_up" else "") + escape(said),
        ]
        rows.append((f"{b['team']}/{b['project']}/{b['pool']}", cells))
    if not rows:
        return ""
    heads = ["team", "pool", "period", "GPU-hours used", "left#", "until", "what follows"]
    shown = table("budgets", "GPU-hours by team and pool in the current period", heads, rows, "")
    return f'<section aria-labelledby="h-budgets"><h2 id="h-budgets">GPU-hours</h2>\n{shown}</section>'


def _running(report: Sequence[Json], frame: Frame) -> str:
    rows: list[tuple[str, Sequence[str]]] = []
    for entry in report:
        for job in entry["running"]:
            nodes = list(job["nodes"])
            where = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
            cells = [
                job_link(job["namespace"], job["job"], frame),
                escape(entry["team"] or entry["cluster_queue"]),
                escape(entry["pool"]),
                "runs" if job["admitted"] else "starts",
                escape(job["size"]),
                escape(where),
            ]
            rows.append((f"{job['namespace']}/{job['job']}", cells))
    heads = ["job", "team", "pool", "state", "size", "nodes"]
    return table("running", "Jobs that hold quota", heads, rows[:_MOST_ROWS], "Nothing runs.")


def _fits(fits: Sequence[Json]) -> str:
    rows = [(f["tier"], [escape(f["tier"]), escape(f["place"]), str(f["whole_nodes"]), str(f["gpus"])]) for f in fits]
    heads = ["within one", "place", "whole nodes#", "GPUs#"]
    return table("fits", "Largest gang that fits now, by tier", heads, rows, "No node takes work.")


# Map


def legend() -> str:
    """What the signs of the map mean."""
    nodes = "".join(
        f'<li><span class="sign s-{state}" aria-hidden="true">{GLYPHS[state]}</span> {escape(text)}</li>'
        for state, text in NODE_STATES.items()
    )
    gpus = "".join(
        f'<li><span class="gpu g-{name}" aria-hidden="true"></span> {text}</li>'
        for name, text in (
            ("used", "used (filled)"),
            ("free", "free (outline)"),
            ("terminating", "its pod is stopping (half)"),
            ("held", "free, but the node takes no work (dot)"),
            ("missing", "expected, not there (cross)"),
        )
    )
    return f'<div class="legend"><div><h2>GPUs</h2><ul>{gpus}</ul></div><div><h2>Nodes</h2><ul>{nodes}</ul></div></div>'


def _map_view(data: Json, frame: Frame) -> str:
    gpus, states = data["totals"]["gpus"], data["totals"]["nodes"]
    figures = _figures(
        [
            ("m-used", "GPUs used", str(gpus["used"])),
            ("m-free", "free", str(gpus["free"])),
            ("m-terminating", "stopping", str(gpus["terminating"])),
            ("m-held", "free on nodes that take no work", str(gpus["held_back"])),
            ("m-missing", "missing", str(gpus["missing"])),
            ("m-nodes", "nodes that take work", f"{states['ok'] + states['reserved']} of {sum(states.values())}"),
        ]
    )
    return f"""{_notes(data["status"])}
{figures}
{map_figure(data["nodes"], "The cluster by room, block, rack, node and GPU")}
{legend()}
<section aria-labelledby="h-nodes"><h2 id="h-nodes">Nodes as a table</h2>
{_filter("find-node", "nodes", "Find a node, place, state or job")}
{_nodes(data["nodes"], frame)}</section>"""


def map_figure(nodes: Mapping[str, Json], label: str) -> str:
    """The canvas and the data that it is drawn from; without scripts the table below it says the same."""
    # "<" is written so that no name can end the element.
    rows = json.dumps(nodes, separators=(",", ":"), default=int).replace("<", "\\u003c")
    return f"""<figure class="map" hidden>
<canvas id="map" tabindex="0" role="application" aria-roledescription="cluster map" aria-label="{escape(label)}.
 Arrow keys go from node to node, Page Up and Page Down from rack to rack, Enter opens the node's job."
 aria-describedby="map-node"></canvas>
<figcaption id="map-node" class="map-node" aria-live="polite">Choose a node with the arrow keys or the pointer.
</figcaption>
</figure>
<script type="application/json" id="map-data">{rows}</script>"""


def _owner(owner: str, frame: Frame) -> str:
    namespace, slash, job = owner.partition("/")
    return job_link(namespace, job, frame) if slash and namespace and job else escape(owner or "no owner")


def _nodes(nodes: Mapping[str, Json], frame: Frame) -> str:
    rows: list[tuple[str, Sequence[str]]] = []
    for name, n in nodes.items():
        jobs = ", ".join(f"{_owner(owner, frame)} ({gpus})" for owner, gpus in n["jobs"].items())
        state = f'<span class="sign s-{n["state"]}" aria-hidden="true">{GLYPHS[n["state"]]}</span> '
        state += escape(NODE_STATES[n["state"]]) + (f" ({escape(n['reason'])})" if n["reason"] else "")
        free = max(0, n["gpus"] - n["used"] - n["missing"])
        cells = [
            escape(name),
            escape(n["place"]),
            escape(n["pool"]),
            state,
            str(n["used"] - n["terminating"]),
            str(n["terminating"]),
            str(free),
            str(n["missing"]),
            jobs,
        ]
        rows.append((name, cells))
    heads = ["node", "place", "pool", "state", "used#", "stopping#", "free#", "missing#", "jobs (GPUs)"]
    return table("nodes", "GPU nodes", heads, rows, "There is no GPU node.", laid_out=True)


# Job


def _job_view(data: Json, frame: Frame) -> str:
    why = data["why"]
    lines = "".join(
        f"<div><dt>{escape(line['about'])}</dt><dd>{escape(line['text'])}</dd></div>"
        for line in why["lines"]
        if line["about"] != "unblocks"
    )
    unblocks = "".join(f"<li>{escape(u)}</li>" for u in why["unblocks"])
    what_helps = f"<h3>What would unblock it</h3><ul>{unblocks}</ul>" if unblocks else ""
    timeline = [
        (str(i), [when(e["time"]), escape(e["what"]), escape(e["detail"])]) for i, e in enumerate(data["timeline"])
    ]
    nodes = [(n, [escape(n), str(pods)]) for n, pods in data["nodes"].items()]
    placed = ""
    if data["nodes"]:
        mine = escape(json.dumps(sorted(data["nodes"])))
        placed = f"""<section aria-labelledby="h-place"><h2 id="h-place">Placement</h2>
<figure class="map" hidden data-src="{frame.root}v1/map" data-only="{mine}">
<canvas id="map" tabindex="0" role="application" aria-roledescription="cluster map"
 aria-label="Where the job stands. Arrow keys go from node to node." aria-describedby="map-node"></canvas>
<figcaption id="map-node" class="map-node" aria-live="polite">The job's nodes are ringed.</figcaption></figure>
{table("placement", "Nodes and pods of the job", ["node", "pods#"], nodes, "It stands on no node.")}</section>"""
    about = ", ".join(
        ([escape(data["size"]), f"priority {data['priority']}"] if data["size"] else [])
        + ([f"queue {escape(data['queue'])}"] if data["queue"] else [])
    )
    looked = {line["about"] for line in why["lines"]}
    footer = "" if "looked at" in looked else f'<p class="dim">Looked at: {escape(", ".join(why["looked_at"]))}.</p>'
    return f"""<p class="lead"><strong>{escape(why["first_cause"])}</strong></p>
<p class="dim">{about}</p>
<section aria-labelledby="h-why"><h2 id="h-why">Why</h2>
<dl class="why">{lines}</dl>{what_helps}
{footer}</section>
{placed}
<section aria-labelledby="h-timeline"><h2 id="h-timeline">Timeline</h2>
{table("timeline", "What happened to it, oldest first", ["time (UTC)", "what", "detail"], timeline, "Nothing yet.")}
</section>
<section aria-labelledby="h-decisions"><h2 id="h-decisions">Decisions</h2>
{decision_table(data["decisions"], frame)}</section>
<section aria-labelledby="h-preemptions"><h2 id="h-preemptions">Preemptions</h2>
{preemption_table(data["preemptions"], frame)}</section>"""


# Decisions


def decision_table(records: Sequence[Json], frame: Frame) -> str:
    """Decision records, the newest first."""
    rows: list[tuple[str, Sequence[str]]] = []
    for d in reversed(records):
        nodes = d.get("assigned") or d.get("nodes") or {}
        agree = {True: "as planned", False: "differs from the plan", None: ""}[d.get("agree")]
        detail = str(d.get("reason") or agree or ", ".join(list(nodes)[:8]))
        cells = [
            when(d["time"]),
            escape(d["event"]),
            job_link(d.get("namespace", ""), d["name"], frame),
            escape("/".join(d.get("domain", ())) or str(d.get("assigned_tier", ""))),
            escape(detail),
        ]
        rows.append((f"{d['time']} {d['event']} {d.get('namespace', '')}/{d['name']}", cells))
    heads = ["time (UTC)", "event", "job", "place", "reason"]
    return table("decisions", "Decision records, newest first", heads, rows, "No decision is recorded.")


def preemption_table(evictions: Sequence[Json], frame: Frame) -> str:
    """Evictions, the newest first: of whom, for whom, why, and what it cost."""
    rows: list[tuple[str, Sequence[str]]] = []
    for e in reversed(evictions):
        victim, preemptor = e["victim"], e["preemptor"]
        by = "nobody took the place"
        if preemptor:
            by = _owner(f"{preemptor['namespace']}/{preemptor['job']}", frame)
            if preemptor["job"] == THEIR_JOB:
                by = escape(THEIR_JOB)
        cells = [
            when(e["at"]),
            job_link(victim["namespace"], victim["job"], frame),
            by,
            escape(e.get("policy") or e["reason"]),
            when(e.get("kill_at") or ""),
            when(e.get("last_checkpoint") or "") or "none known",
            f"{float(e.get('at_risk_s') or 0) / 3600:.1f}",
            str(e.get("count") or 1),
        ]
        rows.append((e["id"], cells))
    heads = ["time (UTC)", "job", "for", "policy", "killed at", "last checkpoint", "GPU-hours at risk#", "times#"]
    return table("preemptions", "Evictions, newest first", heads, rows, "No eviction is recorded.")


def _preemptions_view(data: Json, frame: Frame) -> str:
    return f"""{_search("preemptions", data["job"], frame)}
{preemption_table(data["evictions"], frame)}"""


def _search(view: str, job: str, frame: Frame) -> str:
    return f"""<form method="get" action="{frame.root}{view}" role="search" class="find">
<label for="job">Job, as NAMESPACE/NAME</label>
<input id="job" name="job" value="{escape(job)}" autocomplete="off" spellcheck="false" maxlength="320">
<button type="submit">Show</button></form>"""


def _decisions_view(data: Json, frame: Frame) -> str:
    return f"""{_search("decisions", data["job"], frame)}
{decision_table(data["records"], frame)}"""
