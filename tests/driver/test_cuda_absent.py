"""The CUDA device where there is none, and what of it needs none."""

from __future__ import annotations

import enum
import struct
import sys
from types import ModuleType, SimpleNamespace

import pytest

from sapwood.driver.cuda import Cuda, bindings
from sapwood.driver.cuda.bindings import Answer, Library, open_library
from sapwood.driver.cuda.kernels import Function, Kernels, Packed
from sapwood.driver.cuda.ops import set_of
from sapwood.driver.results import Refusal, Result
from sapwood.errors import NoDevice

VIRTUAL = "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"


class Code(enum.IntEnum):
    """Some of CUDA's results."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_DEVICE = 101


def _gives(*answer):
    """Return a call of CUDA's that answers this."""

    def call(*_):
        return answer

    return call


def _raises(*_):
    raise RuntimeError("Failed to dlopen libcuda.so.1")


@pytest.fixture
def install(monkeypatch):
    """Return how to put a driver library in the place of NVIDIA's."""

    def install(version="13.3.1", **calls):
        calls = {
            "cuDriverGetVersion": _gives(Code.CUDA_SUCCESS, 13000),
            "cuInit": _gives(Code.CUDA_SUCCESS),
            "cuGetErrorString": _gives(Code.CUDA_SUCCESS, b"its text"),
            "CUdevice_attribute": SimpleNamespace(**{VIRTUAL: 102}),
        } | calls
        cuda, bindings = ModuleType("cuda"), ModuleType("cuda.bindings")
        bindings.__version__ = version
        bindings.driver = ModuleType("cuda.bindings.driver")
        for name, call in calls.items():
            setattr(bindings.driver, name, call)
        cuda.bindings = bindings
        for module in (cuda, bindings, bindings.driver):
            monkeypatch.setitem(sys.modules, module.__name__, module)

    return install


@pytest.fixture
def library():
    """Return a library whose calls a test makes up."""
    return Library(
        SimpleNamespace(cuGetErrorString=_gives(Code.CUDA_SUCCESS, b"its text"))
    )


@pytest.mark.parametrize("here", [True, False])
def test_without_bindings_there_is_no_device(monkeypatch, tmp_path, here):
    """What to install is said, and whether there is a driver that it would serve."""
    driver = tmp_path / "version"
    if here:
        driver.touch()
    monkeypatch.setattr(bindings, "_DRIVER", driver)
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(NoDevice, match=r"pip install 'cuda-bindings>=13") as caught:
        Cuda()
    assert isinstance(caught.value.__cause__, ImportError)
    said = str(caught.value)
    assert said.startswith(
        "NVIDIA's cuda.bindings" if here else "no NVIDIA driver here"
    )
    assert caught.value.call == "import cuda.bindings"


def test_old_bindings_are_no_device(install):
    """Their version is named."""
    install("12.9.2")
    with pytest.raises(NoDevice, match=r"cuda\.bindings 12\.9\.2 are too old"):
        Cuda()


def test_without_a_driver_there_is_no_device(install):
    """What the bindings say is passed on."""
    install(cuDriverGetVersion=_raises)
    with pytest.raises(NoDevice, match=r"libcuda\.so\.1: install NVIDIA's driver"):
        Cuda()


def test_an_old_driver_is_no_device(install):
    """What it is for is named, and nothing is asked of it."""
    install(cuDriverGetVersion=_gives(Code.CUDA_SUCCESS, 12080), cuInit=_raises)
    with pytest.raises(NoDevice, match=r"the installed driver is for CUDA 12\.8"):
        Cuda()


def test_a_driver_without_a_gpu_is_no_device(install):
    """By CUDA's own name and number."""
    install(cuInit=_gives(Code.CUDA_ERROR_NO_DEVICE))
    with pytest.raises(NoDevice, match="says: its text") as caught:
        Cuda()
    assert (caught.value.name, caught.value.code) == ("NO_DEVICE", 100)


def test_a_gpu_that_is_not_there_is_no_device(install):
    """Its number is named."""
    install(cuDeviceGet=_gives(Code.CUDA_ERROR_INVALID_DEVICE, None))
    with pytest.raises(NoDevice, match="GPU 3 cannot be used: call says"):
        Cuda(3)


def test_a_gpu_without_virtual_memory_is_no_device(install):
    """Its name is told."""
    install(
        cuDeviceGet=_gives(Code.CUDA_SUCCESS, 0),
        cuDeviceGetName=_gives(Code.CUDA_SUCCESS, b"An Old GPU\0\0"),
        cuDeviceGetAttribute=_gives(Code.CUDA_SUCCESS, 0),
    )
    with pytest.raises(NoDevice, match="An Old GPU has no virtual memory"):
        Cuda()


