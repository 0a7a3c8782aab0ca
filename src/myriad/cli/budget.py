"""`myriad budget`: GPU-hours that are left, and corrections of what was charged."""

from __future__ import annotations

import time
import uuid
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from myriad.cli import _cluster as cluster
from myriad.cli._ledger import ask, hours
from myriad.cli.output import console, emit_json
from myriad.errors import InputError, MyriadError
from myriad.kube.client import Api, ApiError
from myriad.kube.kinds import CONFIG_MAPS, SELF_REVIEWS
from myriad.scheduler.ledger import corrections
from myriad.scheduler.ledger.store import Correction
from myriad.scheduler.policy import CONFIG_MAP, NAMESPACE, SitePolicy

Json = dict[str, Any]

RECORDED_S = 20.0
_STATES = {"ok": "", "short": "short", "used_up": "used up"}


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    budget = typer.Typer(no_args_is_help=True, help="GPU-hours that are left, and corrections of what was charged.")
    app.add_typer(budget, name="budget")
    budget.command()(show)
    # A credit begins with a minus, which is no option here.
    budget.command(context_settings={"ignore_unknown_options": True})(correct)


def show(
    team: Annotated[str, typer.Argument(help="Only this team.")] = "",
    json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
) -> None:
    """Every budget in its current period: used, left, until when, and what is held because of it."""
    with closing(cluster.reach(kubeconfig)) as api:
        found = ask(api, "/v1/budgets", {"team": team})
    if json_:
        emit_json(found)
        return
    rows = found["budgets"]
    if not rows:
        who = f"team {team} has" if team else "these credentials see"
        console.print(f"{who} no budget (`gpu_hours` of a team in the inventory makes one)", markup=False)
    else:
        table = Table(box=None, pad_edge=False, header_style="dim")
        for head in ("team", "project", "pool", "period", "budget", "used", "left", "until", ""):
            table.add_column(head, justify="right" if head in ("budget", "used", "left") else "left", no_wrap=True)
        for row in rows:
            cells = [row["team"], row["project"], row["pool"], row["period_name"]]
            cells += [hours(row[name]) for name in ("budget_h", "used_h", "left_h")]
            held = f", holds {', '.join(row['held'])}" if row["held"] else ""
            cells += [row["period_end"][:10], _STATES[row["state"]] + held]
            table.add_row(*(escape(cell) for cell in cells))
        cluster.print_table(table)
        for row in rows:
            if row["sentence"]:
                console.print(f"  {row['sentence']}", markup=False)
    if found["others"]:
        console.print(f"({found['others']} budgets of other teams are not shown)", markup=False)
    ledger = found["ledger"]
    if ledger.get("queued") or ledger.get("error"):
        console.print(
            f"the ledger is {ledger['lag_s']:.0f} s behind ({ledger['queued']} facts wait"
            f"{': ' + ledger['error'] if ledger.get('error') else ''})",
            markup=False,
        )


def correct(
    team: Annotated[str, typer.Argument(help="The team.")],
    pool: Annotated[str, typer.Argument(help="The pool.")],
    amount: Annotated[str, typer.Argument(metavar="HOURS", help="GPU-hours: -96 gives them back, 12.5 charges them.")],
    why: Annotated[str, typer.Option("--why", help="The reason; it stays in the ledger and in reports.")],
    project: Annotated[str, typer.Option("--project", help="A project of the team.")] = "",
    at: Annotated[
        str, typer.Option("--at", help="The day in whose period it counts, as 2026-10-31; now without it.")
    ] = "",
    json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
) -> None:
    """Give GPU-hours back to a team, or charge them, with who and why: a row is added, none is changed."""
    seconds = corrections.gpu_seconds(amount)
    moment = _moment(at)
    with closing(cluster.reach(kubeconfig)) as api:
        corrections.check(team, pool, project, why, _policy(api))
        user = api.create(SELF_REVIEWS, {"apiVersion": SELF_REVIEWS.api_version, "kind": SELF_REVIEWS.kind})
        who = str(user["status"]["userInfo"]["username"])
        name = f"{corrections.PREFIX}{uuid.uuid4().hex[:12]}"
        asked = Correction("", moment, team, pool, project, seconds, who, why)
        try:
            api.create(CONFIG_MAPS, corrections.document(asked, name=name, namespace=NAMESPACE), namespace=NAMESPACE)
        except ApiError as error:
            if error.status in (401, 403):
                raise MyriadError(
                    f"{who} may not correct the ledger: {error.message}",
                    where=api.base_url,
                    hint=f"who may create ConfigMaps in {NAMESPACE} may",
                ) from error
            raise
        state = _wait(api, name)
    if json_:
        emit_json(
            {
                "configmap": name,
                "team": team,
                "pool": pool,
                "project": project,
                "gpu_seconds": seconds,
                "at": datetime.fromtimestamp(moment, UTC).isoformat(),
                "who": who,
                "why": why,
                "state": state,
            }
        )
        return
    words = f"{seconds / 3600:+,g} GPU-hours of {team} in pool {pool}"
    if state == "recorded":
        console.print(f"{words} recorded for {who}: {why}", markup=False)
        return
    console.print(
        f"{words} asked for (ConfigMap {name}); no replica of the extension has taken it yet, it is recorded when one "
        "leads",
        markup=False,
    )


def _wait(api: Api, name: str) -> str:
    """What became of it within a moment. Raises InputError where the extension refuses it."""
    until = time.monotonic() + RECORDED_S
    state = "new"
    while time.monotonic() < until and state == "new":
        time.sleep(0.3)
        metadata = api.get(CONFIG_MAPS, name, namespace=NAMESPACE)["metadata"]
        state = str((metadata.get("labels") or {}).get(corrections.LABEL) or "")
        if state == "refused":
            said = (metadata.get("annotations") or {}).get(corrections.SAID)
            raise InputError(f"the extension refuses it: {said}", where=f"ConfigMap {name}")
    return state


def _policy(api: Api) -> SitePolicy:
    found = api.find(CONFIG_MAPS, CONFIG_MAP, namespace=NAMESPACE)
    if found is None:
        raise MyriadError(
            "the cluster does not know the site's teams",
            where=f"ConfigMap {NAMESPACE}/{CONFIG_MAP}",
            hint="`myriad site` writes it",
        )
    return SitePolicy.of_config_map(found)


def _moment(day: str) -> int:
    now = datetime.now(UTC)
    if not day:
        return int(now.timestamp())
    try:
        # Noon: whatever the site's time zone is, it is that day.
        moment = datetime.fromisoformat(f"{day}T12:00:00+00:00")
    except ValueError as error:
        raise InputError(f'"{day}" is no day', hint="write 2026-10-31") from error
    if moment.date() > now.date():
        raise InputError(f"{day} is still to come", hint="a correction counts in a period that has begun")
    return int(min(moment, now).timestamp())
