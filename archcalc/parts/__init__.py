"""The parts of a block. Each says what it is (a frozen dataclass whose fields are config.json keys), the
axis sizes that it fixes (`dims`) and the contractions that it runs (`ops`), in one place.

A part that mixes tokens is a `Mixer`: attention, latent attention, a state space, linear attention.
"""
