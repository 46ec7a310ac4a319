"""Participants hand work to plain Ray tasks: their ObjectRefs go on as arguments, in order."""

import ray

import cutline


@ray.remote(num_cpus=0.1)
def square(value):
    return value * value


@cutline.actor
class Collector:
    def __init__(self):
        self.values = []

    def keep(self, value):
        self.values.append(value)

    def all(self):
        return self.values


@cutline.actor
class Dispatcher:
    def __init__(self, collector):
        self.collector = collector

    def dispatch(self, numbers):
        for number in numbers:
            self.collector.keep.tell(square.remote(number))
        self.collector.keep.tell("done")

    async def one(self, number):
        return await self.collector.keep.remote(square.remote(number))


ray.init(log_to_driver=False)
with cutline.start(interval=None):
    collector = Collector.options(name="collector").remote()
    dispatcher = Dispatcher.options(name="dispatcher").remote(collector)
    ray.get(dispatcher.dispatch.remote([1, 2, 3]))
    ray.get(dispatcher.one.remote(9))
    print(ray.get(collector.all.remote()))
    print(cutline.get([collector.all.remote()])[0][-1])
