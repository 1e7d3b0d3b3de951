"""One program, three worlds: replayed, eager and plain NumPy must agree bit for bit.

A program is a generator function. It gets a `World`, makes its arrays, functions,
streams and generators there, and yields what must be the same in all three.
"""

from __future__ import annotations

import dataclasses
import gc
import os
import struct
from contextlib import ExitStack, nullcontext, suppress
from warnings import catch_warnings, simplefilter

import numpy as np
import pytest

import sapwood as sw
from tests.laws.frozen import counting
from tests.support import unseen
from tests.support.frameworks import (
    CUPY_IN_C,
    MINIMAL,
    TORCH,
    TORCH_IN_C,
    TORCH_ON_HOST,
    collect_after,
    framework_of,
    make_rig_of,
)
from tests.support.rig import CUDA, INEXACT, VARIANTS

_OUTCOME = pytest.StashKey[bool]()

_UNTRAPPED = "CuPy's uses of arrays are not trapped: nothing ends with a step"
_BACK = "what is copied there is copied back, too, for all that is known of kernels"
_UNSEEN = "CuPy launches unseen"
_SMALL = "counts small pages"

NOT_ON_CUDA = {
    "test_a_closed_runtime_computes_no_more": "CuPy computes without a runtime",
    "test_a_donated_array_is_told_from_one_that_a_step_ended": _UNTRAPPED,
    "test_a_donated_output_is_stale": _UNTRAPPED,
    "test_a_failed_capture_leaves_the_generator_unmoved": "CuPy's pool gives memory",
    "test_a_foreign_address_is_refused": f"{_UNSEEN}: no line is known",
    "test_a_host_read_is_refused_on_call_one[cuda-allclose]": "CuPy's stays there",
    "test_a_number_that_looks_like_an_address": "it is refused where it looks like one",
    "test_a_revoked_output_is_stale": _UNTRAPPED,
    "test_a_stale_output_can_be_shown": _UNTRAPPED,
    "test_a_step_inside_an_eager_region": _UNTRAPPED,
    "test_a_state_carried_by_a_slot": _BACK,
    "test_a_step_on_another_thread": _UNTRAPPED,
    "test_a_thousand_times_itself": _BACK,
    "test_an_argument_that_a_step_ends": _UNTRAPPED,
    "test_an_exception_on_the_recording_call": "what fails there runs again, eagerly",
    "test_apart.py": f"{_UNSEEN}: who asks is not recorded",
    "test_arrays_are_keys": "CuPy's arrays have no hash",
    "test_arrays_that_are_read_by_a_name_are_keys": "CuPy's arrays have no hash",
    "test_as_many_outputs_are_kept_as_without_recordings": _SMALL,
    "test_as_many_ops_as_eager": f"{_UNSEEN}: its ops are not counted",
    "test_bound_outputs_may_be_kept": _UNTRAPPED,
    "test_copied_bytes_are_the_leaves": _BACK,
    "test_copied_leaves_cost_a_call_together": _BACK,
    "test_copies_are_per_storage": _BACK,
    "test_donated_arguments": _UNTRAPPED,
    "test_draws_of_many_kinds": "uniform numbers only",
    "test_escaped_outputs_are_revoked_too": _UNTRAPPED,
    "test_every_call_may_fail[cuda-streams]": "entering a stream may fail",
    "test_every_kind_of_write": "CuPy reads masks on the host",
    "test_evicted_memory_returns": _SMALL,
    "test_four_threads": "sums are rounded in another order than NumPy's",
    "test_held_outputs_are_never_evicted": _SMALL,
    "test_keep_is_honoured": _UNTRAPPED,
    "test_nothing_of_a_limit_is_left_unexplained": _SMALL,
    "test_ops_in_another_order_are_tried_again[cuda": "warm-ups are told of no ops",
    "test_out_of_memory_while_recording[cuda-limit]": _SMALL,
    "test_nearly_as_much_is_kept_as_without_recordings": _SMALL,
    "test_passed_through_outputs_are_revoked_too": _UNTRAPPED,
    "test_pinned_arrays_are_written_in_place": _BACK,
    "test_raised_errors_travel": "CuPy computes without a runtime",
    "test_random_programs_agree[cuda-10]": "CuPy brings lists of indices from the host",
    "test_random_programs_agree[cuda-7]": "CuPy brings lists of indices from the host",
    "test_recordings_are_evicted_before_memory_runs_out": _SMALL,
    "test_steps_": _UNTRAPPED,
    "test_the_runtime_is_as_before[cuda-allclose]": "CuPy's stays there",
    "test_the_state_may_be_saved_and_restored": "the test reads NumPy's bit generator",
    "test_two_runtimes_do_not_mix": _UNSEEN,
    "test_unaligned_views": "CuPy faults on them, eagerly too",
    "test_unsupported_calls_pass_through[cuda-allclose]": "CuPy's stays there",
    "test_unsupported_calls_pass_through[cuda-mask]": "CuPy reads unseen",
    "test_unsupported_calls_pass_through[cuda-nonzero]": "CuPy reads unseen",
    "test_values_that_take_turns[cuda-True": f"{_UNSEEN}: who asks is not recorded",
    "test_what_holds_an_array_is_named[cuda-a set]": "CuPy's arrays have no hash",
    "test_what_is_written_and_read_overlaps": "undefined in CuPy; refused by name",
}
"""What CuPy's arrays do otherwise, by test or by the beginning of its file's name."""

