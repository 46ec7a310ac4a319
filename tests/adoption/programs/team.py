"""Writers and a researcher with a model's client each; the client is made per process and never saved."""

import asyncio
import threading

import ray

import cutline


class Client:
    """Stands for a model's client: it holds a lock, which no image can."""

    def __init__(self):
        self.lock = threading.Lock()

    async def complete(self, text):
        await asyncio.sleep(0)
        with self.lock:
            return text.upper()


@cutline.actor
class Researcher:
    def __init__(self):
        self.asked = []

    async def dig(self, topic):
        self.asked.append(topic)
        return f"facts about {topic}"

    def topics(self):
        return self.asked


@cutline.actor
class Writer:
    llm = cutline.transient(Client)

    def __init__(self, researcher):
        self.researcher, self.notes = researcher, []

    async def write(self, topic):
        facts = await self.researcher.dig.remote(topic)
        text = facts.upper() if self.llm.lock.locked() else facts.title()
        self.notes.append(text)
        return text

    def all(self):
        return self.notes


ray.init(log_to_driver=False)
with cutline.start(interval=None) as system:
    researcher = Researcher.options(name="researcher").remote()
    writers = [Writer.options(name=f"writer{i}").remote(researcher) for i in range(2)]
    print(*ray.get([w.write.remote(t) for w in writers for t in ("tides", "moons")]), sep="\n")
    print(sorted(ray.get(researcher.topics.remote())))
    print(system.savepoint("before-release") > 0)
