"""What torch compiles, in a store: the next process, or machine, loads it instead.

Torch asks a remote cache for graphs that its own folder does not have. Its keys hold
the graph and torch's version; the keys here hold the machine, too, since code compiled
for another CPU may end the process. Torch's remote cache does not keep the libraries
that are compiled from C++, so that a new machine compiles them again: they are stored
here beside their graph, and are put into torch's folder before torch gets the graph.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import os
import platform
import re
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import cache, partial, wraps
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import torch
from torch._functorch import config as functorch
from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
from torch._inductor import codecache, config, cpp_builder, cpu_vec_isa
from torch._inductor import remote_cache as remote

from sapwood import knobs
from sapwood.errors import MisuseError, StoreError, StoreWarning
from sapwood.persist.disk import DiskStore, opened
from sapwood.persist.entries import Absent, Entries
from sapwood.persist.flight import flight
from sapwood.persist.format import join, read
from sapwood.persist.key import Key, encode_key, entry_name
from sapwood.tree.nests.plain import to_text
from sapwood.version import __version__

_FORMAT: Final = b"1"
_DOMAIN: Final = b"sapwood code cache 1\0"

_GRAPHS: Final = "graphs"
_CACHES: Final = {
    "RemoteFxGraphCache": _GRAPHS,
    "RemoteAOTAutogradCache": "forwards and backwards",
}
"""Torch's caches that are served, and what stats call them."""

_SWITCHES: Final = (
    (config, "fx_graph_remote_cache"),
    (functorch, "enable_remote_autograd_cache"),
)
_OVERRIDE: Final = "backend_override_cls"
_FORCED: Final = "env_value_force"

_OBJECTS: Final = "objects"
_PROBES: Final = "probes"
"""Libraries that torch compiles to see which vector instructions work here."""

_OBJECT: Final = re.compile(r"[a-z0-9]{2}/[A-Za-z0-9_.-]+\.so")
"""Where torch keeps compiled C++, below its folder; nothing is written elsewhere."""

_installed: list[CodeCache] = []
_lock: Final = threading.Lock()
_noted: Final = threading.local()
_probed: Final[set[str]] = set()


