"""The command line: parses flags, assembles the parts, prints. Each command is one screen.

Owns no behaviour of its own. Heavy parts load inside the commands, so that `--help` is quick.
"""

from __future__ import annotations

import json
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from worldloop import __version__, cli_pictures
from worldloop.cli_common import assignments, clear_errors
from worldloop.core.errors import InvalidInputError, SettingsError

app = typer.Typer(
    name="worldloop",
    help="The open-source server for generative worlds.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
    with clear_errors():
        from worldloop.core.settings import Settings

        flags: dict[str, Any] = {"world": world, "port": port, "host": host, "slots": slots}
        flags = {name: value for name, value in flags.items() if value is not None} | assignments(set_ or [])
        settings = Settings.load(config, **flags)
        _serve(settings, open_browser=not no_browser)


def _serve(settings: Any, *, open_browser: bool) -> None:
    from worldloop.core.memory import share_one_heap

    share_one_heap()

    from worldloop.core.telemetry import setup_logging
    from worldloop.host import WorldHost
    from worldloop.picture_host import PictureHost
    from worldloop.server.run import serve
    from worldloop.video_host import VideoHost

    setup_logging(form=settings.log_format, level=settings.log_level)
    host = WorldHost.from_settings(settings)
    if host.profile is not None:
        typer.echo(host.profile.table())
        if settings.profile_exit:
            host.close()
            return

    def ready(url: str) -> None:
        typer.echo(f"ready {url}")
        sys.stdout.flush()
        if open_browser:
            webbrowser.open(url)

    try:
        serve(
            host, settings, video_host=VideoHost.from_settings(settings, host.engine),
            picture_host=PictureHost.from_settings(settings, host.engine), on_ready=ready,
        )  # fmt: skip
    finally:
        host.close()


@app.command()
def video(
    prompt: Annotated[str, typer.Argument(help="What it shows.")],
    out: Annotated[Path, typer.Option(help="Write the MP4 here.")],
    seconds: Annotated[int, typer.Option(min=1, help="How long it is.")] = 4,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Same seed, same bytes; none draws one.")
    ] = None,
    first_frame: Annotated[
        Path | None,
        typer.Option(
            help="Picture that it begins with, cut to the model's size; without one, the picture model beside the "
            "video model draws it. `none` leaves it to the video model."
        ),
    ] = None,
    world: Annotated[str | None, typer.Option(help="World whose video model is used.")] = None,
    model: Annotated[str | None, typer.Option(help="A video model: a checkpoint, or its folder.")] = None,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting.")
    ] = None,
) -> None:
    """Make a video from text: the bytes that a server with the same settings sends."""
    with clear_errors():
        from worldloop.core.settings import Settings
        from worldloop.video_host import write_video

        flags = {name: value for name, value in {"world": world, "video": model}.items() if value is not None}
        settings = Settings.load(config, **flags, **assignments(set_ or []))
        made = write_video(
            settings, out, prompt=prompt, seconds=seconds, seed=seed, first_frame=first_frame,
            on_progress=lambda done, of: typer.echo(f"{done} of {of} pictures", err=True),
        )  # fmt: skip
        typer.echo(
            f"wrote {out}: {made.pictures} pictures, seed {made.seed}, first frame: {made.first_frame}"
        )


app.command()(cli_pictures.picture)
app.command()(cli_pictures.verify)


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(help="meadow, meadow-picture, meadow-video, or a .toml file that changes one.")
    ] = "meadow",
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run; training goes on where it stopped.")
    ] = None,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
    compile_blocks: Annotated[
        bool, typer.Option("--compile/--no-compile", help="Compile the trunk's blocks.")
    ] = True,
) -> None:
    """Train a world, its autoencoder first; or the model that makes pictures or videos of it from text."""
    with clear_errors():
        from worldloop.models.device import set_threads
        from worldloop.trainer.recipes import Recipe, load_recipe
        from worldloop.trainer.run import Run
        from worldloop.trainer.text_run import TextRun

        set_threads(threads)
        chosen = load_recipe(recipe)
        folder = out or Path("runs") / chosen.name
        if isinstance(chosen, Recipe):
            made = Run(chosen, folder, compile_blocks=compile_blocks).train()
        else:
            made = TextRun(chosen, folder, compile_blocks=compile_blocks).train()
        typer.echo(f"wrote {made}")


