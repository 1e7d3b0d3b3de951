"""Settings are checked as a whole, and every way to write them means the same."""

from __future__ import annotations

import ast
import inspect
import pickle
from dataclasses import FrozenInstanceError, fields
from itertools import pairwise, permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.kinds import NO_DIVISIONS, Divisions
from sapwood.allocator.caching.settings import DEFAULT, VARIABLE, Settings
from sapwood.errors import MisuseError

MIB = 1 << 20

(BODY,) = ast.parse(inspect.getsource(Settings)).body
MEANINGS = {
    setting.target.id: " ".join(meaning.value.value.split())
    for setting, meaning in pairwise(BODY.body)
    if isinstance(setting, ast.AnnAssign)
}
"""What stands below each setting."""

steps = st.sampled_from([0, 1, 2, 4, 8, 16])
divisions = st.one_of(
    steps,
    st.dictionaries(
        st.one_of(st.sampled_from([1 << power for power in range(16)]), st.just(">")),
        steps,
    ),
)
sizes = st.one_of(
    st.integers(20, 4096).map(lambda n: n * MIB), st.integers(20 * MIB, 1 << 40)
)
valid = st.fixed_dictionaries(
    {},
    optional={
        "expandable_segments": st.booleans(),
        "expandable_segments_reserve": st.one_of(
            st.none(),
            sizes,
            st.floats(0.0, 64.0, exclude_min=True),
        ),
        "max_split_size": st.none() | sizes.map(lambda size: size + 8 * MIB),
        "large_segment_size": st.integers(11 * MIB, 28 * MIB),
        "max_non_split_rounding": sizes,
        "garbage_collection_threshold": st.floats(0.0, 1.0, exclude_max=True),
        "roundup_power2_divisions": divisions,
        "per_process_memory_fraction": st.floats(0.0, 1.0),
        "throw_on_cudamalloc_oom": st.booleans(),
        "cross_stream_reuse": st.booleans(),
        "pinned_num_register_threads": st.sampled_from([1, 2, 64, 128]),
        "pinned_reserve_segment_size": st.none() | st.integers(1, 1 << 40),
        "pinned_max_cached_size": st.none() | st.integers(0, 1 << 40),
    },
)


@given(valid)
def test_text_is_the_settings(chosen):
    """What is spelt is read back, from the whole and over any others."""
    settings = Settings(**chosen)
    assert Settings.parse(settings.text()) == settings
    assert Settings(**settings.plain()) == settings
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert hash(Settings.parse(settings.text())) == hash(settings)


@given(valid, valid)
def test_replacing_is_making_anew(first, second):
    """A later change wins, and what it leaves out stays."""
    assert Settings(**first).replace(**second) == Settings(**{**first, **second})


@given(st.text(alphabet="abc_:,[]>.0123456789 -", max_size=30))
def test_any_text_is_read_or_refused_by_name(text):
    """There is no text that fails in another way, or is read as what it is not."""
    try:
        settings = Settings.parse(text)
    except MisuseError:
        return
    assert settings == DEFAULT
    assert not text.strip()


@pytest.mark.parametrize("name", [setting.name for setting in fields(Settings)])
def test_every_setting_says_what_it_means_and_refuses_what_it_is_not(name):
    """Each setting has a meaning, and an error with its name, value and range."""
    assert MEANINGS[name].endswith(".")
    with pytest.raises(MisuseError, match=rf"{name}.*-5") as refused:
        Settings.parse(f"{name}:-5")
    assert "Set " in str(refused.value)
    with pytest.raises(MisuseError, match=name):
        Settings(**{name: object()})


