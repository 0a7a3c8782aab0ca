"""What stands at the other end of the cables, by lldpd: `lldpcli` talks to the daemon that runs on the node."""

from __future__ import annotations

from dataclasses import dataclass

from myriad.agent.collect.base import Findings
from myriad.agent.collect.source import Source
from myriad.fleet.neighbours import NeighbourFormatError, lldp_sightings
from myriad.fleet.portrait import NEIGHBOURS, Neighbour, Observation

QUERY = ("lldpcli", "-f", "json0", "show", "neighbors", "details")


@dataclass(slots=True)
class Lldp:
    """Neighbours; a node without lldpd has nothing to say and no fault either."""

    name: str = "lldp"
    every_s: float = 30.0
    timeout_s: float = 10.0

    def collect(self, source: Source, at: str) -> Findings:
        """See Collector."""
        found = Findings()
        done = source.run(QUERY, timeout_s=self.timeout_s)
        if done.missing:
            return found
        said = " ".join(QUERY)
        if done.fault or done.rc:
            fault = done.fault or f"lldpcli ended with {done.rc}: {done.said or 'it said nothing'}"
            found.observations[NEIGHBOURS] = Observation(source=said, at=at, fault=fault)
            return found
        try:
            sightings = lldp_sightings("", done.stdout)
        except NeighbourFormatError as error:
            found.observations[NEIGHBOURS] = Observation(source=said, at=at, fault=str(error))
            return found
        found.observations[NEIGHBOURS] = Observation(source=said, at=at)
        found.neighbours = [
            Neighbour(
                observed=NEIGHBOURS,
                interface=seen.interface,
                chassis=seen.peer,
                chassis_id=seen.chassis,
                port=seen.port,
            )
            for seen in sorted(sightings, key=lambda seen: (seen.interface, seen.peer))
        ]
        return found
