"""Experiments: what two teaching texts say of transformers, each as one command with a picture and numbers.

`python -m models.experiments NAME` runs one and writes reports/experiment-NAME.md and .svg.
"""

from __future__ import annotations

EXPERIMENTS = {
    "norm-placement": "the gradient at the input over depth: pre-LN, post-LN and DeepNorm",
    "depth-width": "shallow and wide against deep and narrow at equal parameters: counted, predicted, measured",
    "levers": "what tying, grouped queries and windows save: parameters, cache, tokens a second",
    "crossover": "the context at which attention's T² overtakes the matrices, of every decoder preset",
    "encoder-once": "the encoder runs once a sentence, the decoder once a token: FLOPs and time by what is kept",
    "translation": "an encoder-decoder and a decoder-only model of equal size learn to spell numbers in German",
}
