"""Every family of the parity table: FLOPs as torch counts them, caches and states as they lie in memory."""

import pytest
import torch
from contract import counted, predicted

pytest.importorskip("transformers", reason="transformers is not installed")

import models
from archcalc.config import expanded
from archcalc.cost import bound, cache_elements
from archcalc.hf import config_from_keys
from models.parity.checkpoints import CHECKPOINTS, tiny

B, T, C = 2, 7, 30


CONFIGS = {name: config_from_keys(tiny(name)[1]) for name in CHECKPOINTS}
PAIRS = {name for name, config in CONFIGS.items() if config.encoder and config.decoder}
ENCODERS = {name for name, config in CONFIGS.items() if not config.decoder}


def of(names):
    return pytest.mark.parametrize("config", [CONFIGS[name] for name in sorted(names)], ids=sorted(names))


def ids(tokens: int) -> torch.Tensor:
    return torch.randint(4, 60, (B, tokens), generator=torch.Generator().manual_seed(1))


def forms(config):
    """The config, and the other form of its latent attention where it has one."""
    return dict.fromkeys((config, expanded(config))) if config.decoder else [config]


@of(CONFIGS.keys() - PAIRS)
def test_flops_of_one_stack(config):
    for form in forms(config):
        model = models.build(form)
        assert counted(model, ids(T))[0] == predicted(form, B=B, T=T, S=T)
        if form.decoder:
            cache = models.Cache.empty(form, B, C)
            for tokens in (T, 1, 3):
                assert counted(model, ids(tokens), cache=cache)[0] == predicted(form, B=B, T=tokens, S=C)


@of(PAIRS)
def test_flops_of_two_stacks(config):
    model, frontend = models.build(config), config.frontend
    X = frontend.tokens if frontend else 9
    source = torch.randn(B, 2 * X, frontend.num_mel_bins) if frontend else ids(X)
    flops, cross = counted(model.encode, source)
    assert flops == predicted(config, once=True, B=B, T=X, S=X)
    assert counted(model.decode, ids(T), cross)[0] == predicted(config, B=B, T=T, S=T, X=X)
    cache = models.Cache.empty(config, B, C)
    for tokens in (T, 1):
        assert counted(model.decode, ids(tokens), cross, cache)[0] == predicted(config, B=B, T=tokens, S=C, X=X)
    assert cross.nbytes == 4 * cache_elements(bound(config)[1], B, C, X).cross


@of(CONFIGS.keys() - ENCODERS)
def test_bytes_of_what_is_kept(config):
    held = cache_elements(bound(config)[1], B, C, static=True)
    assert models.Cache.empty(config, B, C).nbytes == 4 * (held.cache + held.state)
    if config.encoder is None:
        growing = models.Cache.empty(config, B)
        models.build(config)(ids(C), cache=growing)
        logical = cache_elements(bound(config)[1], B, C)
        assert growing.nbytes == 4 * (logical.cache + logical.state)
