"""Where a store is, as one URL says it.

========================================================  ==================================================
``./folder``, ``file:///folder``                          a folder; the catalog is a SQLite file in it
``./folder?catalog=postgresql://HOST/DATABASE``           blobs in a folder, the catalog in PostgreSQL
``s3://BUCKET/PREFIX?catalog=postgresql://...``           blobs in S3 or what speaks like it; ``gs://``, ``az://``
``memory:``                                               this process's memory
========================================================  ==================================================

Options of a bucket are ``endpoint``, ``region``, ``allow_http`` and, for Azure, ``account``; those of a
catalog are ``schema`` and libpq's own. They may stand in any order behind ``?`` or ``&``. A catalog's URL is
taken as it is written; nothing in it has to be quoted a second time.

Credentials come from where the services' own tools take them: the environment, ``~/.pgpass``, the machine's
role. A password in a catalog's URL is accepted and never shown.
"""

from __future__ import annotations

import os
import re
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from cutline.errors import RefusedOption

from .codec import digest_of

__all__ = (
    "CatalogUrl",
    "Location",
    "database_of",
    "locate",
    "need_catalog",
    "store_home",
    "store_path",
    "user_home",
)

_CLOUDS = {"s3": "S3", "gs": "Google Cloud Storage", "az": "Azure Blob Storage"}
_OPTIONS = ("endpoint", "region", "allow_http", "account")
_POSTGRES = ("postgresql://", "postgres://")
_CATALOG = re.compile(r"[?&]catalog=")
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}\Z")
_SECRETS = re.compile(r"password|secret|access_?key|token|credential|passfile|service", re.IGNORECASE)


@dataclass(frozen=True)
class CatalogUrl:
    """A schema in a PostgreSQL database. ``options``: what is connected with, secrets among it."""

    options: Mapping[str, str] = field(repr=False)
    schema: str = "cutline"

    def __str__(self) -> str:
        """Without secrets."""
        shown = self.options
        user = f"{shown['user']}@" if "user" in shown else ""
        port = f":{shown['port']}" if "port" in shown else ""
        place = f"{user}{shown.get('host', '')}{port}/{shown.get('dbname', '')}"
        return f"postgresql://{place}?schema={self.schema}"


@dataclass(frozen=True)
class Location:
    """``url``: as given, made absolute; it may hold secrets. ``place``: the folder, or bucket and prefix."""

    kind: Literal["folder", "bucket", "memory"]
    url: str = field(repr=False)
    place: str
    options: Mapping[str, str] = field(default_factory=dict)
    catalog: CatalogUrl | None = None

    def __str__(self) -> str:
        """For people: without secrets."""
        return f"{self.place}?catalog={self.catalog}" if self.catalog else self.place

    @property
    def blobs_url(self) -> str:
        """Where the blobs are, for who needs no catalog and is not told its secrets."""
        if not self.options:
            return self.place
        return f"{self.place}?{urllib.parse.urlencode(self.options)}"

    @property
    def path(self) -> Path:
        """The folder of the blobs. Raises RefusedOption for what is none."""
        if self.kind != "folder":
            raise RefusedOption(f"{self}: this needs a folder on this machine", url=str(self))
        return Path(self.place)


def locate(url: str | os.PathLike[str]) -> Location:
    """What a URL says. Raises RefusedOption, which says what to write instead."""
    text = os.fspath(url)
    scheme, colon, _ = text.partition(":")
    # One letter is a drive, not a scheme.
    plain = not colon or len(scheme) < 2 or "/" in scheme or not scheme.replace("+", "").isalnum()
    scheme = "" if plain else scheme.lower()
    if scheme in _CLOUDS:
        return _bucket(text, scheme)
    if scheme == "memory":
        if text[7:].strip("/"):
            raise RefusedOption(f"{_shown(text)!r}: write memory:", url=_shown(text))
        return Location("memory", "memory:", "memory:")
    if scheme not in ("", "file"):
        raise RefusedOption(
            f"{_shown(text)!r}: a store is a folder (a path or file:///path), or s3://, gs:// or az:// with a"
            " catalog=postgresql://... (docs/format.md)",
            url=_shown(text),
        )
    folder, catalog, options = _split(text)
    if options:
        raise RefusedOption(f"{_shown(text)!r}: a folder has no options but catalog=", url=_shown(text))
    path = Path(folder).expanduser() if plain else _file(folder)
    if not folder or "\0" in text:
        raise RefusedOption(f"{_shown(text)!r} is not the path of a folder", url=_shown(text))
    absolute = str(path.absolute())
    tail = text[len(folder) :] if catalog else ""
    return Location("folder", absolute + tail, absolute, catalog=catalog)


def store_path(url: str | os.PathLike[str]) -> Path:
    """The folder that a URL names, as it names it. Raises RefusedOption for what is no folder's."""
    text = os.fspath(url)
    location = locate(text)
    folder = _split(text)[0]
    return _file(folder) if folder[:5].lower() == "file:" else location.path and Path(folder).expanduser()


def store_home(url: str | os.PathLike[str]) -> Path:
    """The folder of this machine where a running system keeps what is not part of its store.

    That of the store, if it is a folder. Else one under CUTLINE_HOME, or under the user's state folder
    (XDG_STATE_HOME, ~/.local/state): the endpoint, the driver's ingress log, spilled outboxes.
    """
    location = locate(url)
    if location.kind == "folder":
        return location.path
    if location.kind == "memory":
        raise RefusedOption(
            "memory: is one process's, and the participants of a system are others: use a folder"
        )
    top = user_home()
    name = re.sub(r"[^A-Za-z0-9]+", "-", location.place).strip("-")[:60]
    mark = f"{location.place}\0{location.options.get('endpoint', '')}".encode()
    return top / f"{name}-{digest_of(mark).hex()[:16]}"


