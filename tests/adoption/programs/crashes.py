"""Run twice: the first run dies in the middle of its loop, the second takes up the loop at its position."""

import os

import ray

import cutline


@cutline.actor
class Sum:
    def __init__(self):
        self.steps = []

    def add(self, step):
        self.steps.append(step)

    def all(self):
        return self.steps


ray.init(log_to_driver=False)
system = cutline.start(interval=None)
total = Sum.options(name="sum").remote()
first = not system.resumed or not ray.get(total.all.options(durable=False).remote())


def body(step):
    ray.get(total.add.remote(step))
    if first and step == 5:
        system.checkpoint()
    if first and step == 8:
        os._exit(9)


system.loop("steps", 12, body)
print(ray.get(total.all.remote()))
