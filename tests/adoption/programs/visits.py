"""Run three times: the first run starts a system and leaves it, the second visits it, the third stops it."""

import cutline


@cutline.actor
class Ledger:
    def __init__(self):
        self.lines = []

    def write(self, line):
        self.lines.append(line)
        return len(self.lines)

    def read(self):
        return self.lines


try:
    system, who = cutline.connect("ledger"), "visitor"
except cutline.errors.NotRunning:
    system, who = cutline.start(name="ledger", interval=None), "first"
    system.spawn("ledger", Ledger)
ledger = system.handle("ledger")
print(who, cutline.get(ledger.write.remote(who)), cutline.get(ledger.read.remote()))
if who == "first":
    system.detach()
elif cutline.get(ledger.read.remote()).count("visitor") == 2:
    system.stop()
