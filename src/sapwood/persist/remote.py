"""Stores that machines share: a Redis server, or a place that fsspec reaches.

A value is stored sealed, as in a folder: with its name, its size and its digest, so
that what is damaged or torn is a `StoreError` and not a value. What a client raises is
an `OSError` here. How much is kept is up to the server: these stores evict nothing.
"""

from __future__ import annotations

import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from contextlib import suppress
from datetime import datetime
from importlib import import_module
from typing import Any, Final

from sapwood.errors import MisuseError
from sapwood.persist.api import Item, check_name, incomplete, is_name, reached
from sapwood.persist.flight import RENEWED
from sapwood.persist.format import accept, seal, sealed_size
from sapwood.persist.key import needs
from sapwood.units import Size

_SECOND: Final = 10**9
_AT_ONCE: Final = 1000

_LASTS: Final = int(3000 * RENEWED)
"""Milliseconds that a lease lasts without being renewed."""

_OWN: Final = """
if redis.call('get', KEYS[1]) == ARGV[1] then
  return redis.call('pexpire', KEYS[1], ARGV[2])
end
"""
"""Says how long a lease lasts from now, if it is the caller's."""


class _Remote(ABC):
    """A store of sealed values, in a place that ``path`` names in messages."""

    path: str

    def get(self, name: str) -> bytes | None:
        check_name(name)
        with reached(self.path):
            data = self._read(name)
        if data is None:
            return None
        head = sealed_size(name, 0)
        return accept(name, data[:head], data[head:])

    def put(self, name: str, value: bytes) -> None:
        check_name(name)
        blobs = needs(name, value)
        with reached(self.path):
            if blobs and not self._has(blobs):
                self._remove(name)
                raise incomplete(name)
            self._write(name, seal(name, value) + value)

    def delete(self, name: str) -> bool:
        check_name(name)
        with reached(self.path):
            return self._remove(name)

    def scan(self) -> Iterator[Item]:
        with reached(self.path):
            for name, size, used in self._list():
                if is_name(name):
                    own = max(size - sealed_size(name, 0), 0)
                    yield Item(name, Size(own), used)

    @abstractmethod
    def _read(self, name: str) -> bytes | None: ...

    @abstractmethod
    def _write(self, name: str, data: bytes) -> None: ...

    @abstractmethod
    def _remove(self, name: str) -> bool: ...

    @abstractmethod
    def _has(self, names: Collection[str]) -> bool: ...

    @abstractmethod
    def _list(self) -> Iterator[tuple[str, int, int]]:
        """Yield names, sizes of what is stored, and times of last use."""


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise MisuseError(
            f"{module} cannot be imported: {error}. Install it: pip install {package}"
        ) from error


class RedisStore(_Remote):
    """Keeps values in a Redis server, under ``prefix`` and their names.

    ``client`` is redis-py's, or a URL such as ``redis://host:6379/0``. A value may have
    512 MiB. What the server evicts is a miss: give it ``maxmemory`` and
    ``maxmemory-policy allkeys-lru``. Raises `MisuseError` for a client that decodes
    responses, and for a URL where redis-py is not installed.
    """

    def __init__(self, client: Any, prefix: str = "sapwood:") -> None:
        try:
            if isinstance(client, str):
                client = _imported("redis", "redis").Redis.from_url(client)
            decodes = client.get_encoder().decode_responses
        except (AttributeError, ValueError) as error:
            raise MisuseError(
                "this is no client of redis-py's, nor a URL of a server: "
                f"{error}. Pass one such as redis://host:6379/0"
            ) from error
        if not isinstance(prefix, str):
            raise MisuseError(f"prefix={prefix!r} is not text. Pass a str")
        if decodes:
            raise MisuseError(
                "this client decodes responses, and values are bytes. Make it without "
                "decode_responses=True"
            )
        self.client, self.prefix, self.path = client, prefix, f"Redis, {prefix}"

    def lease(self, name: str) -> RedisLease | None:
        """Return a lease on a name, which is to be renewed; None: it is taken."""
        check_name(name)
        lease = RedisLease(self.client, f"{self.prefix}lease:{name}")
        with reached(self.path):
            return lease if lease.take() else None

    def _read(self, name: str) -> bytes | None:
        found: bytes | None = self.client.get(self.prefix + name)
        return found

    def _write(self, name: str, data: bytes) -> None:
        self.client.set(self.prefix + name, data)

    def _remove(self, name: str) -> bool:
        return bool(self.client.delete(self.prefix + name))

    def _has(self, names: Collection[str]) -> bool:
        found: int = self.client.exists(*(self.prefix + name for name in names))
        return found == len(names)

    def _list(self) -> Iterator[tuple[str, int, int]]:
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", self.prefix) + "*"
        # A server that grows meanwhile may tell a key twice.
        keys = list(set(self.client.scan_iter(match=pattern, count=_AT_ONCE)))
        for at in range(0, len(keys), _AT_ONCE):
            yield from self._facts(keys[at : at + _AT_ONCE])

    def _facts(self, keys: list[bytes]) -> Iterator[tuple[str, int, int]]:
        asking, now = self.client.pipeline(transaction=False), time.time_ns()
        for key in keys:
            asking.strlen(key)
            asking.object("idletime", key)
        told = asking.execute(raise_on_error=False)
        for key, size, idle in zip(keys, told[::2], told[1::2], strict=True):
            if isinstance(size, int) and size:  # else it is gone, or none of ours
                used = now - idle * _SECOND if isinstance(idle, int) else 0
                # What is no text is nobody's name, and is left out for that.
                name = key[len(self.prefix.encode()) :].decode(errors="replace")
                yield name, size, used


