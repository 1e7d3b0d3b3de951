"""Files: what can be saved, what comes back, and what is said where it cannot."""

from __future__ import annotations

import json
import os
import struct
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw
from sapwood.graphs.recording import Kind
from sapwood.integrations.numpy.integration import NumpyIntegration
from sapwood.persist.format import join, split


@pytest.fixture
def opened(open_runtime):
    """Return a runtime on a device whose calls are counted."""
    return open_runtime()


@pytest.fixture
def rt(opened):
    """Return a runtime."""
    return opened.rt


@pytest.fixture
def path(tmp_path):
    """Return where a file may be."""
    return tmp_path / "f.sapwood"


def _times(f, *args, calls=3):
    for _ in range(calls):
        f(*args)
    return f


def _host(array):
    return np.asarray(array).tolist()


def test_a_loaded_function_is_called_like_the_saved_one(rt, path):
    """Nests, keywords and plain values; and it knows what it is."""

    def f(tree, *, factor=2.0, flag=False):
        return {"scaled": tree["x"] * factor, "flag": flag}

    f = rt.graph(f, name="scale")
    for _ in range(2):
        f({"x": rt.array(np.ones(2))}, factor=3.0)
    sw.save(f, path)
    g = rt.load(path)
    assert repr(g) == "<loaded scale>"
    found = g({"x": rt.array(np.full(2, 2.0))}, factor=3.0)
    assert _host(found["scaled"]) == [6.0, 6.0]
    assert found["flag"] is False
    assert g.stats().restored == 1
    assert g.stats().recordings == g.stats().warmups == 0


def test_other_calls_are_refused_by_what_there_is(rt, path):
    """The message says which file, what it holds and what to do; nothing is run."""
    f = _times(rt.graph(lambda x: x + 1.0, name="grow"), rt.array(np.ones(2)))
    sw.save(f, path)
    g = rt.load(path)
    for args in ((rt.array(np.ones(3)),), (), (rt.array(np.ones(2)), 1), (object(),)):
        for _ in range(2):
            with pytest.raises(sw.MisuseError, match=r"no recording for.*float64\[2\]"):
                g(*args)
    assert str(path) in g.explain() or "the file has no recording" in g.explain()
    assert _host(g(rt.array(np.zeros(2)))) == [1.0, 1.0]
    with sw.disabled(), pytest.raises(sw.MisuseError, match="grow was loaded from"):
        g(rt.array(np.zeros(2)))


def test_why_a_recording_is_not_taken_up_is_told(rt, path, monkeypatch):
    """Where there is one for such arguments, however often it is called."""
    f = _times(rt.graph(lambda x: x + 1.0, name="grow"), rt.array(np.ones(2)))
    sw.save(f, path)
    g, x = rt.load(path), rt.array(np.ones(2))

    def refuse(name, _params):
        raise ValueError(f"{name} is refused on purpose")

    with monkeypatch.context() as patch:
        files = NumpyIntegration.files._replace(check_op=refuse)
        patch.setattr(NumpyIntegration, "files", files)
        for _ in range(40):
            with pytest.raises(sw.MisuseError, match=r"not taken up: op 0: .* purpose"):
                g(x)
    with pytest.raises(sw.MisuseError, match="no recording for such arguments"):
        g(rt.array(np.ones(3)))
    with sw.disabled(), pytest.raises(sw.MisuseError, match="is not taken up"):
        g(x)
    assert _host(rt.load(path)(x)) == [2.0, 2.0]


def test_two_loads_have_arrays_of_their_own(rt, path):
    """State that one moves on is not the other's, nor the saved function's."""
    total = rt.array(np.zeros(2))

    def f(x):
        total[...] += x
        return total * 1.0

    f, one = rt.graph(f), rt.array(np.ones(2))
    _times(f, one)
    sw.save(f, path)
    g, h = rt.load(path), rt.load(path)
    assert [_host(g(one))[0] for _ in range(3)] == [4.0, 5.0, 6.0]
    assert _host(h(one)) == [4.0, 4.0]
    assert _host(f(one)) == [4.0, 4.0]
    assert _host(g.state["total"]) == [6.0, 6.0]


