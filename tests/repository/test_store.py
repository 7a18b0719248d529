"""Repositories in directories and object stores: pushes are atomic, and nothing outside is read."""

from __future__ import annotations

import errno
import os
import shutil

import fsspec
import pytest

from swiftlet_models.artifact import CARD, MANIFEST, ArtifactError, open_artifact
from swiftlet_serve.errors import SetupError
from swiftlet_serve.repository import store as store_module
from swiftlet_serve.repository.cache import Cache
from swiftlet_serve.repository.store import DESIRED, DirectoryStore, RepositoryError, Store, open_store, push
from tests.support.artifacts import certify, make_artifact, reseal
from tests.support.repositories import make_version


@pytest.fixture(params=["directory", "object store"])
def store(request, tmp_path) -> Store:
    if request.param == "directory":
        (tmp_path / "repository").mkdir()
        return open_store(str(tmp_path / "repository"))
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    memory.makedirs("/bucket/models")
    return open_store("memory://bucket/models")


@pytest.fixture
def artifact(tmp_path):
    return make_artifact(tmp_path / "source", "classify", "flowers")


def test_pushed_versions_come_back_whole(store, artifact, tmp_path):
    assert push(store, artifact) == (1, True)
    assert push(store, artifact) == (1, False)
    reseal(artifact, version="other")
    changed = open_artifact(artifact.path)
    assert push(store, changed) == (2, True)
    assert push(store, changed, 7) == (7, True)
    assert push(store, changed, 7) == (7, False)
    assert store.versions() == {"flowers": [1, 2, 7]}
    assert store.manifest("flowers", 2) == (artifact.path / MANIFEST).read_bytes()
    assert Cache(store, tmp_path / "cache").fetch("flowers", 2).manifest == changed.manifest


def test_a_certificate_comes_along(store, artifact, tmp_path):
    document = certify(artifact.path)
    push(store, artifact)
    assert Cache(store, tmp_path / "cache").fetch("flowers", 1).certificate() == document


def test_version_never_changes(store, artifact):
    push(store, artifact, 3)
    reseal(artifact, version="other")
    with pytest.raises(RepositoryError, match="flowers 3 is in the repository with another content"):
        push(store, open_artifact(artifact.path), 3)


def test_desired_state_is_optional(store, artifact, tmp_path):
    assert store.desired() is None


def test_listing_leaves_out_what_is_no_version(tmp_path):
    make_version(tmp_path, "flowers", 2)
    for name in ("01", "0", "-1", "1.0", "two", "1000000000", ".push-x"):
        shutil.copytree(tmp_path / "flowers" / "2", tmp_path / "flowers" / name)
    (tmp_path / "flowers" / "3").mkdir()  # it has no manifest yet
    (tmp_path / "flowers" / "4").touch()
    (tmp_path / "No Model").mkdir()
    (tmp_path / "empty").mkdir()
    assert open_store(str(tmp_path)).versions() == {"flowers": [2]}


@pytest.mark.parametrize("what", ["file", "version", "desired"])
def test_links_out_of_the_repository_are_refused(what, tmp_path):
    outside = make_version(tmp_path / "outside", "flowers", 1)
    root = tmp_path / "repository"
    version = make_version(root, "flowers", 1)
    if what == "file":
        (version / CARD).unlink()
        (version / CARD).symlink_to(outside / CARD)
    elif what == "version":
        shutil.rmtree(version)
        version.symlink_to(outside, target_is_directory=True)
    else:
        (root / DESIRED).symlink_to(outside / MANIFEST)
    store = open_store(str(root))
    with pytest.raises(RepositoryError, match="leads out of it"):
        store.desired() if what == "desired" else Cache(store, None).fetch("flowers", 1)


def test_interrupted_push_leaves_nothing(tmp_path, artifact, monkeypatch):
    root = tmp_path / "repository"
    root.mkdir()

    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(RepositoryError, match="No space left on device"):
        push(DirectoryStore(root), artifact)
    assert DirectoryStore(root).versions() == {}
    assert list((root / "flowers").iterdir()) == []


def test_pushes_at_the_same_moment_add_two_versions(tmp_path, artifact, monkeypatch):
    (tmp_path / "repository").mkdir()
    store = DirectoryStore(tmp_path / "repository")
    push(store, artifact, 1)
    monkeypatch.setattr(store, "versions", dict)  # as another push saw the repository before
    assert push(store, artifact) == (2, True)
    with pytest.raises(RepositoryError, match="Push the next version"):
        push(store, artifact, 1)
    monkeypatch.undo()
    assert store.versions() == {"flowers": [1, 2]}


def test_kept_cache_holds_what_is_served_only(tmp_path):
    for number in (1, 2):
        make_version(tmp_path / "repository", "flowers", number)
    store, root = open_store(str(tmp_path / "repository")), tmp_path / "cache"
    cache = Cache(store, root)
    copies = [cache.fetch("flowers", number).path for number in (1, 2)]
    cache.close()
    assert all(copy.is_dir() for copy in copies)
    (root / ".fetch-x").mkdir()
    (root / "notes").mkdir()
    cache = Cache(store, root)
    cache.keep_only([("flowers", 2)])
    assert {path.name for path in root.iterdir()} == {copies[1].name, "notes"}
    cache.release(copies[1])
    assert {path.name for path in root.iterdir()} == {"notes"}


def test_full_disk_while_fetching_leaves_no_copy(tmp_path, monkeypatch):
    make_version(tmp_path / "repository", "flowers", 1)
    cache = Cache(open_store(str(tmp_path / "repository")), tmp_path / "cache")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(store_module.shutil, "copyfile", fail)
    with pytest.raises(RepositoryError, match="no room for a copy: No space left on device"):
        cache.fetch("flowers", 1)
    assert list((tmp_path / "cache").iterdir()) == []


def test_damaged_copy_is_fetched_again(tmp_path):
    make_version(tmp_path / "repository", "flowers", 1)
    cache = Cache(open_store(str(tmp_path / "repository")), tmp_path / "cache")
    copy = cache.fetch("flowers", 1).path
    (copy / CARD).write_text("{}")
    assert cache.fetch("flowers", 1).path == copy
    open_artifact(copy)


def test_damaged_version_is_never_copied(tmp_path):
    (make_version(tmp_path / "repository", "flowers", 1) / CARD).write_text("{}")
    cache = Cache(open_store(str(tmp_path / "repository")), tmp_path / "cache")
    with pytest.raises(ArtifactError, match=f"^flowers-1: {CARD}"):
        cache.fetch("flowers", 1)
    assert list((tmp_path / "cache").iterdir()) == []


def test_temporary_cache_is_removed(tmp_path):
    make_version(tmp_path, "flowers", 1)
    cache = Cache(open_store(str(tmp_path)), None)
    path = cache.fetch("flowers", 1).path
    cache.release(path)
    assert not path.exists()
    cache.close()
    assert not path.parent.exists()


@pytest.mark.parametrize(
    ("location", "message"),
    [("/no/such/place", "no model repository"), ("nosuch://bucket", "cannot be opened"), ("s3://bucket", "s3fs")],
)
def test_repository_that_cannot_be_opened(location, message):
    with pytest.raises(SetupError, match=message):
        open_store(location)


def test_unreachable_object_store_is_one_error(monkeypatch):
    store = open_store("memory://bucket/gone")

    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("secret")

    for name in ("ls", "cat_file"):
        monkeypatch.setattr(type(store._fs), name, fail)
    for call in (store.versions, store.desired, lambda: store.manifest("flowers", 1)):
        with pytest.raises(RepositoryError, match=r"cannot be reached: ConnectionError\.$"):
            call()
