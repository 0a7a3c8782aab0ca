"""`make bench-bringup`: the cluster by direct commands, then by site.yml, on fresh nodes and the same artifacts.

Prints one JSON object a line: phases of both, both totals, and their ratio, all from one run on one machine. Everything
it makes has names, a network and a folder (`.lab-bench/`) of its own; a lab that is up stays, but takes part of the
machine, so take it down for figures to keep.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from myriad.bench.floor import Floor, floor_name
from myriad.bench.lines import emit
from myriad.errors import MyriadError
from myriad.lab import nodes
from myriad.lab.display import Display
from myriad.lab.preflight import gather, judge, lab_name
from myriad.lab.site import run_site
from myriad.lab.state import LabPaths, LabState, clone_root, save_state
from myriad.lab.topology import read_nodes
from myriad.lab.up import Bringup
from myriad.stack.settings import read_settings

#: Plays of site.yml that make what the floor does not have.
BEYOND = ("look at the cluster", "system", "cluster", "ready", "record")
#: How many tasks of each run are named.
SLOWEST = 12
#: Runs on the converged nodes, by name: their flags.
SECOND: dict[str, list[str]] = {"second": [], "second-full": ["-e", "site_full=true"]}


def fresh_state(paths: LabPaths, name: str, base: LabState) -> LabState:
    """A record for nodes of another name on a free subnet, with the facts of this engine."""
    verdict = judge(gather(dict(os.environ), network=name))
    if not verdict.subnet:
        raise MyriadError("no subnet is free for the benchmark", hint="docker network prune")
    shutil.rmtree(paths.dir, ignore_errors=True)
    paths.make()
    gateway = ".".join(verdict.subnet.split(".")[:3]) + ".1"
    state = LabState(
        name=name, network=name, subnet=verdict.subnet, gateway=gateway, detected=base.detected, bundle=base.bundle
    )
    save_state(paths, state)
    return state


def main(arguments: list[str]) -> int:
    """Run both and print the ratio. `--keep` leaves the nodes of the site run for a look."""
    clone = clone_root()
    display = Display(Console(stderr=True, highlight=False, soft_wrap=True))
    paths = LabPaths(clone, folder=".lab-bench")
    settings = read_settings()
    work = Bringup(clone, display, paths=paths)
    base = LabState(name=lab_name(str(clone)))
    client, image, bundle = work.ready(base, settings)
    inventory = clone / "inventories" / "lab"
    floor = floor_name(base.name)
    bench = f"{base.name}-bench"
    for name in (floor, bench):
        nodes.remove_lab(client, name)
    # Neither arm pays for what was written or deleted before it: after a sync ext4 is slow for a minute at most.
    os.sync()
    try:
        with tempfile.TemporaryDirectory(prefix="myriad-floor-") as scratch:
            state = fresh_state(paths, floor, base)
            run = Floor(
                client,
                bundle,
                state,
                read_nodes(inventory, state.subnet),
                image=image,
                scratch=Path(scratch),
                report=lambda name, seconds: emit(arm="floor", phase=name, seconds=round(seconds, 1)),
            )
            run.prepare()
            floor_s = run.run()
            emit(arm="floor", phase="total", seconds=round(floor_s, 1))
        # Ended, not removed: ext4 gives no inode away again in the minutes after its file was deleted, and the search
        # for one that it may give made every file of the second arm dear.
        nodes.stop_lab(client, floor)
        os.sync()

        state = fresh_state(paths, bench, base)
        wanted = read_nodes(inventory, state.subnet)
        started = time.monotonic()
        nodes.ensure_nodes(client, state, paths, wanted, image=image)
        nodes_s = time.monotonic() - started
        emit(arm="site", phase="nodes", seconds=round(nodes_s, 1))
        with display.phase("site"):
            site = run_site(paths, display, ["-e", "site_full=true"])
        _tasks(paths, "site")
        if site.code:
            tail = "\n  ".join(site.log.read_text(errors="replace").strip().splitlines()[-12:])
            raise MyriadError(f"site.yml ended with {site.code}:\n  {tail}", where=str(site.log))
        for name, seconds in site.progress.plays.items():
            emit(arm="site", phase=name, seconds=round(seconds, 1))
        emit(arm="site", phase="total", seconds=round(nodes_s + site.seconds, 1))
        again = {name: _again(paths, display, name, flags) for name, flags in SECOND.items()}
        beyond_s = sum(site.progress.plays.get(name, 0.0) for name in BEYOND)
        emit(
            floor_s=round(floor_s, 1),
            site_yml_s=round(site.seconds, 1),
            # site.yml goes on where the floor ends: Kueue, policy, device plugin, agent, extension.
            site_yml_to_kubernetes_s=round(site.seconds - beyond_s, 1),
            ratio=round(site.seconds / floor_s, 2),
            ratio_to_kubernetes=round((site.seconds - beyond_s) / floor_s, 2),
            # A second run on what the first one made: the way a person calls it, and looking at everything.
            second_s=round(again["second"], 1),
            second_full_s=round(again["second-full"], 1),
            second_to_first=round(again["second"] / site.seconds, 2),
            second_full_to_first=round(again["second-full"] / site.seconds, 2),
            tasks_on_a_worker=max((site.progress.tasks.get(node.name, 0) for node in wanted[1:]), default=0),
            nodes=len(wanted),
            cores=os.cpu_count(),
            bundle=bundle.digest[:12],
            commit=_commit(clone),
        )
    finally:
        nodes.remove_lab(client, floor)
        if "--keep" not in arguments:
            nodes.remove_lab(client, bench)
            shutil.rmtree(paths.dir, ignore_errors=True)
    return 0


def _again(paths: LabPaths, display: Display, name: str, flags: list[str]) -> float:
    """Seconds of a run on converged nodes. A change, or a failure, is an error: then the figure would mean nothing."""
    with display.phase(name):
        run = run_site(paths, display, flags)
    _tasks(paths, name)
    if run.code or run.changed:
        raise MyriadError(f"the {name} run ended with {run.code} and {run.changed=}", where=str(run.log))
    emit(arm=name, phase="total", seconds=round(run.seconds, 1))
    return run.seconds


def _tasks(paths: LabPaths, arm: str) -> None:
    """The slowest tasks of the run that has ended, one line each; its events stay, for a closer look."""
    events = paths.logs / "site-events.jsonl"
    kept = events.with_name(f"bench-{arm}-events.jsonl")
    shutil.copyfile(events, kept)
    slowest: dict[tuple[str, str, str], float] = {}
    for line in kept.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if event["event"] == "result" and event["status"] != "skipped":
            key = (event["play"], event["role"], event["task"])
            slowest[key] = max(slowest.get(key, 0.0), event["seconds"])
    for (play, role, task), seconds in sorted(slowest.items(), key=lambda item: -item[1])[:SLOWEST]:
        emit(arm=arm, play=play, role=role, task=task, seconds=round(seconds, 1))


def _commit(clone: Path) -> str:
    done = subprocess.run(
        ["git", "-C", str(clone), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except MyriadError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