def test_pytorch_spelling_is_accepted():
    """A string written for PyTorch means here what it means there."""
    settings = Settings.parse(
        "backend:native, expandable_segments:False,max_split_size_mb:64,"
        "large_segment_size_mb:32,garbage_collection_threshold:0.8,"
        "roundup_power2_divisions:[256:1,512:2,>:8],per_process_memory_fraction:1,"
        "pinned_num_register_threads:8,pinned_reserve_segment_size_mb:4,"
        "expandable_segments_reserve:40G"
    )
    assert not settings.expandable_segments
    assert settings.max_split_size == 64 * MIB
    assert settings.large_segment_size == 32 * MIB
    assert settings.per_process_memory_fraction == 1.0
    assert settings.pinned_reserve_segment_size == 4 * MIB
    assert settings.expandable_segments_reserve == 40 << 30
    by_interval = [settings.divisions(n * MIB) for n in (0, 1, 300, 512, 1023, 1024)]
    assert by_interval == [1, 1, 1, 2, 2, 8]
    assert settings.divisions(1 << 45) == 8


PARSER_DEFECTS = {
    "a comma for a colon": ("max_split_size_mb,64", "'max_split_size_mb' is not one"),
    "a colon for a comma": ("max_split_size_mb:64:x:True", "not one key:value pair"),
    "a negative number that wraps": ("max_split_size_mb:-5", "'-5' is not allowed"),
    "a fraction of a size": ("max_split_size_mb:20.7", "'20.7' is not allowed"),
    "letters after a number": ("garbage_collection_threshold:0.5x", "'0.5x'"),
    "letters for a number": ("max_split_size_mb:x", "max_split_size_mb: 'x'"),
    "a number beyond all": ("max_split_size_mb:99999999999999999999", "not allowed"),
    "a size beyond all": ("max_split_size_mb:1099511627776", "not allowed"),
    "no value": ("max_split_size_mb:", "not one key:value pair"),
    "no value, another after": ("max_split_size_mb:,backend:native", "not one"),
    "no key": (":64", "':64' is not one"),
    "a bracket alone": ("]", "unexpected ']' at position 0"),
    "a list that ends twice": ("roundup_power2_divisions:[1:2]]", "unexpected ']'"),
    "a list in a list": ("roundup_power2_divisions:[[1:2]]", "unexpected '['"),
    "a list that never ends": ("roundup_power2_divisions:[1:2", "Put ] at its end"),
    "a list for a number": ("max_split_size_mb:[64]", "max_split_size_mb: '[64]'"),
    "an empty list": ("roundup_power2_divisions:[]", "not allowed"),
    "an interval twice": ("roundup_power2_divisions:[1:2,1:4]", "each once"),
    "an interval after the last": ("roundup_power2_divisions:[>:2,1:4]", "> last"),
    "a truth in lower case": ("expandable_segments:true", "Set True or False"),
    "spaces in a number": ("max_split_size_mb:6 4", "not one key:value pair"),
    "a comma at the end": ("expandable_segments:True,", "'' is not one"),
    "a key twice": ("max_split_size_mb:64,max_split_size_mb:32", "set twice"),
    "a key twice, in two units": (
        "max_split_size_mb:64,max_split_size:32M",
        "max_split_size is set twice",
    ),
    "an unknown key": ("max_split_mb:64", "Did you mean max_split_size_mb"),
    "a key that means nothing": ("zzz:1", "Choose from expandable_segments"),
    "another backend": ("backend:cudaMallocAsync", "is its own backend"),
    "what PyTorch alone has": ("expandable_segments_reserve_by_class:1", "not supp"),
    "not a number": ("per_process_memory_fraction:nan", "'nan' is not allowed"),
    "all there is": ("per_process_memory_fraction:1.5", "from 0.0 to 1.0"),
    "a threshold of one": ("garbage_collection_threshold:1.0", "below 1.0"),
    "threads, no power of two": ("pinned_num_register_threads:3", "power of two"),
    "too many threads": ("pinned_num_register_threads:256", "from 1 to 128"),
    "divisions, no power of two": ("roundup_power2_divisions:3", "3 divisions"),
    "intervals, no power of two": ("roundup_power2_divisions:[3:4]", "interval 3"),
    "an interval beyond all": ("roundup_power2_divisions:[65536:4]", "too large"),
    "a segment too small": ("large_segment_size_mb:10", "above 10 MiB"),
    "a reserve of nothing": ("expandable_segments_reserve:0", "from 2 MiB"),
}


