"""Serving another checkpoint with the network that is there: its weights change in place, all of them or none.

Compiled graphs, fp8 buffers and whatever else holds the parameters' addresses stay good, and nothing is allocated on
the device. Owns what must hold before the first copy and the way back. Does not own files (`models.weights`), choosing
and warming up (`host`). Runs on the device thread while no session is live.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from worldloop.core.errors import EngineError
from worldloop.loops.model import WorldModel
from worldloop.models.config import ARCHITECTURE, CheckpointConfig
from worldloop.models.weights import read_weights


class WeightsLostError(EngineError):
    """A switch failed and the old weights could not be put back: the network holds a mixture and must not be used."""


def fits(model: WorldModel, config: CheckpointConfig) -> bool:
    """Whether a checkpoint's weights go into the model's network as it is."""
    ours, theirs = model.config.model, config.model
    return all(getattr(ours, key) == getattr(theirs, key) for key in (*ARCHITECTURE, "rope_table_len"))


def switch(model: WorldModel, path: Path, config: CheckpointConfig) -> None:
    """Make `model` the checkpoint at `path`, whose served config is `config`; it must fit.

    The old bytes wait in main memory until the new ones are in.

    Raises:
        CheckpointError: the file is refused; nothing was touched.
        WeightsLostError: a copy failed, and so did the way back.
        Exception: a copy failed; the old weights are back.
    """
    weights = read_weights(path, model.network)
    own = model.network.state_dict()
    old: dict[str, Tensor] = {}
    before = model.config, model.focus
    try:
        with torch.no_grad():
            for key, value in own.items():
                old[key] = value.to("cpu", copy=True)
                value.copy_(weights.tensors[key])
        model.config, model.focus = config, weights.focus and config.model.focus_region
        model.after_load()
    except BaseException as error:
        try:
            with torch.no_grad():
                for key, value in old.items():
                    own[key].copy_(value)
            model.config, model.focus = before
            model.after_load()
        except Exception as second:
            raise WeightsLostError(
                f"{path.name}: the switch failed ({error}), and so did the way back ({second})"
            ) from second
        raise
