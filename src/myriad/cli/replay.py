"""`myriad replay FILE|JOB`: a decision made again from its inputs, bit for bit, or under another configuration."""

from __future__ import annotations

import gzip
import json
import zlib
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json
from myriad.errors import InputError, MyriadError
from myriad.scheduler.model import Outcome, PlacementPolicy, Plan, place
from myriad.scheduler.replay import replay as play
from myriad.scheduler.subject import close_names

Json = dict[str, Any]

_DIFFERS = 4


def register(app: typer.Typer) -> None:
    """Add the verb."""

    @app.command()
    def replay(
        what: Annotated[str, typer.Argument(help="A file of inputs (JSON, .gz too), or a job: NAME, NAMESPACE/NAME.")],
        config: Annotated[
            list[str] | None,
            typer.Option("--config", help="KEY=VALUE of the planner's policy, tried on the same state."),
        ] = None,
        namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Namespace of the job.")] = None,
        json_: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
        kubeconfig: Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")] = None,
    ) -> None:
        """Make a recorded decision again and compare: exit code 0 where it is the same, 4 where it differs."""
        named = Path(what).is_dir() or what.endswith((".json", ".gz")) or what.startswith(("/", "./", "../"))
        if named and not Path(what).is_file():
            raise InputError(
                "this is a folder" if Path(what).is_dir() else "there is no such file",
                where=what,
                hint="give a file of a decision's inputs, or the name of a job",
            )
        if Path(what).is_file():
            data, record = _from_file(Path(what)), None
        else:
            data, record = _from_extension(what, namespace, kubeconfig)
        report = report_of(data, record, config or [])
        if json_:
            emit_json(report)
        else:
            for line in _lines(report):
                console.print(line, markup=False)
        if not report["same_inputs"] or report.get("same_choice") is False:
            raise typer.Exit(_DIFFERS)


def report_of(data: Json, record: Json | None, config: list[str]) -> Json:
    """The decision made again, against its record, and under another policy where one is given."""
    outcome, digest = play(data)
    report: Json = {
        "inputs": data.get("hash", ""),
        "same_inputs": digest == data.get("hash"),
        "choice": _choice(outcome),
    }
    if record is not None:
        report["recorded"] = {k: record[k] for k in ("time", "event", "tier", "domain", "nodes") if k in record}
        report["same_choice"] = dict(record.get("nodes") or {}) == report["choice"]["nodes"]
    if config:
        policy = changed(PlacementPolicy(**data["policy"]), config)
        other, _ = play(data, policy=policy)
        report["config"] = config
        report["other_choice"] = _choice(other)
        report["differs"] = _differences(report["choice"], report["other_choice"])
    return report


def changed(policy: PlacementPolicy, config: list[str]) -> PlacementPolicy:
    """A policy with KEY=VALUE changes; `tier_weights.rack=2` changes one entry.

    Raises InputError that names the key.
    """
    known = {f.name: getattr(policy, f.name) for f in fields(policy)}
    for item in config:
        key, sign, text = item.partition("=")
        name, _, part = key.partition(".")
        if not sign or name not in known:
            near = close_names(name, known)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
            raise InputError(f"--config {item}: {'no value' if not sign else f'there is no {name}'}", hint=hint)
        old = known[name]
        try:
            if isinstance(old, dict):
                if not part:
                    raise InputError(f"--config {item}: {name} is a table", hint=f"write {name}.KEY=NUMBER")
                known[name] = {**old, part: float(text)}
            elif isinstance(old, bool):
                known[name] = {"true": True, "false": False}[text.lower()]
            elif isinstance(old, int):
                known[name] = int(text)
            else:
                known[name] = text
        except (ValueError, KeyError) as error:
            raise InputError(f"--config {item}: {text!r} is no value of {name}", hint=f"it is {old!r} now") from error
    return replace(policy, **known)


