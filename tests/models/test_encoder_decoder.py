import pytest
import torch
from tiny_models import ENCODER_DECODER, assert_close, ids, lively

from archcalc.hf import config_from_keys
from models import Cache

every = pytest.mark.parametrize("config", ENCODER_DECODER.values(), ids=ENCODER_DECODER)


@every
def test_steps_equal_the_whole_target(config):
    model, source, target = lively(config), ids(3, 7), ids(3, 10, seed=1)
    whole = model(source, target)
    for sizes in ([10], [1] * 10, [4, 1, 5]):
        cross, cache = model.encode(source), Cache.empty(config, 3, 12)
        pieces = [model.decode(piece, cross, cache) for piece in target.split(sizes, dim=1)]
        assert_close(torch.cat(pieces, 1), whole)


@every
def test_the_source_is_read_once_for_twenty_tokens(config):
    model, calls = lively(config), []
    for index, layer in enumerate(model.decoder.layers):
        for name in ("k_proj", "v_proj"):
            module = getattr(layer.cross_attn, name)
            module.register_forward_hook(lambda *_, key=(index, name): calls.append(key))
    for index, layer in enumerate(model.encoder.layers):
        layer.register_forward_hook(lambda *_, key=("encoder", index): calls.append(key))
    cross, cache = model.encode(ids(2, 7)), Cache.empty(config, 2, 20)
    for step in range(20):
        model.decode(ids(2, 1, seed=step), cross, cache)
    cross_keys = [(index, name) for index in range(2) for name in ("k_proj", "v_proj")]
    assert calls == [("encoder", index) for index in range(3)] + cross_keys
    assert cache.length == 20
    assert cross.nbytes == 2 * 2 * 2 * 4 * 7 * 4 * 4  # layers, k and v, B, K, X, H, bytes


@every
def test_source_padding_is_not_seen(config):
    model, target = lively(config), ids(2, 6, seed=1)
    source, mask = ids(2, 8), torch.ones(2, 8, dtype=torch.bool)
    mask[1, 5:] = False
    padded = model(source, target, mask)
    assert_close(padded[1:], model(source[1:, :5], target[1:]))
    assert_close(padded[:1], model(source[:1], target[:1]))
    assert not torch.allclose(model(source, target)[1], padded[1], atol=1e-3)


@every
def test_a_row_of_padding_only_is_finite_and_harms_no_other(config):
    model, source, target = lively(config), ids(2, 5), ids(2, 4, seed=1)
    mask = torch.tensor([[True] * 5, [False] * 5])
    logits = model(source, target, mask)
    assert logits.isfinite().all()
    assert_close(logits[:1], model(source[:1], target[:1]))


@every
def test_the_target_is_causal_and_the_source_is_not(config):
    model, source, target = lively(config), ids(1, 6), ids(1, 6, seed=1)
    before = model(source, target)
    target[0, 4] = (target[0, 4] + 1) % 61
    after = model(source, target)
    assert torch.equal(after[:, :4], before[:, :4])
    assert not torch.allclose(after[:, 4:], before[:, 4:], atol=1e-3)
    source[0, 5] = (source[0, 5] + 1) % 61
    assert not torch.allclose(model(source, target)[:, 0], after[:, 0], atol=1e-3)


def test_parameter_names():
    shared = dict(lively(ENCODER_DECODER["post-sinusoidal"]).named_parameters())
    assert "embed_tokens.weight" in shared and "lm_head.weight" not in shared
    assert not [name for name in shared if "embed_positions" in name or name.endswith("coder.norm.weight")]
    own = dict(lively(ENCODER_DECODER["pre-learned"]).named_parameters())
    for name in ("encoder.embed_tokens", "decoder.embed_tokens", "encoder.embed_positions", "lm_head", "encoder.norm"):
        assert f"{name}.weight" in own
    assert own["decoder.layers.1.cross_attn.q_proj.bias"].shape == (16,)
    assert "decoder.layers.0.cross_attn_norm.weight" in own and "encoder.layers.0.cross_attn_norm.weight" not in own


def copy_attention(ours, theirs):
    projections = [ours.q_proj, ours.k_proj, ours.v_proj]
    theirs.in_proj_weight.copy_(torch.cat([projection.weight for projection in projections]))
    theirs.in_proj_bias.copy_(torch.cat([projection.bias for projection in projections]))
    theirs.out_proj.load_state_dict(ours.o_proj.state_dict())


def torchs_own(block):
    """The block as torch.nn's encoder or decoder layer, with the same weights."""
    kind = torch.nn.TransformerDecoderLayer if block.config.cross_attn else torch.nn.TransformerEncoderLayer
    first = block.config.norm_placement == "pre"
    theirs = kind(16, 4, 32, dropout=0.0, batch_first=True, norm_first=first).requires_grad_(False)
    norms = [block.self_attn_norm, block.mlp_norm]
    copy_attention(block.self_attn, theirs.self_attn)
    if block.config.cross_attn:
        copy_attention(block.cross_attn, theirs.multihead_attn)
        norms.insert(1, block.cross_attn_norm)
    for index, norm in enumerate(norms, 1):
        getattr(theirs, f"norm{index}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(block.mlp.up_proj.state_dict())
    theirs.linear2.load_state_dict(block.mlp.down_proj.state_dict())
    return theirs


@every
def test_the_whole_equals_torchs_own_layers(config):
    model, source, target = lively(config), ids(2, 7), ids(2, 5, seed=1)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.normal_()  # so that a norm left out or swapped shows
    memory = model.stem(model.encoder, source, torch.arange(7).expand(2, 7))
    for layer in model.encoder.layers:
        memory = torchs_own(layer)(memory)
    memory = model.encoder.norm(memory) if model.encoder.norm else memory
    x, future = model.stem(model.decoder, target, torch.arange(5).expand(2, 5)), torch.ones(5, 5).triu(1).bool()
    for layer in model.decoder.layers:
        x = torchs_own(layer)(x, memory, tgt_mask=future)
    x = model.decoder.norm(x) if model.decoder.norm else x
    assert_close(model(source, target), x @ model.lm_head.weight.T)


def test_a_pooler_reads_the_first_token_that_is_no_padding():
    config = config_from_keys({
        "model_type": "bert", "vocab_size": 61, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 32, "max_position_embeddings": 64,
    })  # fmt: skip
    model, tokens, padding = lively(config), ids(1, 5), torch.zeros(1, 3, dtype=torch.int64)
    real, none = torch.ones(1, 5, dtype=torch.bool), torch.zeros(1, 3, dtype=torch.bool)
    alone = model(tokens)
    assert alone.shape == (1, 16)
    assert_close(model(torch.cat((padding, tokens), 1), torch.cat((none, real), 1)), alone)
    assert_close(model(torch.cat((tokens, padding), 1), torch.cat((real, none), 1)), alone)
