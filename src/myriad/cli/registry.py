"""`myriad registry retention plan|run`: what may leave the site's registry, shown before it goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from myriad.cli.output import console, emit_json, err_console
from myriad.errors import InputError, MyriadError

if TYPE_CHECKING:
    from myriad.fleet.source import RawInventory
    from myriad.registry_site.contents import Contents
    from myriad.registry_site.retention import Named, Plan

PORT = 5000
REGISTRY_NAME = "registry.myriad.internal"

InventoryOption = Annotated[Path, typer.Option("--inventory", "-i", help="Folder or file of the description.")]
BundleOption = Annotated[
    list[Path] | None, typer.Option("--bundle", help="A bundle whose images stay (repeat it); site_bundle otherwise.")
]
LockOption = Annotated[Path | None, typer.Option("--lock", help="The lock; by default stack.lock.yml.")]
UrlOption = Annotated[
    list[str] | None, typer.Option("--registry", help="Address of a registry (repeat it); those of the description.")
]
CaOption = Annotated[Path | None, typer.Option("--ca", help="Certificates that vouch for it, in PEM.")]
PasswordOption = Annotated[
    Path | None, typer.Option("--password-file", help="Password of the user publisher, where users are known.")
]
KubeconfigOption = Annotated[str | None, typer.Option(help="Kubeconfig of the cluster; $KUBECONFIG without it.")]
NoClusterOption = Annotated[
    bool, typer.Option("--no-cluster", help="There is no cluster whose workloads could name images.")
]
WithoutOption = Annotated[
    list[str] | None, typer.Option("--without", help="A host that is not asked, on your word (repeat it).")
]
TeamsOption = Annotated[bool, typer.Option("--teams", help="Teams' images too; they are left alone otherwise.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document instead of text.")]


def register(app: typer.Typer) -> None:
    """Add the verbs."""
    registry = typer.Typer(no_args_is_help=True, help="The site's own registry.")
    retention = typer.Typer(no_args_is_help=True, help="What may leave the registry: nothing that is still named.")
    retention.command("plan")(plan)
    retention.command("run")(run)
    registry.add_typer(retention, name="retention")
    app.add_typer(registry, name="registry")


def plan(
    inventory: InventoryOption = Path("inventories/lab"),
    bundle: BundleOption = None,
    lock_path: LockOption = None,
    url: UrlOption = None,
    ca: CaOption = None,
    password_file: PasswordOption = None,
    kubeconfig: KubeconfigOption = None,
    no_cluster: NoClusterOption = False,
    without: WithoutOption = None,
    teams: TeamsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Tell what would be deleted, and for everything that stays by whom it is named. Deletes nothing."""
    work = _Retention(
        inventory, bundle or [], lock_path, url or [], ca, password_file, kubeconfig, no_cluster, without or [], teams
    )
    made = {address: work.plan(address) for address in work.addresses}
    if as_json:
        emit_json({"registries": [_plan_as_json(address, item) for address, item in made.items()]})
        return
    for address, item in made.items():
        _tell(address, item, keep=True)


def run(
    inventory: InventoryOption = Path("inventories/lab"),
    bundle: BundleOption = None,
    lock_path: LockOption = None,
    url: UrlOption = None,
    ca: CaOption = None,
    password_file: PasswordOption = None,
    kubeconfig: KubeconfigOption = None,
    no_cluster: NoClusterOption = False,
    without: WithoutOption = None,
    teams: TeamsOption = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before deleting.")] = False,
    sweep: Annotated[bool, typer.Option(help="Give the space back at the end (stops the registry shortly).")] = True,
    as_json: JsonOption = False,
) -> None:
    """Show the plan, ask, delete what nobody names, and give its space back."""
    work = _Retention(
        inventory, bundle or [], lock_path, url or [], ca, password_file, kubeconfig, no_cluster, without or [], teams
    )
    if as_json and not yes:
        raise InputError("--json cannot ask", hint="look with `myriad registry retention plan --json`, then add --yes")
    made = {address: work.plan(address) for address in work.addresses}
    if not as_json:
        for address, item in made.items():
            _tell(address, item, keep=False)
    count = sum(len(item.delete) for item in made.values())
    if count and not yes and not typer.confirm(f"Delete these {count}?"):
        raise InputError("nothing was deleted")
    results = [_delete(work, address, item) for address, item in made.items()]
    deleted = sum(len(result["deleted"]) for result in results)
    if deleted and sweep:
        _sweep(inventory, quiet=as_json)
    if as_json:
        emit_json({"registries": results, "swept": bool(deleted and sweep)})
        return
    console.print(f"{deleted} deleted{', and their space given back' if deleted and sweep else ''}", markup=False)


