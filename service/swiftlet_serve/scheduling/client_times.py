"""Fair shares of the engine among clients, by virtual times (start-time fair queueing)."""

from __future__ import annotations

from typing import Final

from swiftlet_serve.scheduling.latency_model import Utilization

KEPT: Final = 1024  # times that are kept without a look for outdated ones


class ClientTimes:
    """The virtual time of each client in one priority: the predicted engine time that it has had, in core seconds.

    The client with the earliest time is next. One that returns after a pause starts at the time of the client that was
    served last: it goes before those that had more, and a pause saves up nothing.
    """

    def __init__(self) -> None:
        self._times: dict[str, float] = {}
        self._rates: dict[str, Utilization] = {}
        self.served = 0.0
        """The time of the client that was served last, before its charge. No client is earlier."""
        self._limit = KEPT

    def of(self, client: str) -> float:
        """Returns the time of a client."""
        return max(self.served, self._times.get(client, 0.0))

    def serve(self, client: str) -> None:
        """Notes that a client is next."""
        self.served = self.of(client)

    def rate(self, client: str, now: float) -> float:
        """Returns the core seconds per second that a client has used lately."""
        rate = self._rates.get(client)
        return 0.0 if rate is None else rate.share(now)

    def charge(self, client: str, seconds: float, now: float) -> None:
        """Adds the engine time of sequences that start now."""
        self._times[client] = self.of(client) + seconds
        rate = self._rates.get(client)
        if rate is None:
            rate = self._rates[client] = Utilization(1)
        rate.add(seconds, now)
        if len(self._times) > self._limit:
            self._times = {name: time for name, time in self._times.items() if time > self.served}
            self._rates = {name: self._rates[name] for name in self._times}
            self._limit = KEPT + 2 * len(self._times)

    def __len__(self) -> int:
        return len(self._times)
