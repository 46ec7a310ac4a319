"""stub"""

__all__ = ("DemoOptions", "run_demo")


class DemoOptions: ...


def run_demo(o: DemoOptions) -> int:
    return 1
