"""`cutline key`: where the key of a store is, and how it gets to another machine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from cutline.errors import BlobExists, Misuse
from cutline.storage import open_store
from cutline.storage.authentic import StoreKey
from cutline.storage.keys import aside_path, find_key, keep_key, key_path

from .authority import take_over
from .cli_app import FOLDER, AsJson, Folder, app, console, plainly

__all__ = ("add", "export", "renew", "show")

key_app = typer.Typer(no_args_is_help=True, help="The key of a store: whoever has it can write the store.")
app.add_typer(key_app, name="key")
_Told = Annotated[Path, typer.Argument(help="A file with the key; not there yet.")]


@key_app.command("show")
@plainly
def show(storage: Folder = FOLDER, as_json: AsJson = False) -> None:
    """Which key a store has, and where it is. The key itself is not shown."""
    with open_store(storage, create=False) as store:
        seals, place = store.catalog.seals, store.url
    path = key_path(seals.key_id)
    where = str(path) if path.exists() else "the environment" if seals.key is not None else None
    if as_json:
        print(json.dumps({"key": seals.key_id, "here": seals.key is not None, "place": where}))
        return
    text = f"{place} has key {seals.key_id}: {where or 'it is not here'}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@key_app.command("export")
@plainly
def export(target: _Told, storage: Folder = FOLDER) -> None:
    """Write the key of a store to a file, to be carried to another machine. Keep it secret."""
    with open_store(storage, create=False) as store:
        key = store.catalog.seals.need_key()
    try:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise BlobExists(f"{target} is there already: choose another name", path=str(target)) from error
    except OSError as error:
        raise Misuse(f"{target}: {error.strerror}") from error
    with open(descriptor, "w") as file:
        file.write(f"{key.text}\n")
    console.print(f"key {key.id} is in {target}", markup=False, highlight=False, soft_wrap=True)


@key_app.command("add")
@plainly
def add(source: Annotated[Path, typer.Argument(help="A file that `cutline key export` has made.")]) -> None:
    """Take up a key from a file: this user can then use its store and import its exports."""
    try:
        key = StoreKey.from_text(source.read_text(encoding="ascii", errors="replace"), str(source))
    except OSError as error:
        raise Misuse(f"{source}: {error.strerror}") from error
    there = find_key(key.id) is not None
    text = f"key {key.id} was here already" if there else f"key {key.id} is in {keep_key(key)}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)


@key_app.command("renew")
@plainly
def renew(
    storage: Folder = FOLDER,
    trust: Annotated[
        bool,
        typer.Option("--trust", help="Also if the old key is not here: whoever wrote the store is trusted."),
    ] = False,
) -> None:
    """Give a store a new key; not while a system runs in it. This user does not believe the old one any more:
    it is set aside, and `cutline key add` takes it up again, for what was exported with it."""
    with open_store(storage, create=False) as store:
        if not trust:
            store.catalog.seals.need_key()
        old = store.catalog.seals.key
        key = take_over(store, storage, trust=trust)
    text = f"{store.url} has key {key.id} now"
    if old is not None:
        still = find_key(old.id) is not None
        where = "still given by the environment" if still else f"set aside as {aside_path(old.id)}"
        text = f"{text}; the old one, {old.id}, is {where}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
