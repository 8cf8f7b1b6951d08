"""Plain, gzip or zstd bytes to plain bytes, in bounded pieces however well they are compressed."""

import zlib
from collections.abc import Iterator

import zstandard

from app.errors import TooLargeError
from app.traces.faults import Faults, RowFault, TraceRefusedError

PIECE_BYTES = 1 << 18
_GZIP_MAGIC, _ZSTD_MAGIC = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_ZSTD_FEED_BYTES = 1 << 10
"""zstd cannot bound its output, so it is fed little at a time: one byte can stand for 32 KiB at most."""
_ZSTD_MAX_WINDOW = 1 << 25


class Inflater:
    """Decompresses what is fed to it; which format it is, its first bytes tell.

    Args: max_bytes, the most that may come out.
    """

    def __init__(self, max_bytes: int) -> None:
        self.compression: str | None = None
        self.num_bytes = 0
        self._max_bytes = max_bytes
        self._start = b""
        self._is_known = False
        self._gzip: zlib._Decompress | None = None
        self._zstd: zstandard.ZstdDecompressionObj | None = None
        self._is_mid_frame = False

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The plain pieces that `data` completes.

        Raises: TooLargeError beyond the limit; TraceRefusedError if the compressed stream is broken.
        """
        if not self._is_known:
            data = self._start + data
            if len(data) < len(_ZSTD_MAGIC):
                self._start = data
                return
            self._recognise(data)
        yield from self._pieces(data)

    def finish(self) -> Iterator[bytes]:
        """What is left. Raises: TraceRefusedError if the compressed stream ends in the middle."""
        if not self._is_known:
            self._recognise(self._start)
            yield from self._pieces(self._start)
        if self._is_mid_frame:
            raise _broken(f"the {self.compression} stream is cut off", "upload the whole file")

    def _recognise(self, start: bytes) -> None:
        self._is_known = True
        if start.startswith(_GZIP_MAGIC):
            self.compression = "gzip"
        elif start.startswith(_ZSTD_MAGIC):
            self.compression = "zstd"

    def _pieces(self, data: bytes) -> Iterator[bytes]:
        read = {"gzip": self._read_gzip, "zstd": self._read_zstd}.get(self.compression or "", self._read_plain)
        try:
            for piece in read(data):
                self.num_bytes += len(piece)
                if self.num_bytes > self._max_bytes:
                    detail = f"The trace is larger than {self._max_bytes} bytes when decompressed."
                    raise TooLargeError(detail, limit=self._max_bytes, limit_name="trace_decompressed_bytes")
                yield piece
        except (zlib.error, zstandard.ZstdError) as error:
            remedy = "compress it anew; zstd without --long or --ultra"
            raise _broken(f"the {self.compression} stream is broken", remedy) from error

    @staticmethod
    def _read_plain(data: bytes) -> Iterator[bytes]:
        for at in range(0, len(data), PIECE_BYTES):
            yield data[at : at + PIECE_BYTES]

    def _read_gzip(self, data: bytes) -> Iterator[bytes]:
        while data:
            if self._gzip is None:
                self._gzip = zlib.decompressobj(wbits=31)
                self._is_mid_frame = True
            piece = self._gzip.decompress(data, PIECE_BYTES)
            if piece:
                yield piece
            data = self._gzip.unconsumed_tail
            if self._gzip.eof:
                data = self._gzip.unused_data
                self._gzip, self._is_mid_frame = None, False
            elif not data and not piece:
                return
            elif not data:
                yield from self._rest_of_gzip()
                return

    def _rest_of_gzip(self) -> Iterator[bytes]:
        """Output that zlib still holds back although it has taken all input."""
        assert self._gzip is not None
        while piece := self._gzip.decompress(b"", PIECE_BYTES):
            yield piece
        if self._gzip.eof:
            self._gzip, self._is_mid_frame = None, False

    def _read_zstd(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data):
            if self._zstd is None:
                self._zstd = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW).decompressobj(PIECE_BYTES)
                self._is_mid_frame = True
            fed = data[at : at + _ZSTD_FEED_BYTES]
            yield from self._read_plain(self._zstd.decompress(fed))
            at += len(fed)
            if self._zstd.eof:
                at -= len(self._zstd.unused_data)
                self._zstd, self._is_mid_frame = None, False


def _broken(reason: str, remedy: str) -> TraceRefusedError:
    faults = Faults()
    faults.add_row([RowFault(None, "", reason, remedy)])
    return faults.error()
