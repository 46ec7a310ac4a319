"""What others ask of the coordinator: hellos, names, spawns, and requests of drivers and command lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cutline.barrier import Member
from cutline.barrier.wire import PROTOCOL
from cutline.errors import CutlineError, DuplicateLabel, Misuse, SystemHalted
from cutline.participant.control import pack_control
from cutline.participant.driver import DRIVER
from cutline.participant.flight import read_flight
from cutline.participant.transport import Link

from .roster import Seat
from .runner import Ticket
from .step_retention import NOBODYS
from .trigger import Wanted

if TYPE_CHECKING:
    from .runner import Coordinator

__all__ = ("Service",)


class Service:
    """See the module's head."""

    def __init__(self, coordinator: Coordinator) -> None:
        self.c = coordinator
        # Requests under way, by the name that they keep over lost links.
        self.working: dict[str, Ticket] = {}

    # -- hellos ----------------------------------------------------------------------------

    def greeted(self, link: Link, doc: dict[str, Any]) -> None:
        """Somebody connected: a participant, a driver, or a command line."""
        c = self.c
        if doc.get("protocol") != PROTOCOL:
            link.send_control(pack_control("stop", token=c.lease.token, reason="another protocol version"))
            link.close()
            return
        if doc["kind"] == "client":
            c.clients.append(link)
            return
        if doc["run"] != c.lineage:
            c.say(link, "stop", reason=f"this coordinator runs lineage {c.lineage}, not {doc['run']}")
            return
        member = Member(*doc["member"])
        seat = c.roster.get(member.name)
        if member.name == DRIVER and seat is None:
            seat = c.roster.seats[DRIVER] = Seat(member, doc["class_name"], launch=doc["launch"])
        if seat is None or seat.member != member or seat.launch != doc["launch"]:
            c.say(link, "stop", reason="not expected: the system goes on without this process")
            return
        if seat.link is not None and seat.link is not link:
            seat.link.close()
        c.roster.connect(seat, link)
        seat.pid, seat.started = doc["pid"], doc["started"]
        seat.address, seat.node = doc["address"], doc["node"]
        c.notice("joined", name=member.name, pid=seat.pid)
        self._seated(seat, doc)

    def _seated(self, seat: Seat, doc: dict[str, Any]) -> None:
        c = self.c
        phase = doc["phase"]
        if c.halted is not None:
            c.say(seat.link, "halt", **c.halted)
            return
        if phase == "failed":
            self._failed(seat, doc)
        elif c.recoverer.gathering:
            seat.phase, seat.epoch = phase, doc["epoch"]
            c.recoverer.gathered()
        elif c.parting.is_newcomer(seat, phase):
            c.parting.arrived(seat)
        elif c.recovery.restoring:
            if phase == "restored" and doc["epoch"] == c.epoch:
                c.recoverer.restored(seat, doc)
            else:
                c.recoverer.order_rollback(seat)
        elif phase == "born":
            again = seat.phase == "running"
            self._born(seat)
            if again:
                # Whatever it was told as one of the running may have been lost together with its birth.
                self._reconnected(seat)
        elif phase == "running" and doc["epoch"] == c.epoch:
            if seat.member.name == DRIVER:
                c.parting.still_here()
            if seat.phase != "departed":
                seat.phase = "running"
            self.goes_on(seat)
        else:
            c.recoverer.recover(f"{seat.member.name} is out of step")

    def goes_on(self, seat: Seat) -> None:
        """It stays as it is: it hears what there is now, and what it may not have heard with its old link."""
        self.c.say(seat.link, "initiate", **self.c.view())
        self._reconnected(seat)

    def _reconnected(self, seat: Seat) -> None:
        self.c.nursery.reconnected(seat)
        self.c.departures.reconnected(seat)

    def _failed(self, seat: Seat, doc: dict[str, Any]) -> None:
        c = self.c
        c.say(seat.link, "stop", reason="it did not come up")
        if seat.member in c.nursery.births:
            c.nursery.failed(seat, doc["error"])
        else:
            c.recoverer.restore_failed(seat, doc)

    def _born(self, seat: Seat) -> None:
        c = self.c
        seat.phase = "running"
        c.recoverer.keep(seat)
        # What the epoch began at; without a recovery nobody is born in place of one that was undone.
        row = getattr(c.recoverer, "row", None)
        base = NOBODYS if row is None else row.checkpoint
        c.say(seat.link, "born", skips=c.recoverer.skips_of(seat), base=base, **c.view())
        if seat.member.name == DRIVER:
            self._want_first_cut(seat)
        else:
            c.nursery.born(seat)

    def begin(self, seat: Seat) -> None:
        """A driver whose coordinator was lost before cut 0."""
        if seat.phase == "born":
            self._born(seat)
        else:
            self._want_first_cut(seat)

    def _want_first_cut(self, seat: Seat) -> None:
        # Cut 0: there must be something to come back to before the first message.
        self.c.trigger.want(Wanted(Ticket(seat.link, 0), None))

    # -- spawns and names --------------------------------------------------------------------

    def handle(self, seat: Seat, kind: str, doc: dict[str, Any]) -> None:
        """A participant asks for a name, or for a new participant, or says what it has asked for."""
        nursery = self.c.nursery
        if kind == "resolve":
            nursery.resolve(seat, doc["name"], doc.get("births", []))
        elif kind == "spawns_told":
            nursery.spawns_known = True
        elif kind == "told_of_spawns":
            nursery.told_of_spawns(seat, doc["name"])
        elif kind == "leaving":
            self.c.departures.leaving(seat, doc)
        elif kind == "departed":
            self.c.departures.departed(seat, doc)
        elif kind == "undelivered":
            self.c.notice("undelivered", sender=seat.member.name, name=doc["name"], method=doc["method"])
        else:
            nursery.spawn(seat, doc)

    # -- requests ----------------------------------------------------------------------------

    def request(self, link: Link, doc: dict[str, Any]) -> None:
        """A question with a number; exactly one reply follows."""
        c = self.c
        ticket = Ticket(link, doc["number"], doc.get("asked", ""))
        what = doc["what"]
        under_way = self.working.get(ticket.asked)
        if under_way is not None:
            # Asked again over another link: that is where the reply goes.
            under_way.link = link
            return
        if ticket.asked:
            self.working[ticket.asked] = ticket
        try:
            if what in ("checkpoint", "savepoint"):
                self._checkpoint(ticket, doc.get("label") if what == "savepoint" else None)
            elif what == "status":
                c.reply(ticket, self.status())
            elif what == "await_left":
                c.departures.wait(doc["name"], ticket)
            elif what == "drain":
                c.mover.drain(doc["node"], ticket)
            elif what == "leave":
                c.parting.leave(ticket)
            elif what == "park":
                c.parting.park(ticket)
            elif what == "stay":
                c.parting.stay(ticket)
            elif what == "connect":
                c.parting.connect(link, doc, ticket)
            elif what == "hold_input":
                c.parting.holding.hold(ticket)
            elif what == "input_held":
                c.parting.holding.held(int(doc["last"]))
                c.reply(ticket, {})
            elif what == "let_input":
                c.parting.holding.let(ticket)
                c.reply(ticket, {})
            elif what == "rest_effects":
                c.effects.rest(ticket, float(doc["seconds"]))
            elif what == "rest_output":
                c.output.rest(ticket, float(doc["seconds"]))
            elif what == "allow_effects":
                c.effects.allow()
                c.reply(ticket, {"lineage": c.lineage})
            elif what == "resolve_effect":
                c.reply(ticket, c.effects.resolve(doc))
            elif what == "stop":
                c.reply(ticket, {"checkpoint": c.committed})
                c.stop("stopped")
            else:
                raise Misuse(f"the coordinator was asked for {what!r}, which it does not know")
        except CutlineError as error:
            c.refuse(ticket, error)

    def _checkpoint(self, ticket: Ticket, label: str | None) -> None:
        c = self.c
        if c.halted is not None:
            raise SystemHalted(c.halted["text"])
        if label is not None:
            rows = c.catalog.checkpoints(c.settings.system, fates=("begun", "committed"))
            taken = [row for row in rows if row.label == label]
            if taken and ticket.asked and ticket.asked in (taken[-1].summary or {}).get("asked", ()):
                row = taken[-1]
                c.reply(ticket, {"checkpoint": row.checkpoint, "label": label, "lineage": row.lineage})
                return
            if taken:
                raise DuplicateLabel(
                    f"system {c.settings.system!r} has a savepoint {label!r} already; choose "
                    "another label, or "
                    "delete that one",
                    label=label,
                )
        c.trigger.want(Wanted(ticket, label))
        c.begin_due()

    def status(self) -> dict[str, Any]:
        """What is going on, for people and for the demo's report."""
        c = self.c
        return {
            "lineage": c.lineage,
            "epoch": c.epoch,
            "flowing": c.flowing,
            "halted": c.halted["text"] if c.halted is not None else None,
            "committed": c.committed,
            "output_held": c.output.left(),
            "undecided": [entry[0] for entry in c.commit.undecided],
            "still": c.flowing and all(seat.beat.get("still", False) for seat in c.roster),
            "handlers_run": self._handlers_run(),
            "handlers": self._handlers_in_history(),
            "participants": {
                seat.member.name: {
                    "phase": seat.phase,
                    "pid": seat.pid,
                    "node": seat.node,
                    "class": seat.class_name,
                    "running": seat.beat.get("running", ""),
                    "held": seat.beat.get("held", 0.0),
                }
                for seat in c.roster
            },
        }

    def _handlers_run(self) -> int:
        """Handlers executed by all processes so far, those that died included."""
        records = (read_flight(path) for path in self.c.launcher.folder.glob("*.flight"))
        return sum(record.run for record in records if record is not None)

    def _handlers_in_history(self) -> int:
        """Handlers that the living participants have run in the history that remains."""
        records = (read_flight(Path(seat.flight)) for seat in self.c.roster if seat.flight)
        return sum(record.handlers for record in records if record is not None)
