"""What gives way: pure choices, among any items and manifests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sapwood.persist.api import Item
from sapwood.persist.evict import YOUNG, Want, victims

NOW = 10 * YOUNG

blobs = st.sampled_from([f"blob-{n}" for n in range(6)])
sizes = st.integers(0, 100)
times = st.sampled_from([n * YOUNG for n in range(8)] + [NOW - n for n in range(8)])


@st.composite
def contents(draw):
    """Items, and which blobs the manifests among them name; the blobs may be gone."""
    names = draw(st.sets(blobs)) | {f"x{n}" for n in range(draw(st.integers(0, 3)))}
    needs = {
        f"entry-{n}": draw(st.sets(blobs, max_size=3))
        for n in range(draw(st.integers(0, 5)))
    }
    items = [Item(n, draw(sizes), draw(times)) for n in sorted(names | set(needs))]
    return items, needs


def _chosen(contents, want):
    items, needs = contents
    return victims(items, needs, want, NOW)


@given(contents(), st.integers(0, 600), st.integers(0, 100))
def test_enough_goes(contents, must, more):
    """What must be freed is, or nothing is left that may go."""
    items, _ = contents
    groups = _chosen(contents, Want(must, must + more))
    sizes = {item.name: item.size for item in items}
    gone = [name for group in groups for name in group]
    assert len(gone) == len(set(gone))
    freed = sum(sizes[name] for name in gone)
    if freed < must:
        assert set(sizes) == set(gone)


@given(contents(), st.integers(0, 600))
def test_nothing_goes_without_need(contents, must):
    """The last group is needed, too."""
    items, _ = contents
    sizes = {item.name: item.size for item in items}
    groups = _chosen(contents, Want(must, must))
    before_last = sum(sizes[name] for group in groups[:-1] for name in group)
    assert not groups or before_last < must


@given(contents(), st.integers(0, 600))
def test_a_manifest_that_stays_keeps_its_blobs(contents, must):
    """And a blob that goes with its manifests goes after each of them."""
    _, needs = contents
    gone = [name for group in _chosen(contents, Want(must, must)) for name in group]
    for place, name in enumerate(gone):
        for manifest, named in needs.items():
            if name in named:
                assert manifest in gone[:place]


@given(contents(), st.integers(0, 600))
def test_manifests_go_by_last_use(contents, must):
    """Whatever stays and is no blob was used after all of its kind that went."""
    items, _ = contents
    gone = {name for group in _chosen(contents, Want(must, must)) for name in group}
    firm = [item for item in items if not item.name.startswith("blob-")]
    went = [item.used for item in firm if item.name in gone]
    stayed = [item.used for item in firm if item.name not in gone]
    assert max(went, default=0) <= min(stayed, default=NOW)


@given(contents(), st.integers(0, 600))
def test_what_may_be_about_to_be_named_goes_last(contents, must):
    """A young blob of no manifest goes when nothing else is left."""
    items, needs = contents
    named = {blob for blobs in needs.values() for blob in blobs}
    loose = {
        item.name
        for item in items
        if item.name.startswith("blob-")
        and item.name not in named
        and item.used > NOW - YOUNG
    }
    gone = {name for group in _chosen(contents, Want(must, must)) for name in group}
    if gone & loose:
        assert not any(
            item.name not in gone and not item.name.startswith("blob-")
            for item in items
        )


@given(st.integers(0, 1000), st.integers(1, 1000))
def test_more_goes_than_must(size, limit):
    """Nothing goes within the limit; past it, an eighth of it is made free."""
    want = Want.of(size, limit)
    assert want.must == max(size - limit, 0)
    assert want.should == (want.must + limit // 8 if want.must else 0)


def test_a_blob_that_was_used_long_ago_goes_with_its_manifest():
    """Though it was used after that: nobody is about to name it any more."""
    items = [Item("entry-0", 10, YOUNG), Item("blob-0", 10, 2 * YOUNG)]
    groups = victims(items, {"entry-0": {"blob-0"}}, Want(1, 1), NOW)
    assert groups == [("entry-0", "blob-0")]
