"""A class that an existing program has decorated for Ray becomes a participant as it is."""

import ray

import cutline


@ray.remote(num_cpus=0.1, max_restarts=2)
class Counter:
    def __init__(self, start=0):
        self.count = start

    def add(self, more):
        self.count += more
        return self.count


ray.init(log_to_driver=False)
plain = Counter.remote(100)
with cutline.start(interval=None) as system:
    counter = cutline.wrap(Counter).options(name="counter").remote(5)
    print(ray.get(plain.add.remote(1)), ray.get([counter.add.remote(1), counter.add.remote(2)]))
    print(system.status()["participants"]["counter"]["phase"])
