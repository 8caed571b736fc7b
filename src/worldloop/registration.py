"""Makes "worldloop/Dream-v0" known to Gymnasium, whichever of the two packages is imported first.

Owns the id. Imports nothing heavy: Gymnasium is optional and is not loaded for this. Called once, by the package.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

DREAM_ID = "worldloop/Dream-v0"


def register() -> None:
    """Register now if Gymnasium is loaded, else as soon as it is."""
    if "gymnasium" in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Watch())


def _register() -> None:
    from gymnasium.envs import registration

    if DREAM_ID not in registration.registry:
        registration.register(
            id=DREAM_ID,
            entry_point="worldloop.environment:DreamEnv",
            vector_entry_point="worldloop.environment:DreamVectorEnv",
        )


class _Watch:
    """Sees the import of Gymnasium, registers after it, and is gone."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> ModuleSpec | None:
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def load_and_register(module: ModuleType) -> None:
                load(module)
                _register()

            spec.loader.exec_module = load_and_register  # type: ignore[method-assign]
        return spec