def user_home() -> Path:
    """This user's folder for what belongs to no store: CUTLINE_HOME, or below the user's state folder."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(os.environ.get("CUTLINE_HOME") or f"{state}/cutline").expanduser().absolute()


def _bucket(text: str, scheme: str) -> Location:
    place, catalog, options = _split(text)
    parsed = urllib.parse.urlsplit(place)
    segments = parsed.path.strip("/").split("/") if parsed.path.strip("/") else []
    bad = any(not part or part in (".", "..") for part in segments)
    if not parsed.netloc or "@" in parsed.netloc or bad:
        raise RefusedOption(
            f"{_shown(text)!r}: write {scheme}://BUCKET/PREFIX; credentials come from the environment",
            url=_shown(text),
        )
    name = "/".join((f"{scheme}://{parsed.netloc}", *segments))
    unknown = [option for option in options if option not in _OPTIONS]
    if unknown:
        why = "credentials come from the environment" if _SECRETS.search(unknown[0]) else "it is not known"
        raise RefusedOption(
            f"{name}: leave out the option {unknown[0]!r}: {why}. There are catalog, {', '.join(_OPTIONS)}",
            url=name,
        )
    if options.get("endpoint", "").startswith("http://") and options.get("allow_http") != "true":
        raise RefusedOption(
            f"{name}: {options['endpoint']} is not encrypted: if you mean it, add allow_http=true",
            url=name,
        )
    return Location("bucket", text, name, options, catalog)


def need_catalog(location: Location) -> CatalogUrl:
    """The catalog of a bucket. Raises RefusedOption, saying why there must be one."""
    if location.catalog is None:
        raise RefusedOption(
            f"{location.place} has no catalog: the fate of a checkpoint is one row that changes once, under a"
            f" lease, and {_CLOUDS[location.place.partition(':')[0]]} has no such thing. Write"
            f" {location.place}?catalog=postgresql://HOST/DATABASE",
            url=location.place,
        )
    return location.catalog


def database_of(url: str) -> CatalogUrl:
    """What ``postgresql://...`` says. Raises RefusedOption for anything else."""
    found = locate(f"./folder?catalog={url}").catalog
    assert found is not None
    return found


def _split(text: str) -> tuple[str, CatalogUrl | None, dict[str, str]]:
    """What is before the options, the catalog, and the options of the bucket."""
    found = _CATALOG.search(text)
    is_bucket = text.partition("://")[0].lower() in _CLOUDS
    place, tail = (text[: found.start()], text[found.end() :]) if found else (text, "")
    pairs: list[str] = []
    if is_bucket or place[:5].lower() == "file:":
        place, _, query = place.partition("?")
        pairs += [pair for pair in query.split("&") if pair]
    if found is None:
        return place, None, _options(place, pairs)
    if "://" not in tail:
        tail = urllib.parse.unquote(tail)
    catalog, *more = re.split(r"[?&]", tail)
    own = {pair for pair in more if pair.partition("=")[0] in _OPTIONS}
    pairs += [pair for pair in more if pair in own]
    return place, _catalog(catalog, [pair for pair in more if pair not in own]), _options(place, pairs)


def _options(place: str, pairs: list[str]) -> dict[str, str]:
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not value or name in options:
            raise RefusedOption(f"{place}: write the option {name!r} once, as {name}=VALUE", url=place)
        options[name] = urllib.parse.unquote(value)
    return options


def _catalog(url: str, pairs: list[str]) -> CatalogUrl:
    if not url.startswith(_POSTGRES):
        scheme, is_url, _ = url.partition("://")
        given = f"catalog={scheme[:20]}://...: " if is_url else ""
        raise RefusedOption(f"{given}a catalog is postgresql://USER@HOST:PORT/DATABASE")
    try:
        parsed = urllib.parse.urlsplit(url)
        port = parsed.port
    except ValueError:
        # The text may be a password that is not quoted.
        raise RefusedOption(
            "the catalog's URL cannot be read: write postgresql://USER@HOST:PORT/DATABASE, and quote what is"
            " special in a password (/ is %2F), or put that into PGPASSWORD"
        ) from None
    if "@" in parsed.path or parsed.fragment:
        raise RefusedOption("the catalog's URL cannot be read: quote / and # in a password (%2F, %23)")
    options = _options("the catalog", pairs)
    schema = options.pop("schema", "cutline")
    if not _SCHEMA.match(schema):
        raise RefusedOption(f"schema={schema!r}: take a name of small letters, digits and _", schema=schema)
    for name, value in (
        ("host", parsed.hostname),
        ("port", port),
        ("user", parsed.username),
        ("password", parsed.password),
        ("dbname", parsed.path.strip("/")),
    ):
        if value:
            options[name] = urllib.parse.unquote(str(value))
    return CatalogUrl(options, schema)


def _file(text: str) -> Path:
    parsed = urllib.parse.urlsplit(text)
    if parsed.netloc not in ("", "localhost") or not parsed.path or parsed.query or parsed.fragment:
        raise RefusedOption(f"{_shown(text)!r}: write file:///path/of/the/folder", url=_shown(text))
    return Path(urllib.request.url2pathname(parsed.path))


def _shown(text: str) -> str:
    """Without what may be a secret."""
    return re.sub(r"//[^/@?]*@", "//***@", re.sub(r"([?&]).*", r"\1...", text))