class CodeCache:
    """Serves torch's compiler from ``entries``; with a ``secret``, signed ones only.

    What torch stores are pickles and machine code. So what is not as it was put is
    refused before a byte of it is read: by its digest, and its signature if there is
    a secret. A store that fails is no error: torch compiles.
    """

    def __init__(self, entries: Entries, secret: bytes | None, wait: float) -> None:
        self._entries, self._secret, self._wait = entries, secret, wait
        self._tally: Counter[tuple[str, str]] = Counter()
        self._undo, self._probes = ExitStack(), list[str]()
        self._probed = False

    def install(self) -> None:
        """Have torch ask this from now on. Raises `MisuseError` where it asks one."""
        with _lock:
            if _installed:
                raise MisuseError(
                    "a cache of compiled code is installed already. Call its "
                    "uninstall() first"
                )
            _installed.append(self)
        try:
            self._switch_on()
        except BaseException:
            self.uninstall()
            raise

    def _switch_on(self) -> None:
        for module, name in _SWITCHES:
            # What is assigned to the module itself only this thread would read.
            entry = module._config[name]
            self._undo.callback(setattr, entry, _FORCED, getattr(entry, _FORCED))
            setattr(entry, _FORCED, True)
        for name, tenant in _CACHES.items():
            owner = getattr(remote, name)
            made = partial(_Backend, self, tenant)
            self._undo.callback(setattr, owner, _OVERRIDE, getattr(owner, _OVERRIDE))
            setattr(owner, _OVERRIDE, staticmethod(made))
        # Torch keeps one of these, or that there was none.
        forget = AOTAutogradCache.get_remote_cache.cache_clear
        self._undo.callback(forget)
        forget()
        _note_objects()

    @property
    def is_installed(self) -> bool:
        """Whether torch is to ask this."""
        return self in _installed

    def uninstall(self) -> None:
        """Have torch ask no more; what it has loaded stays. Once is enough."""
        with _lock, suppress(ValueError):
            _installed.remove(self)
        self._undo.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def stats(self) -> dict[str, dict[str, int]]:
        """Return how often what was found, and put, by what it is.

        Outcomes are hits, misses, puts, damaged, refused and errors.
        """
        with _lock:
            told = sorted(self._tally.items())
        found: dict[str, dict[str, int]] = {}
        for (tenant, outcome), count in told:
            found.setdefault(tenant, {})[outcome] = count
        return found

    def find(self, tenant: str, name: str) -> bytes | None:
        """Return what torch has put under a key, with its objects in their places."""
        _noted.made = []  # of the graph that torch compiles where this misses
        _end_flight()  # of one whose compilation failed
        if not self._probed:  # torch probes whether it then compiles or not
            self._probed = True
            found = self._whole(_PROBES, "")
            self._probes = [] if found is None else found[1]
        parts = self._whole(tenant, name)
        if parts is None and self._wait and tenant == _GRAPHS:
            place = entry_name(_key_of(tenant, name).digest)
            is_there, _noted.landed = flight(self._entries.store, place, self._wait)
            parts = self._whole(tenant, name) if is_there else None
        return None if parts is None else parts[0]

    def _whole(self, tenant: str, name: str) -> tuple[bytes, list[str]] | None:
        """Return a value, and the paths of its objects, which are in their places."""
        _noted.whole = None
        parts = self._find(tenant, name)
        if parts is None:
            return None
        try:
            value = parts["value"]
            paths: Any = read(parts["objects"], [str], "the objects of a graph")
            there = [self._bring(path) for path in paths]
        except (KeyError, StoreError):
            self._count(tenant, "damaged")
            return None
        if not all(there):  # torch compiles it, and puts all of it again
            self._count(tenant, "misses")
            return None
        _noted.whole = self
        self._count(tenant, "hits")
        return value, list(paths)

    def keep(self, tenant: str, name: str, value: bytes) -> None:
        """Keep what torch puts under a key, and the objects that it has made for it."""
        made, _noted.made, _noted.whole = getattr(_noted, "made", []), [], None
        libraries = [load() for load in made]
        found = [getattr(x, "__file__", getattr(x, "_name", "")) for x in libraries]
        self._keep(tenant, name, value, _paths(found))
        probes = _paths(tuple(_probed))
        if probes and probes != self._probes:
            self._probes = probes
            self._keep(_PROBES, "", b"", probes)
        _end_flight()

    def _keep(self, tenant: str, name: str, value: bytes, paths: Sequence[str]) -> None:
        folder, there = Path(codecache.cache_dir()), []
        for path in paths:
            with suppress(OSError):  # gone again: it is compiled where it is needed
                self._put(_OBJECTS, path, {"value": (folder / path).read_bytes()})
                there.append(path)
        self._put(tenant, name, {"value": value, "objects": to_text(there)})

    def _bring(self, path: str) -> bool:
        """Put an object where torch looks for it; return whether it is there."""
        if _OBJECT.fullmatch(path) is None:
            raise StoreError(f"a compiled graph names {path!r}, which is no object")
        place = Path(codecache.cache_dir()) / path
        if os.path.exists(place):  # noqa: PTH110 - it does not raise
            return True
        parts = self._find(_OBJECTS, path)
        if parts is None:
            return False
        try:
            codecache.write_atomic(str(place), parts["value"], make_dirs=True)
        except OSError:
            self._count(_OBJECTS, "errors")
            return False
        self._count(_OBJECTS, "hits")
        return True

    def _find(self, tenant: str, name: str) -> Mapping[str, bytes] | None:
        key = _key_of(tenant, name)
        found = self._entries.find(key)
        if isinstance(found, Absent):
            self._count(tenant, found.outcome)
            return None
        if not self._is_signed(key, found):
            self._count(tenant, "refused")
            return None
        return found

    def _put(self, tenant: str, name: str, parts: dict[str, bytes]) -> None:
        key = _key_of(tenant, name)
        if self._secret is not None:
            parts["signature"] = _signature(self._secret, key, parts)
        kept = self._entries.put(key, parts)
        self._count(tenant, "puts" if kept else "errors")

    def _is_signed(self, key: Key, parts: Mapping[str, bytes]) -> bool:
        if self._secret is None:
            return True
        own = {label: part for label, part in parts.items() if label != "signature"}
        expected = _signature(self._secret, key, own)
        return hmac.compare_digest(expected, parts.get("signature", b""))

    def failed(self, tenant: str, error: Exception) -> None:
        """Note what a store has raised, and tell the log."""
        self._count(tenant, "errors")
        said = f"{type(error).__qualname__}: {error}"
        logging.getLogger("sapwood").warning("the cache of compiled code: %s", said)

    def _count(self, tenant: str, outcome: str) -> None:
        with _lock:
            self._tally[tenant, outcome] += 1