def test_a_library_that_is_there_is_opened(install):
    """The same fixture, with nothing wrong, opens: the refusals above are its own."""
    install()
    assert open_library()(_gives(Code.CUDA_SUCCESS, 5)) == 5


@pytest.mark.parametrize(
    ("given", "expected"), [((), None), ((3,), 3), ((3, 4), (3, 4))]
)
def test_calls_return_what_they_give(library, given, expected):
    """Nothing, a value, or a tuple."""
    assert library(_gives(Code.CUDA_SUCCESS, *given)) == expected


def test_errors_are_explained(library):
    """With the call that was made, CUDA's number, name and text, and a remedy."""
    with pytest.raises(Answer) as caught:
        library(_gives(Code.CUDA_ERROR_INVALID_VALUE, None))
    assert caught.value.result is Result.INVALID_VALUE
    error = caught.value.error("map")
    assert (error.call, error.code, error.name) == ("map", 1, "INVALID_VALUE")
    assert error.explanation.startswith("call says: its text; check what")
    with pytest.raises(Answer) as caught:
        library(_gives(Code.CUDA_ERROR_INVALID_DEVICE, None))
    assert caught.value.result is Result.UNKNOWN
    assert caught.value.error("open").name == "INVALID_DEVICE"


def _elf(sections, programs, length):
    """Return a file with tables of so many entries of 16 bytes behind its head."""
    head = bytearray(64)
    head[:4] = b"\x7fELF"
    head[0x20:0x28] = head[0x28:0x30] = (64).to_bytes(8, "little")
    head[0x36:0x3E] = struct.pack("<4H", 16, programs, 16, sections)
    return bytes(head).ljust(length, b"\0")


def _fatbin(size, length):
    head = b"\x50\xed\x55\xba\x01\x00\x10\x00" + size.to_bytes(8, "little")
    return head.ljust(length, b"\0")


DAMAGED = {
    "nothing": b"",
    "junk": b"junk",
    "magic": b"\x7fELF",
    "head": _elf(4, 4, 128)[:63],
    "sections": _elf(4, 0, 127),
    "programs": _elf(0, 4, 127),
    "fatbin": _fatbin(16, 31),
}
WHOLE = {
    "sections": _elf(4, 3, 128),
    "programs": _elf(3, 4, 128),
    "fatbin": _fatbin(16, 32),
    "text": b".version 9.0\n.target sm_90\n",
}


@pytest.mark.parametrize("image", DAMAGED)
def test_images_that_are_not_whole_do_not_reach_cuda(library, image):
    """CUDA is not told how long an image is, and would read on."""
    with pytest.raises(Refusal, match="no whole cubin") as caught:
        Kernels(library).load_module(DAMAGED[image])
    assert caught.value.result is Result.INVALID_IMAGE


@pytest.mark.parametrize("image", WHOLE)
def test_images_that_are_whole_reach_cuda(library, image):
    """Cubins, fatbins and PTX text are loaded."""
    library.cu.cuModuleLoadData = _gives(Code.CUDA_SUCCESS, 4096)
    assert Kernels(library).load_module(WHOLE[image]) == 4096


def test_parameters_must_fill_their_layout():
    """The kernel and both numbers of bytes are named."""
    function = Function(None, "odd", ((0, 1), (8, 8), (16, 4)))
    assert Packed(function, bytes(20)).address
    for wrong in (0, 19, 24):
        with pytest.raises(Refusal, match=f"odd takes 20 bytes .* not {wrong}"):
            Packed(function, bytes(wrong))
    assert Packed(Function(None, "none", ()), b"").address


@pytest.mark.parametrize(
    ("value", "element", "width", "height", "pitch", "size"),
    [
        (7, 1, 8, 1, 0, 8),
        (0x0707, 2, 8, 1, 0, 16),
        (0x07070707, 4, 3, 1, 0, 12),
        (7, 1, 8, 4, 8, 32),
        (0x0708, 2, 8, 1, 0, None),
        (7, 1, 8, 4, 64, None),
    ],
)
def test_sets_of_one_byte_are_read(library, value, element, width, height, pitch, size):
    """However CUDA keeps them; patterns and rows with gaps are refused."""
    params = SimpleNamespace(
        dst=4096,
        value=value,
        elementSize=element,
        width=width,
        height=height,
        pitch=pitch,
    )
    library.cu.cuGraphMemsetNodeGetParams = _gives(Code.CUDA_SUCCESS, params)
    if size is None:
        with pytest.raises(Refusal, match="fill contiguous memory"):
            set_of(library, None)
    else:
        found = set_of(library, None)
        assert (found.dst, found.value, found.size) == (4096, 7, size)
