"""What torch's compiler asks a cache for, and what it is never given."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

import sapwood as sw
from sapwood.persist.key import Manifest, decode_manifest, encode_manifest

torch = pytest.importorskip("torch")

SECRET = b"sixteen bytes or more"
GRAPHS, WAYS = "RemoteFxGraphCache", "RemoteAOTAutogradCache"

remote = import_module("torch._inductor.remote_cache")
module = import_module("sapwood.integrations.torch.code_cache")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Return torch's folder, which is new."""
    made = tmp_path / "torch"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(made))
    return made


@pytest.fixture
def store(tmp_path):
    """Return the path of a store."""
    return tmp_path / "store"


@contextmanager
def asked(store, name=GRAPHS, **options):
    """Install a cache; give what torch makes to ask it, and the cache."""
    with sw.install_cache(store, **options) as cache:
        yield getattr(remote, name)("an id"), cache


class Kept:
    """A store in a dict."""

    def __init__(self):
        self.values = {}

    def get(self, name):
        return self.values.get(name)

    def put(self, name, value):
        self.values[name] = value

    def delete(self, name):
        return self.values.pop(name, None) is not None

    def scan(self):
        return iter(())


@pytest.mark.parametrize("secret", [None, SECRET])
def test_what_is_put_is_found_by_the_next(store, secret):
    """Under its key, of its kind, and by who knows the secret."""
    value = {"data": "YQ==", "time_taken_ms": 3}
    with asked(store, secret=secret) as (theirs, cache):
        assert theirs.get("a") is None
        theirs.put("a", value)
    with asked(store, secret=secret) as (theirs, cache):
        assert theirs.get("a") == value
        assert theirs.get("b") is None
        assert cache.stats()["graphs"] == {"hits": 1, "misses": 1}
    with asked(store, WAYS, secret=secret) as (theirs, cache):
        assert theirs.get("a") is None
    if secret is not None:
        with asked(store, secret=secret + b"!") as (theirs, cache):
            assert theirs.get("a") is None
            assert cache.stats()["graphs"] == {"refused": 1}


def test_torch_asks_no_more_once_it_is_uninstalled(store):
    config = import_module("torch._inductor.config")
    before = config.fx_graph_remote_cache
    override = remote.RemoteFxGraphCache.backend_override_cls
    cache = sw.install_cache(store)
    assert config.fx_graph_remote_cache is True
    with pytest.raises(sw.MisuseError, match="installed already"):
        sw.install_cache(store)
    cache.uninstall()
    cache.uninstall()
    assert config.fx_graph_remote_cache is before
    assert remote.RemoteFxGraphCache.backend_override_cls is override
    sw.install_cache(store).uninstall()


def test_a_variable_names_the_cache_of_the_backend(store, monkeypatch):
    """One that is installed by hand goes before it."""
    monkeypatch.setenv("SAPWOOD_CACHE", str(store))
    try:
        module.install_named()
        (cache,) = module._installed
        module.install_named()
        assert module._installed == [cache]
        remote.RemoteFxGraphCache("an id").put("a", {"data": "YQ=="})
        assert store.is_dir()
    finally:
        cache.uninstall()
    with sw.install_cache(store / "another") as mine:
        module.install_named()
        assert module._installed == [mine]


def test_torch_asks_on_each_thread(store):
    config = import_module("torch._inductor.config")
    autograd = import_module("torch._functorch.config")
    before = autograd.enable_remote_autograd_cache
    with sw.install_cache(store):
        seen = []

        def look():
            seen.append(config.fx_graph_remote_cache)
            seen.append(autograd.enable_remote_autograd_cache)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert seen == [True, True]
    assert autograd.enable_remote_autograd_cache is before


def test_another_cache_is_asked_in_place_of_the_first(tmp_path):
    """Torch keeps what it asks for forwards with their backwards."""
    owner = module.AOTAutogradCache
    for name in ("first", "second"):
        with sw.install_cache(tmp_path / name) as cache:
            theirs = owner.get_remote_cache()
            assert theirs.get("a") is None
            theirs.put("a", {"data": name})
            assert theirs.get("a") == {"data": name}
            assert cache.stats()["forwards and backwards"]["puts"] == 1
        assert theirs.get("a") is None
        theirs.put("b", {"data": name})
        assert cache.stats()["forwards and backwards"]["puts"] == 1