class RedisLease:
    """A key that is there while somebody renews it, and says who that is."""

    def __init__(self, client: Any, key: str) -> None:
        self._client, self._key, self._own = client, key, secrets.token_bytes(16)

    def take(self) -> bool:
        """Return whether nobody else has it, and this has it now."""
        return bool(self._client.set(self._key, self._own, nx=True, px=_LASTS))

    def renew(self) -> None:
        """Have it last from now."""
        self._set(_LASTS)

    def release(self) -> None:
        """End it, if it is still this one's."""
        self._set(0)

    def _set(self, lasts: int) -> None:
        with reached("Redis"):
            self._client.eval(_OWN, 1, self._key, self._own, lasts)


class FsspecStore(_Remote):
    """Keeps values in a folder of a file system of fsspec's, a file each.

    ``place`` is a URL such as ``s3://bucket/folder``, or a file system, in which
    ``path`` is the folder. On a local disk a file is there whole or not; elsewhere that
    is up to the file system, and what is torn is damaged. The time of last use is when
    it was written. Raises `MisuseError` where a package for the URL is not installed.
    """

    def __init__(self, place: Any, path: str = "") -> None:
        if not (place if isinstance(place, str) else hasattr(place, "cat_file")):
            raise MisuseError(
                f"{place!r} is no file system of fsspec's, nor a URL. Pass one such as "
                "s3://bucket/folder"
            )
        if isinstance(place, str):
            core = _imported("fsspec.core", "fsspec")
            try:
                place, path = core.url_to_fs(f"{place}/{path}" if path else place)
            except (ImportError, ValueError) as error:
                raise MisuseError(
                    f"fsspec cannot open this place: {error}. Check the URL, and "
                    "install the package that fsspec needs for it"
                ) from error
        self.fs, self.folder = place, path.rstrip("/")
        self.path = str(place.unstrip_protocol(self.folder))
        named = place.protocol
        self._is_local = "file" in ((named,) if isinstance(named, str) else named)

    def _file(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def _read(self, name: str) -> bytes | None:
        try:
            found: bytes = self.fs.cat_file(self._file(name))
        except FileNotFoundError:
            return None
        return found

    def _write(self, name: str, data: bytes) -> None:
        try:
            self._write_file(name, data)
        except FileNotFoundError:
            self.fs.makedirs(self.folder, exist_ok=True)
            self._write_file(name, data)

    def _write_file(self, name: str, data: bytes) -> None:
        if not self._is_local:
            self.fs.pipe_file(self._file(name), data)
            return
        new = self._file(f".{secrets.token_hex(8)}")
        try:
            self.fs.pipe_file(new, data)
            self.fs.mv(new, self._file(name))
        except BaseException:
            with suppress(OSError):
                self.fs.rm_file(new)
            raise

    def _remove(self, name: str) -> bool:
        if not self._has([name]):  # some file systems remove what is not there
            return False
        with suppress(FileNotFoundError):
            self.fs.rm_file(self._file(name))
            return True
        return False

    def _has(self, names: Collection[str]) -> bool:
        self.fs.invalidate_cache(self.folder)
        try:
            for name in names:
                self.fs.info(self._file(name))
        except FileNotFoundError:
            return False
        return True

    def _list(self) -> Iterator[tuple[str, int, int]]:
        self.fs.invalidate_cache(self.folder)
        with suppress(FileNotFoundError):
            for each in self.fs.ls(self.folder, detail=True):
                if each["type"] == "file":
                    name = each["name"].rpartition("/")[2]
                    yield name, each["size"], _written(each)


def _written(facts: dict[str, Any]) -> int:
    """Return when a file was written, in nanoseconds; 0 where none can tell."""
    for label in ("mtime", "LastModified", "last_modified", "updated", "created"):
        when = facts.get(label)
        if isinstance(when, datetime):
            when = when.timestamp()
        if isinstance(when, int | float):
            return int(when * _SECOND)
    return 0
