"""HTTP/1.1 as it goes over a socket: heads, and bodies of a length, in chunks, or up to the end.

A proxy has to know where a message ends, and must hand on what it does not know as it came; the
parsers of the standard library do the first only, and read ahead of what they tell.
"""

import socket
from dataclasses import dataclass, replace

_PIECE = 65536


@dataclass(frozen=True)
class Head:
    """A request's or an answer's first line, and its fields in their order."""

    first: str
    fields: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, data: bytes) -> "Head":
        """Read a head, which stands here without its empty line."""
        first, *lines = data.decode("latin-1").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return cls(first, tuple((name.strip(), value.strip()) for name, _, value in pairs))

    def get(self, name: str) -> str:
        """Return the value of a field, empty if there is none."""
        return ", ".join(value for key, value in self.fields if key.lower() == name)

    def without(self, *names: str) -> "Head":
        """Return a head that lacks these fields."""
        kept = tuple(each for each in self.fields if each[0].lower() not in names)
        return replace(self, fields=kept)

    def having(self, name: str, value: object) -> "Head":
        """Return a head in which a field has this value."""
        fields = (*self.without(name.lower()).fields, (name, str(value)))
        return replace(self, fields=fields)

    @property
    def method(self) -> str:
        """A request's method."""
        return self.first.split(" ", 1)[0]

    @property
    def status(self) -> int:
        """An answer's status."""
        return int(self.first.split(" ", 2)[1])

    def __bytes__(self) -> bytes:
        lines = [self.first, *(f"{name}: {value}" for name, value in self.fields), "", ""]
        return "\r\n".join(lines).encode("latin-1")


class Wire:
    """A connection, with what was read of it too early."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._early = b""

    def read(self) -> bytes:
        """Return what has come, waiting for something; empty at the end."""
        data, self._early = self._early, b""
        return data or self.connection.recv(_PIECE)

    def unread(self, data: bytes) -> None:
        """Give back what was read too much."""
        self._early = data + self._early

    def has_early(self) -> bool:
        """Whether `read` would answer at once, whatever the connection has."""
        return bool(self._early)

    def read_head(self) -> Head | None:
        """Return the next head, None if the connection ends before."""
        data = b""
        while b"\r\n\r\n" not in data:
            more = self.read()
            if not more:
                return None
            data = (data + more).lstrip(b"\r\n")
        head, _, rest = data.partition(b"\r\n\r\n")
        self.unread(rest)
        return Head.parse(head)


class Body:
    """Takes a body's bytes as they come and returns what they mean; knows when it is over."""

    def __init__(self, head: Head, *, empty: bool = False, to_the_end: bool = False) -> None:
        self.chunked = not empty and head.get("transfer-encoding").lower() == "chunked"
        self.to_the_end = False
        self.rest = b""  # of what was fed: the beginning of what follows the body
        self._left = 0  # bytes of the body, or of the chunk
        self._data = b""
        self._in_trailer = False
        if empty:
            self.done = True
        elif self.chunked:
            self.done = False
        elif head.get("content-length"):
            self._left = int(head.get("content-length"))
            self.done = self._left == 0
        else:
            self.to_the_end = to_the_end
            self.done = not to_the_end

    @classmethod
    def of_request(cls, head: Head) -> "Body":
        """Return the body of a request with this head."""
        return cls(head)

    @classmethod
    def of_answer(cls, head: Head, method: str) -> "Body":
        """Return the body of an answer to a request with this method."""
        bodiless = method == "HEAD" or head.status < 200 or head.status in (204, 304)
        return cls(head, empty=bodiless, to_the_end=True)

    def feed(self, data: bytes) -> bytes:
        """Take what came, and return the part of the body that is in it.

        Raises:
            EOFError: nothing came, and the body is not over.
        """
        if not data:
            self.done = True
            if not self.to_the_end:
                raise EOFError("the connection ended within a body")
            return b""
        if self.to_the_end:
            return data
        if self.chunked:
            self._data += data
            return self._chunks()
        taken, self.rest = data[: self._left], data[self._left :]
        self._left -= len(taken)
        self.done = self._left == 0
        return taken

    def _chunks(self) -> bytes:
        found = b""
        while not self.done:
            if self._left > 2:  # each chunk ends with a line's end
                taken = self._data[: self._left - 2]
                found += taken
                self._data = self._data[len(taken) :]
                self._left -= len(taken)
                if self._left > 2:
                    break
            elif self._left:
                if len(self._data) < 2:
                    break
                self._data, self._left = self._data[2:], 0
            else:
                line, end, after = self._data.partition(b"\r\n")
                if not end:
                    break
                self._data = after
                self._line(line)
        return found

    def _line(self, line: bytes) -> None:
        """Take a line between chunks: a size, or a part of the trailer."""
        if self._in_trailer:
            if not line:
                self.done, self.rest = True, self._data
        elif size := int(line.split(b";")[0], 16):
            self._left = size + 2
        else:
            self._in_trailer = True


def read_body(wire: Wire, body: Body) -> bytes:
    """Return a whole body.

    Raises:
        EOFError: the connection ended before it.
    """
    found = b""
    while not body.done:
        found += body.feed(wire.read())
    wire.unread(body.rest)
    return found


def chunk(data: bytes) -> bytes:
    """Return data as one chunk; no data ends the body."""
    return b"%x\r\n%s\r\n" % (len(data), data)
