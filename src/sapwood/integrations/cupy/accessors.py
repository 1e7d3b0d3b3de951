"""How CuPy's generators of random numbers are looked into: at their state, an array.

Kernels move it on, so replays do. Those of ``cupy.random.RandomState`` keep theirs in
cuRAND, which no capture may call: what draws by them runs live.
"""

from sapwood.tree.guards.frameworks import attributes, declare_opening

declare_opening(
    ("cupy.random._generator_api", "Generator"),
    attributes("bit_generator", "_binomial_state"),
)
for _name in ("XORWOW", "MRG32k3a", "Philox4x3210"):
    declare_opening(
        ("cupy.random._bit_generator", _name), attributes("_state", "_size")
    )
