"""Pages are made once per version, and the least used ones make room."""

import asyncio

from app.routes.pages import Name
from app.routes.rendered import Rendered, RenderedPages

_ENTRY_BYTES = 500


def _page(version: int, size: int = 10) -> Rendered:
    return Rendered(version, b"x" * size, "application/json", {})


def _name(path: str) -> Name:
    return Name(path, b"", "application/json")


def _made(pages: RenderedPages, asks: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Which of the pages asked for (name, version, size), one after the other, had to be made."""
    made = []

    async def ask() -> None:
        for name, version, size in asks:

            def make(name: str = name, version: int = version, size: int = size) -> Rendered:
                made.append((name, version))
                return _page(version, size)

            await pages.get(_name(name), version, make)

    asyncio.run(ask())
    return made


def test_page_is_made_once_per_version() -> None:
    assert _made(RenderedPages(100_000), [("a", 1, 10), ("a", 1, 10), ("a", 2, 10), ("b", 1, 10)]) == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
    ]


def test_least_recently_used_page_makes_room() -> None:
    asks = [(name, 1, 100) for name in "abcdefgh"]
    used = [("a", 1, 100), ("i", 1, 100), ("a", 1, 100), ("b", 1, 100)]
    assert _made(RenderedPages(8 * (100 + _ENTRY_BYTES)), asks + used)[8:] == [("i", 1), ("b", 1)]


def test_page_beyond_its_share_of_the_room_is_not_kept() -> None:
    assert len(_made(RenderedPages(8 * (100 + _ENTRY_BYTES)), [("a", 1, 101), ("a", 1, 101)])) == 2


def test_page_that_many_ask_for_at_once_is_made_once() -> None:
    made = []

    async def many() -> None:
        pages = RenderedPages(100_000)

        def make() -> Rendered:
            made.append(1)
            return _page(1)

        await asyncio.gather(*(pages.get(_name("a"), 1, make) for _ in range(20)))

    asyncio.run(many())
    assert made == [1]


def test_page_that_turned_out_newer_is_kept_under_its_own_version() -> None:
    made = []

    async def twice() -> None:
        pages = RenderedPages(100_000)

        def make() -> Rendered:
            made.append(1)
            return _page(2)

        await pages.get(_name("a"), 1, make)
        await pages.get(_name("a"), 2, make)

    asyncio.run(twice())
    assert made == [1]


def test_long_query_takes_room_as_a_body_does() -> None:
    pages = RenderedPages(8 * (100 + _ENTRY_BYTES))
    long = Name("a", b"x" * 101, "application/json")
    asyncio.run(pages.get(long, 1, lambda: _page(1, 0)))
    assert long not in pages


def test_older_page_never_takes_the_place_of_a_newer_one() -> None:
    pages = RenderedPages(100_000)

    async def late() -> None:
        await pages.get(_name("a"), 2, lambda: _page(2))
        await pages.get(_name("a"), 3, lambda: _page(1))
        assert await pages.again(_name("a"), 2) == _page(2)

    asyncio.run(late())


def test_answer_asked_for_before_is_made_anew_at_a_newer_version() -> None:
    pages, versions = RenderedPages(100_000), iter((1, 2))

    async def twice() -> None:
        await pages.get(_name("a"), 1, lambda: _page(next(versions)))
        assert await pages.again(_name("a"), 2) == _page(2)
        assert await pages.again(_name("b"), 1) is None

    asyncio.run(twice())
