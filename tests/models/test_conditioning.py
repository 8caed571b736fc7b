"""Conditioning: FiLM numbers against the reference, what counts as "nothing told", and which parts stay float32."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

from worldloop.core.types import NO_ACTION, Controls
from worldloop.models.summaryformer import ISLANDS, Film, Summaryformer

from .driving import ODD, TINY, random_model, weights
from .reference import condition

BOUND = 1e-4
"""Sinusoids of float32 angles up to 999 are off by up to 3e-5; two linear layers and FiLM make that more."""
ACTION = [1.0, -1.0, 0.0, 1.0, -1.0]
NONE = [NO_ACTION] * 5


@pytest.fixture(scope="module", params=[TINY, ODD], ids=["tiny", "odd"])
def model(request: pytest.FixtureRequest) -> Summaryformer:
    return random_model(request.param)


def told(
    model: Summaryformer,
    timestep: float = 669,
    action: list[float] | None = ACTION,
    fps: float = 12,
    *,
    start: bool = False,
) -> Film:
    actions = None if action is None else torch.tensor([action])
    return model.condition(torch.tensor([float(timestep)]), actions, torch.tensor([float(fps)]), start=start)


def same(a: Film, b: Film) -> bool:
    return torch.equal(a.blocks, b.blocks) and torch.equal(a.head, b.head)


def flat(film: Film) -> np.ndarray:
    return np.concatenate((film.blocks.double().numpy().ravel(), film.head.double().numpy().ravel()))


@pytest.mark.parametrize(
    ("timestep", "action", "fps", "start"),
    [
        (999, ACTION, 12, False),
        (669, ACTION, 0, False),
        (0, None, 30, False),
        (878, None, 0, False),
        (0, None, 12, True),
    ],
)
@torch.inference_mode()
def test_film_equals_the_reference(
    model: Summaryformer, timestep: int, action: list[float] | None, fps: int, start: bool
) -> None:
    w, grid = weights(model), model.config.latent_hw

    ours = flat(told(model, timestep, action, fps, start=start))

    expected = condition(w, grid, timestep, action, fps, start=start)
    assert np.abs(ours - np.concatenate(expected)).max() < BOUND
    others = [
        condition(w, grid, timestep + 1, action, fps, start=start),
        condition(w, grid, timestep, action, fps + 1, start=start),
        condition(w, grid, timestep, action, fps, start=not start),
        condition(w, grid[::-1], timestep, action, fps, start=start),
    ]
    for other in others:  # controls
        assert np.abs(ours - np.concatenate(other)).max() > 20 * BOUND


@torch.inference_mode()
def test_no_action_is_the_same_as_none_at_all(model: Summaryformer) -> None:
    assert same(told(model, action=NONE), told(model, action=None))
    assert same(told(model, action=list(Controls(fps=None).action())), told(model, action=None))
    assert not same(told(model, action=[0.0] * 5), told(model, action=None))
    assert not same(told(model, action=[*NONE[:4], 0.0]), told(model, action=None))


@torch.inference_mode()
def test_rows_of_one_call_do_not_mix(model: Summaryformer) -> None:
    times, fps = torch.tensor([999.0, 0.0, 669.0]), torch.tensor([12.0, 0.0, 30.0])

    film = model.condition(times, torch.tensor([ACTION, NONE, [0.0] * 5]), fps)

    alone = [told(model, 999, ACTION, 12), told(model, 0, None, 0), told(model, 669, [0.0] * 5, 30)]
    for index, single in enumerate(alone):
        assert torch.allclose(film.at(index).blocks, single.blocks[0], atol=1e-6)
        assert torch.allclose(film.at(index).head, single.head[0], atol=1e-6)


@torch.inference_mode()
def test_no_rate_is_its_own_condition(model: Summaryformer) -> None:
    silent = copy.deepcopy(model)
    for value in silent.fps_embedder_outs.parameters():
        value.zero_()

    assert same(told(model, fps=0), told(silent, fps=12))
    assert not same(told(model, fps=0), told(model, fps=12))
    assert not same(told(model, fps=12), told(model, fps=30))


@torch.inference_mode()
def test_the_start_picture_has_its_own_aspect_and_no_action(model: Summaryformer) -> None:
    swapped = copy.deepcopy(model)
    swapped.aspect_ratio_proj_z0.load_state_dict(model.aspect_ratio_proj.state_dict())

    assert not same(told(model, 0, None, start=True), told(model, 0, None))
    assert same(told(swapped, 0, None, start=True), told(model, 0, None))
    assert same(told(model, 0, ACTION, start=True), told(model, 0, None, start=True))


def serving(dtype: torch.dtype) -> Summaryformer:
    return random_model(TINY).to_serving(dtype)


def test_conditioning_stays_float32_and_the_rest_does_not() -> None:
    model = serving(torch.bfloat16)
    kept = {name.split(".")[0] for name, value in model.named_parameters() if value.dtype == torch.float32}

    assert kept == set(ISLANDS) == {
        "timestep_mlp", "timestep_to_film", "aspect_ratio_proj", "aspect_ratio_proj_z0", "action_proj",
        "fps_embedder_mlp", "fps_embedder_outs",
    }  # fmt: skip
    assert {value.dtype for value in model.parameters()} == {torch.float32, torch.bfloat16}
    assert model.dtype == torch.bfloat16
    assert not model.training
    assert not any(value.requires_grad for value in model.parameters())


@torch.inference_mode()
def test_conditioning_is_computed_in_float32_inside_autocast_free_serving() -> None:
    model = serving(torch.bfloat16)
    seen: list[torch.dtype] = []

    def note(module: torch.nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.extend((args[0].dtype, output.dtype))

    for layer in (
        *model.timestep_to_film,
        *model.fps_embedder_outs,
        model.timestep_mlp.out,
        model.action_proj[2],
    ):
        layer.register_forward_hook(note)
    film = told(model)

    assert set(seen) == {torch.float32}
    assert len(seen) == 2 * (2 * (TINY.num_layers + 1) + 2)
    assert film.blocks.dtype == film.head.dtype == torch.bfloat16


def test_serving_in_bfloat16_changes_no_condition() -> None:
    exact, served = told(serving(torch.float32), 999), told(serving(torch.bfloat16), 999)

    assert torch.equal(served.blocks, exact.blocks.bfloat16())
    assert torch.equal(served.head, exact.head.bfloat16())
