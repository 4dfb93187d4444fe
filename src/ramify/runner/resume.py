"""Resume: brings a fresh driver to where an interrupted run stopped, by telling it what was recorded.

The strategy is asked again and must ask for the same; every event is compared with the record. Recorded steps are not
generated again: those of commands in flight go back to their growers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ramify.core.errors import StoreError
from ramify.core.growth import Asked, Ended, Recorded
from ramify.core.tree import Step
from ramify.runner.driver import Delivered, Driver, DriverEvent, Start


@dataclass(slots=True)
class Redriven:
    """What is left to do when a driver has caught up with the record."""

    starts: list[Start] = field(default_factory=list)
    """Commands that were in flight."""
    cancels: list[int] = field(default_factory=list)
    unsaid: list[DriverEvent] = field(default_factory=list)
    """Events that the driver produced after the record: the run was killed before it wrote them."""


def redrive(driver: Driver, recorded: Sequence[Recorded], steps: Mapping[int, Sequence[Step]]) -> Redriven:
    """Tell a fresh `driver` the recorded outcomes, in order. `steps` are the recorded steps by command id.

    Mutates `driver`. Raises `StoreError` if the strategy does not ask for what it asked before.
    """
    said: list[DriverEvent] = []
    starts: dict[int, Start] = {}
    cancels: list[int] = []

    def pump() -> None:
        pumped = driver.pump()
        said.extend(pumped.events)
        starts.update({start.command_id: start for start in pumped.starts})
        cancels.extend(pumped.cancels)

    driver.follow(event.command_id for event in recorded if isinstance(event, Ended))
    pump()
    for number, event in enumerate(recorded):
        if number >= len(said) and isinstance(event, Ended):
            if not driver.has_ended(event.command_id):
                for step in steps.get(event.command_id, ()):
                    driver.grew(event.command_id, step)
                driver.ended(event.command_id, event.ending)
            pump()
        _compare(said[number] if number < len(said) else None, event)
    flights = driver.growth.flights
    for command_id in flights:
        if not driver.has_ended(command_id):
            for step in steps.get(command_id, ()):
                driver.grew(command_id, step)
    open_ids = [command_id for command_id in flights if not driver.has_ended(command_id)]
    return Redriven(
        starts=[starts[command_id] for command_id in open_ids if command_id in starts],
        cancels=[command_id for command_id in cancels if command_id in open_ids],
        unsaid=said[len(recorded) :],
    )


def _compare(said: DriverEvent | None, recorded: Recorded) -> None:
    match said, recorded:
        case Asked(), Asked() if said == recorded:
            return
        case Delivered(), Ended() if (said.command_id, said.ending) == (recorded.command_id, recorded.ending):
            return
        case _:
            raise StoreError(
                f"the run cannot be resumed: its strategy now says {said!r} where the record has {recorded!r}; resume "
                "with the version and configuration that began it"
            )