@app.command()
def distil(
    teacher: Annotated[str, typer.Argument(help="A shipped model (meadow-picture), or a checkpoint's path.")],
    out: Annotated[
        Path,
        typer.Option(
            help="Write the student here: a name that ends in picture.safetensors or video.safetensors."
        ),
    ],
    passes: Annotated[int, typer.Option(min=1, help="Denoising passes of the student.")] = 4,
    prompts: Annotated[
        Path | None,
        typer.Option(help="What is made to learn from, one prompt a line; none describes the meadow."),
    ] = None,
    rollouts: Annotated[int, typer.Option(min=2, help="How many, where no prompts are given.")] = 256,
    latents: Annotated[
        int | None,
        typer.Option(min=1, help="Latent frames of each: 1 of a picture model, else 9 as it stands."),
    ] = None,
    teacher_steps: Annotated[int, typer.Option(help="Of the teacher, a multiple of the passes.")] = 32,
    guidance: Annotated[float | None, typer.Option(help="Of the teacher; none is its own.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of the optimiser.")] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Of everything that is drawn.")] = 1,
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
) -> None:
    """Make a picture or video model quick: a student learns to end in a few passes where the teacher ends in many."""
    with clear_errors():
        from worldloop.models.device import set_threads
        from worldloop.models.registry import is_video
        from worldloop.trainer.few_steps import FewStepRecipe
        from worldloop.trainer.few_steps import distil as make
        from worldloop.trainer.text_data import meadow_prompts, read_prompts
        from worldloop.trainer.text_evaluate import find_text_model

        if (checkpoint := find_text_model(teacher)) is None:
            raise InvalidInputError(
                f"{teacher!r} must be a picture or video model: a shipped one's name, or a path"
            )
        walks = is_video(checkpoint)
        told = read_prompts(prompts) if prompts else meadow_prompts(rollouts, seed=seed, walks=walks)
        set_threads(threads)
        recipe = FewStepRecipe(
            passes=passes, teacher_steps=teacher_steps, latent_frames=latents or (9 if walks else 1), steps=steps,
            seed=seed,
        )  # fmt: skip
        made = make(
            checkpoint, out, told, recipe, guidance=guidance,
            on_rollout=lambda done: typer.echo(f"{done} of {len(told)} rollouts", err=True),
            on_step=lambda step, loss: typer.echo(f"step {step} of {steps}, loss {loss:.4f}", err=True),
        )  # fmt: skip
        typer.echo(
            f"wrote {made.path}: in {passes} passes, the teacher ends {made.before:.2f} from where it ends in "
            f"{teacher_steps}, the student {made.after:.2f}"
        )


@app.command("eval")
def evaluate(
    world: Annotated[
        str, typer.Argument(help="A shipped world or model (meadow, meadow-picture), or a checkpoint's path.")
    ] = "meadow",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the numbers here.")] = None,
    out: Annotated[Path | None, typer.Option(help="Write the report (table, curves, pictures) here.")] = None,
    worlds: Annotated[int, typer.Option(help="Held-out worlds to walk through.")] = 32,
    latents: Annotated[int, typer.Option(help="Latent frames of the long walks.")] = 600,
    quick: Annotated[bool, typer.Option("--quick", help="A few walks only, to see that it runs.")] = False,
    alone: Annotated[
        bool, typer.Option("--alone", help="A video model draws its first frames itself.")
    ] = False,
    training: Annotated[Path | None, typer.Option(help="A run's world.csv, drawn into the report.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Exit with 1 when a target is missed.")] = False,
) -> None:
    """Measure a world, or a model that reads text, against the simulator, which knows the truth."""
    with clear_errors():
        from worldloop.core.files import check_writable
        from worldloop.trainer.evaluate import evaluate_world
        from worldloop.trainer.report import write_report
        from worldloop.trainer.sizes import Sizes
        from worldloop.trainer.text_evaluate import TextSizes, evaluate_text, find_text_model

        if json_file is not None:
            check_writable(json_file)

        def progress(text: str) -> None:
            typer.echo(text, err=True)

        if (path := find_text_model(world)) is not None:
            report = evaluate_text(
                path, TextSizes.quick() if quick else TextSizes(), drawn=not alone, on_progress=progress
            )
        elif quick:
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
    with clear_errors():
        from worldloop.trainer.episodes import parse_size
        from worldloop.trainer.recorder import record as make

        card = make(
            source, out, license=license_, episodes=episodes, steps=steps, seed=seed, policy=policy,
            lossless=not lossy, size=parse_size(size) if size else None, fps=fps, actions=actions,
            on_shard=lambda card: typer.echo(f"{card.episodes} episodes, {card.frames} frames"),
        )  # fmt: skip
        typer.echo(f"wrote {out}: {card.episodes} episodes, {card.frames} frames")