@dataclass
class _Retention:
    """The options of both verbs, and what follows from them once."""

    inventory: Path
    bundles: Sequence[Path]
    lock: Path | None
    urls: Sequence[str]
    ca: Path | None
    password_file: Path | None
    kubeconfig: str | None
    no_cluster: bool
    without: Sequence[str]
    teams: bool

    def __post_init__(self) -> None:
        from myriad.inventory import read_inventory

        if not self.inventory.exists():
            raise InputError("there is no such inventory", where=str(self.inventory))
        self._read = read_inventory(self.inventory)
        self.addresses = list(self.urls) or registry_addresses(self._read)
        self._named: Named | None = None
        self._folders = self._bundle_folders()

    def contents(self, address: str) -> Contents:
        """A client of one registry."""
        from myriad.registry_site.contents import Contents, read_ca

        who = None
        if self.password_file is not None:
            who = ("publisher", read_ca(self.password_file).strip())
        return Contents(address, ca=read_ca(self.ca), credentials=who)

    def plan(self, address: str) -> Plan:
        """The plan for one registry."""
        from myriad.registry_site.retention import plan as decide

        # First what is there, then who names it: what is pushed and named meanwhile is in no list to delete.
        with self.contents(address) as contents:
            entries = contents.entries()
        return decide(entries, self.named(), protected=() if self.teams else ("teams/",))

    def named(self) -> Named:
        """Everything that is named; asked once."""
        from myriad.cli._cluster import reach
        from myriad.registry_site import naming
        from myriad.stack.bundle import Bundle
        from myriad.stack.lock import load_lock

        if self._named is None:
            program = _ansible()
            asked = [host for host in self._read.hosts if host not in self.without]
            err_console.print(f"asking {len(asked)} hosts which images they have", markup=False, style="dim")
            self._named = naming.gather(
                bundles=[Bundle.load(folder) for folder in self._folders],
                lock=load_lock(self.lock),
                inventory=self._read,
                answers=naming.crictl_answers(program, self.inventory, "control_plane:gpu_nodes", self.without),
                api=None if self.no_cluster else reach(self.kubeconfig),
                registry=REGISTRY_NAME,
                say=lambda text: err_console.print(text, markup=False, style="dim"),
            )
        return self._named

    def _bundle_folders(self) -> list[Path]:
        if self.bundles:
            return list(self.bundles)
        value = _setting(self._read, "site_bundle")
        if not isinstance(value, str) or "{{" in value or not value:
            raise InputError(
                "does not tell its bundle in plain words, whose images have to stay",
                where=str(self.inventory),
                hint="give --bundle DIR",
            )
        return [Path(value).expanduser()]


def registry_addresses(inventory: RawInventory) -> list[str]:
    """Addresses of a site's registries: the hosts of the group registry, or the first control plane."""
    hosts = [host for host, raw in inventory.hosts.items() if "registry" in raw.groups]
    hosts = hosts or [host for host, raw in inventory.hosts.items() if "control_plane" in raw.groups][:1]
    if not hosts:
        raise InputError("has neither a registry nor a control plane", where=inventory.name)
    scheme = "https" if _setting(inventory, "site_registry_tls") is True else "http"
    found = []
    for host in hosts:
        address = str(inventory.hosts[host].variables.get("ansible_host") or host)
        found.append(f"{scheme}://{f'[{address}]' if ':' in address else address}:{PORT}")
    return found


def _setting(inventory: RawInventory, name: str) -> Any:
    """A setting of the whole site, the last one that was read."""
    return next((item.value for item in reversed(inventory.settings) if item.name == name), None)


def _ansible() -> str:
    from myriad.cli._playbook import ansible_playbook_program

    return str(Path(ansible_playbook_program()).with_name("ansible"))


def _delete(work: _Retention, address: str, made: Plan) -> dict[str, Any]:
    deleted = []
    with work.contents(address) as contents:
        for entry in made.delete:
            if contents.delete(entry):
                deleted.append(entry.names)
    return {"registry": address, "deleted": deleted, "freed_bytes": made.freed_bytes}


def _sweep(inventory: Path, *, quiet: bool) -> None:
    from myriad.cli._playbook import run_playbook

    code, events = run_playbook("registry_collect", inventory=inventory, quiet=quiet)
    events.unlink(missing_ok=True)
    if code:
        raise MyriadError(
            "images were deleted, but their space was not given back",
            where="playbooks/registry_collect.yml",
            hint=f"run it again: ansible-playbook playbooks/registry_collect.yml -i {inventory}",
        )


def _plan_as_json(address: str, made: Plan) -> dict[str, Any]:
    return {
        "registry": address,
        "delete": [{"name": entry.names, "repo": entry.repo, "digest": entry.digest} for entry in made.delete],
        "keep": [{"name": entry.names, "digest": entry.digest, "named_by": why} for entry, why in made.keep],
        "freed_bytes": made.freed_bytes,
    }


def _tell(address: str, made: Plan, *, keep: bool) -> None:
    freed = f", {made.freed_bytes / 1e6:.0f} MB" if made.delete else ""
    console.print(f"{address}: {len(made.keep)} stay, {len(made.delete)} are named by nobody{freed}", markup=False)
    for entry in made.delete:
        console.print(f"  delete  {entry.names}", markup=False)
    if keep:
        for entry, why in made.keep:
            console.print(f"  keep    {entry.names}  ({why})", markup=False)
