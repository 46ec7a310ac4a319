"""Run twice: the first run ends by itself, the second goes on where it ended."""

import ray

import cutline


@cutline.actor
class Ledger:
    def __init__(self):
        self.lines = []

    def write(self, line):
        self.lines.append(line)
        return len(self.lines)


ray.init(log_to_driver=False)
system = cutline.start(interval=None)
ledger = Ledger.options(name="ledger").remote()
print("resumed" if system.resumed else "new", ray.get(ledger.write.remote("a line")))
