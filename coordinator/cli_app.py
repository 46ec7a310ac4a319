"""What the modules of the command line share: the program, its usual options, how errors are told."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer
from rich.console import Console

from cutline.errors import CutlineError, NotAStore
from cutline.storage import Store, locate, open_store

__all__ = ("FOLDER", "AsJson", "Folder", "Name", "Point", "app", "console", "errors", "opened", "plainly")

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Consistent global checkpoints of running multi-agent systems.",
)
Folder = Annotated[str, typer.Option("--storage", "-s", help="The storage folder, or its URL.")]
Name = Annotated[str, typer.Option("--name", "-n", help="The system's name.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
Point = Annotated[str, typer.Argument(help='A checkpoint: an id, a label, or "newest".')]
FOLDER = "./checkpoints"
console = Console()
errors = Console(stderr=True)


def plainly(command: Callable[..., Any]) -> Callable[..., Any]:
    """Errors that say what to do need no traceback."""

    @wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (CutlineError, TimeoutError) as error:
            errors.print(f"cutline: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
            raise typer.Exit(1) from error

    return wrapped


def opened(storage: str) -> Store:
    """The store there is; says so if nobody can tell who wrote it."""
    try:
        store = open_store(storage, create=False)
    except NotAStore as error:
        place = locate(storage)
        if place.kind == "bucket":
            raise
        raise NotAStore(f"{place} holds no checkpoints; name the storage folder with --storage") from error
    if not store.is_verified:
        text = f"authenticity not checked: the key of this store ({store.catalog.seals.key_id}) is not here"
        errors.print(text, markup=False, highlight=False, soft_wrap=True)
    return store
