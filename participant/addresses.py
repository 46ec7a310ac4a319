"""Addresses that participants listen on and dial: ``unix:/path``, ``127.0.0.1:port``, ``tls:HOST:port``.

On one host Unix sockets are preferred: faster than loopback TCP, guarded by file permissions, no ports to
run out of. Without ``tls:`` addresses off loopback are refused: the token of a run would travel in clear
text, and the check is made on the address itself, because a machine's own name may resolve to an outside
interface. With it both sides show a certificate of the run (tls.py).

gRPC would silently take over a Unix socket somebody else listens on (it unlinks the file first), so
`reserve` looks before gRPC binds.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
import stat

from cutline.errors import ConnectionRefused, PortInUse, RefusedOption

from .scratch import LINK, let_go, make_folder

__all__ = ("TLS", "Reservation", "nobody_listens", "reserve", "target")

TLS = "tls:"
_UNIX = "unix:"
_UNIX_LIMIT = 103  # bytes of sun_path that every system takes, the closing zero aside
_NOBODY = frozenset((errno.ECONNREFUSED, errno.ENOENT, errno.ENOTSOCK, errno.ENOTDIR))


def target(address: str) -> str:
    """The address as gRPC takes it. Raises RefusedOption if it is malformed or off loopback."""
    if address.startswith(_UNIX):
        path = address[len(_UNIX) :]
        if not os.path.isabs(path):
            raise RefusedOption(f"address {address!r}: give an absolute path after 'unix:'", address=address)
        if len(os.fsencode(path)) > _UNIX_LIMIT:
            raise RefusedOption(
                f"address {address!r}: a socket's path may have {_UNIX_LIMIT} bytes; use a shorter folder, "
                "or 'unix:' alone to get one",
                address=address,
            )
        return address
    host, port = _host_and_port(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.removeprefix(TLS).rpartition(":")
    host = host.strip("[]")
    if host == "localhost":
        host = "127.0.0.1"
    try:
        loopback = ipaddress.ip_address(host).is_loopback
        number = int(port)
    except ValueError:
        raise RefusedOption(
            f"address {address!r} is none of 'unix:/path', '127.0.0.1:port' and 'tls:IP:port'",
            address=address,
        ) from None
    if not 0 <= number <= 65535:
        raise RefusedOption(f"address {address!r}: ports go from 0 to 65535", address=address)
    if not loopback and not address.startswith(TLS):
        raise RefusedOption(
            f"address {address!r} is off loopback, where the token would travel in clear text; "
            f"use 'unix:/path', '127.0.0.1:port' or {TLS + address!r}",
            address=address,
        )
    return host, number


class Reservation:
    """An address that this process may listen on; `release` removes what it left in the file system."""

    def __init__(self, address: str, folder: str | None) -> None:
        self.address = address
        self._folder = folder
        self._inode: tuple[int, int] | None = None

    @property
    def _path(self) -> str | None:
        return self.address[len(_UNIX) :] if self.address.startswith(_UNIX) else None

    def bound(self, port: int) -> str:
        """gRPC has bound it; returns the address to dial."""
        path = self._path
        if path is None:
            host, _, _ = self.address.rpartition(":")
            self.address = f"{host}:{port}"
        else:
            os.chmod(path, 0o600)
            status = os.stat(path)
            self._inode = (status.st_dev, status.st_ino)
        return self.address

    def failure(self, said: str) -> ConnectionRefused:
        """Why gRPC could not bind it: asks the operating system again, since gRPC hides the number."""
        if self._path is None:
            host, port = _host_and_port(self.address)
            with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    trial.bind((host, port))
                except OSError as error:
                    if error.errno == errno.EADDRINUSE:
                        return _in_use(self.address)
                    said = str(error)
        return ConnectionRefused(f"cannot listen on {self.address}: {said}", address=self.address)

    def release(self) -> None:
        path = self._path
        if path is not None and self._inode is not None:
            try:
                status = os.stat(path)
                if (status.st_dev, status.st_ino) == self._inode:
                    os.unlink(path)
            except FileNotFoundError:
                self._inode = None  # gRPC removed it when it closed the listener
        if self._folder is not None:
            let_go(self._folder, remove=True)


def reserve(listen: str) -> Reservation:
    """Make sure that nobody listens there; clears away the socket of a dead process.

    ``unix:`` alone gets a new private folder. Raises PortInUse, ConnectionRefused, RefusedOption.
    """
    if listen == _UNIX:
        folder = make_folder(LINK)
        try:
            return Reservation(target(f"{_UNIX}{folder}/socket"), folder)
        except RefusedOption:
            let_go(folder, remove=True)
            raise RefusedOption(
                f"the folder for temporary files, {os.path.dirname(folder)!r}, has too long a path: that of "
                f"a socket may have {_UNIX_LIMIT} bytes; set TMPDIR to a shorter one",
                address=listen,
            ) from None
    address = target(listen)
    if address.startswith(_UNIX):
        _clear_away(address, address[len(_UNIX) :])
    return Reservation(TLS + address if listen.startswith(TLS) else address, None)


def _clear_away(address: str, path: str) -> None:
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            raise PortInUse(
                f"cannot listen on {address}: a file that is no socket lies there", address=address
            )
    except FileNotFoundError:
        if not os.path.isdir(os.path.dirname(path)):
            raise ConnectionRefused(
                f"cannot listen on {address}: the folder does not exist; create it", address=address
            ) from None
        return
    with socket.socket(socket.AF_UNIX) as trial:
        trial.settimeout(1.0)
        try:
            trial.connect(path)
        except OSError as error:
            if error.errno in _NOBODY:
                os.unlink(path)
                return
    raise _in_use(address)


def _in_use(address: str) -> PortInUse:
    return PortInUse(
        f"cannot listen on {address}: the address is in use; stop who listens there or choose another",
        address=address,
    )


async def nobody_listens(address: str) -> bool:
    """True if the operating system says so; False if somebody does, or nothing is known."""
    loop = asyncio.get_running_loop()
    where: str | tuple[str, int]
    if address.startswith(_UNIX):
        family, where = socket.AF_UNIX, address[len(_UNIX) :]
    else:
        where = _host_and_port(address)
        family = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_connect(trial, where), 1.0)
        except OSError as error:
            return error.errno in _NOBODY
        except asyncio.TimeoutError:
            return False
    return False
