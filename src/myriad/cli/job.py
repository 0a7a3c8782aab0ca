"""`myriad job new` and `submit`: a job that is right from the start, and what will become of it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Collection, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from myriad.cli import _cluster as cluster
from myriad.cli import _job_view as view
from myriad.cli._job_facts import Facts, facts_for
from myriad.cli.lint import read_paths
from myriad.cli.output import console, emit_json, err_console
from myriad.errors import InputError, MyriadError
from myriad.jobs.judge import Verdict, judge
from myriad.jobs.render import render, to_yaml
from myriad.jobs.request import FORMS, UNNAMED_IMAGE, Form, Request, checked, parse_elastic, parse_hours
from myriad.jobs.submit import create, in_order
from myriad.kube.client import Api
from myriad.kube.listing import listed
from myriad.lint import findings, scene_of
from myriad.lint.documents import Document
from myriad.lint.rule import Finding
from myriad.lint.works import Work, works
from myriad.scheduler.cache import Cache

Json = dict[str, Any]

ADMISSION_S = 2.0


def register(app: typer.Typer) -> None:
    """Add the verb."""
    group = typer.Typer(no_args_is_help=True, help="Render a job that is right from the start, and submit it.")
    app.add_typer(group, name="job")
    group.command("new")(new)
    group.command("submit")(submit)


def new(
    form: Annotated[str, typer.Argument(help="pytorch (a PyTorchJob) or batch (a Job of ranks).")],
    name: Annotated[str, typer.Option("--name", help="Name of the job; FORM-NODESxGPUS without it.")] = "",
    team: Annotated[str, typer.Option("--team", help="Team; its namespace is where the job goes.")] = "",
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace, where a team has several.")] = "",
    pool: Annotated[
        str, typer.Option("--pool", help="Pool, which is the queue's name; the team's only one without it.")
    ] = "",
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes: one pod each.")] = 1,
    gpus: Annotated[int, typer.Option("--gpus", help="GPUs of each pod.")] = 8,
    elastic: Annotated[str, typer.Option("--elastic", help="MIN:MAX nodes, instead of --nodes (batch only).")] = "",
    hours: Annotated[str, typer.Option("--hours", help="Time limit: 12, 0.5 or 1h30m. Kueue ends the job then.")] = "",
    image: Annotated[str, typer.Option("--image", help="NAME@sha256:DIGEST.")] = "",
    priority: Annotated[str, typer.Option("--priority", help="Priority class of the site.")] = "",
    command: Annotated[
        str, typer.Option("--command", help="What runs, as one quoted line; the image's own without it.")
    ] = "",
    checkpoint_interval: Annotated[
        str, typer.Option("--checkpoint-interval", help="How often it saves: 30m, 900s.")
    ] = "30m",
    checkpoint_claim: Annotated[
        str, typer.Option("--checkpoint-claim", help="PersistentVolumeClaim at /checkpoint.")
    ] = "",
    env: Annotated[list[str] | None, typer.Option("--env", help="NAME=VALUE; may be given several times.")] = None,
    cpu: Annotated[str, typer.Option("--cpu", help="Cores of each pod, requests and limits.")] = "",
    memory: Annotated[str, typer.Option("--memory", help="Memory of each pod, requests and limits.")] = "",
    resource: Annotated[str, typer.Option("--resource", help="Device, where the pool is not known.")] = "",
    inventory: Annotated[
        list[Path] | None, typer.Option("--inventory", "-i", help="Take pools and teams from here.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Ask no cluster, even where $KUBECONFIG names one.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document: objects, and what to know.")] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
) -> None:
    """Render a job as YAML: queue, gang, topology wish, grace, checkpoints, digest, requests = limits, time limit."""
    if form not in FORMS:
        raise InputError(f"there is no form {form!r}", hint=f"write {' or '.join(FORMS)}")
    minimum: int | None = None
    if elastic:
        minimum, nodes = parse_elastic(elastic)
    name = name or f"{form}-{nodes}x{gpus}"
    kind: Form = "pytorch" if form == "pytorch" else "batch"
    facts = facts_for(
        team=team, namespace=namespace, pool=pool, resource=resource, inventory=inventory or [],
        kubeconfig=kubeconfig, offline=offline,
    )  # fmt: skip
    request = checked(
        Request(
            form=kind, name=name, namespace=facts.namespace, queue=facts.pool, nodes=nodes, gpus=gpus, minimum=minimum,
            hours=parse_hours(hours) if hours else None, image=image or UNNAMED_IMAGE,
            priority=_priority(priority, facts),
            command=_argv(command), checkpoint_interval=checkpoint_interval, grace_s=facts.grace_s,
            checkpoint_claim=checkpoint_claim, env=_variables(env or []), cpu=cpu, memory=memory, pool=facts.facts,
        )
    )  # fmt: skip
    rendered = render(request, pytorch_served=facts.pytorch_served is not False)
    says = (*facts.says, *rendered.says)
    if as_json:
        emit_json({"objects": list(rendered.objects), "says": list(says)})
        return
    for line in says:
        err_console.print(f"{name}: {line}", markup=False)
    header = [
        f"Rendered by `myriad job new {form}`; `myriad job submit FILE` says what will become of it and creates it."
    ]
    console.file.write(to_yaml(rendered, header))


def submit(
    file: Annotated[str, typer.Argument(help="File of the job, - for standard input.")],
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="For objects that name none.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would happen; create nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
) -> None:
    """Check a job against rules, quota, topology and budget, say what will happen, and create it. Exit 1: refused."""
    documents = [_placed(document, namespace) for document in read_paths([file])[0]]
    in_order(documents)  # Refuses kinds that are no job before anything is asked.
    with closing(cluster.reach(kubeconfig)) as api:
        _submit(api, file, documents, namespace=namespace, dry_run=dry_run, as_json=as_json)


def _submit(
    api: Api, file: str, documents: Sequence[Document], *, namespace: str | None, dry_run: bool, as_json: bool
) -> None:
    namespaces = sorted({str(document.body["metadata"]["namespace"]) for document in documents})
    cache, missing = view.cache_of(api, namespaces)
    context, sure = view.context_of(api, cache, missing, namespaces)
    scene = scene_of(documents, context=context, sure=sure)
    jobs = [work for work in works(scene) if work.thing.given]
    if not jobs:
        raise InputError(
            "there is no job in it", where=file, hint="give a Job, a PyTorchJob, or another kind that runs pods"
        )
    found = findings(scene)
    now = datetime.now(UTC)
    verdicts = [_verdict(api, cache, work, found, missing, now) for work in jobs]
    refused = any(verdict.state == "refused" for verdict in verdicts)
    created: list[str] = []
    failure: MyriadError | None = None
    if not refused:
        try:
            created = create(api, documents, namespace=namespace, dry_run=dry_run)
        except InputError as error:
            failure = error
    started = (
        {}
        if dry_run or failure
        else {w.thing.title: _admitted(api, w) for w, v in zip(jobs, verdicts, strict=True) if v.state == "fits"}
    )
    if as_json:
        emit_json(
            {
                "jobs": [_row(w, v, started.get(w.thing.title)) for w, v in zip(jobs, verdicts, strict=True)],
                "findings": [finding.as_dict() for finding in found],
                "created": [] if dry_run else created,
                "dry_run": dry_run,
                "refused_by_server": str(failure) if failure else None,
            }
        )
    else:
        _tell(jobs, verdicts, found, created, started, dry_run=dry_run, failed=failure is not None)
    if failure is not None:
        raise failure
    if refused:
        raise typer.Exit(1)


def _row(work: Work, verdict: Verdict, admitted: bool | None) -> Json:
    """A job in the document of `--json`."""
    return {
        "job": work.thing.name,
        "namespace": work.thing.namespace,
        "kind": work.thing.kind,
        "state": verdict.state,
        "sentence": verdict.sentence,
        "notes": list(verdict.notes),
        "numbers": dict(verdict.numbers),
        "admitted": admitted,
    }


def _tell(
    jobs: Sequence[Work],
    verdicts: Sequence[Verdict],
    found: Sequence[Finding],
    created: Sequence[str],
    started: dict[str, bool],
    *,
    dry_run: bool,
    failed: bool,
) -> None:
    refused = any(verdict.state == "refused" for verdict in verdicts)
    for work, verdict in zip(jobs, verdicts, strict=True):
        if verdict.state == "refused":
            end = " Nothing was created."
            word = "refused: "
        else:
            word = ""
            end = ""
            if created:
                end = (
                    " Not created (dry run)."
                    if dry_run
                    else " Admitted."
                    if started.get(work.thing.title)
                    else " Created."
                )
            elif refused or failed:
                end = " Nothing was created."
        sentence = verdict.sentence if verdict.sentence.endswith(".") else f"{verdict.sentence}."
        console.print(f"{work.thing.name}: {word}{sentence}{end}", markup=False)
        for note in verdict.notes:
            console.print(f"  {note}", markup=False)
    for finding in found:
        if finding.severity != "error":
            console.print(f"  {finding.severity}: {finding.message} ({finding.change}) [{finding.rule}]", markup=False)


def _verdict(
    api: Api, cache: Cache, work: Work, found: Sequence[Finding], missing: Collection[str], now: datetime
) -> Verdict:
    errors = [f for f in found if f.severity == "error" and f.object == work.thing.title]
    if errors:
        first, *rest = errors
        return Verdict(
            "refused",
            f"it {first.message} [{first.rule}]",
            (
                f"change: {first.change}",
                *(line for f in rest for line in (f"also: it {f.message} [{f.rule}]", f"change: {f.change}")),
            ),
        )
    return judge(cache, work, missing=missing, balance=view.balance_of(api, cache, work), now=now)


def _placed(document: Document, namespace: str | None) -> Document:
    """The object with its namespace said: that of the option, or `default`, where it names none."""
    metadata = document.body.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        line = document.line(("metadata",))
        raise InputError(
            f"the {document.body.get('kind')} has no metadata.name",
            where=f"{document.file}:{line}" if line else document.file,
            hint="give it a name (generateName has no answer to `myriad why NAME`)",
        )
    own = metadata.get("namespace")
    if own and namespace and own != namespace:
        raise InputError(
            f"{document.body.get('kind')} {metadata['name']} is of namespace {own}, but -n says {namespace}",
            where=document.file,
            hint="give the namespace once",
        )
    body = {**document.body, "metadata": {**metadata, "namespace": own or namespace or "default"}}
    return Document(body, document.file, document.node, document.offset, document.doubled)


def _admitted(api: Api, work: Work) -> bool:
    """Whether Kueue has admitted the job within a moment."""
    from myriad.kube.kinds import WORKLOADS

    until = time.monotonic() + ADMISSION_S
    while time.monotonic() < until:
        for item in listed(api, WORKLOADS, namespace=work.thing.namespace) or []:
            owners = item["metadata"].get("ownerReferences") or []
            if any(o.get("kind") == work.thing.kind and o.get("name") == work.thing.name for o in owners):
                conditions = (item.get("status") or {}).get("conditions") or []
                if any(c["type"] == "Admitted" and c["status"] == "True" for c in conditions):
                    return True
        time.sleep(0.2)
    return False


def _priority(priority: str, facts: Facts) -> str:
    if priority and facts.priorities and priority not in facts.priorities:
        raise InputError(f"there is no priority {priority}", hint=f"the site has {', '.join(sorted(facts.priorities))}")
    return priority


def _argv(command: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(command))
    except ValueError as error:
        raise InputError(f"--command {command!r} cannot be split into words: {error}", hint="close the quote") from None


def _variables(pairs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    found = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"--env {pair!r} has no value", hint="write NAME=VALUE")
        found.append((name, value))
    return tuple(found)