INEXACT_TOO = (
    "test_assigned",
    "test_filled",
    "test_new_containers",
    "test_moving_slots",
    "test_nothing_kept",
    "test_ambient_arrays",
    "test_eager_regions",
    "test_region_",
    "test_put_back",
    "test_skips",
)
"""Beginnings of the names of files whose laws run where captures matter, too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Leave out cases of other frameworks; skip what CuPy's arrays do otherwise."""
    items[:] = [item for item in items if _is_for_its_framework(item)]
    for item in items:
        if not _is_cupys(item):
            continue
        names = item.path.name, item.name
        for name, why in NOT_ON_CUDA.items():
            if any(each.startswith(name) for each in names):
                item.add_marker(pytest.mark.skip(reason=f"not on CUDA: {why}"))


def _is_for_its_framework(item):
    mark = item.get_closest_marker("only")
    if mark is None or not hasattr(item, "callspec"):
        return True
    kind = item.callspec.params.get("make_rig")
    torchs = kind in {TORCH, TORCH_IN_C, TORCH_ON_HOST}
    return torchs == (mark.args[0] == "torch")


def _is_cupys(item):
    spec = getattr(item, "callspec", None)
    return spec is not None and spec.params.get("make_rig") in {CUDA, CUPY_IN_C}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """Remember failures: their tracebacks keep arrays, which is no leak."""
    # A finaliser that runs while CPython 3.11 parses a traceback's lines breaks it.
    had = gc.isenabled()
    gc.disable()
    try:
        report = yield
    finally:
        if had:
            gc.enable()
    if report.failed or report.outcome == "xfailed":
        item.stash[_OUTCOME] = True
    return report


def pytest_generate_tests(metafunc):
    """Run laws on all kinds of device; where captures matter, as GPUs differ, too.

    What is marked ``every_framework`` runs with torch's tensors, too, but for cases
    that are marked ``only("numpy")``, as those ``only("torch")`` run with them alone.
    Programs are replayed in C as well, as what is marked ``every_framework("in C")``,
    and run on the host. What is marked ``minimal`` runs with the buffers of the
    template of a framework.
    """
    if "make_rig" in metafunc.fixturenames:
        module = metafunc.module.__name__.rpartition(".")[2]
        inexact = module.startswith(INEXACT_TOO)
        kinds = [*VARIANTS, INEXACT] if inexact else list(VARIANTS)
        kinds.append(pytest.param(CUDA, marks=pytest.mark.gpu))
        if mark := metafunc.definition.get_closest_marker("every_framework"):
            programs = "agree" in metafunc.fixturenames
            kinds.append(pytest.param(TORCH, marks=pytest.mark.gpu))
            if programs or "in C" in mark.args:
                in_c = TORCH_IN_C, CUPY_IN_C
                kinds += [pytest.param(kind, marks=pytest.mark.gpu) for kind in in_c]
            if programs:
                kinds.append(TORCH_ON_HOST)
        if metafunc.definition.get_closest_marker("minimal"):
            kinds.append(MINIMAL)
        metafunc.parametrize("make_rig", kinds, indirect=True)


@pytest.fixture
def make_rig(request):
    """Return a maker of rigs of one variant, leak-checked when the test is over."""
    kind, rigs = request.param, []

    def make(**options):
        on_cuda = kind in {CUDA, TORCH, TORCH_IN_C, CUPY_IN_C}
        if on_cuda and options.keys() & {"total", "page"}:
            pytest.skip("needs a device of a size of its own")
        rigs[:] = [rig for rig in rigs if not rig.finished]
        rigs.append(make_rig_of(kind, **options))
        if kind not in {TORCH_IN_C, CUPY_IN_C}:
            counts.drivers.append(rigs[-1].recorded.ever)
        return rigs[-1]

    make.framework = framework_of(kind)
    with counting(request.node) as counts:
        yield make
        collect_after(kind)
        for rig in rigs:
            if request.node.stash.get(_OUTCOME, False):
                rig.abandon()
            else:
                rig.finish()


