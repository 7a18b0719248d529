"""Creates the manager of the model repository that the settings name."""

from __future__ import annotations

from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.repository.cache import Cache
from swiftlet_serve.repository.manager import ModelManager
from swiftlet_serve.repository.store import open_store


def create_manager(runtime: LocalRuntime) -> ModelManager | None:
    """Returns a manager that is not started yet, or None without a repository.

    Raises:
        SetupError: there is no such repository, the cache cannot be created, a key cannot be read, or settings
            contradict each other.
    """
    settings = runtime.settings
    if settings.repository is None:
        if settings.max_models_mb or settings.repository_cache or settings.admin_keys_file:
            raise SetupError(
                "max_models_mb, repository_cache and admin_keys_file need a model repository. Set repository."
            )
        return None
    if settings.fronts > 1:
        raise SetupError("A model repository needs one HTTP process. Set fronts to 1, or start several servers.")
    if settings.models:
        raise SetupError("Both models and repository are set. Set one of them.")
    if settings.admin_keys_file and settings.admin_port is None:
        raise SetupError("admin_keys_file needs the admin port. Set admin_port.")
    store = open_store(settings.repository)
    try:
        cache = Cache(store, settings.repository_cache, settings.signer_key)
    except OSError as error:
        raise SetupError(f"The repository_cache cannot be created: {error.strerror}.") from None
    limit = None if settings.max_models_mb is None else settings.max_models_mb * 10**6
    return ModelManager(runtime, store, cache, max_bytes=limit, poll_s=settings.repository_poll_s)
