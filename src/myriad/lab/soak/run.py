"""A soak from its begin to its end: the lanes of faults, the gangs, the looks, and the way back, which is always gone.

Four threads: one for each lane, one that submits gangs, one that looks. What they share is changed under one lock.
"""

from __future__ import annotations

import contextlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from docker.errors import DockerException

from myriad.errors import MyriadError, NotReadyError
from myriad.kube.client import connect
from myriad.kube.kinds import NODES
from myriad.lab import engine
from myriad.lab.display import duration
from myriad.lab.jobs import EXAMPLES, read_example
from myriad.lab.soak import load
from myriad.lab.soak.accounts import Decided, LedgerExact, is_late
from myriad.lab.soak.inject import Injector, Nodes
from myriad.lab.soak.invariants import DoubleBooked, ForeignKept, GateKept, PartlyBound, Planted, Rule, Violation
from myriad.lab.soak.observe import Observer
from myriad.lab.soak.plan import KINDS, Plan
from myriad.lab.soak.recovery import BOUND_S, WORK_BOUND_S, Course, follow, ills, node_ills
from myriad.lab.soak.report import Result, violation_json
from myriad.lab.soak.seen import Look
from myriad.lab.state import LabPaths, LabState
from myriad.scheduler.decisions import utc_now

Say = Callable[[str], None]

LOOK_EVERY_S = 2.0
TICK_S = 1.0
DEVICES_EVERY = 5
"""Looks from one look at the kubelets' accounts to the next."""
LEDGER_EVERY_S = 60.0
LEDGER_LATE_S = 60.0
"""How late the ledger may write down what has ended."""
READY_S = 300.0
"""How long a lab may take to be in order before the first fault."""
GUARD_S = 240.0
"""How long a fault waits until its lane is well; then it does not happen."""
INJECT_S = 60.0
"""How long a fault that cannot be made is tried again."""
FRESH_S = 15.0
"""A look that is older says nothing about now."""
RECOVERY, RECOVERY_TEXT = (
    "recovery",
    "everything recovers: nodes, extension and queues within 300 s, and every gang ends well",
)
REGISTRY_PORT = 5000


@dataclass(frozen=True, slots=True)
class Parts:
    """What acts and looks.

    Attributes:
        gpus: GPU node -> GPUs.
        planted: what `foreign` has set.
    """

    gpus: Mapping[str, int]
    injector: Injector
    observer: Observer
    gangs: load.Gangs
    foreign: load.Foreign
    planted: list[Planted]


def parts_of(paths: LabPaths, state: LabState) -> Parts:
    """Those of a lab.

    Raises:
        MyriadError: the engine or the API server does not answer.
    """
    api = connect(paths.kubeconfig)
    nodes = Nodes(engine.connect(), state)
    gpus = {name: host.gpus for name, host in state.hosts.items() if host.gpus}
    centre = next(host.address for host in state.hosts.values() if not host.gpus)
    of_pods = {
        str(body["metadata"]["name"]): tuple(body["spec"].get("podCIDRs") or ())
        for body in load.persistently(lambda: api.list(NODES)[0], timeout_s=60.0)
    }
    networks = {name: (host.address, *of_pods.get(name, ())) for name, host in state.hosts.items()}
    planted: list[Planted] = []
    return Parts(
        gpus=gpus,
        injector=Injector(nodes, api, networks),
        observer=Observer(api, nodes, gpus, registry=f"http://{centre}:{REGISTRY_PORT}", paths=paths),
        gangs=load.Gangs(api, read_example(paths.clone / EXAMPLES[0]).job),
        foreign=load.Foreign(api, planted),
        planted=planted,
    )


