"""An NBD client that attaches and then does nothing."""

import socket
import struct

HANDSHAKE = struct.Struct(">QQH")
OPTION = struct.Struct(">8sII")
REPLY = struct.Struct(">QIII")
FIXED_NEWSTYLE_NO_ZEROES = 3
OPT_GO = 7
REP_ACK = 1


def exactly(connection, length):
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise RuntimeError("the server closed the connection in the handshake")
        data += more
    return data


def attach(path, export):
    """Negotiates up to transmission; the connection idles until it is closed."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(str(path))
    exactly(connection, HANDSHAKE.size)
    connection.sendall(struct.pack(">I", FIXED_NEWSTYLE_NO_ZEROES))
    name = export.encode()
    data = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    connection.sendall(OPTION.pack(b"IHAVEOPT", OPT_GO, len(data)) + data)
    while True:
        _, _, kind, length = REPLY.unpack(exactly(connection, REPLY.size))
        exactly(connection, length)
        if kind == REP_ACK:
            return connection
        if kind & 1 << 31:
            raise RuntimeError(f"{export}: refused with {kind:#x}")


def serves(path, export):
    """Whether a client gets as far as reading."""
    try:
        attach(path, export).close()
    except (OSError, RuntimeError):
        return False
    return True
