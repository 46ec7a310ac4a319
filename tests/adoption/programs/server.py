"""A parameter server, plain Ray tasks as workers, a driver's loop."""

import numpy as np
import ray

import cutline


@cutline.actor(num_cpus=0.1)
class Server:
    def __init__(self, size):
        self.weights, self.pushes = np.zeros(size), 0

    def pull(self):
        return self.weights

    def push(self, gradient):
        self.weights += gradient
        self.pushes += 1


@ray.remote(num_cpus=0.1)
def gradient(weights, shard):
    return np.full(weights.shape, float(shard)) - weights / 4


ray.init(log_to_driver=False)
system = cutline.start(interval=1)
server = Server.options(name="server").remote(1000)


def step(number):
    weights = server.pull.remote()
    pushes = [server.push.remote(gradient.remote(weights.object_ref(), shard)) for shard in range(4)]
    ray.get(pushes)


system.loop("steps", 5, step)
print(float(ray.get(server.pull.remote()).sum()))
