"""`myriad policy diff|preview`: the description against the live cluster, and what it would do to the jobs of now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
import yaml

from myriad.cli import _cluster as cluster
from myriad.cli.output import console, emit_json, err_console
from myriad.cli.validate import InventoryOption, JsonOption, print_problems
from myriad.errors import InputError
from myriad.fleet import Fleet, check, objects_for_cluster_policy
from myriad.fleet.access import access_objects
from myriad.inventory import read_inventory
from myriad.kube.apply import Applier, Options, Outcome
from myriad.kube.client import Api
from myriad.kube.kinds import CLUSTER_QUEUES, COHORTS
from myriad.scheduler.preview import jobs_of, preview, quotas_of, sentences

Json = dict[str, Any]

DIFFERENT = 4
KubeconfigOption = Annotated[str | None, typer.Option(help="Kubeconfig; $KUBECONFIG without it.")]
_KUEUE = "kueue.x-k8s.io/v1beta2"
PRUNED: Mapping[str, Sequence[tuple[str, str]]] = {
    "cluster-policy": (
        *((_KUEUE, k) for k in ("Topology", "ResourceFlavor", "Cohort", "ClusterQueue", "LocalQueue")),
        (_KUEUE, "WorkloadPriorityClass"),
        ("scheduling.k8s.io/v1", "PriorityClass"),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
        ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
    ),
    "team-access": (
        *(("rbac.authorization.k8s.io/v1", k) for k in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")),
        ("networking.k8s.io/v1", "NetworkPolicy"),
        ("v1", "LimitRange"),
    ),
}
"""Kinds in which leftovers are looked for, as the roles do it (a test compares)."""


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    group = typer.Typer(no_args_is_help=True, help="The policy of the description against the live cluster.")
    app.add_typer(group, name="policy")

    @group.command()
    def diff(inventory: InventoryOption, as_json: JsonOption = False, kubeconfig: KubeconfigOption = None) -> None:
        """Every field in which the cluster differs from the description. Changes nothing. Exit 4 on a difference."""
        fleet = _described(inventory)
        found = differences(cluster.reach(kubeconfig), fleet)
        if as_json:
            emit_json({"differences": found})
        else:
            _show(found)
        raise typer.Exit(DIFFERENT if found else 0)

    @group.command("preview")
    def preview_(inventory: InventoryOption, as_json: JsonOption = False, kubeconfig: KubeconfigOption = None) -> None:
        """Whom the description's quotas would preempt, and which jobs would start or wait, if they held now."""
        fleet = _described(inventory)
        cache, _ = cluster.read_cluster(cluster.reach(kubeconfig))
        objects = objects_for_cluster_policy(fleet)
        report = preview(
            quotas_of(cache.listing(CLUSTER_QUEUES), cache.listing(COHORTS)),
            quotas_of(
                (o for o in objects if o["kind"] == "ClusterQueue"), (o for o in objects if o["kind"] == "Cohort")
            ),
            *jobs_of(cache),
        )
        if as_json:
            emit_json(report)
            return
        for line in sentences(report):
            console.print(line, markup=False)


def _described(inventory: Sequence[Any]) -> Fleet:
    checked = check(read_inventory(*inventory))
    if checked.errors:
        print_problems(checked.problems, to=err_console)
        raise InputError(
            f"the description has {len(checked.errors)} error{'' if len(checked.errors) == 1 else 's'}",
            hint="`myriad validate` shows them; nothing was asked of the cluster",
        )
    return checked.fleet


def differences(api: Api, fleet: Fleet) -> list[Json]:
    """Objects in which the cluster differs, each with its fields. The server is asked by dry runs of an apply, so that
    fields of others and the server's own defaults are no difference."""
    found: list[Json] = []
    for name, objects in (
        ("cluster-policy", objects_for_cluster_policy(fleet)),
        ("team-access", access_objects(fleet)),
    ):
        options = Options(set_name=name, prune=True, prune_kinds=tuple(PRUNED[name]), dry_run=True)
        outcome = Applier(api, options).apply(objects)
        for note in outcome.notes:
            err_console.print(note, markup=False)
        found += list(_changes(outcome))
    return sorted(found, key=lambda entry: entry["object"])


def _changes(outcome: Outcome) -> Iterator[Json]:
    change = {
        **dict.fromkeys(outcome.created, "missing"),
        **dict.fromkeys(outcome.changed, "different"),
        **dict.fromkeys(outcome.pruned, "not described"),
    }
    for entry in outcome.diff:
        name = entry["after_header"]
        if change[name] != "different":
            yield {"object": name, "change": change[name], "fields": []}
            continue
        live, wanted = (yaml.safe_load(entry[side]) or {} for side in ("before", "after"))
        fields = list(field_differences(live, wanted))
        # Nothing but who recorded it: no difference of the policy.
        if fields:
            yield {"object": name, "change": "different", "fields": fields}


def field_differences(live: Any, wanted: Any, path: str = "") -> Iterator[Json]:
    """Fields in which two values differ, each with its path. A list of named items is compared by name."""
    if isinstance(live, Mapping) and isinstance(wanted, Mapping):
        for key in sorted({*live, *wanted}, key=str):
            inner = f"{path}.{key}" if path and "/" not in str(key) and "." not in str(key) else f"{path}[{key}]"
            yield from field_differences(live.get(key), wanted.get(key), inner if path else str(key))
    elif _named(live) and _named(wanted):
        yield from field_differences(
            {item["name"]: item for item in live}, {item["name"]: item for item in wanted}, path
        )
    elif live != wanted:
        yield {"field": path, "live": live, "described": wanted}


def _named(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and isinstance(item.get("name"), str) for item in value)
        and len({item["name"] for item in value}) == len(value)
    )


def _show(found: Sequence[Json]) -> None:
    for entry in found:
        if entry["change"] != "different":
            console.print(f"{entry['object']}: {_WORDS[entry['change']]}", markup=False)
            continue
        console.print(entry["object"], markup=False)
        for field in entry["fields"]:
            was, will = _short(field["live"]), _short(field["described"])
            console.print(f"  {field['field']}: {was}, described {will}", markup=False)
    if found:
        count = f"{len(found)} object{' differs' if len(found) == 1 else 's differ'}"
        console.print(f"{count}; `myriad site` applies the description", markup=False)
    else:
        console.print("the cluster is as described", markup=False)


_WORDS = {"missing": "is described and not there", "not described": "is there and not described: a site run removes it"}


def _short(value: Any) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    text = " ".join(text.removesuffix("...").split())
    return text if len(text) <= 160 else f"{text[:157]}..."
