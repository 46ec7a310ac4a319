"""20,000 chat messages in a plain list, 10 appended: bytes written, and the stall, against `pickle.dumps`.

The list is an attribute like any other; nothing about it is told to Cutline. Between two checkpoints one
handler appends ten messages. What a checkpoint wrote is the size of its packs, those of all participants;
pickle would write what it makes of the messages. The stall is that of the slowest participant, which is the
one with the messages, and it cannot be much shorter than a pickle: that nothing else changed is found out by
pickling and hashing everything. Both are timed in the same process, in turns.
At the end the messages of the newest image, read through all of its deltas, must be those of the participant.
"""

from __future__ import annotations

import pickle
import random
import tempfile
import time
from statistics import mean, median
from typing import Any

from blake3 import blake3

import cutline
from bench.row import Row
from cutline.participant.restore import restore
from cutline.storage.image import read_image

__all__ = ("Chat", "measure")

WORDS = "checkpoint agent tool answer the of plan search result maybe done next".split()


class Chat:
    """Messages with a speaker, a text of a few dozen words, and a time."""

    def __init__(self, count: int) -> None:
        self.chance = random.Random(1)
        self.messages: list[dict[str, Any]] = []
        self.say(count)

    def say(self, count: int) -> None:
        """So many more messages."""
        for number in range(len(self.messages), len(self.messages) + count):
            text = " ".join(self.chance.choices(WORDS, k=self.chance.randrange(5, 30)))
            self.messages.append(
                {
                    "role": ("user", "assistant")[number % 2],
                    "content": f"{self.chance.random()} {text}",
                    "at": self.chance.random(),
                }
            )

    def pickled(self) -> tuple[float, int]:
        """Seconds that `pickle.dumps` of the messages takes, and its bytes."""
        began = time.perf_counter()
        content = pickle.dumps(self.messages, 5)
        return time.perf_counter() - began, len(content)

    def digest(self) -> bytes:
        """What the messages are."""
        digest: bytes = blake3(repr(self.messages).encode()).digest()
        return digest


def measure(*, rounds: int = 30, messages: int = 20_000) -> list[Row]:
    """The rows; see the module's head."""
    written: list[float] = []
    stalls: list[float] = []
    detecting: list[float] = []
    pickles: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory(prefix="cutline-bench-") as folder:
        system = cutline.start(folder, name="chat", interval=None, full_every=rounds + 3, quiet=True)
        try:
            chat: Any = system.spawn("chat", Chat, messages)

            def asked(method: Any, *arguments: Any) -> Any:
                return method.options(durable=False).remote(*arguments).result(timeout=60)

            system.checkpoint()
            for number in range(rounds + 1):
                asked(chat.say, 10)
                taken = system.checkpoint()
                row = next(row for row in system.checkpoints() if row.checkpoint == taken)
                pickled = asked(chat.pickled)
                if not number:
                    continue
                if row.kind != "delta":
                    raise AssertionError(f"checkpoint {taken} is {row.kind}, the row is about deltas")
                images = system.store.read_manifest(row).images
                written.append(float(sum(image.ref.size for image in images.values())))
                stalls.append(row.summary["stall_ms_max"] / 1000)
                detecting.append(row.summary["detect_ms_max"])
                pickles.append(pickled)
            image = read_image(system.store.blobs, images["chat"].ref)
            kept: Any = restore(image.pieces, image.regions, participant="chat")
            if kept.digest() != asked(chat.digest):
                raise AssertionError("the newest image is not what the participant holds")
        finally:
            system.stop()
    sizes = [float(size) for _, size in pickles]
    note = f"{messages:,} messages, {sizes[-1] / 1e6:.1f} MB of pickle, 10 appended"
    return [
        Row(
            name="messages_appended",
            unit="bytes",
            samples_ours=written,
            samples_baseline=sizes,
            at_most=0.03,
            note=f"{note}; folded packs included: mean {mean(written) / 1024:.0f} KiB, largest "
            f"{max(written) / 1024:.0f} KiB",
        ),
        Row(
            name="messages_appended_stall",
            unit="s",
            samples_ours=stalls,
            samples_baseline=[seconds for seconds, _ in pickles],
            at_most=1.1,
            note=f"{note}; of the stall {median(detecting):.2f} ms are finding out what changed",
        ),
    ]
