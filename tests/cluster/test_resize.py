"""While a grant's next generation is being written both count: nothing is given twice, whatever becomes of it."""

from milligpu.model.grant import Grant
from milligpu.model.reasons import Reason
from milligpu.scheduler import resizes
from milligpu.scheduler.books import DOUBT_S, Entry
from tests.scheduler.objects import node
from tests.scheduler.test_books import World


def asking(world: World, name: str, milli: int, text: str) -> tuple[Entry, Grant]:
    """A bound pod of this size that wants another one, and the grant that it wants."""
    grant = world.bind(name, milli)
    world.see(name, milli, grant, resize=text)
    entry = world.books.entry(f"uid-{name}")
    assert entry is not None
    wanted = resizes.wanted(entry)
    assert wanted is not None
    return entry, wanted


def grow(milli: int) -> str:
    return f'{{"main": {{"milli": {milli}}}}}'


def test_growth_counts_from_before_it_is_written() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    assert resizes.short_of(world.books, entry, wanted) == []
    resizes.begin(world.books, entry, wanted)
    assert world.free() == 200
    resizes.end(world.books, "uid-a", written=True)
    assert (world.free(), resizes.wanted(entry)) == (200, None)


def test_what_shrinks_is_free_only_when_that_is_written() -> None:
    world = World()
    entry, wanted = asking(world, "a", 800, grow(300))
    resizes.begin(world.books, entry, wanted)
    assert world.free() == 200
    resizes.end(world.books, "uid-a", written=True)
    assert world.free() == 700


def test_a_write_that_failed_changes_nothing() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    resizes.begin(world.books, entry, wanted)
    resizes.end(world.books, "uid-a", written=False)
    assert world.free() == 700
    assert resizes.wanted(entry) == wanted


def test_a_write_without_an_answer_keeps_both_until_the_watch_or_time_tells() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    resizes.begin(world.books, entry, wanted)
    resizes.doubt(world.books, "uid-a", world.time)
    world.see("a", 300, entry.grant, resize=grow(800))
    resizes.expire(world.books, world.time)
    assert world.free() == 200, "it may be carried out yet"
    world.time += DOUBT_S
    resizes.expire(world.books, world.time)
    assert world.free() == 700
    world.see("a", 300, wanted, resize=grow(800))
    assert world.free() == 200, "it was carried out after all"


def test_an_old_sight_does_not_take_back_what_was_written() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    old = entry.grant
    resizes.begin(world.books, entry, wanted)
    resizes.end(world.books, "uid-a", written=True)
    world.see("a", 300, old, resize=grow(800))
    assert world.free() == 200


def test_growth_beyond_what_is_free_says_what_is_missing() -> None:
    world = World()
    world.bind("b", 500)
    entry, wanted = asking(world, "a", 300, grow(800))
    (missing,) = resizes.short_of(world.books, entry, wanted)
    assert (missing.reason, missing.wanted, missing.best) == (Reason.INSUFFICIENT_CORE, 500, 200)
    assert "n0/GPU-n0-0: wants 500 more, 200 free" in resizes.explain([missing])


def test_nobody_grows_on_a_card_that_is_out_of_use_and_anybody_shrinks() -> None:
    world = World()
    entry, more = asking(world, "a", 300, grow(400))
    world.put_node(node("n0", 1, state="sick"))
    assert [each.reason for each in resizes.short_of(world.books, entry, more)] == [Reason.SICK]
    entry.resize = grow(100)
    less = resizes.wanted(entry)
    assert less is not None
    assert resizes.short_of(world.books, entry, less) == []


def test_a_restart_finds_what_was_written_last() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(800))
    resizes.begin(world.books, entry, wanted)
    again = World()
    again.see("a", 300, wanted, resize=grow(800))
    assert again.free() == 200
    found = again.books.entry("uid-a")
    assert found is not None
    assert resizes.wanted(found) is None


def test_growing_beyond_what_was_counted_is_known() -> None:
    world = World()
    entry, wanted = asking(world, "a", 300, grow(301))
    assert resizes.grows_beyond(entry, wanted, world.books)
    entry.resize = grow(200)
    less = resizes.wanted(entry)
    assert less is not None
    assert not resizes.grows_beyond(entry, less, world.books)