def _end_flight() -> None:
    getattr(_noted, "landed", bool)()


def install_cache(
    store: str | os.PathLike[str] | Any,
    *,
    secret: bytes | None = None,
    wait: float = 0.0,
) -> CodeCache:
    """Have torch's compiler ask a store first, until `uninstall` of what this returns.

    ``store`` is the path of a folder that only this user can write, which may become
    as large as the setting ``store_limit`` says, or an object with the four methods of
    a store. With ``secret``, at least 16 bytes that all who share it know, entries are
    signed, and others refused; an object needs one. ``wait``: how many seconds to wait
    for another process that compiles the same graph. Warns with `StoreWarning` where
    nothing can be put into a folder. Raises `MisuseError` where a cache is installed.
    """
    if isinstance(wait, bool | str | bytes) or not 0 <= wait < math.inf:
        raise MisuseError(f"wait={wait!r} is no time to wait. Pass seconds, 0 or more")
    if secret is not None and (type(secret) is not bytes or len(secret) < 16):
        raise MisuseError(
            "secret= is not bytes, or is too short. Pass at least 16 bytes, drawn at "
            "random, such as secrets.token_bytes(32)"
        )
    is_path = isinstance(store, str | os.PathLike)
    store = opened(store, knobs.current().store_limit)
    if secret is None and not is_path:
        raise MisuseError(
            "what is stored is code that will run, and nobody knows who else writes to "
            f"a {type(store).__qualname__}. Pass secret=, which signs it"
        )
    entries = Entries(store)
    if isinstance(store, DiskStore) and (reason := store.trouble()):
        entries.stopped = reason
        said = f"no compiled code is kept: {reason}"
        warnings.warn(said, StoreWarning, stacklevel=2)
    made = CodeCache(entries, secret, wait)
    made.install()
    return made


def install_named() -> None:
    """Install the cache that the setting ``cache`` names, if one and none is there."""
    folder = knobs.current().cache
    if folder and not _installed:
        install_cache(folder)


class _Backend(remote.RemoteCacheBackend[bytes]):  # type: ignore[misc]
    """What torch asks for the values of one of its caches."""

    def __init__(self, cache: CodeCache, tenant: str) -> None:
        super().__init__()
        self._cache, self._tenant = cache, tenant

    def _get(self, key: str) -> bytes | None:
        found: bytes | None = self._asked(self._cache.find, key)
        return found

    def _put(self, key: str, data: bytes) -> None:
        self._asked(self._cache.keep, key, data)

    def _asked(self, ask: Callable[..., Any], *given: Any) -> Any:
        """Ask the cache; whatever a store raises, torch compiles."""
        if not self._cache.is_installed:
            return None
        try:
            return ask(self._tenant, *given)
        except Exception as error:  # noqa: BLE001 - stores are of any kind
            self._cache.failed(self._tenant, error)
            return None


def _signature(secret: bytes, key: Key, parts: Mapping[str, bytes]) -> bytes:
    """Return the HMAC-SHA256 of a key and the digests of its parts (RFC 2104)."""
    told = {name: hashlib.sha256(part).digest() for name, part in parts.items()}
    return hmac.digest(secret, _DOMAIN + join({"": encode_key(key), **told}), "sha256")


