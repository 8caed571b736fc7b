"""The numerical contract: every numerical piece of the project against four gates, and controls that must fail them.

    registry    an entry: the piece, its reference, its served shapes and edges, its bound
    arithmetic  what a reference computes with: float64, or sums and steps of fewer bits
    entries     the entries, by family
    gates       accuracy, repeat, rows, narrow
    controls    pieces that are broken on purpose, and the gate that each must fail
    kernels     what compiled kernels use on a card

Run alone with `python -m pytest tests/contract`; `CONTRACT_DEVICE=cuda` runs the pieces on a card.
"""
