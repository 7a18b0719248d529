"""The delay of the event loop."""

from __future__ import annotations

from swiftlet_serve.telemetry.event_loop_lag import INTERVAL_S, WINDOW_S, EventLoopLag


class Loop:
    """An event loop whose timers fire when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def time(self) -> float:
        return self.now

    def call_at(self, when, callback, *arguments):
        self.due, self.fire = when, lambda: callback(*arguments)
        return self

    def cancel(self) -> None:
        self.fire = None


def test_lag_is_the_largest_of_the_last_minute():
    loop, lag = Loop(), EventLoopLag()
    lag.start(loop)
    assert lag.largest_s == 0.0
    for delay in (0.25, 0.0, 0.125):
        loop.now = loop.due + delay
        loop.fire()
    assert lag.largest_s == 0.25

    for _ in range(round(WINDOW_S / INTERVAL_S) - 1):
        loop.now = loop.due
        loop.fire()
    assert lag.largest_s == 0.125


def test_stopped_measurement_leaves_no_timer():
    loop, lag = Loop(), EventLoopLag()
    lag.stop()
    lag.start(loop)
    lag.stop()

    assert loop.fire is None
