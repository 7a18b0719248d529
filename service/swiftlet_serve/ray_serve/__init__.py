"""Serves on a Ray cluster with Ray Serve: replicas in place of servers, behind Ray's HTTP proxies.

Needs the extra `ray`.

    serve run swiftlet_serve.ray_serve:application models=mobilebert-sst2 max_replicas=8
"""

from swiftlet_serve.ray_serve.deployment import application

__all__ = ["application"]
