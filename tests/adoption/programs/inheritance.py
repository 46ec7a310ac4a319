"""A participant's class is the class itself: subclasses, super, properties, class methods, unit tests."""

import ray

import cutline


class Account:
    fee = 1

    def __init__(self, owner):
        self.owner, self.balance = owner, 0

    def pay(self, amount):
        self.balance += amount - self.fee
        return self.balance

    @property
    def label(self):
        return f"{self.owner}: {self.balance}"

    @classmethod
    def kind(cls):
        return cls.__name__

    def show(self):
        return f"{self.kind()} {self.label}"


@cutline.actor(num_cpus=0.1)
class Savings(Account):
    fee = 0

    def __init__(self, owner, rate):
        super().__init__(owner)
        self.rate = rate

    def pay(self, amount):
        return super().pay(amount * (1 + self.rate))


@cutline.actor(num_cpus=0.1)
class Joint(Savings):
    def __init__(self, *owners, rate=0):
        super().__init__(" and ".join(owners), rate)


print(Savings("ann", 1).pay(10), issubclass(Joint, Account))
ray.init(log_to_driver=False)
with cutline.start(interval=None):
    savings = Savings.options(name="savings").remote("ann", rate=1)
    joint = Joint.options(name="joint").remote("ann", "bob")
    print(ray.get([savings.pay.remote(10), joint.pay.remote(10)]))
    print(*ray.get([savings.show.remote(), joint.show.remote()]), sep="\n")