def _key_of(tenant: str, name: str) -> Key:
    return Key(
        (
            ("format", _FORMAT),
            ("tenant", f"torch.compile, {tenant}".encode()),
            ("torch's key", name.encode()),
            *_machine(),
        )
    )


@cache
def _machine() -> tuple[tuple[str, bytes], ...]:
    """Return what compiled code needs of the machine and of what runs there."""
    told = {
        "cpu": f"{platform.machine()}, {_cpu_flags()}",
        "libc": " ".join(platform.libc_ver()),
        "python": str(sys.implementation.cache_tag),
        "sapwood": __version__,
        "torch": f"{torch.__version__}, {torch.version.git_version}",
        # Torch names objects by the compiler's command line, which has these.
        "paths": f"{torch.__path__[0]}, {sys.prefix}, {config.cpp.cxx}",
        "device": _device(),
    }
    return tuple((label, text.encode()) for label, text in told.items())


def _cpu_flags() -> str:
    """Return a digest of what the CPU can do: code for AMX ends a process elsewhere."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            label, _, flags = line.partition(":")
            if label.strip() in {"flags", "Features"}:
                words = " ".join(sorted(flags.split()))
                return hashlib.sha256(words.encode()).hexdigest()
    return platform.processor()


def _device() -> str:
    if not torch.cuda.is_available():
        return "none"
    try:
        facts = torch.cuda.get_device_properties(torch.cuda.current_device())
    except RuntimeError:  # in a process that was forked, for example
        return "unknown"
    driver = torch._C._cuda_getDriverVersion()
    return f"{facts.name}, {facts.multi_processor_count} SMs, driver {driver}"


@cache
def _note_objects() -> None:
    """Have what torch compiles from C++ noted, once a process.

    Where a torch has another way to do it, that is compiled as ever, and not kept.
    """
    builder, vectors = cpp_builder.CppBuilder, cpu_vec_isa.VecISA
    loads = getattr(codecache.CppCodeCache.load_async, "__func__", None)
    if loads is not None:
        codecache.CppCodeCache.load_async = classmethod(_noting_loads(loads))
    for owner, name, noting in (
        (builder, "get_target_file_path", _noting_targets),
        (vectors, "check_build", _noting_probes),
        (codecache, "_precompile_header", _without_headers),
    ):
        plain = getattr(owner, name, None)
        if plain is not None:
            setattr(owner, name, noting(plain))


_Plain: TypeAlias = Callable[..., Any]


def _noting_loads(load: _Plain) -> _Plain:
    @wraps(load)
    def noting(cls: type, *args: Any, **kwargs: Any) -> Any:
        made = load(cls, *args, **kwargs)
        if _installed:
            getattr(_noted, "made", []).append(made)
        return made

    return noting


def _noting_targets(target: _Plain) -> _Plain:
    @wraps(target)
    def noting(builder: Any) -> Any:
        path = target(builder)
        if getattr(_noted, "probes", False):
            _probed.add(path)
        return path

    return noting


def _noting_probes(check: _Plain) -> _Plain:
    @wraps(check)
    def probing(vectors: Any, code: str) -> Any:
        _noted.probes = True
        try:
            return check(vectors, code)
        finally:
            _noted.probes = False

    return probing


def _without_headers(prepare: _Plain) -> _Plain:
    """Prepare no headers, which takes seconds, for a graph whose objects are there."""

    @wraps(prepare)
    def preparing(*args: Any, **kwargs: Any) -> Any:
        cache = getattr(_noted, "whole", None)
        there = cache is not None and cache.is_installed
        return "" if there else prepare(*args, **kwargs)

    return preparing


def _paths(found: Sequence[str]) -> list[str]:
    """Return where objects are, below torch's folder; without those elsewhere."""
    folder = codecache.cache_dir()
    paths = sorted({os.path.relpath(each, folder) for each in found if each})
    return [path for path in paths if _OBJECT.fullmatch(path)]
