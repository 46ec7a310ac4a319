"""Stories: events in, actions out, as text that a person can read and a test can compare.

A line that begins with ``> `` is an event; the indented lines below it are what came of it. Every packet
gets a number when it is sent (``#3``), and travels when the story says ``> #3 arrives``; what never arrives
was lost, what arrives twice was doubled. Messages are words of two letters.

    > start A B                     endpoints with nothing behind them (> start A B window 8)
    > born J newest 3 undecided 2,3
    > A releases a1 a2 to B         a handler of A reached its end
    > A flush | boundary | handles | coordinator
    > A link B | unlink B
    > A spawns J                   a spawn leaves; its number counts from 1
    > A told J undecided 2,3       the coordinator says who J is, and what was undecided then
    > A leaves                    nothing more is handled
    > A gone J after 2            J has left, having handled two messages of A
    > A initiated 2,3 newest 3 committed 1
    > A settled 2 aborted
    > A durable 2 | fails 2
    > A restore 2 epoch 2           a new endpoint from the capture of 2
    > check 2 without J             J had departed before 2 was begun
    > check 2                       the cut of everybody's capture of 2, as before a commit
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cutline.barrier import (
    ChannelTable,
    Endpoint,
    Frame,
    LocalSnapshot,
    Member,
    Open,
    Spawn,
    Stamp,
    actions,
    wire,
)
from cutline.barrier import events as ev
from cutline.barrier.cut import Claims, Departed, check, claims_of, in_flight

__all__ = ("Story", "told")

WORD = 2


class Story:
    """The endpoints of one story and the packets that they sent."""

    def __init__(self) -> None:
        self.ends: dict[str, Endpoint] = {}
        self.options: dict[str, int] = {}
        self.packets: list[tuple[str, bytes]] = []
        self.last_claims: dict[str, Claims] = {}
        self.tables: dict[tuple[int, str], ChannelTable] = {}
        self.verbs: dict[str, Callable[[Endpoint, list[str]], Any]] = {
            "releases": lambda end, words: ev.Released(
                self.member(words[-1]), [word.encode() for word in words[:-2]]
            ),
            "flush": lambda end, words: ev.Flush(),
            "boundary": lambda end, words: ev.AtBoundary(),
            "coordinator": lambda end, words: ev.CoordinatorOpened(),
            "spawns": lambda end, words: ev.Spawned(Spawn(len(end.spawns) + 1, words[0], None)),
            "told": lambda end, words: ev.Told(end.epoch, opens(words[2]), 0, 0, words[0]),
            "answered": lambda end, words: ev.SpawnAnswered(int(words[0])),
            "leaves": lambda end, words: ev.Leave(),
            "gone": lambda end, words: ev.Gone(self.member(words[0]), int(words[2])),
            "link": lambda end, words: ev.LinkOpened(self.member(words[0])),
            "unlink": lambda end, words: ev.LinkLost(self.member(words[0])),
            "initiated": lambda end, words: ev.Initiated(
                end.epoch, opens(words[0]), int(words[2]), int(words[4])
            ),
            "settled": lambda end, words: ev.Settled(end.epoch, int(words[0]), words[1] == "committed"),
            "durable": lambda end, words: ev.Durable(int(words[0]), {}, {}),
            "fails": lambda end, words: ev.CaptureFailed(int(words[0]), "no space left"),
        }

    def member(self, name: str) -> Member:
        return Member(name, ord(name) - ord("A") + 1)

    def begin(self, name: str, epoch: int, snapshot: LocalSnapshot, table: ChannelTable | None) -> None:
        self.ends[name] = Endpoint(self.member(name), "run", epoch, snapshot, channels=table, **self.options)

    def tell(self, line: str) -> list[str]:
        """What comes of one event, a line each."""
        first, *words = line.split()
        if first == "start":
            if "window" in words:
                self.options["window"] = int(words[-1])
                words = words[:-2]
            for name in words:
                self.begin(name, 1, LocalSnapshot(0, 0, None), None)
            return []
        if first == "born":
            self.begin(words[0], 1, LocalSnapshot.newborn(int(words[2]), opens(words[4])), None)
            return []
        if first == "check":
            return [self.checked(int(words[0]), words[2:])]
        if first.startswith("#"):
            receiver, packet = self.packets[int(first[1:]) - 1]
            return self.fed(self.ends[receiver], wire.unpack(packet))
        verb, *words = words
        end = self.ends[first]
        if verb == "restore":
            checkpoint = int(words[0])
            table = self.tables[checkpoint, first]
            self.begin(first, int(words[2]), LocalSnapshot(checkpoint, checkpoint, checkpoint), table)
            return []
        if verb == "handles":
            return [self.handled(end)]
        return self.fed(end, self.verbs[verb](end, words))

    def handled(self, end: Endpoint) -> str:
        channel = end.head
        if channel is None:
            return f"{end.me.name} has nothing to handle"
        frame = channel.frames[0]
        number = channel.processed + 1
        start = (number - frame.first) * WORD
        channel.processed = number
        if number == frame.last:
            end.consumed()
        word = frame.body[start : start + WORD].decode()
        due = ", though a capture is due" if end.due else ""
        return f"{end.me.name} handled {word} of {channel.peer.name}{due}"

    def checked(self, checkpoint: int, without: list[str]) -> str:
        claims = {
            self.member(name): claims_of(table) for (n, name), table in self.tables.items() if n == checkpoint
        }
        left = {self.member(name): Departed(self.last_claims[name]) for name in without}
        violations = check(claims, left)
        if violations:
            return f"cut {checkpoint} is refused: {'; '.join(violations)}"
        return f"cut {checkpoint} proves itself, {in_flight(claims, left)} messages in flight"

    def fed(self, end: Endpoint, event: ev.EndpointEvent) -> list[str]:
        fenced = end.fenced
        lines = [f"{end.me.name} {self.shown(end, action)}" for action in end.handle(event)]
        if end.fenced > fenced:
            lines.append(f"{end.me.name} takes no notice of another epoch")
        return lines or ["nothing"]

    def shown(self, end: Endpoint, action: actions.EndpointAction) -> str:
        if isinstance(action, (actions.SendFrame, actions.SendMarker, actions.SendAck)):
            stamp = Stamp(end.run, end.epoch, end.me, action.peer)
            return self.sent(stamp, action)
        if isinstance(action, actions.Capture):
            self.tables[action.checkpoint, end.me.name] = action.channels
            kind = "in full" if action.full else f"against {action.against}"
            return f"captures {action.checkpoint} {kind}{''.join(parts(action.channels))}"
        if isinstance(action, actions.Settle):
            return f"learns that {action.checkpoint} {'committed' if action.committed else 'aborted'}"
        if isinstance(action, actions.Report):
            return f"reports {action.checkpoint} prepared"
        if isinstance(action, actions.Complain):
            return f"complains of {action.checkpoint}: {action.reason}"
        if isinstance(action, actions.AskBirth):
            return f"asks for {action.spawn.name}, its spawn {action.spawn.number}"
        if isinstance(action, actions.Heed):
            return f"heeds that there is {action.word}"
        if isinstance(action, actions.Depart):
            self.last_claims[end.me.name] = claims_of(action.channels)
            return f"departs{''.join(parts(action.channels))}"
        if isinstance(action, actions.Undelivered):
            return f"gets back {b''.join(action.bodies).decode()}, which {action.peer.name} never took"
        return f"dials {action.peer.name}"

    def sent(self, stamp: Stamp, action: actions.SendFrame | actions.SendMarker | actions.SendAck) -> str:
        name = action.peer.name
        where = f"sends #{len(self.packets) + 1} to {name}:"
        if isinstance(action, actions.SendAck):
            self.packets.append((name, wire.pack_ack(stamp, action.positions)))
            received, released, limit = action.positions
            return f"{where} received {received}, released {released}, limit {limit}"
        marked = "".join(f", capture {n} was at {last}" for n, last, _ in action.marks)
        marked += f", committed {action.committed}" if action.committed else ""
        if isinstance(action, actions.SendMarker):
            self.packets.append((name, wire.pack_marker(stamp, action.marks, action.committed)))
            return f"{where} marker{marked}"
        self.packets.append((name, wire.pack_frame(stamp, action.marks, action.committed, action.frame)))
        return f"{where} {span([action.frame])}{marked}"


def opens(text: str) -> tuple[Open, ...]:
    """``2,3`` or ``-``; an id in full is written ``2f``."""
    if text == "-":
        return ()
    return tuple(Open(int(word.rstrip("f")), word.endswith("f")) for word in text.split(","))


def span(frames: Iterable[Frame]) -> str:
    found = [f"{frame.first}..{frame.last} {frame.body.decode()}" for frame in frames]
    return ", ".join(found) if found else "nothing"


def parts(table: ChannelTable) -> Iterable[str]:
    for peer, into in table.incoming.items():
        yield f"\n      from {peer.name}: handled {into.processed}, holds {span(into.frames)}"
    for peer, out in table.outgoing.items():
        yield f"\n      to {peer.name}: sent {out.last}, keeps {span(out.frames)}"
    for spawn in table.spawns:
        yield f"\n      is to have {spawn.name} born"


def told(text: str) -> str:
    """The story with what really comes of its events."""
    story = Story()
    lines = []
    for line in text.splitlines():
        if line.startswith("    "):
            continue
        lines.append(line)
        if line.startswith("> "):
            lines += [f"    {found}" for found in story.tell(line[2:])]
    return "\n".join(lines) + "\n"
