"""One pass after another against the dense reference: network, window, positions, text; and what the memory keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from worldloop.models.causal import CausalConfig, CausalTransformer, check_text, cross_bytes, vocabulary_of
from worldloop.models.causal_memory import (
    CausalMemory,
    CausalMemoryConfig,
    GridRope,
    causal_memory_bytes,
    turn,
)
from worldloop.models.causal_weights import VideoConfig

from . import causal_reference as reference
from .causal_driving import (
    MODELS,
    VECTORS,
    WORDS,
    new_memory,
    random_latents,
    random_network,
    random_text,
    spec,
    weights,
    worst,
)

BOUND = 1e-11
"""Both sides are float64 throughout; velocities are near 1."""
RED = 1e-3
CHUNKS = 7
"""Twice what the larger window holds."""

NETWORKS = {name: random_network(config.model) for name, config in MODELS.items()}
MakeMemory = Callable[[CausalMemoryConfig], CausalMemory]


def stream(name: str, *, make: MakeMemory = new_memory, text: int = 5, first: bool = False) -> Tensor:
    """Velocities of a noisy pass of every chunk, each followed by a clean pass that stays."""
    config, network = MODELS[name], NETWORKS[name]
    memory, cross = make(config.memory), network.cross(random_text(config.model, text)[None])
    seen = []
    for times, latents in passes(config, first=first):
        memory.begin(len(latents[0]))
        for told, x in zip(times, latents, strict=True):
            seen.append(network.pass_chunk(x[None], told, cross, memory)[0])
        memory.advance()
    return torch.cat(seen)


def dense(name: str, *, text: int = 5, first: bool = False, **changes: int) -> Tensor:
    config, w = MODELS[name], weights(NETWORKS[name])
    rules = spec(config, **changes)
    branch = reference.Branch(random_text(config.model, text).numpy())
    seen = []
    for times, latents in passes(config, first=first):
        for told, x in zip(times, latents, strict=True):
            v, fresh = reference.velocity(w, rules, x.numpy(), told, branch)
            seen.append(torch.from_numpy(v))
        branch.frames += fresh
    return torch.cat(seen)


def passes(config: VideoConfig, *, first: bool) -> list[tuple[tuple[float, float], tuple[Tensor, Tensor]]]:
    """(timesteps, latents) of the noisy and the clean pass of every chunk."""
    sizes = [1] * first + [config.chunk_frames] * CHUNKS
    noisy, clean = (random_latents(config, sum(sizes), seed).split(sizes) for seed in (1, 2))
    return [((900.0 - 50 * i, 0.0), pair) for i, pair in enumerate(zip(noisy, clean, strict=True))]


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_streaming_is_the_dense_reference_far_past_the_window(name: str, first: bool) -> None:
    assert worst(stream(name, first=first), dense(name, first=first)) < BOUND


class Absolute(CausalMemory):
    """Frames stand at their own numbers; the sink stays behind."""

    def positions(self, frames: Sequence[int]) -> list[int]:
        return list(frames)


class OffByOne(CausalMemory):
    """The sink and the oldest recent frame share a place."""

    def positions(self, frames: Sequence[int]) -> list[int]:
        return [max(0, place - 1) for place in super().positions(frames)]


class KeysOnly(CausalMemory):
    """Values of earlier passes stay."""

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        held = self.values[layer].clone()
        super().write(layer, keys, values)
        if self.frame > 2:
            self.values[layer].copy_(held)


def faulty(kind: type[CausalMemory]) -> MakeMemory:
    def make(config: CausalMemoryConfig) -> CausalMemory:
        return kind(config, GridRope(config.head_dim, config.grid, dtype=torch.float64), dtype=torch.float64)

    return make


@pytest.mark.parametrize("kind", [Absolute, OffByOne, KeysOnly])
@torch.inference_mode()
def test_control_a_faulty_memory_is_found(kind: type[CausalMemory]) -> None:
    assert worst(stream("words", make=faulty(kind)), dense("words")) > RED


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_absolute_and_relative_agree_until_the_window_is_full(name: str) -> None:
    config = MODELS[name]
    inside = 2 * (config.window_frames // config.chunk_frames) * config.chunk_frames

    ours, theirs = stream(name, make=faulty(Absolute)), dense(name)

    assert worst(ours[:inside], theirs[:inside]) < BOUND
    assert worst(ours[inside:], theirs[inside:]) > RED


@pytest.mark.parametrize("changes", [{"window": 8}, {"window": 6}, {"sink": 0}, {"sink": 2}])
@torch.inference_mode()
def test_control_another_window_or_sink_is_found(changes: dict[str, int]) -> None:
    # A window of 8 with a sink of 1 is what comes out when the sink is not counted inside a window of 7.
    assert worst(stream("words"), dense("words", **changes)) > RED


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_control_the_text_counts(name: str) -> None:
    assert worst(stream(name, text=5), dense(name, text=6)) > RED


@torch.inference_mode()
def test_words_count_in_their_order_and_padding_is_zeros() -> None:
    network = NETWORKS["words"]

    one, other, padded = (network.text(torch.tensor([ids])) for ids in ([1, 2], [2, 1], [1, 2, 0, 0]))

    assert one.shape == (1, 6, 128)
    assert torch.equal(one, padded)
    assert not torch.allclose(one, other)


def test_prompts_become_word_numbers() -> None:
    config = CausalConfig.named(
        "tiny", vocabulary=vocabulary_of(["a lake in the east", "pine-forest, a path"])
    )

    assert config.vocabulary == ("a", "east", "forest", "in", "lake", "path", "pine", "the")
    assert config.token_ids("A LAKE, and the pine!").tolist() == [1, 5, 8, 7]
    assert config.token_ids("nothing known").tolist() == [0]
    assert len(config.token_ids("lake " * 99)) == config.text_len


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("words", torch.zeros(3, 12)),
        ("words", torch.zeros(7, dtype=torch.int64)),
        ("words", torch.tensor([7])),
        ("words", torch.tensor([-1])),
        ("words", torch.zeros(0, dtype=torch.int64)),
        ("vectors", torch.tensor([1])),
        ("vectors", torch.zeros(3, 8)),
        ("vectors", torch.zeros(6, 7)),
    ],
)
def test_a_text_of_another_kind_is_refused(name: str, text: Tensor) -> None:
    with pytest.raises(ValueError, match=r"word numbers|a text is vectors \[1..5, 7\]"):
        check_text(MODELS[name].model, text)


def test_a_text_that_is_too_long_is_refused_by_the_network() -> None:
    with pytest.raises(ValueError, match="longer than the 6"):
        NETWORKS["words"].text(torch.ones(1, 7, dtype=torch.int64))


# -- memory -----------------------------------------------------------------------------------------------------------
def test_the_window_holds_sink_recent_and_chunk() -> None:
    config = WORDS.memory

    assert config.kept(2) == [0, 1]
    assert config.kept(7) == [0, 1, 2, 3, 4, 5, 6]
    assert config.kept(8) == [0, 2, 3, 4, 5, 6, 7]
    assert config.kept(1000) == [0, *range(994, 1000)]
    assert all(len({config.slot(n) for n in config.kept(end)}) == min(end, 7) for end in range(1, 200))


@torch.inference_mode()
def test_the_memory_never_grows_nor_moves_and_distances_stay_small() -> None:
    memory = new_memory(VECTORS.memory)
    places, sizes = set(), set()
    keys = torch.zeros(1, 3, 6, 22, dtype=torch.float64)
    for chunk in range(1000):
        memory.begin(3)
        for layer in range(3):
            memory.write(layer, keys, keys)
        if chunk > 2:
            places.add((memory.keys.data_ptr(), memory.values.data_ptr()))
            sizes.add(memory.bytes)
        assert max(memory.positions(memory.config.kept(memory.frame + 3))) < 5
        memory.advance()

    assert memory.frame == 3000
    assert len(places) == 1
    assert sizes == {causal_memory_bytes(VECTORS.memory, torch.float64)}


@torch.inference_mode()
def test_a_chunk_is_visible_only_after_advance_and_a_retry_overwrites_it() -> None:
    network, memory = NETWORKS["words"], new_memory(WORDS.memory)
    cross = network.cross(torch.tensor([[1]]))
    x, y = random_latents(WORDS, 4).split(2)
    memory.begin(2)
    network.pass_chunk(y[None], 500.0, cross, memory)
    network.pass_chunk(x[None], 0.0, cross, memory)
    memory.advance()
    memory.begin(2)
    once = network.pass_chunk(y[None], 700.0, cross, memory)
    network.pass_chunk(x[None] * 9, 100.0, cross, memory)
    memory.begin(2)

    assert torch.equal(network.pass_chunk(y[None], 700.0, cross, memory), once)
    fresh = new_memory(WORDS.memory)
    fresh.begin(2)
    network.pass_chunk(x[None], 0.0, cross, fresh)
    fresh.advance()
    fresh.begin(2)
    assert torch.equal(network.pass_chunk(y[None], 700.0, cross, fresh), once)


def test_a_chunk_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a chunk of 3 frames: 1..2 fit"):
        new_memory(WORDS.memory).begin(3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"chunk_frames": 8}, "chunk_frames=8 must be in 1..window_frames=7"),
        ({"sink_frames": 6}, "sink_frames=6 must be in 0..5"),
        ({"latent_hw": (3, 4)}, "multiples of patch=2"),
    ],
)
def test_a_geometry_that_cannot_work_is_refused(changes: dict[str, object], message: str) -> None:
    base = VECTORS if "latent_hw" in changes else WORDS
    facts = {
        field: getattr(base, field)
        for field in ("model", "latent_hw", "chunk_frames", "window_frames", "sink_frames")
    }

    with pytest.raises(ValueError, match=message):
        VideoConfig(**{**facts, **changes})


@pytest.mark.parametrize("head_dim", [22, 64, 128])
def test_positions_split_the_head_into_time_row_and_column(head_dim: int) -> None:
    cos, sin = GridRope(head_dim, (2, 3), dtype=torch.float64).frames([0, 5, 10**9])

    assert cos.shape == (18, head_dim // 2)
    expected = reference.turns([0, 5, 10**9], (2, 3), head_dim)
    assert worst(cos, expected.real) < 1e-6
    x = torch.randn(2, 18, head_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert worst(turn(x, cos, sin)[:, :12], reference.turn(x.numpy()[:, :12], expected[:12])) < 1e-12


# -- number formats ---------------------------------------------------------------------------------------------------
def test_serving_keeps_conditioning_wide() -> None:
    network = CausalTransformer(WORDS.model).to_serving(torch.bfloat16)
    wide = {key for key, value in network.state_dict().items() if value.dtype == torch.float32}

    assert wide == {
        key for key in network.state_dict() if key.startswith("time_") or key.endswith("modulation")
    }
    assert not any(value.requires_grad for value in network.parameters())
    memory = CausalMemory(WORDS.memory, GridRope(64, (2, 3)), dtype=torch.bfloat16)
    memory.begin(2)
    v = network.pass_chunk(
        torch.randn(1, 2, *WORDS.latent_shape), 500.0, network.cross(torch.tensor([[1]])), memory
    )
    assert v.dtype == torch.float32
    assert memory.keys.dtype == torch.bfloat16


def test_bytes_of_a_text_are_known_before() -> None:
    cross = NETWORKS["vectors"].cross(random_text(VECTORS.model, 1)[None])

    assert cross_bytes(VECTORS.model, torch.float64) == cross.keys.nbytes + cross.values.nbytes


def test_an_unknown_size_is_named() -> None:
    with pytest.raises(KeyError, match="unknown size 'huge'; have"):
        CausalConfig.named("huge")