@pytest.mark.parametrize("defect", PARSER_DEFECTS)
def test_what_other_parsers_accept_or_garble(defect):
    """Each slip is refused, with the piece of text and what is allowed."""
    text, said = PARSER_DEFECTS[defect]
    with pytest.raises(MisuseError) as refused:
        Settings.parse(text)
    assert said in str(refused.value)


def test_checks_of_two_settings_do_not_depend_on_their_order():
    """A pair that contradicts itself is refused in any order; one that fits is not."""
    for order in permutations(["large_segment_size_mb:64", "max_split_size_mb:32"]):
        with pytest.raises(MisuseError, match=r"max_split_size: 32 MiB .* 64 MiB"):
            Settings.parse(",".join(order))
    for order in permutations(["large_segment_size_mb:64", "max_split_size_mb:64"]):
        assert Settings.parse(",".join(order)).max_split_size == 64 * MIB
    with pytest.raises(MisuseError, match="max_non_split_rounding: 19 MiB"):
        Settings.parse("max_non_split_rounding_mb:19")


def test_a_refused_change_changes_nothing():
    """Settings are values: the first key of a text that fails is not applied."""
    settings = Settings(max_split_size=64 * MIB)
    with pytest.raises(MisuseError):
        settings.revised("max_split_size_mb:128,garbage_collection_threshold:7")
    assert settings.max_split_size == 64 * MIB
    with pytest.raises(FrozenInstanceError):
        settings.max_split_size = None
    with pytest.raises(MisuseError, match="Did you mean max_split_size"):
        settings.replace(max_split=1)


def test_the_environment_is_one_variable():
    """What the variable spells is read when asked for, and errors name it."""
    assert Settings.from_env({}) == DEFAULT
    assert Settings.from_env({VARIABLE: ""}) == DEFAULT
    said = {VARIABLE: "expandable_segments:False"}
    assert Settings.from_env(said) == Settings(expandable_segments=False)
    with pytest.raises(MisuseError, match=r"^SAPWOOD_ALLOC_CONF: 'x' is no setting"):
        Settings.from_env({VARIABLE: "x:1"})


@given(divisions, st.integers(1, 1 << 45))
def test_divisions_are_those_of_the_interval(given_divisions, size):
    """A size is divided as its interval says, or the first or last named one."""
    made = Settings(roundup_power2_divisions=given_divisions)
    if isinstance(given_divisions, int):
        assert made.divisions(size) == given_divisions
        return
    named = {key: value for key, value in given_divisions.items() if key != ">"}
    rest = given_divisions.get(">", 0)
    interval = min(max(size >> 20, 1), 32768)
    interval = 1 << (interval.bit_length() - 1)
    if not named or interval > max(named):
        expected = rest
    elif interval < min(named):
        expected = named[min(named)]
    else:
        expected = named.get(interval, 0)
    assert made.divisions(size) == expected


def test_divisions_are_a_mapping_of_intervals():
    """They have the sixteen intervals of MiB as keys, or none."""
    assert dict(NO_DIVISIONS) == {}
    everywhere = Divisions.by_interval({">": 4})
    assert dict(everywhere) == {1 << power: 4 for power in range(16)}
    assert 3 not in everywhere
    assert 1 << 16 not in everywhere


@pytest.mark.parametrize("name", [setting.name for setting in fields(Settings)])
def test_every_setting_is_documented(name):
    """The page has a row with each setting's name, range and meaning."""
    page = Path(__file__).parents[3] / "docs" / "allocator.md"
    row = next(
        line for line in page.read_text().splitlines() if line.startswith(f"| `{name}`")
    )
    kind = Settings.__dataclass_fields__[name].metadata["kind"]
    assert f"| {kind.allowed} | {MEANINGS[name]} |" in row


@pytest.mark.parametrize("text", ["garbage", " garbage ", "garbage,a:b"])
def test_a_piece_that_is_all_there_is_is_shown_once(text):
    """The whole is repeated only where it says more."""
    with pytest.raises(MisuseError, match="'garbage' is not one") as caught:
        Settings.parse(text)
    assert str(caught.value).count("garbage") == 1 + ("," in text)
