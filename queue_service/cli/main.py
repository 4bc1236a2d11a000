"""`hearth`: the commands and their flags. What they do is in the modules beside this one."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from queue_service.settings import Loaded

app = typer.Typer(
    help="A multi-tenant function runner whose unit of work is the batch.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
config = typer.Typer(help="Look at the settings.", no_args_is_help=True)
app.add_typer(config, name="config")

Data = Annotated[Path | None, typer.Option(help="Directory of journals, keys and database.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file with settings.", envvar="HEARTH_CONFIG")
]


@app.command()
def serve(
    data: Data = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 picks a free one.")] = None,
    mongo: Annotated[
        str | None, typer.Option(help="MongoDB URI; without it one is started.")
    ] = None,
    mongod: Annotated[str | None, typer.Option(help="Path of the mongod to embed.")] = None,
    config_file: ConfigFile = None,
) -> None:
    """Run one daemon."""
    loaded = _load(
        {"data": data, "host": host, "port": port, "mongo": mongo, "mongod": mongod}, config_file
    )
    from queue_service.cli.serving import serve as run

    sys.exit(run(loaded.settings))


@app.command()
def mongo(
    data: Data = None,
    mongod: Annotated[str | None, typer.Option(help="Path of the mongod to run.")] = None,
    config_file: ConfigFile = None,
) -> None:
    """Run only the embedded database, for several daemons on this host to share."""
    loaded = _load({"data": data, "mongod": mongod}, config_file)
    from queue_service.cli.serving import serve_mongo

    sys.exit(serve_mongo(loaded.settings))


@app.command()
def demo(
    jobs: Annotated[int, typer.Option(min=1, help="How many payloads to post.")] = 100_000,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up afterwards.")] = False,
) -> None:
    """Start a service in a temporary directory, run jobs through it, show the scoreboard."""
    from queue_service.cli.demo import demo as run

    sys.exit(run(jobs, keep=keep))


@config.command()
def show(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value is from.")] = False,
    config_file: ConfigFile = None,
) -> None:
    """Print every setting and its value."""
    loaded = _load({}, config_file)
    for name, value in loaded.settings.model_dump(mode="json").items():
        shown = "***" if name == "admin_key" and value else value
        place = f"    # {loaded.origin.get(name, 'default')}" if origin else ""
        typer.echo(f"{name} = {shown!r}{place}")


def _load(flags: dict[str, Any], file: Path | None) -> Loaded:
    from queue_service.settings import InvalidSettings, load

    try:
        return load(flags, os.environ, file)
    except InvalidSettings as error:
        typer.echo(f"hearth: {error}", err=True)
        raise typer.Exit(2) from None


def main() -> None:
    app()


if __name__ == "__main__":
    main()