@pytest.mark.parametrize(
    "label", ["cpu", "libc", "paths", "python", "sapwood", "torch"]
)
def test_another_machine_finds_nothing(store, label, monkeypatch):
    with asked(store) as (theirs, _):
        theirs.put("a", {"data": "YQ=="})
    machine = dict(module._machine())
    assert machine[label]
    machine[label] = b"another"
    monkeypatch.setattr(module, "_machine", lambda: tuple(machine.items()))
    with asked(store) as (theirs, _):
        assert theirs.get("a") is None


def test_nothing_that_was_tampered_with_is_given(monkeypatch):
    """Neither in its blob nor in its manifest; and the next put heals it."""
    store, value = Kept(), {"data": "YQ=="}
    with asked(store, secret=SECRET) as (theirs, _):
        theirs.put("a", value)
    whole = dict(store.values)
    monkeypatch.setattr(remote.RemoteCacheJsonSerde, "decode", lambda _, x: x)
    with asked(store, secret=SECRET) as (theirs, _):
        assert theirs.get("a")
    for name, was in whole.items():
        for damaged in (b"", was[:-1], was + b"!", b"A" * 64):
            store.values = {**whole, name: damaged}
            with asked(store, secret=SECRET) as (theirs, cache):
                assert theirs.get("a") is None, name
                theirs.put("a", value)
                assert theirs.get("a")
                assert "errors" not in cache.stats()["graphs"]


def test_an_entry_under_another_key_is_refused():
    """Who writes to a store cannot have one value, signed, take another's place."""
    store = Kept()
    with asked(store, secret=SECRET) as (theirs, _):
        theirs.put("a", {"data": "YQ=="})
        first = {**store.values}
        theirs.put("b", {"data": "Yg=="})
    names = [x for x in store.values if x.startswith("entry-") and x not in first]
    parts = decode_manifest(first[next(x for x in first if x.startswith("entry-"))])
    for name in names:
        key = decode_manifest(store.values[name]).key
        store.values[name] = encode_manifest(Manifest(key, parts.parts))
    with asked(store, secret=SECRET) as (theirs, cache):
        assert theirs.get("b") is None
        assert cache.stats()["graphs"]["refused"] == 1


@pytest.mark.parametrize("path", ["../x.so", "/x.so", "ab/../../x.so", "ab/x.py", "x"])
def test_no_file_is_written_but_where_torch_keeps_objects(store, path, folder):
    with asked(store) as (theirs, cache):
        name = theirs._get_key("a")
        cache._keep("graphs", name, b'{"data": "YQ=="}', [])
        parts = {"value": b'{"data": "YQ=="}'}
        cache._put("graphs", name, {**parts, "objects": f'["{path}"]'.encode()})
        assert theirs.get("a") is None
        assert cache.stats()["graphs"]["damaged"] == 1
    assert not [*folder.rglob("*.so")]


def test_objects_are_put_where_torch_looks(store, folder):
    """What is there is left as it is."""
    made = folder / "ab" / "cab.so"
    made.parent.mkdir(parents=True)
    made.write_bytes(b"an object")
    with asked(store) as (theirs, cache):
        name = theirs._get_key("a")
        cache._keep("graphs", name, b'{"data": "YQ=="}', ["ab/cab.so", "ab/gone.so"])
    made.unlink()
    with asked(store) as (theirs, _):
        assert theirs.get("a")
    assert made.read_bytes() == b"an object"
    assert [each.name for each in made.parent.iterdir()] == ["cab.so"]
    made.write_bytes(b"torch's own")
    with asked(store) as (theirs, _):
        assert theirs.get("a")
    assert made.read_bytes() == b"torch's own"


def test_a_graph_without_its_objects_is_none(store, folder):
    """Torch compiles it, and what it puts then is whole."""
    made = folder / "ab" / "cab.so"
    with asked(store) as (theirs, cache):
        name, value = theirs._get_key("a"), b'{"data": "YQ=="}'
        cache._put("graphs", name, {"value": value, "objects": b'["ab/cab.so"]'})
        assert theirs.get("a") is None
        assert cache.stats()["graphs"] == {"puts": 1, "misses": 1}
        made.parent.mkdir(parents=True)
        made.write_bytes(b"an object")
        cache._keep("graphs", name, value, ["ab/cab.so"])
        made.unlink()
        assert theirs.get("a")
    assert made.exists()


def test_an_entry_without_a_value_is_damaged(store):
    with asked(store) as (theirs, cache):
        cache._put("graphs", theirs._get_key("a"), {"objects": b"[]"})
        assert theirs.get("a") is None
        assert cache.stats()["graphs"] == {"puts": 1, "damaged": 1}