def _choice(outcome: Outcome) -> Json:
    if isinstance(outcome, Plan):
        return {
            "fits": True, "tier": outcome.tier, "place": place(outcome.domain), "nodes": outcome.nodes,
            "reason": outcome.reason, "counts": dict(outcome.counts),
        }  # fmt: skip
    return {
        "fits": False,
        "nodes": {},
        "reason": outcome.sentence,
        "kind": outcome.kind,
        "counts": dict(outcome.counts),
    }


def _differences(one: Json, other: Json) -> list[str]:
    names = {"fits": "whether it fits", "tier": "tier", "place": "place"}
    found = [f"{words}: {one.get(k)} -> {other.get(k)}" for k, words in names.items() if one.get(k) != other.get(k)]
    gone = sorted(set(one["nodes"]) - set(other["nodes"]))
    new = sorted(set(other["nodes"]) - set(one["nodes"]))
    if gone or new:
        found.append(f"nodes: {', '.join(gone) or 'none'} -> {', '.join(new) or 'none'}")
    elif one["nodes"] != other["nodes"]:
        found.append("pods by node")
    return found


def _lines(report: Json) -> list[str]:
    choice = report["choice"]
    nodes = ", ".join(f"{n} x{k}" if k > 1 else n for n, k in list(choice["nodes"].items())[:12])
    read = "read back unchanged" if report["same_inputs"] else "CHANGED: they are not those of the hash"
    lines = [
        f"inputs     {report['inputs']}  {read}",
        f"choice     {choice['reason']}" + (f": {nodes}" if nodes else ""),
    ]
    if "same_choice" in report:
        recorded = report["recorded"]
        same = "the same nodes" if report["same_choice"] else f"other nodes: {', '.join(recorded.get('nodes', {}))}"
        lines.append(f"recorded   {recorded['event']} at {recorded['time']}: {same}")
    if "config" in report:
        other = report["other_choice"]
        lines.append(f"with       {', '.join(report['config'])}: {other['reason']}")
        lines.append(f"differs    {'; '.join(report['differs']) or 'in nothing'}")
    return lines


def _from_file(path: Path) -> Json:
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), hint="give a file that is there"
        ) from None
    try:
        data = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except (ValueError, OSError, EOFError, zlib.error, RecursionError) as error:
        raise InputError(f"{path} is no JSON: {error}", hint="give a file of a decision's inputs") from error
    if not isinstance(data, dict):
        raise InputError(f"{path} holds no decision's inputs", hint="the leader keeps them beside its log")
    if "nodes_in" in data:  # as the extension keeps them: the nodes lie in a file beside it
        digest = str(data["nodes_in"]).removeprefix("sha256:")
        if not digest.isalnum():
            raise InputError(f"{path} names its nodes by {digest[:40]!r}, which is no hash", hint="copy the file anew")
        beside = path.with_name(f"{digest}.json.gz")
        if not beside.is_file():
            raise InputError(f"{path} needs {beside.name} beside it, which holds the nodes", hint="copy both files")
        data = {**data, "nodes": _from_file(beside).get("nodes")}
    return data


def _from_extension(job: str, namespace: str | None, kubeconfig: str | None) -> tuple[Json, Json]:
    api = cluster.reach(kubeconfig)
    where, name = cluster.split_job(job, namespace)
    records = cluster.ask_extension(api, "/v1/decisions", {"job": f"{where}/{name}" if where else f"/{name}"})
    if records is None:
        raise MyriadError(
            "the extension does not answer, and it keeps the decisions",
            where="service myriad-scheduler in namespace myriad-system",
            hint="kubectl -n myriad-system get pods; or give a file of inputs",
        )
    made = [r for r in records if r.get("inputs") and r.get("nodes") and r["event"] in ("steered", "planned")]
    if not made:
        raise InputError(
            f"no decision about {job} was made by planning", hint="`myriad decisions JOB` shows what was recorded"
        )
    for record in reversed(made):
        data = cluster.ask_extension(api, "/v1/decisions/inputs", {"hash": str(record["inputs"])})
        if data is not None:
            return data, record
    raise InputError(
        f"the inputs of {job}'s decisions are not kept any more ({made[-1]['inputs']})",
        hint="the leader keeps the newest 256 MiB; another replica may have led then",
    )
