"""A server that answers everything with the same 304: what is left of a latency when the service costs nothing.

python -m benchmarks.bare_server PORT
"""

import asyncio
import sys

_ANSWER = b'HTTP/1.1 304 Not Modified\r\netag: "bare"\r\n\r\n'


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await reader.readuntil(b"\r\n\r\n"):
            writer.write(_ANSWER)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        writer.close()


async def _serve(port: int) -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