def test_arguments_at_fixed_addresses_come_along(rt, path):
    """Their contents, as they were when the file was written; for each signature."""

    def f(w, x):
        w += x
        return w * 2.0

    f = rt.graph(f)
    kept = {n: rt.array(np.full(n, float(n))) for n in (2, 3)}
    for n, w in kept.items():
        _times(f, w, rt.array(np.ones(n)))
    sw.save(f, path)
    g = rt.load(path)
    found = [_host(g.arguments[name]) for name in ("w", "w (2)")]
    assert found == [[5.0] * 2, [6.0] * 3]
    assert _host(g(g.arguments["w (2)"], rt.array(np.ones(3)))) == [14.0] * 3
    assert _host(g.arguments["w (2)"]) == [7.0] * 3


def test_a_loaded_function_can_be_saved_again(rt, path, tmp_path):
    """And goes on where it was."""
    o = SimpleNamespace(h=rt.array(np.zeros(2)))

    def f(x):
        o.h = o.h + x
        return o.h * 2.0

    f, one = rt.graph(f), rt.array(np.ones(2))
    _times(f, one, calls=4)
    sw.save(f, path)
    g = rt.load(path)
    assert [_host(g(one))[0] for _ in range(3)] == [10.0, 12.0, 14.0]
    again = tmp_path / "again.sapwood"
    sw.save(g, again)
    h = rt.load(again)
    assert [_host(h(one))[0] for _ in range(3)] == [16.0, 18.0, 20.0]


def test_methods_are_saved_with_their_object(rt, path):
    """What a bound method reads of its object is state."""

    class Model:
        def __init__(self):
            self.w = rt.array(np.ones(2))

        @rt.graph
        def step(self, x):
            return x * self.w

    model = Model()
    _times(model.step, rt.array(np.ones(2)))
    model.w[...] = 3.0
    sw.save(model.step, path)
    g = rt.load(path)
    assert list(g.state) == ["self.w"]
    assert _host(g(rt.array(np.full(2, 2.0)))) == [6.0, 6.0]


def test_recordings_for_values_that_are_no_more_are_left_out(rt, path):
    """A file holds what the function does now."""
    o = SimpleNamespace(rate=2.0)
    f = rt.graph(lambda x: x * o.rate, name="rated")
    one = rt.array(np.ones(2))
    _times(f, one)
    o.rate = 3.0
    _times(f, one)
    sw.save(f, path)
    g = rt.load(path)
    assert len(g.bundle.recordings) == 1
    assert _host(g(one)) == [3.0, 3.0]


def test_a_donated_array_that_is_returned_is_written(rt):
    """Whoever gets it back gets what the function made of it."""

    def f(state, x):
        state += x
        return state

    f = rt.graph(f, donate="state")
    for k in range(5):
        found = f(rt.array(np.full(3, float(k))), rt.array(np.ones(3)))
        assert _host(found) == [k + 1.0] * 3


# What cannot be saved.


def test_only_graphed_functions_are_saved(path):
    """Anything else is a wrong argument."""
    with pytest.raises(sw.MisuseError, match="is not a graphed function"):
        sw.save(len, path)


def test_there_is_nothing_to_save_before_a_recording(rt, path):
    """A warm-up is none; the message says what to do."""
    f = rt.graph(lambda x: x + 1.0, name="early")
    for _ in range(2):
        with pytest.raises(sw.StoreError, match=r"early has no recording.*warm\(\)"):
            sw.save(f, path)
        f(rt.array(np.ones(2)))
    f.warm(rt.array(np.ones(2)))
    sw.save(f, path)
    assert _host(rt.load(path)(rt.array(np.ones(2)))) == [2.0, 2.0]


