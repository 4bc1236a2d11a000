"""A pair of pipes to a child, on the event loop: whole blocks in both directions at once.

Knows neither frames nor processes. Uses bare descriptors instead of asyncio's pipe transports,
which would read in smaller pieces and add a layer of buffers and callbacks to every batch.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice

_PIPE_BYTES = 1 << 20
_READ_BYTES = 1 << 18
_PIECES_MAX = 16


class Channel:
    """Our ends of the two pipes.

    `on_bytes` is called with what arrives, `on_end` when the child has closed an end of its own.
    """

    def __init__(self, on_bytes: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self._on_bytes = on_bytes
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        self._is_open = True
        self._has_ended = False
        child_in, self._out = _pipe()
        self._in, child_out = _pipe()
        self.child_ends = (child_in, child_out)
        os.set_blocking(self._out, False)
        os.set_blocking(self._in, False)
        self._loop.add_reader(self._in, self._read)

    @property
    def has_unsent(self) -> bool:
        """Is there anything written that the child cannot have read?"""
        return bool(self._unsent)

    def release_child_ends(self) -> None:
        """Close our copies of the child's ends, or its exit would not end the pipes."""
        for fd in self.child_ends:
            os.close(fd)
        self.child_ends = (-1, -1)

    def write(self, *pieces: bytes) -> None:
        """Send now what the pipe takes, the rest as the child reads."""
        if not self._is_open:
            return
        was_waiting = bool(self._unsent)
        self._unsent.extend(memoryview(piece) for piece in pieces if piece)
        if not was_waiting and not self._flush():
            self._loop.add_writer(self._out, self._write_on)

    def drain(self) -> None:
        """Take in all that has already arrived, without waiting."""
        while self._is_open and not self._has_ended and self._read():
            pass

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._in)
        self._loop.remove_writer(self._out)
        os.close(self._in)
        os.close(self._out)

    def _read(self) -> bool:
        try:
            data = os.read(self._in, _READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            self._on_bytes(data)
            return True
        self._has_ended = True
        self._loop.remove_reader(self._in)
        self._on_end()
        return False

    def _write_on(self) -> None:
        if self._flush():
            self._loop.remove_writer(self._out)

    def _flush(self) -> bool:
        """Write until all is sent (True) or the pipe is full."""
        while self._unsent:
            try:
                sent = os.writev(self._out, list(islice(self._unsent, _PIECES_MAX)))
            except BlockingIOError:
                return False
            except BrokenPipeError:
                self._on_end()
                return True
            while sent:
                piece = self._unsent.popleft()
                if sent < len(piece):
                    self._unsent.appendleft(piece[sent:])
                sent -= min(sent, len(piece))
        return True


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    # Linux allows a user only so many large pipes; a small one works too, in more steps.
    with suppress(OSError):
        fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    return ends