@app.command()
def replay(
    tape: Annotated[Path, typer.Argument(help="A game's tape.")],
    world: Annotated[str, typer.Option(help="A shipped world's name, or a path to checkpoints.")] = "meadow",
    out: Annotated[Path | None, typer.Option(help="Write the pictures here, as MP4.")] = None,
    nfe: Annotated[
        int | None, typer.Option(help="Another number of denoising calls: other pictures, the same keys.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 when the bytes are not those that were played.")
    ] = False,
    shard: Annotated[
        Path | None, typer.Option(help="Write the game into this folder, as training data.")
    ] = None,
    license_: Annotated[str, typer.Option("--license", help="Licence of that data; needed.")] = "",
    dtype: Annotated[str, typer.Option(help="Number format: auto, bf16, autocast or fp32.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
) -> None:
    """Make the pictures of a recorded game again: to see them, to render them better, or to train on them."""
    with clear_errors():
        from worldloop.api import load_world
        from worldloop.codec.mp4 import write_mp4
        from worldloop.core.files import check_writable
        from worldloop.loops.tape import NO_FRAMES, Tape, add

        if check and nfe is not None:
            raise InvalidInputError("--check and --nfe exclude each other: other calls make other bytes")
        if shard is not None and nfe is not None:
            raise InvalidInputError("--shard and --nfe exclude each other: a shard holds what was played")
        if shard is not None and not license_:
            raise InvalidInputError("--shard needs --license: whose pictures they are, such as MIT")
        if out is not None:
            check_writable(out)
        played = Tape.load(tape)
        digest = NO_FRAMES

        def pictures() -> Iterator[Any]:
            nonlocal digest
            for frames in loaded.replay(played, nfe=nfe):
                digest = add(digest, frames)
                yield from frames

        with load_world(
            world, model_id=played.start.facts.origin.model_id, dtype=dtype, threads=threads, warmup=False
        ) as loaded:
            count = (
                write_mp4(out, pictures(), fps=loaded.fps) if out is not None else sum(1 for _ in pictures())
            )
            if shard is not None:
                loaded.export(played, shard, license=license_)
        same = digest.hex() == played.sha256
        typer.echo(
            f"{count} pictures" + ("" if nfe else f", {'' if same else 'not '}the same bytes as played")
        )
        if check and not same:
            raise typer.Exit(1)


@app.command()
def bench(
    world: Annotated[
        str, typer.Argument(help="A shipped world's name, or a path to checkpoints.")
    ] = "meadow",
    frames: Annotated[int, typer.Option(min=1, help="Latent frames to measure.")] = 50,
    dtype: Annotated[str, typer.Option(help="Number format: auto, bf16, autocast or fp32.")] = "auto",
    threads: Annotated[int, typer.Option(help="CPU threads; 0 takes all.")] = 0,
) -> None:
    """Measure what one latent frame of a world costs on this machine: model only, no server."""
    with clear_errors():
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
    path: Annotated[Path, typer.Argument(help="A checkpoint, a folder of them, or a shipped world's name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what a checkpoint or a folder of them holds, without reading weights."""
    with clear_errors():
        from worldloop.inspection import Inspection, rows

        found = Inspection.of(path)
        if as_json:
            typer.echo(json.dumps(found.to_dict(), indent=1))
        for entry in () if as_json else found.entries:
            _print_table(entry.name.model_id, [*rows(entry).items()])
        for refusal in found.refusals:
            typer.echo(f"worldloop: {refusal}", err=True)
        if found.refusals:
            raise typer.Exit(found.refusals[0].exit_code)


@app.command()
def doctor(
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Tell what this machine can do, and whether `play` works here; exit code 1 when it does not."""
    with clear_errors():
        from worldloop.core.telemetry import setup_logging
        from worldloop.doctor.examine import examine

        setup_logging(level="warning")
        found = examine(config, **assignments(set_ or []))
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
    else:
        for area in dict.fromkeys(finding.area for finding in found.findings):
            lines = [(each.name, each.text) for each in found.findings if each.area == area]
            _print_table(area, lines)
        for problem in found.problems:
            typer.echo(f"stops worldloop play: {problem}")
        if found.works:
            typer.echo("worldloop play works here with these settings.")
    if not found.works:
        raise typer.Exit(1)


@app.command()
def ticket(
    user: Annotated[str, typer.Argument(metavar="UID", help="The player that it admits.")],
    ttl: Annotated[
        int, typer.Option(min=1, max=31_536_000, metavar="SECONDS", help="How long it admits, from now.")
    ] = 300,
    config: Annotated[Path | None, typer.Option(help="Settings file (TOML).")] = None,
) -> None:
    """Print a ticket for one player, signed with the secret of the settings file or the environment."""
    with clear_errors():
        from worldloop.core.clock import SystemClock
        from worldloop.core.settings import Settings
        from worldloop.session.tickets import Tickets
        from worldloop.wire.world import check_user_id

        settings = Settings.load(config)
        if settings.ticket_secret is None:
            raise SettingsError(
                "no ticket_secret: set it and server_id as the server has them, in the settings file (--config) or as "
                "WORLDLOOP_TICKET_SECRET and WORLDLOOP_SERVER_ID"
            )
        secret = settings.ticket_secret.get_secret_value()
        tickets = Tickets(secret=secret, server_id=settings.server_id, clock=SystemClock())
        typer.echo(tickets.mint(check_user_id(user), ttl_s=ttl))


@app.command()
def key() -> None:
    """Print a new key for `/v1` and its hash, which is what the setting `api_key_hashes` takes."""
    from worldloop.session.keys import hash_key, new_key

    made = new_key()
    typer.echo(f"key   {made}")
    typer.echo(f"hash  {hash_key(made)}")


def _print_table(title: str, lines: Sequence[tuple[str, str]]) -> None:
    """A title and two columns; as wide as the terminal, unbroken lines in a pipe."""
    if not sys.stdout.isatty():
        typer.echo("\n".join([title, *(f"  {name:<20} {text}" for name, text in lines)]))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    for line in lines:
        table.add_row(*line)
    Console(markup=False, highlight=False).print(table)
