"""The command line: parses flags, assembles the parts, prints. Each command is one screen.

Owns no behaviour of its own. Heavy parts load inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from worldloop import __version__
from worldloop.core.errors import InvalidInputError, WorldloopError

app = typer.Typer(
    name="worldloop",
    help="The open-source server for generative worlds.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@contextmanager
def _clear_errors() -> Iterator[None]:
    """Turn our own errors into one line and their exit code."""
    try:
        yield
    except WorldloopError as error:
        typer.echo(f"worldloop: {error}", err=True)
        raise typer.Exit(error.exit_code) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop."),
    ] = False,
) -> None:
    """The open-source server for generative worlds."""


@app.command()
def play(
    world: Annotated[
        str | None, typer.Option(help="A shipped world's name, or a path to checkpoints.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 chooses a free one.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    slots: Annotated[int | None, typer.Option(help="Players at the same time.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Do not open the page.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting.")
    ] = None,
) -> None:
    """Serve a world and open its page."""
    with _clear_errors():
        from worldloop.core.settings import Settings

        flags: dict[str, Any] = {"world": world, "port": port, "host": host, "slots": slots}
        flags = {name: value for name, value in flags.items() if value is not None} | _assignments(set_ or [])
        settings = Settings.load(config, **flags)
        _serve(settings, open_browser=not no_browser)


def _serve(settings: Any, *, open_browser: bool) -> None:
    from worldloop.core.telemetry import setup_logging
    from worldloop.host import WorldHost
    from worldloop.server.run import serve

    setup_logging(form=settings.log_format, level=settings.log_level)
    host = WorldHost.open(
        settings.world,
        dtype=settings.dtype,
        threads=settings.threads,
        model_id=settings.default_model_id,
        rope_table_len=settings.rope_table_len,
        window=settings.serve_window_frames,
        reprefill_every=settings.reprefill_every,
        on_table_end=settings.on_table_end,
    )

    def ready(url: str) -> None:
        typer.echo(f"ready {url}")
        sys.stdout.flush()
        if open_browser:
            webbrowser.open(url)

    try:
        serve(host, settings, on_ready=ready)
    finally:
        host.close()


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(help="meadow, tiny, or a .toml file that changes one of them.")
    ] = "meadow",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; training goes on where it stopped.")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    compile_blocks: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the trunk's blocks.")
    ] = True,
) -> None:
    """Train a world: its autoencoder, then the world itself."""
    with _clear_errors():
        from worldloop.models.device import set_threads
        from worldloop.trainer.recipes import Recipe
        from worldloop.trainer.run import Run

        set_threads(threads)
        chosen = Recipe.load(recipe)
        run = Run(chosen, out or Path("runs") / chosen.name, compile_blocks=compile_blocks)
        typer.echo(f"wrote {run.train()}")


@app.command("eval")
def evaluate(
    world: Annotated[
        str, typer.Argument(help="A shipped world's name, or a path to a checkpoint.")
    ] = "meadow",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report (table, curves, pictures) here.")] = None,
    worlds: Annotated[int, typer.Option(help="Held-out worlds to walk through.")] = 32,
    latents: Annotated[int, typer.Option(help="Latent frames of the long walks.")] = 600,
    quick: Annotated[bool, typer.Option("--quick", help="A few walks only, to see that it runs.")] = False,
    training: Annotated[Path | None, typer.Option(help="A run's world.csv, drawn into the report.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
) -> None:
    """Measure a world against the simulator, which knows the truth."""
    with _clear_errors():
        from worldloop.trainer.evaluate import evaluate_world
        from worldloop.trainer.report import write_report
        from worldloop.trainer.sizes import Sizes

        def progress(text: str) -> None:
            typer.echo(text, err=True)

        if quick:
            report = evaluate_world(world, sizes=Sizes.quick(), on_progress=progress)
        else:
            report = evaluate_world(world, worlds=worlds, latents=latents, on_progress=progress)
        typer.echo(report.table())
        if json_file is not None:
            json_file.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
        if out is not None:
            write_report(report, out, training=training)
        if check and not report.passed:
            raise typer.Exit(1)


@app.command()
def record(
    source: Annotated[
        str, typer.Argument(help="An environment's id, or a folder of videos with a table of actions.")
    ],
    out: Annotated[Path, typer.Argument(help="Folder of the recording; recording goes on where it stopped.")],
    license_: Annotated[str, typer.Option("--license", help="Licence of the pictures.")],
    episodes: Annotated[
        int | None, typer.Option(help="How many; 100 of an environment, all of videos.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps of an episode, at most; a step is 4 frames.")] = 120,
    seed: Annotated[int, typer.Option(help="Of worlds and players.")] = 1,
    policy: Annotated[str, typer.Option(help="Who plays: walkers or random.")] = "walkers",
    lossy: Annotated[bool, typer.Option("--lossy", help="MP4 that plays everywhere.")] = False,
    size: Annotated[str | None, typer.Option(help="HEIGHTxWIDTH, multiples of 16.")] = None,
    fps: Annotated[float | None, typer.Option(help="RGB frames a second.")] = None,
    actions: Annotated[
        Path | None, typer.Option(help="What each discrete action means (CSV or Parquet).")
    ] = None,
) -> None:
    """Record an environment or a folder of videos as training data."""
    with _clear_errors():
        from worldloop.trainer.episodes import parse_size
        from worldloop.trainer.recorder import record as make

        card = make(
            source, out, license=license_, episodes=episodes, steps=steps, seed=seed, policy=policy,
            lossless=not lossy, size=parse_size(size) if size else None, fps=fps, actions=actions,
            on_shard=lambda card: typer.echo(f"{card.episodes} episodes, {card.frames} frames"),
        )  # fmt: skip
        typer.echo(f"wrote {out}: {card.episodes} episodes, {card.frames} frames")


@app.command()
def bench(
    world: Annotated[
        str, typer.Argument(help="A shipped world's name, or a path to checkpoints.")
    ] = "meadow",
    frames: Annotated[int, typer.Option(min=1, help="Latent frames to measure.")] = 50,
    dtype: Annotated[str, typer.Option(help="Number format: auto, bf16 or fp32.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
) -> None:
    """Measure what one latent frame of a world costs on this machine: model only, no server."""
    with _clear_errors():
        from worldloop.host import WorldHost
        from worldloop.loops.timing import report, time_frames

        host = WorldHost.open(world, dtype=dtype, threads=threads)
        try:
            times = host.engine.call(lambda: time_frames(host.model, frames=frames))
        finally:
            host.close()
        typer.echo(report(host.active_model_id or world, host.model, times))


@app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A checkpoint, or a folder of them.")],
) -> None:
    """Print what a checkpoint or a folder of them holds, without reading weights."""
    with _clear_errors():
        from worldloop.models.registry import read_entry, scan

        entries = list(scan(path).entries.values()) if path.is_dir() else [read_entry(path)]
        typer.echo(json.dumps({entry.name.model_id: entry.details() for entry in entries}, indent=1))


def _assignments(pairs: list[str]) -> dict[str, Any]:
    """`NAME=VALUE` pairs; numbers, booleans and lists as JSON, anything else as text."""
    result: dict[str, Any] = {}
    for pair in pairs:
        name, sign, text = pair.partition("=")
        if not sign:
            raise InvalidInputError(f"--set {pair!r} must be NAME=VALUE")
        try:
            result[name] = json.loads(text)
        except json.JSONDecodeError:
            result[name] = text
    return result
