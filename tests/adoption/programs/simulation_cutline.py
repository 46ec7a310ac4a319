"""Eight traders, on plain Ray. Prices change between steps only, so the outcome does not depend on order."""

import asyncio

import ray

import cutline


@cutline.actor(num_cpus=0.1)
class Trader:
    def __init__(self, number):
        self.cash, self.stock, self.price, self.sold, self.peers = 1000 + number, 10, 100 + number, 0, []

    def connect(self, peers):
        self.peers = peers

    def quote(self):
        return self.price

    async def trade(self):
        quotes = await asyncio.gather(*[p.quote.remote() for p in self.peers])
        price, k = min((q, k) for k, q in enumerate(quotes))
        if await self.peers[k].sell.remote(price):  # read and ask first ...
            self.stock += 1  # ... change after the last await
            self.cash -= price

    def sell(self, price):
        self.stock -= 1
        self.cash += price
        self.sold += 1
        return True

    def settle(self):
        self.price, self.sold = self.price + 3 * self.sold - 1, 0

    def total(self):
        return self.cash, self.stock, self.price


def step(number):
    ray.get([t.trade.remote() for t in traders])
    ray.get([t.settle.remote() for t in traders])


ray.init(log_to_driver=False)
system = cutline.start(interval=1)
traders = [Trader.remote(i) for i in range(8)]
ray.get([t.connect.remote([u for u in traders if u is not t]) for t in traders])
system.loop("steps", 20, step)
totals = ray.get([t.total.remote() for t in traders])
print("cash", sum(cash for cash, _, _ in totals), "stock", sum(stock for _, stock, _ in totals))
for total in totals:
    print(*total)