@pytest.fixture
def rig(make_rig):
    """Return a runtime with the layers below it."""
    return make_rig()


@pytest.fixture
def rt(rig):
    """Return a runtime."""
    return rig.runtime


class World:
    """Where a program runs: ``replayed``, ``eager`` or ``plain``."""

    def __init__(self, name, rt, framework):
        self.name, self.rt, self.framework = name, rt, framework
        self.functions, self.held = [], []
        self.rng = np.random.default_rng(7)

    @property
    def replayed(self):
        return self.name == "replayed"

    @property
    def plain(self):
        return self.name == "plain"

    def graph(self, fn=None, **options):
        """Graph a function, or return it where nothing is graphed."""
        if fn is None:
            return lambda fn: self.graph(fn, **options)
        if self.plain:
            return fn
        function = self.rt.graph(fn, **options)
        self.functions.append(function)
        return function

    def array(self, host):
        """Return an array of this world with a copy of host values."""
        if self.plain:
            return self.framework.plain_array(host)
        return self.framework.array(self.rt, host)

    def values(self, *shape, dtype=None):
        """Return an array of new values: in every world the same, in their order."""
        return self.array(self.host_values(*shape, dtype=dtype))

    @property
    def itemsize(self):
        """The bytes of a value of no other dtype."""
        return np.dtype(self.framework.dtype).itemsize

    def host_values(self, *shape, dtype=None):
        dtype = np.dtype(self.framework.dtype if dtype is None else dtype)
        if dtype.kind == "b":
            return self.rng.random(shape) < 0.5
        if dtype.kind == "u":
            return self.rng.integers(0, 40, shape).astype(dtype)
        if dtype.kind == "i":
            return self.rng.integers(-40, 40, shape).astype(dtype)
        real = self.rng.standard_normal(shape)
        if dtype.kind == "c":
            return (real + 1j * self.rng.standard_normal(shape)).astype(dtype)
        return np.asarray(real).astype(dtype)

    def generator(self, seed):
        if self.plain:
            return self.framework.plain_generator(self.rt, seed)
        return self.rt.generator(seed)

    def stream(self):
        return self.framework.plain_stream() if self.plain else self.rt.stream()

    def hold(self, *arrays, last=1000):
        """Keep what two streams work on, where users have to."""
        if self.framework.holds:
            self.held = [*self.held[-last:], *arrays]

    def step(self, keep=()):
        return nullcontext() if self.plain else self.rt.step(keep=keep)

    def sleep(self):
        """Give the memory of recordings back, where there are any."""
        return 0 if self.plain else self.rt.sleep()

    def mode(self):
        """Return the context that the program runs in."""
        context = ExitStack()
        if self.plain:
            context.enter_context(self.framework.plain_mode())
        if self.name == "eager":
            context.enter_context(sw.disabled())
        return context

    def count(self, field):
        """Return the sum of one statistic over the functions of this world.

        Where nothing is recorded, that is as anybody wants it.
        """
        if not self.framework.records:
            return _Any()
        return sum(getattr(function.stats(), field) for function in self.functions)


class _Any:
    """What is equal to, less than and more than everything."""

    __hash__ = None

    def _is(self, _):
        return True

    __eq__ = __lt__ = __le__ = __gt__ = __ge__ = _is


class Picture:
    """A nest of arrays and plain values as it was at one time."""

    def __init__(self, nest, framework):
        self.leaves, self.shape = [], None
        self._framework, self._owners = framework, []
        self.shape = self._take(nest)
        self.shared = {
            (i, j)
            for i, one in self._owners
            for j, other in self._owners
            if i < j and _are_one(one, other)
        }
        self.owned = {i for i, _ in self._owners}
        del self._owners

    def _take(self, value):
        if isinstance(value, dict):
            return type(value), [(key, self._take(v)) for key, v in value.items()]
        if isinstance(value, (list, tuple)):
            return type(value), [self._take(v) for v in value]
        if dataclasses.is_dataclass(value):
            return type(value), [
                (f.name, self._take(getattr(value, f.name)))
                for f in dataclasses.fields(value)
            ]
        if self._framework.is_array(value):
            owner = self._framework.owner(value)
            if owner is not None:
                self._owners.append((len(self.leaves), owner))
            self.leaves.append(self._framework.leaf(value))
        elif type(value).__name__ == "Generator":
            self.leaves.append(("generator",))
        else:
            self.leaves.append(_plain(value))
        return len(self.leaves)

    def agrees(self, other, what):
        """Assert that ``other`` shows the same; host scalars own nothing."""
        assert other.shape == self.shape, what
        for i, (mine, theirs) in enumerate(zip(self.leaves, other.leaves, strict=True)):
            assert mine == theirs, f"{what}, leaf {i}: {_told(mine)}, {_told(theirs)}"
        both = self.owned & other.owned
        for pair in self.shared ^ other.shared:
            assert not both.issuperset(pair), f"{what}: leaves {pair} share or not"


