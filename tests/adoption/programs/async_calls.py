"""Async handlers: gather, as_completed, a chain, an error of another participant, awaiting in the driver."""

import asyncio

import ray

import cutline


@cutline.actor
class Worker:
    def __init__(self, factor):
        self.factor = factor

    def times(self, value):
        if value < 0:
            raise ValueError(f"{value} is negative")
        return self.factor * value


@cutline.actor
class Chief:
    def __init__(self, workers):
        self.workers, self.log = workers, []

    async def gathered(self, value):
        answers = await asyncio.gather(*[w.times.remote(value) for w in self.workers])
        self.log.append(sum(answers))
        return answers

    async def chained(self, value):
        for worker in self.workers:
            value = await worker.times.remote(value)
        self.log.append(value)
        return value

    async def careful(self, value):
        try:
            return await self.workers[0].times.remote(value)
        except ValueError as error:
            return f"worker said: {error}"

    def history(self):
        return self.log


async def main():
    print(await chief.gathered.remote(5), await chief.chained.remote(1))
    print(await chief.careful.remote(-3))
    print(await chief.history.remote())


ray.init(log_to_driver=False)
with cutline.start(interval=0.5):
    workers = [Worker.options(name=f"worker{k}").remote(k) for k in (2, 3, 7)]
    chief = Chief.options(name="chief").remote(workers)
    asyncio.run(main())
