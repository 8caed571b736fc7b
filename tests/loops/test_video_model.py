"""A video model from files and from parts: what fits, what is refused, and pictures in a stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from worldloop.core.errors import CheckpointError
from worldloop.engine.contract import Done
from worldloop.loops.video import VideoLoop
from worldloop.loops.video_model import OwnPictures, VideoModel, pictures_before
from worldloop.loops.video_request import VideoRequest
from worldloop.models.autoencoder import to_bytes
from worldloop.models.causal import CausalConfig, CausalTransformer
from worldloop.testing import random_video_model, run_unit, tiny_video

CPU = torch.device("cpu")


def made(model: VideoModel, **wishes: Any) -> Tensor:
    loop = VideoLoop(model)
    state = loop.init(VideoRequest(seed=1, latent_frames=4, **wishes))
    while not isinstance(loop.next(state), Done):
        run_unit(loop, state)
    latents = loop.finalize(state).latents
    assert latents is not None
    return latents


def test_a_saved_model_makes_the_same_video(tmp_path: Path) -> None:
    path = tiny_video(tmp_path)
    one = VideoModel.load(path, tmp_path / "autoencoder.safetensors", device=CPU, dtype=torch.float32)
    two = VideoModel.load(path, tmp_path / "autoencoder.safetensors", device=CPU, dtype=torch.float32)
    prompt = one.encode_text("walk in the meadow")

    assert sorted(p.name for p in tmp_path.iterdir()) == ["autoencoder.safetensors", "tiny-video.safetensors"]
    assert one.config == random_video_model().config
    assert torch.equal(made(one, prompt=prompt), made(two, prompt=prompt))
    assert torch.allclose(made(one, prompt=prompt), made(random_video_model(), prompt=prompt), atol=0.2)
    other = VideoModel.load(
        tiny_video(tmp_path, name="other", seed=1),
        tmp_path / "autoencoder.safetensors",
        device=CPU,
        dtype=torch.float32,
    )
    assert not torch.allclose(made(one, prompt=prompt), made(other, prompt=prompt), atol=0.2)


def test_an_autoencoder_of_another_size_is_refused(tmp_path: Path) -> None:
    path = tiny_video(tmp_path / "a")
    tiny_video(tmp_path / "b", latent_hw=(4, 4))

    with pytest.raises(
        CheckpointError, match=r"latents are \(8, 3, 4\), those of autoencoder.safetensors \(8, 4, 4\)"
    ):
        VideoModel.load(path, tmp_path / "b" / "autoencoder.safetensors", device=CPU, dtype=torch.float32)


WAN = CausalConfig(dim=128, ffn_dim=64, num_heads=1, num_layers=1, channels=4, text_dim=6, freq_dim=8)


class Parts:
    """A text encoder and an autoencoder of another make."""

    picture_hw = (8, 8)
    cache_bytes = 0

    def encode_text(self, prompt: str) -> Tensor:
        return torch.full((len(prompt.split()), 6), 0.5)

    def encode(self, picture: Tensor) -> Tensor:
        return picture.float().mean() * torch.ones(4, 4, 4)

    def decode(self, latents: Tensor, cache: Any) -> tuple[Tensor, Any]:
        count = 4 * len(latents) - 3 * (cache is None)
        return torch.zeros(count, 8, 8, 3, dtype=torch.uint8), len(latents)

    def resume(self, latents: Tensor) -> Any:
        return len(latents)


def test_a_published_checkpoint_takes_other_parts(tmp_path: Path) -> None:
    path = tmp_path / "self_forcing.pt"
    torch.manual_seed(0)
    torch.save(
        {"generator_ema": {f"model.{k}": v for k, v in CausalTransformer(WAN).state_dict().items()}}, path
    )
    facts: dict[str, Any] = {"device": CPU, "dtype": torch.bfloat16, "latent_hw": (4, 4), "window_frames": 6}
    model = VideoModel.load(path, Parts(), texts=Parts(), **facts)

    loop = VideoLoop(model)
    state = loop.init(VideoRequest(prompt=model.encode_text("a walk"), seed=1, latent_frames=9, guidance=3.0))
    emits = []
    while not isinstance(loop.next(state), Done):
        emits += run_unit(loop, state)

    assert [emit.frames.shape[0] for emit in emits] == [9, 12, 12]
    latents = loop.finalize(state).latents
    assert latents is not None
    assert latents.dtype == torch.float32
    assert state.branches[0].memory.keys.dtype == torch.bfloat16
    with pytest.raises(CheckpointError, match="has no words of its own: it needs a text encoder"):
        VideoModel.load(path, Parts(), **facts)


def test_pictures_before_a_latent() -> None:
    assert [pictures_before(n) for n in range(4)] == [0, 1, 5, 9]


@torch.inference_mode()
def test_pictures_in_a_stream_are_the_whole_clip() -> None:
    pictures = random_video_model().pictures
    assert isinstance(pictures, OwnPictures)
    latents = torch.randn(9, 8, 3, 4, generator=torch.Generator().manual_seed(0))
    restored = pictures._restored(latents, first=True)[None]
    whole = to_bytes(pictures.autoencoder.decode(restored)[0])
    for sizes in ([9], [1, 8], [3, 3, 3], [1] * 9, [2, 5, 2]):
        cache, parts = None, []
        for part in latents.split(sizes):
            rgb, after = pictures.decode(part, cache)
            again, _ = pictures.decode(part, cache)
            assert torch.equal(rgb, again)
            cache = after
            parts.append(rgb)
        streamed = torch.cat(parts)
        assert streamed.shape == whole.shape == (33, 48, 64, 3)
        assert (streamed.int() - whole.int()).abs().max() <= 1  # orders of summation
        assert torch.equal(pictures.resume(latents), cache)
    forgotten = torch.cat(
        [pictures.decode(latents[:3], None)[0], pictures.decode(latents[3:], pictures.resume(latents))[0]]
    )
    assert (forgotten.int() - whole.int()).abs().max() > 3  # control: another cache


@torch.inference_mode()
def test_a_first_picture_becomes_a_gaussianised_latent() -> None:
    pictures = random_video_model().pictures
    assert isinstance(pictures, OwnPictures)
    picture = torch.randint(256, (48, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    cells, _ = pictures.autoencoder.encode_first(picture[None])
    expected = (cells[0] - pictures.stats.first_mean) / pictures.stats.first_std

    latent = pictures.encode(picture)

    assert latent.shape == (8, 3, 4)
    assert torch.allclose(latent.flatten(1).T, expected)
    with pytest.raises(ValueError, match=r"a first picture is bytes \(48, 64, 3\)"):
        pictures.encode(picture[:-1])


def test_a_random_model_is_the_same_each_time() -> None:
    one, two, three = random_video_model(), random_video_model(), random_video_model(seed=1)
    first, second, third = (model.network.state_dict() for model in (one, two, three))

    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first["head.head.weight"], third["head.head.weight"])
    assert all(value.any() for value in first.values())
