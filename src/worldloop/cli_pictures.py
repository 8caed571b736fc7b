"""The commands of pictures: `picture` makes one, `verify` makes it again from its receipt.

Owns flags and what is printed; `pictures` does the work. Registered by `cli`.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import Annotated, Any

import typer

from worldloop.cli_common import assignments, clear_errors
from worldloop.core.errors import InvalidInputError

SUFFIXES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp"}

World = Annotated[str | None, typer.Option(help="World whose picture model is used.")]
Model = Annotated[
    str | None, typer.Option(help="A picture model: a checkpoint, its folder, or a pipeline's folder.")
]
Config = Annotated[Path | None, typer.Option(help="Settings file (TOML).")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other setting.")]


def picture(
    prompt: Annotated[str, typer.Argument(help="What it shows.")],
    out: Annotated[Path, typer.Option(help="Write the picture here: .png, .jpg or .webp.")],
    size: Annotated[
        str | None, typer.Option(metavar="WxH", help="In pixels; none is the model's own.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Same seed, same bytes; none draws one.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Denoising steps.")] = None,
    guidance: Annotated[
        float | None, typer.Option(help="How closely it follows the prompt; 1 leaves out the other pass.")
    ] = None,
    negative: Annotated[str, typer.Option(help="What it shall not show.")] = "",
    shift: Annotated[float | None, typer.Option(help="Of the noise schedule.")] = None,
    format_: Annotated[
        str | None, typer.Option("--format", help="png, jpeg or webp; none goes by the file's name.")
    ] = None,
    receipt: Annotated[Path | None, typer.Option(help="Write how it was made here (JSON).")] = None,
    world: World = None,
    model: Model = None,
    config: Config = None,
    set_: Set = None,
) -> None:
    """Make a picture from text: the bytes that a server with the same settings sends."""
    with clear_errors():
        from worldloop.codec.still import FILES, encode_picture
        from worldloop.core.files import check_writable, replacing
        from worldloop.pictures import PictureMaker
        from worldloop.session.picture_host import receipt_of

        kind = format_ or SUFFIXES.get(out.suffix.lower(), "")
        if kind not in FILES:
            found = f"--format {format_!r}" if format_ else f"--out {out.name!r}"
            raise InvalidInputError(f"{found} must be png, jpeg or webp, such as --out a.png")
        for target in (out, receipt):
            if target is not None:
                check_writable(target)
        wishes = {"steps": steps, "guidance": guidance, "shift": shift, "size": size and _size(size)}
        seed = secrets.randbelow(2**32) if seed is None else seed
        with PictureMaker.from_settings(_settings(world, model, config, set_)) as maker:
            made = maker.make(
                prompt, seed=seed, negative=negative,
                **{name: value for name, value in wishes.items() if value is not None},  # type: ignore[arg-type]
                on_step=lambda step: typer.echo(f"step {step.done} of {step.steps}", err=True),
            )  # fmt: skip
            file = encode_picture(made.pixels, kind)
            paper = receipt_of(made, maker.host, format=kind, file=file)
        try:
            with replacing(out) as fresh:
                fresh.write_bytes(file)
            if receipt is not None:
                paper.save(receipt)
        except OSError as error:
            raise InvalidInputError(f"{Path(error.filename or out).name}: {error.strerror}") from None
        height, width = made.order.size
        typer.echo(
            f"wrote {out}: {width}x{height}, seed {seed}, {made.steps} steps, {sum(made.device_s.values()):.2f} s"
        )


def verify(
    receipt: Annotated[Path, typer.Argument(help="A picture's receipt.")],
    world: World = None,
    model: Model = None,
    config: Config = None,
    set_: Set = None,
) -> None:
    """Make a picture again from its receipt; exit code 1 when noise, pixels or file are not the same bytes."""
    with clear_errors():
        from worldloop.codec.still import encode_picture
        from worldloop.core.receipt import Receipt
        from worldloop.pictures import PictureMaker
        from worldloop.session.picture_host import PictureOrder, receipt_of

        then = Receipt.load(receipt)
        with PictureMaker.from_settings(_settings(world, model, config, set_)) as maker:
            if maker.host.model.file_hash != then.model_hash:
                typer.echo(
                    f"not equal: it was made by another checkpoint, {then.model} {then.model_hash[:12]}; this is "
                    f"{maker.host.model_id} {maker.host.model.file_hash[:12]}"
                )
                raise typer.Exit(1)
            made = maker.make_order(PictureOrder(**then.order))
            file = encode_picture(made.pixels, then.format)
            now = receipt_of(made, maker.host, format=then.format, file=file)
        same = then.same_bytes(now)
        for line in then.differences(now):
            typer.echo(line)
        typer.echo("equal: noise, pixels and file are the same bytes" if same else "not equal")
        if not same:
            raise typer.Exit(1)


def _settings(world: str | None, model: str | None, config: Path | None, set_: list[str] | None) -> Any:
    from worldloop.core.settings import Settings

    flags = {name: value for name, value in {"world": world, "picture": model}.items() if value is not None}
    return Settings.load(config, **flags, **assignments(set_ or []))


def _size(text: str) -> tuple[int, int]:
    """`160x96`, width first, to (height, width)."""
    match = re.fullmatch(r"([1-9]\d{0,5})x([1-9]\d{0,5})", text)
    if match is None:
        raise InvalidInputError(f"--size {text!r} must be WIDTHxHEIGHT, such as 160x96")
    return int(match[2]), int(match[1])