@pytest.mark.parametrize("error", [OSError, RuntimeError])
@pytest.mark.parametrize("method", ["get", "put"])
def test_a_store_that_fails_fails_nothing(method, error, monkeypatch):
    store = Kept()

    def fails(*_):
        raise error("the store is gone")

    with asked(store, secret=SECRET) as (theirs, cache):
        theirs.put("a", {"data": "YQ=="})
        monkeypatch.setattr(store, method, fails)
        theirs.put("b", {"data": "YQ=="})
        found = theirs.get("a")
        assert (found is None) == (method == "get")
        assert cache.stats()["graphs"]["errors"] == 1


def test_a_folder_that_others_may_write_is_not_used(store):
    store.mkdir()
    store.chmod(0o777)
    with pytest.warns(sw.StoreWarning, match="may be written by others"):
        cache = sw.install_cache(store)
    with cache:
        theirs = remote.RemoteFxGraphCache("an id")
        theirs.put("a", {"data": "YQ=="})
        assert theirs.get("a") is None
    assert not [*store.iterdir()]


@pytest.mark.parametrize(
    ("given", "options", "match"),
    [
        (3, {}, "store=3 is neither the path"),
        (Kept(), {}, "Pass secret="),
        ("there", {"secret": b"short"}, "at least 16 bytes"),
        ("there", {"secret": "text of sixteen letters"}, "at least 16 bytes"),
    ],
)
def test_what_is_no_cache_is_refused_by_name(given, options, match):
    with pytest.raises(sw.MisuseError, match=match):
        sw.install_cache(given, **options)


def test_who_waits_finds_what_another_compiles(store):
    """Once it is put; who waits too long, or for what failed, compiles it."""
    value, found = {"data": "YQ=="}, []
    with asked(store, wait=20) as (theirs, _):
        assert theirs.get("a") is None
        waiting = threading.Thread(target=lambda: found.append(theirs.get("a")))
        waiting.start()
        waiting.join(0.3)
        assert waiting.is_alive()
        theirs.put("a", value)
        waiting.join(20)
        assert found == [value]
        assert theirs.get("b") is None
        assert theirs.get("c") is None  # so the compilation of b has failed
        waiting = threading.Thread(target=lambda: found.append(theirs.get("b")))
        waiting.start()
        waiting.join(5)
        assert found == [value, None]
    with asked(store, wait=0.2) as (theirs, _):
        assert theirs.get("c") is None


_HEADERS = import_module("torch._inductor.config").cpp_cache_precompile_headers

PROGRAM = """
import sys
import torch
import sapwood as sw

cache = sw.install_cache(sys.argv[1], secret=b"sixteen bytes or more", wait=250)
if sys.argv[2] == "next":
    from torch._inductor import cpp_builder

    def build(self):
        raise AssertionError(f"{self.get_target_file_path()} is compiled")

    cpp_builder.CppBuilder.build = build
torch.manual_seed(3)
layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)
model = torch.nn.Sequential(*layers)
step = torch.compile(model, dynamic=True)
for size in (3, 5):
    step(torch.randn(size, 8)).square().sum().backward()
for each in model.parameters():
    print(each.grad.numpy().tobytes().hex())
print(cache.stats()["graphs"])
"""


def _started(store, tmp_path, which):
    made = tmp_path / which
    made.mkdir()
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(store), which],
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(made), "TMPDIR": str(made)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ended(process):
    said, errors = process.communicate(timeout=300)
    assert not process.returncode, errors
    *gradients, stats = said.splitlines()
    return gradients, stats


@pytest.mark.deep
def test_of_two_processes_one_compiles(store, tmp_path):
    """Each graph, and the other waits for it: gradients are alike."""
    running = [_started(store, tmp_path, which) for which in ("one", "other")]
    (one, counts), (other, others) = map(_ended, running)
    assert one == other
    told = [ast.literal_eval(each) for each in (counts, others)]
    assert sum(each.get("puts", 0) for each in told) == 2
    assert sum(each.get("hits", 0) for each in told) == 2


@pytest.mark.deep
def test_another_machine_compiles_nothing(store, tmp_path):
    """Not even what torch finds out the compiler's vectors by: gradients are alike."""
    gradients, stats = _ended(_started(store, tmp_path, "first"))
    assert [*(tmp_path / "first").rglob("*.gch")] or not _HEADERS
    assert stats == "{'misses': 2, 'puts': 2}"
    found = _ended(_started(store, tmp_path, "next"))
    assert found == (gradients, "{'hits': 2}")
    assert [*Path(tmp_path / "next").rglob("*.so")]
