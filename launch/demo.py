"""One study through the public interface, shown on a terminal."""

from launch.stack import Stack


def show_demo(url: str, stack: Stack, begun: float) -> int:
    raise NotImplementedError