def _told(leaf):
    if len(leaf) < 4:
        return leaf
    dtype, shape, steps, data, *more = leaf
    with suppress(TypeError):  # NumPy has not all dtypes of torch
        data = np.frombuffer(data, str(dtype).removeprefix("torch.")).reshape(shape)
    return f"{data!r} with strides {steps} {more or ''}"


def _are_one(one, other):
    """Return whether two owners are: objects, or addresses."""
    return one == other if isinstance(one, int) else one is other


def _plain(value):
    if isinstance(value, float):
        return float, struct.pack("<d", value)
    return type(value), value


def _pictures(program, world):
    world.framework.begin()
    run, pictures = program(world), []
    while True:
        with world.mode():
            try:
                shown = next(run)
            except StopIteration:
                return pictures
        pictures.append(Picture(shown, world.framework))
        del shown


@pytest.fixture
def framework(make_rig):
    """Return whose arrays the law's are."""
    return make_rig.framework


@pytest.fixture
def agree(rt, framework):
    """Return what runs a program in all worlds, compares, and gives the replayed."""

    def agree(program, first="plain"):
        names = sorted(("plain", "eager", "replayed"), key=lambda name: name != first)
        worlds = {name: World(name, rt, framework) for name in names}
        with catch_warnings():
            if not framework.records:
                simplefilter("ignore", sw.GraphSkipWarning)
            shown = {name: _pictures(program, world) for name, world in worlds.items()}
        expected = shown["plain"]
        assert expected, "a program yields something"
        for name in ("eager", "replayed"):
            found = shown[name]
            assert len(found) == len(expected), f"{name} yields as often as plain"
            for i, pair in enumerate(zip(expected, found, strict=True)):
                pair[0].agrees(pair[1], f"{name}, picture {i}")
        return worlds["replayed"]

    return agree


@pytest.fixture
def same(agree, framework):
    """Return what compares calls of one function, with lasting and with new arguments.

    ``make_args`` gets a world and returns the arguments: a tuple, or a dict of keyword
    arguments. Results and arguments are compared after every call, and once more at
    the end of calls after which nobody waited.
    """

    def same(fn, make_args, calls=framework.calls, **options):
        def call(f, args):
            return f(**args) if isinstance(args, dict) else f(*args)

        def lasting(world):
            f, args = world.graph(fn, **options), make_args(world)
            for _ in range(calls):
                yield call(f, args), args

        def fresh(world):
            f = world.graph(fn, **options)
            for _ in range(calls + 1):
                args = make_args(world)
                yield call(f, args), args

        def unread(world):
            f = world.graph(fn, **options)
            for _ in range(calls):
                args = make_args(world)
                for _ in range(calls):
                    result = call(f, args)
            yield result, args

        world = agree(lasting)
        assert world.count("warmups") == 1
        assert world.count("recordings") == 1
        assert world.count("replays") == calls - 2
        world = agree(fresh)
        assert world.count("recordings") <= 2 + framework.settling
        assert world.count("replays") >= 1
        agree(unread)

    return same


@pytest.fixture
def changing(agree, framework):
    """Return what calls a function before and after every change, several times.

    ``make`` gets a world, and returns the function and the state that ``changes`` are
    called with.
    """

    def changing(make, changes):
        rounds, calls = framework.changes

        def program(w):
            fn, state = make(w)
            f, x = w.graph(fn), w.values(4)
            for _ in range(rounds):
                for change in changes:
                    change(state, w)
                    for _ in range(calls):
                        yield f(x), x

        return agree(program)

    return changing


@pytest.fixture
def hidden(tmp_path):
    """Return what reads, or writes, a number that no guard can see."""
    path = os.fspath(tmp_path / "hidden")

    def hidden(value=None):
        if value is not None:
            unseen.write(path, str(value).encode())
        return int(unseen.read(path))

    hidden(0)
    return hidden


@pytest.fixture
def bits(framework):
    """Return what makes values comparable bit for bit, and which share memory."""

    def bits(*nest):
        picture = Picture(nest, framework)
        return [*picture.leaves, *sorted(picture.shared)]

    return bits
