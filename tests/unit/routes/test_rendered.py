"""Pages are made once per version, and the least used ones make room."""

import asyncio

from app.routes.rendered import Rendered, RenderedPages


def _page(version: int, size: int = 10) -> Rendered:
    return Rendered(version, b"x" * size, "application/json", {})


def _made(pages: RenderedPages, asks: list[tuple[str, int, int]]) -> list[tuple[str, int]]:
    """Which of the pages asked for (name, version, size), one after the other, had to be made."""
    made = []

    async def ask() -> None:
        for name, version, size in asks:

            def make(name: str = name, version: int = version, size: int = size) -> Rendered:
                made.append((name, version))
                return _page(version, size)

            await pages.get(name, version, make)

    asyncio.run(ask())
    return made


def test_page_is_made_once_per_version() -> None:
    assert _made(RenderedPages(1000), [("a", 1, 10), ("a", 1, 10), ("a", 2, 10), ("b", 1, 10)]) == [
        ("a", 1),
        ("a", 2),
        ("b", 1),
    ]


def test_least_recently_used_page_makes_room() -> None:
    asks = [(name, 1, 100) for name in "abcdefgh"]
    used = [("a", 1, 100), ("i", 1, 100), ("a", 1, 100), ("b", 1, 100)]
    assert _made(RenderedPages(800), asks + used)[8:] == [("i", 1), ("b", 1)]


def test_page_beyond_its_share_of_the_room_is_not_kept() -> None:
    assert len(_made(RenderedPages(800), [("a", 1, 101), ("a", 1, 101)])) == 2


def test_page_that_many_ask_for_at_once_is_made_once() -> None:
    made = []

    async def many() -> None:
        pages = RenderedPages(1000)

        def make() -> Rendered:
            made.append(1)
            return _page(1)

        await asyncio.gather(*(pages.get("a", 1, make) for _ in range(20)))

    asyncio.run(many())
    assert made == [1]


def test_page_that_turned_out_newer_is_kept_under_its_own_version() -> None:
    made = []

    async def twice() -> None:
        pages = RenderedPages(1000)

        def make() -> Rendered:
            made.append(1)
            return _page(2)

        await pages.get("a", 1, make)
        await pages.get("a", 2, make)

    asyncio.run(twice())
    assert made == [1]