def test_what_no_file_can_hold_is_named(rt, path):
    """Eager regions, slots of arguments, objects: refused by name, with a remedy."""

    @sw.eager
    def log(x):
        pass

    def live(x):
        y = x + 1.0
        log(y)
        return y * 2.0

    def binds(holder, x):
        holder.h = x + 1.0

    def looks(holder, x):
        return x * holder.rate

    class Holder:
        h, rate = None, 2.0

    holder, one = Holder(), rt.array(np.ones(2))
    told = {
        rt.graph(live): ((one,), "eager regions"),
        rt.graph(binds): ((holder, one), "holder.h, which is in an argument"),
        rt.graph(lambda x: (x + 1.0, holder), name="o"): ((one,), "no plain value"),
        rt.graph(looks): ((holder, one), "an argument is no array and no plain value"),
    }
    for f, (args, why) in told.items():
        _times(f, *args, calls=4)
        with pytest.raises(sw.StoreError, match=f"cannot be saved: .*{why}"):
            sw.save(f, path)
        assert not path.exists()


def test_a_file_is_replaced_as_a_whole(rt, path, tmp_path):
    """Where it cannot be written the old one stays, and nothing else is left."""
    f = _times(rt.graph(lambda x: x + 1.0), rt.array(np.ones(2)))
    sw.save(f, path)
    first = path.read_bytes()
    sw.save(f, path)
    assert path.read_bytes() == first
    (tmp_path / "folder").mkdir()
    for wrong in (tmp_path / "folder", tmp_path / "none" / "f", path / "f"):
        with pytest.raises(sw.StoreError, match="cannot be written"):
            sw.save(f, wrong)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["f.sapwood", "folder"]
    assert not list((tmp_path / "folder").iterdir())


# What cannot be loaded.


def test_files_that_are_none_are_refused(rt, path, tmp_path):
    """Missing, a folder, empty, cut off, or another's."""
    f = _times(rt.graph(lambda x: x + 1.0), rt.array(np.ones(2)))
    sw.save(f, path)
    whole = path.read_bytes()
    with pytest.raises(sw.StoreError, match="cannot be read"):
        rt.load(tmp_path / "missing")
    with pytest.raises(sw.StoreError, match="cannot be read"):
        rt.load(tmp_path)
    for wrong in (b"", b"PK\3\4", whole[:-1], whole + b"\0"):
        path.write_bytes(wrong)
        with pytest.raises(sw.StoreError, match=r"not written by sapwood|damaged"):
            rt.load(path)


def test_another_kind_of_device_is_named(rt, path, open_runtime):
    """What was laid out for other pages is not loaded."""
    f = _times(rt.graph(lambda x: x + 1.0), rt.array(np.ones(2)))
    sw.save(f, path)
    with pytest.raises(sw.StoreError, match=r"another kind of device.*65536.*131072"):
        open_runtime(page=1 << 17).rt.load(path)


def test_a_closed_runtime_has_nothing_to_save(open_runtime, path):
    """That it is closed is said, and nothing is written."""
    rt = open_runtime().rt
    f = _times(rt.graph(lambda x: x + 1, name="late"), rt.array(np.ones(3)))
    rt.close()
    with pytest.raises(
        sw.MisuseError, match=r"runtime of late is closed.*before close"
    ):
        sw.save(f, path)
    assert not path.exists()


@pytest.mark.parametrize("place", ["none/f.sapwood", ".", "/"])
def test_a_place_that_cannot_be_written_is_named_as_it_was(rt, tmp_path, place):
    """Not by another name that only the library knows, and nothing is left there."""
    f = _times(rt.graph(lambda x: x + 1), rt.array(np.ones(3)))
    path = str(tmp_path / place)
    with pytest.raises(sw.StoreError) as caught:
        sw.save(f, path)
    said = str(caught.value)
    assert said.startswith(f"{path} cannot be written: ")
    assert str(os.getpid()) not in said.removeprefix(path)
    assert list(tmp_path.iterdir()) == []


def test_a_closed_runtime_loads_nothing(open_runtime, path):
    """It says so."""
    opened = open_runtime()
    opened.rt.close()
    with pytest.raises(sw.MisuseError, match="closed"):
        opened.rt.load(path)


def _table(sections, name):
    return json.loads(sections[name])


