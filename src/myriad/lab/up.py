"""`make lab`: from a bare machine to a verdict, in phases that each leave a record to go on from."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import docker
import yaml
from docker.errors import DockerException

from myriad.errors import InputError, MyriadError
from myriad.images.context import BuildContext, BuildEvent
from myriad.images.rootfs import build_node_rootfs
from myriad.kube.client import ApiError, connect
from myriad.kube.kinds import NODES
from myriad.lab import engine, machine, nodes, offline
from myriad.lab.display import Display, Phase, duration, row
from myriad.lab.jobs import Jobs
from myriad.lab.preflight import Verdict, gather, judge, lab_name, summary
from myriad.lab.shellenv import write_env
from myriad.lab.site import SiteRun, run_site
from myriad.lab.state import LabPaths, LabState, PhaseRecord, lab_paths, load_state, save_state
from myriad.lab.topology import LabNode, read_nodes
from myriad.lab.verdict import NodeVerdict, node_verdicts, table, warm_images
from myriad.stack.build import build_bundle, lock_digest
from myriad.stack.bundle import Bundle
from myriad.stack.events import Event
from myriad.stack.lock import load_lock
from myriad.stack.settings import Settings, read_settings

#: Debian packages that make lab calls for: the first makes root file systems, the second verifies Debian on Ubuntu.
PACKAGES = ("mmdebstrap", "debian-archive-keyring")
#: How long the gates may take to open after the site run.
VERDICT_TIMEOUT_S = 120.0


class Bringup:
    """One `make lab`. Every phase can be cut short; the next run finds what is there and goes on."""

    def __init__(
        self,
        clone: Path,
        display: Display,
        *,
        paths: LabPaths | None = None,
        offline: bool = False,
        profile: str | None = None,
    ) -> None:
        self.clone = clone
        self.offline = offline
        self.paths = paths or lab_paths(clone, profile)
        self.display = display
        self.inventory = clone / "inventories" / self.paths.inventory.name
        self.name = lab_name(str(clone))

    @contextmanager
    def phase(self, state: LabState, name: str) -> Iterator[Phase]:
        """A phase that is shown and recorded."""
        with self.display.phase(name) as phase:
            try:
                yield phase
            except BaseException:
                state.phases[name] = PhaseRecord(ok=False, seconds=round(phase.seconds, 1))
                save_state(self.paths, state)
                raise
            state.phases[name] = PhaseRecord(ok=True, seconds=round(phase.seconds, 1))
            save_state(self.paths, state)

    def preflight(self, *, shown: bool) -> Verdict:
        """Look at the machine; stop with the whole list where something is wrong.

        Args:
            shown: make has printed the summary already.

        Raises:
            InputError: with everything that is wrong.
        """
        verdict = judge(gather(dict(os.environ), network=self.name))
        if verdict.errors:
            raise InputError(summary(verdict))
        if not shown:
            self.display.line(summary(verdict))
        return verdict

    def nodes_up(self, *, after_make: bool) -> tuple[LabState, list[LabNode]]:
        """Everything before the site run: engine, bundle, nodes."""
        verdict = self.preflight(shown=after_make)
        self.paths.make()
        state = load_state(self.paths) or LabState(name=self.name)
        state.name = state.network = self.name
        state.extra.pop("profile", None)
        state.extra |= {"profile": self.paths.profile} if self.paths.profile else {}
        self._settle(state, verdict)
        settings = read_settings()
        client, image, bundle = self.ready(state, settings)
        with self.phase(state, "nodes") as phase:
            # A bundle that is built takes its time, and somebody else's network may stand where this one should.
            again = judge(gather(dict(os.environ), network=self.name))
            if again.subnet and again.subnet != state.subnet:
                self.display.say(f"{state.subnet} was taken meanwhile; the nodes stand in {again.subnet}")
                self._settle(state, again)
            wanted = read_nodes(self.inventory, state.subnet)
            self.display.detail(" ".join(node.name for node in wanted))
            made = nodes.ensure_nodes(
                client,
                state,
                self.paths,
                wanted,
                image=image,
                proxies=settings.mirrors.proxy_environment(),
                say=self.display.say,
            )
            names = [f"{node.name}{'' if node.name in made else ' (kept)'}" for node in wanted]
            are = "is up" if len(wanted) == 1 else "are up"
            phase.result = " ".join(names if made else [*(node.name for node in wanted), are])
        write_env(self.paths, {name: bundle.file_path(name) for name in ("kubectl", "helm") if bundle.has_file(name)})
        return state, wanted

    def _settle(self, state: LabState, verdict: Verdict) -> None:
        """The subnet that the preflight found, on record."""
        state.subnet, state.gateway = verdict.subnet, verdict.subnet.rpartition(".")[0] + ".1"
        save_state(self.paths, state)

    def ready(self, state: LabState, settings: Settings) -> tuple[docker.DockerClient, str, Bundle]:
        """Engine, bundle and node image: what is the same for every lab of this machine.

        Returns:
            The engine's client, the node image's reference, the bundle.
        """
        client = self._engine_up(state)
        with self.phase(state, "bundle") as phase:
            bundle = self._bundle(settings, phase)
            state.bundle = str(bundle.directory)
        return client, self._image_up(state, client, settings), bundle

    def bare(self, state: LabState, settings: Settings) -> tuple[docker.DockerClient, str]:
        """Engine and node image alone: what nodes without a cluster need.

        Returns:
            The engine's client, the node image's reference.
        """
        client = self._engine_up(state)
        return client, self._image_up(state, client, settings)

    def _engine_up(self, state: LabState) -> docker.DockerClient:
        with self.phase(state, "engine") as phase:
            client = engine.ensure_engine(self.name, self.paths.logs / "dockerd.log", self.display.say)
            machine.raise_settings(self.display.say)
            machine.install_packages(PACKAGES, why="for root file systems", say=self.display.say)
            phase.result = f"Docker {client.version()['Version']}"
        return client

    def _image_up(self, state: LabState, client: docker.DockerClient, settings: Settings) -> str:
        with self.phase(state, "node image") as phase:
            image = self._image(client, settings)
            if state.detected.engine_version != str(client.version()["Version"]):
                self.display.detail("what nodes may do on this engine")
                state.detected = engine.detect(client, image)
            phase.result = image
        return image

    def _bundle(self, settings: Settings, phase: Phase) -> Bundle:
        lock = load_lock(self.clone / "stack.lock.yml")
        # One for each clone: it holds images of the clone's own source, which another clone's run must not exchange.
        own = self.name.rpartition("-")[2]
        own += "-offline" if self.offline else ""
        directory = settings.cache / "bundles" / f"{lock_digest(lock)[:12]}-{settings.arch}-{own}"
        seen: dict[str, int] = {}

        def report(event: Event) -> None:
            if event.state in ("left_out", "note"):
                self.display.say(f"{event.what}: {event.text}" if event.state == "left_out" else event.text)
            elif event.state in ("done", "cached"):
                seen[event.state] = seen.get(event.state, 0) + 1
                self.display.detail(f"{event.what} done")
                if event.seconds >= 5 and not self.display.console.is_terminal:
                    self.display.line(row("", f"{event.what} {duration(event.seconds)}"))
            else:
                size = f" {event.done_bytes / 1e6:.0f} of {event.total_bytes / 1e6:.0f} MB" if event.total_bytes else ""
                self.display.detail(f"{event.how} {event.what}{size}")

        bundle = build_bundle(lock, directory, settings, report, offline=offline.wish() if self.offline else None)
        counts: dict[str, int] = {}
        for entry in bundle.manifest.files:
            counts[entry.origin.source] = counts.get(entry.origin.source, 0) + 1
        words = {"release": "from releases", "module": "from Go modules", "package": "from Debian", "local": "own"}
        parts = ", ".join(f"{count} {words.get(kind, kind)}" for kind, count in sorted(counts.items()))
        phase.result = f"{len(bundle.manifest.files)} files ({parts}), {len(bundle.manifest.images)} images"
        return bundle

    def _image(self, client: docker.DockerClient, settings: Settings) -> str:
        def report(event: BuildEvent) -> None:
            self.display.detail(f"root file system: {event.detail or event.state}")

        mirror = settings.mirrors.apt
        sources = (f"deb {mirror} bookworm main", f"deb {mirror} bookworm-updates main") if mirror else ()
        context = BuildContext(
            store=settings.store_root, cache_dir=settings.cache / "images", on_event=report, apt_sources=sources
        )
        rootfs = build_node_rootfs(context)
        self.display.detail("importing it")
        return nodes.import_image(client, rootfs.path, digest=rootfs.sha256)

    def site(self, state: LabState, arguments: Sequence[str]) -> SiteRun:
        """Run site.yml over ssh, exactly as on real machines.

        Raises:
            MyriadError: when a host failed, with what failed there.
        """
        with self.phase(state, "site") as phase:
            run = run_site(self.paths, self.display, arguments)
            changed = sum(run.progress.changed.values())
            phase.result = f"{changed} changes" if changed else "nothing changed"
            if run.code == 2:
                failed = run.progress.failed
                lines = [f"{host}: {text}" for host, text in failed.items()] or _last_lines(run.log)
                raise MyriadError(
                    "the site run failed:\n  " + "\n  ".join(lines),
                    where="playbooks/site.yml",
                    hint=f"{run.log} has all of it; `make lab` goes on from here.",
                )
        return run

    def site_offline(self, state: LabState, arguments: Sequence[str]) -> SiteRun:
        """Run site.yml with every way out of the lab blocked; packages come from the bundle, which is served to it.

        The block stays until the lab comes up without `--offline`, or is taken down.
        """
        client = engine.connect()
        with self.phase(state, "egress") as phase:
            state.extra["offline"] = "yes"
            save_state(self.paths, state)
            offline.block(client, state)
            phase.result = f"blocked: only {state.subnet} and the cluster's own networks are reached"
        with offline.served(Bundle.load(Path(state.bundle)), state.gateway) as served:
            self.display.say(f"the bundle is served on {served.url}")
            run = self.site(state, [*arguments, *served.arguments])
        packages = sum(path.endswith(".deb") and status in (200, 206) for _, _, status, path in served.requests)
        refused = sum(offline.refused(client, state, host) for host in state.hosts)
        self.display.say(f"{packages} packages came from the bundle; {refused} packets to elsewhere were refused")
        return run

    def online(self, state: LabState) -> None:
        """Take the block of an earlier `--offline` back."""
        if state.extra.pop("offline", None):
            offline.unblock(engine.connect(), state)
            save_state(self.paths, state)
            self.display.say("egress is open again")

    def verdict(self, wanted: Sequence[LabNode]) -> list[NodeVerdict]:
        """The nodes as the API server sees them, waited for until every gate is open or the time is up."""
        cluster = yaml.safe_load((self.inventory / "group_vars" / "all" / "cluster.yml").read_text())
        warm = warm_images(cluster)
        api = connect(self.paths.kubeconfig)
        until = time.monotonic() + VERDICT_TIMEOUT_S
        rows: list[NodeVerdict] = []
        while True:
            try:
                rows = node_verdicts(wanted, api.list(NODES)[0], warm)
            except ApiError as error:
                if error.status < 500 or time.monotonic() > until:
                    raise
            if (rows and all(item.takes_work for item in rows)) or time.monotonic() > until:
                return rows
            waiting = [item for item in rows if not item.takes_work]
            self.display.detail("; ".join(f"{item.node}: {item.cause}" for item in waiting))
            time.sleep(0.5)

    def jobs(self, state: LabState, wanted: Sequence[LabNode]) -> bool:
        """Run the example jobs and print a line for each. Returns whether all did what they should."""
        with self.phase(state, "jobs") as phase:
            locations = {node.name: node.location for node in wanted}
            lines = Jobs(connect(self.paths.kubeconfig), self.paths, locations, self.display.detail).run()
            good = sum(line.ok for line in lines)
            phase.result = f"{good} of {len(lines)} as they should be"
            for number, line in enumerate(lines):
                label = "jobs" if number == 0 else ""
                phase.notes.append(line.name)
                text = f"{line.name:<13} {line.size:<12} {line.text}"
                self.display.line(row(label, text, line.seconds or None))
            state.phases["jobs"] = PhaseRecord(ok=all(line.ok for line in lines), seconds=phase.seconds)
        return all(line.ok for line in lines)


def _last_lines(log: Path) -> list[str]:
    return [line for line in log.read_text(errors="replace").splitlines() if line.strip()][-8:]


def bring_up(
    clone: Path,
    display: Display,
    *,
    after_make: bool = False,
    jobs: bool = True,
    site: Sequence[str] = (),
    without_egress: bool = False,
    profile: str | None = None,
) -> int:
    """The whole of `make lab`.

    Args:
        clone: the clone's folder.
        display: where it is shown.
        after_make: make has printed preflight and environment already.
        jobs: submit the example jobs at the end.
        site: further arguments for ansible-playbook.
        without_egress: block every way out of the lab first; packages come from the bundle.
        profile: which lab; None goes on with the one that is recorded.

    Returns:
        0 converged, 3 some hosts unreachable and the rest converged, 4 converged but some nodes take no work.
    """
    work = Bringup(clone, display, offline=without_egress, profile=profile)
    state, wanted = work.nodes_up(after_make=after_make)
    if without_egress:
        run = work.site_offline(state, site)
    else:
        work.online(state)
        run = work.site(state, site)
    with work.display.phase("verdict") as phase:
        rows = work.verdict(wanted)
        takes = sum(item.takes_work for item in rows)
        phase.result = f"{takes} of {len(rows)} nodes take work"
    display.line()
    for line in table(rows):
        display.line(line)
    what = "" if run.changed else ", nothing changed"
    display.line(f"site ready{what}, {takes} of {len(rows)} nodes take work: {duration(run.seconds)}")
    display.line()
    done = state.phases.get("jobs")
    good = True
    if jobs and run.code == 0 and takes == len(rows) and (run.changed or done is None or not done.ok):
        good = work.jobs(state, wanted)
        save_state(work.paths, state)
        display.line()
    page = page_address(work.inventory, wanted)
    if page:
        display.line(row("page", f"{page}    queue, quotas, nodes, decisions"))
    for line in next_steps():
        display.line(line)
    for host, text in run.progress.unreachable.items():
        display.line(f"{host} is unreachable ({text}); run make lab again when it is back")
    if not good:
        return 2
    if run.code:
        return run.code
    return 0 if takes == len(rows) else 4


def page_address(inventory: Path, wanted: Sequence[LabNode]) -> str:
    """Where the extension's page answers for a browser on this machine; empty if the lab does not show it."""
    inputs = yaml.safe_load((inventory / "group_vars" / "all" / "lab.yml").read_text())
    port = inputs.get("scheduler_extension_node_port")
    return f"http://{wanted[0].address}:{port}" if port and wanted else ""


def next_steps() -> list[str]:
    """What to type next. Each line works as it stands in the shell that ran make lab."""
    return [
        row("next", ". .lab/env                  # myriad, kubectl and the lab's own kubeconfig, in this shell only"),
        row("", "myriad status               # also: myriad queue, myriad why gang -n vision"),
        row("", "kubectl get nodes -L myriad.dev/rack"),
        row("", "make lab-down               # removes all of it; the caches stay until make lab-clean"),
    ]


def guarded(display: Display, action: Callable[[], int]) -> int:
    """Run a verb; Ctrl-C is one sentence and exit code 130, an engine's refusal a sentence with its phase.

    Raises:
        MyriadError: for what the engine refused.
    """
    try:
        return action()
    except DockerException as error:
        text = getattr(error, "explanation", None) or str(error)
        where = f"phase {display.current.name}" if display.current else None
        raise MyriadError(
            f"the Docker engine refused: {text}", where=where, hint="`docker info` tells more."
        ) from error
    except KeyboardInterrupt:
        where = f" in phase {display.current.name}" if display.current else ""
        display.line(f"\nstopped{where}; nothing is broken, the next `make lab` goes on from here")
        return 130