class Soak:
    """One soak on one lab.

    Args:
        plan: what happens.
        parts: what acts and looks.
        out: where plan, looks that matter and result go, as JSON lines.
        say: told what happens.
    """

    def __init__(self, plan: Plan, parts: Parts, *, out: Path, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._out = out
        self._gpus = parts.gpus
        self._injector = parts.injector
        self._observer = parts.observer
        self._gangs = parts.gangs
        self._foreign = parts.foreign
        jobs = [gang.job for gang in plan.gangs]
        self._ledger, self._decided = LedgerExact(jobs), Decided(jobs)
        self._rules: list[Rule] = [
            PartlyBound({gang.job: gang.pods for gang in plan.gangs}, grace_s=load.GRACE_S),
            DoubleBooked(self._gpus),
            GateKept(jobs),
            ForeignKept(parts.planted),
        ]
        self._books: list[Rule] = [self._ledger, self._decided]
        texts = {rule.name: rule.text for rule in (*self._rules, *self._books)} | {RECOVERY: RECOVERY_TEXT}
        self.result = Result(plan, [Course(fault) for fault in plan.faults], texts)
        self._lock = threading.RLock()
        self._told: set[tuple[str, str]] = set()
        self._look: Look | None = None
        self._began = 0.0
        self._since = ""
        self._stop = threading.Event()
        self._blind = threading.Event()
        self._broken: BaseException | None = None

    # From begin to end

    def run(self) -> Result:
        """Run it.

        Raises:
            NotReadyError: the lab is not in order; nothing was broken.
            MyriadError: the harness itself could not go on. All is taken back.
        """
        with _answering(_interrupt, signal.SIGTERM, signal.SIGHUP):
            self._out.parent.mkdir(parents=True, exist_ok=True)
            self._out.write_text("".join(f"{line}\n" for line in self._plan.lines()))
            self._prepare()
            threads: list[threading.Thread] = []
            looking = threading.Thread(target=self._guarded, args=(self._looks,), daemon=True)
            try:
                self._began, self._since = time.monotonic(), utc_now()
                self._foreign.mark(self._plan.marked)
                looking.start()
                lanes = sorted({KINDS[course.fault.kind].lane for course in self.result.courses})
                works: list[Callable[[], None]] = [self._submit, *(partial(self._lane, lane) for lane in lanes)]
                for work in works:
                    threads.append(threading.Thread(target=self._guarded, args=(work,), daemon=True))
                    threads[-1].start()
                self._wait(threads)
                self._settle()
            except KeyboardInterrupt:
                self.result.is_cut_short = True
                self._say("stopping: faults are taken back; this takes a moment")
            finally:
                self._end(threads, looking)
        if self._broken is not None:
            raise self._broken
        self._write({"result": self.result.as_json()})
        return self.result

    def _prepare(self) -> None:
        """Take back what a soak that was killed may have left, and wait until the lab is in order."""
        left = self._injector.sweep()
        self._foreign.sweep()
        self._gangs.remove()
        end = time.monotonic() + READY_S
        while True:
            try:
                wrong = [*left, *ills(self._observer.look(with_devices=False), self._gpus)]
            except MyriadError as error:
                wrong = [error.message]
            if not wrong:
                return
            if time.monotonic() > end:
                raise NotReadyError(
                    f"the lab is not in order: {'; '.join(wrong)}",
                    hint="`myriad status` tells more; `make lab` brings it in order. Nothing was broken.",
                )
            left = []
            time.sleep(LOOK_EVERY_S)

    def _wait(self, threads: list[threading.Thread]) -> None:
        """Until every fault and gang has been, and the time is up; the ledger is looked at now and then."""
        next_ledger = LEDGER_EVERY_S
        while not self._stop.is_set():
            if not any(thread.is_alive() for thread in threads) and self._now() >= self._plan.end_s:
                return
            if self._now() >= next_ledger:
                next_ledger = self._now() + LEDGER_EVERY_S
                # While faults are about, the leader may be away; what it says is judged, that it says nothing is not.
                with contextlib.suppress(MyriadError):
                    self._judge_ledger(is_settled=False)
            self._stop.wait(TICK_S)

    def _settle(self) -> None:
        """After the last fault: everything well, every gang ended, the books right."""
        if self._stop.is_set():
            return
        self._say(f"{self._clock()} the last fault is over; waiting until all is well and every gang has ended")
        began = time.monotonic()
        ended: dict[str, str] = {}
        was_well = told = False
        while not self._stop.is_set():
            look = self._fresh()
            # Only a cordon of this harness can stand here, and it is gone when the lanes have ended.
            wrong = ills(look, self._gpus) if look else ["no API server answers"]
            with contextlib.suppress(MyriadError):
                ended = self._gangs.ends()
            waited_s = time.monotonic() - began
            was_well = was_well or not wrong
            # Once it has been well, a look that came late while gangs end is no relapse; one that stays is, at the end.
            if wrong and not told and ((not was_well and waited_s > BOUND_S) or waited_s > WORK_BOUND_S):
                told = True
                self._violated(RECOVERY, "cluster", f"after {waited_s:.0f} s still: {'; '.join(wrong)}", look)
            left = sorted(gang.job for gang in self._plan.gangs if gang.job not in ended)
            if not wrong and not left and all(c.is_settled or c.injected is None for c in self.result.courses):
                break
            if waited_s > WORK_BOUND_S:
                if left:
                    text = f"after {waited_s:.0f} s these gangs have not ended: {', '.join(left)}"
                    self._violated(RECOVERY, "gangs", text, look)
                break
            self._stop.wait(LOOK_EVERY_S)
        self._count_gangs(ended)
        for course in self.result.courses:
            if course.injected is not None and course.recovered is None:
                text = f"fault {course.fault.number} ({course.fault.title}): its target has not been well since"
                self._violated(RECOVERY, f"fault {course.fault.number}", text, self._look)
        for job, how in sorted(ended.items()):
            if how == "Failed":
                self._violated(RECOVERY, job, f"{job} has failed", self._look)
        with self._lock:
            self.result.checks[RECOVERY] = self.result.checks.get(RECOVERY, 0) + 1
        self._final_books()

    def _final_books(self) -> None:
        """The ledger and the decision records, once all has ended and they had their time."""
        end = time.monotonic() + LEDGER_LATE_S
        while not self._stop.is_set():
            try:
                if not self._judge_ledger(is_settled=True, is_last=time.monotonic() > end):
                    break
            except MyriadError as error:
                if time.monotonic() > end:
                    self._violated(
                        "ledger", "unread", f"the ledger cannot be read at rest: {error.message}", self._look
                    )
                    break
            self._stop.wait(3 * TICK_S)
        try:
            assigned = {
                job: load.persistently(partial(self._observer.assigned, job, since=self._since))
                for job in self._decided.jobs()
            }
        except MyriadError as error:
            self._violated("record", "unread", f"the records cannot be read at rest: {error.message}", self._look)
            return
        with self._lock:
            self.result.checks["record"] = self.result.checks.get("record", 0) + 1
            self._take(self._decided.judge(assigned, time.time()))

    def _judge_ledger(self, *, is_settled: bool, is_last: bool = True) -> bool:
        """Judge the ledger's rows. Returns whether something is wrong that time may put right, and there is time."""
        rows = self._observer.charges()
        with self._lock:
            found = self._ledger.judge(rows, time.time(), is_settled=is_settled)
            self.result.checks["ledger"] = self.result.checks.get("ledger", 0) + 1
            mine = [row for row in rows if self._ledger.knows(row.uid)]
            self.result.charges = {
                "rows": len(mine), "estimated": sum(row.basis in ("event", "estimated") for row in mine)
            }  # fmt: skip
            late = [one for one in found if is_late(one)]
            if late and not is_last:
                return True
            self._take(found)
            return False

    def _end(self, threads: list[threading.Thread], looking: threading.Thread) -> None:
        """The way back: whatever happened, and whoever presses Ctrl-C meanwhile."""
        # No Ctrl-C and nothing like it for as long as things are taken back.
        with _answering(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._stop.set()
            for thread in threads:
                thread.join(timeout=GUARD_S)
            self._blind.set()
            if looking.is_alive():
                looking.join(timeout=GUARD_S)
            left = self._injector.sweep()
            for what in (self._foreign.sweep, self._gangs.remove):
                try:
                    what()
                except MyriadError as error:
                    left.append(f"{error.message}{f' ({error.hint})' if error.hint else ''}")
        for text in left:
            self._say(f"NOT TAKEN BACK: {text}; the next `make soak` tries again, `make lab` makes the lab anew")

    # Threads

    def _guarded(self, work: Callable[[], None]) -> None:
        """A thread that breaks ends the soak, with its reason."""
        try:
            work()
        except Exception as error:
            if self._broken is None and not self._stop.is_set():
                self._broken = error
            self._stop.set()

    def _submit(self) -> None:
        for gang in self._plan.gangs:
            if self._sleep_until(gang.at_s):
                return
            try:
                self._gangs.submit(gang, is_over=self._stop.is_set)
            except MyriadError:
                if self._stop.is_set():
                    return
                raise
            with self._lock:
                self.result.gangs["submitted"] = self.result.gangs.get("submitted", 0) + 1

    def _lane(self, lane: str) -> None:
        for course in self.result.courses:
            if KINDS[course.fault.kind].lane == lane:
                if self._sleep_until(course.fault.at_s):
                    return
                self._one(course, lane)

    def _one(self, course: Course, lane: str) -> None:
        """One fault, from the guard before it to the way back."""
        fault = course.fault
        why = self._guard(lane)
        if self._stop.is_set():
            return
        if why:
            course.skipped = f"its lane was not well within {GUARD_S:.0f} s: {why}"
            self._tell(f"not {fault.title}: {course.skipped}", {"skipped": fault.number, "why": course.skipped})
            return
        try:
            if fault.is_cordoned:
                self._foreign.cordon(fault.node)
            with self._lock:
                known = self._look.nodes.get(fault.node) if self._look else None
                course.boot = known.boot if known else ""
            try:
                injected = self._inject(course)
                if injected:
                    self._tell(f"{fault.number:>3} {fault.title}", {"injected": fault.number, "at": round(injected, 1)})
                    self._stop.wait(fault.hold_s)
            finally:
                self._undo(course)
            if not course.skipped:
                undone = time.time()
                with self._lock:
                    course.injected, course.undone = injected, undone
                self._tell("", {"undone": fault.number, "at": round(undone, 1)})
        finally:
            if fault.is_cordoned:
                self._until_settled(course)
                self._foreign.uncordon(fault.node)

    def _inject(self, course: Course) -> float:
        """Make the fault; again for a while where it cannot be made, as its target may be away for the other lane's.

        Returns:
            When it was there; 0 where it could not be made (or the soak was stopped), and then why is in the course.
        """
        end = time.monotonic() + INJECT_S
        while True:
            try:
                self._injector.inject(course.fault)
                return time.time()
            except MyriadError as error:
                if time.monotonic() > end or self._stop.is_set():
                    course.skipped = error.message
                    row = {"skipped": course.fault.number, "why": str(error)}
                    self._tell(f"not {course.fault.title}: {error}", row)
                    return 0.0
            self._undo(course)
            self._stop.wait(3 * TICK_S)

    def _undo(self, course: Course) -> None:
        """The way back, until it is gone."""
        end = time.monotonic() + BOUND_S
        while True:
            try:
                self._injector.undo(course.fault)
                return
            except (MyriadError, DockerException):
                # Also where all is stopped: the sweep at the end then says what stays.
                if time.monotonic() > end or self._stop.is_set():
                    raise
            time.sleep(TICK_S)

    def _until_settled(self, course: Course) -> None:
        end = time.monotonic() + BOUND_S
        while not (course.is_settled or course.skipped or self._stop.is_set() or time.monotonic() > end):
            self._stop.wait(TICK_S)

    def _guard(self, lane: str) -> str:
        """Wait until a lane is well. Returns why it is not, where the wait was in vain."""
        # A lab that stays ill holds a soak up once and not at every fault that is still to come.
        end_s = min(self._now(), self._plan.end_s) + GUARD_S
        while not self._stop.is_set():
            why = self._unwell(lane)
            if not why:
                return ""
            if self._now() > end_s:
                return why
            self._stop.wait(TICK_S)
        return ""

    def _unwell(self, lane: str) -> str:
        look = self._fresh()
        if look is None:
            return "no API server answers"
        before = [c for c in self.result.courses if KINDS[c.fault.kind].lane == lane and c.undone is not None]
        open_ = [c.fault.title for c in before if c.recovered is None]
        if open_:
            return f"not recovered from {open_[-1]}"
        if lane == "nodes":
            sick = [
                f"{n}: {', '.join(w)}" for n, gpus in self._gpus.items() if (w := node_ills(look.nodes.get(n), gpus))
            ]
            return "; ".join(sick)
        if not look.is_led:
            return "nobody leads the extension"
        return "" if look.has_registry else "the registry does not answer"

    def _looks(self) -> None:
        number = 0
        while not self._blind.is_set():
            began = time.monotonic()
            try:
                look = self._observer.look(with_devices=number % DEVICES_EVERY == 0)
            except MyriadError as error:
                with self._lock:
                    if self._look is None or self._fresh() is not None:
                        self._write({"unanswered": error.message, "at": round(time.time(), 1)})
                    self.result.unanswered += 1
            else:
                number += 1
                self._see(look)
            self._blind.wait(max(LOOK_EVERY_S - (time.monotonic() - began), 0.1))

    def _see(self, look: Look) -> None:
        with self._lock:
            self._look = look
            self.result.looks += 1
            for rule in self._rules:
                self.result.checks[rule.name] = self.result.checks.get(rule.name, 0) + 1
                self._take(rule.see(look))
            for book in self._books:
                book.see(look)
            for course in self.result.courses:
                was = course.is_settled
                follow(course, look, self._gpus)
                if course.is_settled and not was and course.recovery_s is not None:
                    self._tell(
                        f"    {course.fault.number} {course.fault.title}: well after {duration(course.recovery_s)}",
                        {"recovered": course.fault.number, "seconds": round(course.recovery_s, 1)},
                    )

    # What all of them use

    def _fresh(self) -> Look | None:
        with self._lock:
            return self._look if self._look and time.time() - self._look.ended < FRESH_S else None

    def _take(self, found: list[Violation]) -> None:
        """Each subject of a rule is told once."""
        for one in found:
            if (one.rule, one.subject) not in self._told:
                self._told.add((one.rule, one.subject))
                self.result.violations.append(one)
                self._tell(f"VIOLATED {one.rule}: {one.text}", {"violation": violation_json(one)})

    def _violated(self, rule: str, subject: str, text: str, look: Look | None) -> None:
        with self._lock:
            shown = (
                {"nodes": {name: node.is_ready and node.is_open for name, node in look.nodes.items()}} if look else {}
            )
            self._take([Violation(rule, look.at if look else time.time(), subject, text, shown)])

    def _count_gangs(self, ended: dict[str, str]) -> None:
        mine = {gang.job for gang in self._plan.gangs}
        with self._lock:
            for how in ("Complete", "Failed"):
                self.result.gangs[how.lower()] = sum(1 for job, end in ended.items() if end == how and job in mine)

    def _tell(self, text: str, row: dict[str, Any]) -> None:
        with self._lock:
            if text:
                self._say(f"{self._clock()} {text}")
            self._write(row)

    def _write(self, row: dict[str, Any]) -> None:
        with self._lock, self._out.open("a") as file:
            file.write(json.dumps(row, default=str) + "\n")

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _clock(self) -> str:
        return f"{int(self._now()) // 60:>3}:{int(self._now()) % 60:02}"

    def _sleep_until(self, at_s: float) -> bool:
        """Sleep; whether the soak was stopped meanwhile."""
        return self._stop.wait(max(at_s - self._now(), 0.0)) or self._stop.is_set()


def _interrupt(*_: object) -> None:
    """SIGTERM and a terminal that is closed are Ctrl-C, so that the way back is gone for them too."""
    raise KeyboardInterrupt


@contextlib.contextmanager
def _answering(handler: Callable[..., None] | signal.Handlers, *numbers: signal.Signals) -> Iterator[None]:
    """Answer these signals so, and afterwards as before. Only the main thread may; in another nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, was in before.items():
            signal.signal(number, was)