def _text(table):
    return json.dumps(table, separators=(",", ":"), sort_keys=True).encode()


@pytest.fixture
def respelled(rt, path):
    """Return what changes a saved file and calls the function in it."""
    f = rt.graph(lambda x: np.maximum(x[1:] * 2.0, 0.0) + x[:-1], name="sound")
    _times(f, rt.array(np.ones(4)), calls=2)
    sw.save(f, path)

    def call(change):
        sections = split(path.read_bytes())
        ops = _table(sections, "0.ops")
        sections["0.params"] = change(ops, sections["0.params"]) or sections["0.params"]
        path.write_bytes(join(sections | {"0.ops": _text(ops)}))
        g = rt.load(path)
        try:
            return _host(g(rt.array(np.ones(4))))
        except sw.MisuseError:
            return g.explain()

    return call


def _with_op(ops, params, kind, words, relocations):
    """Put one op before all others."""
    body = struct.pack(f"<{len(words)}Q", *words)
    ops["ops"].insert(0, [kind, len(body), None, "", [1] * 6 + [0]])
    ops["edges"] = [[a + 1, b + 1] for a, b in ops["edges"]]
    for each in ops["relocations"]:
        each[0] += 1
    ops["relocations"] = [[0, at, symbol, 0] for at, symbol in relocations] + ops[
        "relocations"
    ]
    return body + params


@pytest.mark.parametrize(
    ("kind", "words", "relocations", "told"),
    [
        (Kind.EMPTY, (), (), None),
        (Kind.COPY, (0, 0, 0), (), None),
        (Kind.SET, (0, 255, 8), ((0, 0),), None),
        (Kind.SET, (0, 256, 8), ((0, 0),), "a byte is 0 to 255"),
        (Kind.COPY, (0, 0, 8), ((0, 0), (8, 0)), "may not overlap"),
        (Kind.COPY, (0, 0, 1 << 40), ((0, 0), (8, 1)), "lead outside"),
        (Kind.COPY, (0, 0, 33), ((0, 0), (8, 1)), "lead outside"),
        (Kind.SET, (0, 0, 33), ((0, 1),), "lead outside"),
        (Kind.SET, (0, 0, 3 << 35), ((0, 0),), "more memory than the device has"),
        (Kind.SET, (0x6000_0000_0000, 0, 8), (), "not relocated"),
    ],
    ids=str,
)
def test_ops_that_a_device_would_not_take_are_no_error_of_a_call(
    respelled, kind, words, relocations, told
):
    """Each is a reason why there is no recording; harmless ones do no harm."""

    def change(ops, params):
        return _with_op(ops, params, kind, words, relocations)

    found = respelled(change)
    if told is None:
        assert found == [3.0, 3.0, 3.0]
    else:
        assert told in found


@pytest.mark.parametrize(
    "name", ["call:nothing", "fill:concatenate", "make:tile", "scatter", "draw:random"]
)
def test_kernels_that_would_fail_are_never_run(respelled, name):
    """A kernel that does not take such parameters is found out before it runs."""

    def change(ops, _):
        ops["ops"][0][3] = name

    assert f"{name}" in respelled(change)


def test_results_of_unknown_classes_can_still_be_looked_at(rt, path):
    """Calls say which class is missing; `nested=False` does without it."""

    class Here:
        def __init__(self, x):
            self.x = x

    name = "Nowhere"
    Here.__qualname__, Here.__module__ = name, __name__
    globals()[name] = Here
    sw.register_container(Here, lambda h: ([h.x], None), lambda _, c: Here(*c))
    f = _times(rt.graph(lambda x: Here(x + 1.0), name="f"), rt.array(np.ones(2)))
    sw.save(f, path)
    assert type(rt.load(path)(rt.array(np.ones(2)))) is Here
    del globals()[name]
    with pytest.raises(sw.StoreError, match=r"Nowhere, which is not known.*import"):
        rt.load(path)
    (leaf,) = rt.load(path, nested=False)(rt.array(np.ones(2)))
    assert _host(leaf) == [2.0, 2.0]
