import pytest
import torch
from tiny_models import DECODER_ONLY, assert_close, ids, lively, llama_like

from archcalc.config import Attention, ModelConfig, Stack
from archcalc.errors import ArchcalcError
from archcalc.presets import preset
from models import Cache
from models.cache import Past
from models.generate import greedy
from models.positions import Context

every = pytest.mark.parametrize("config", DECODER_ONLY.values(), ids=DECODER_ONLY)


@every
def test_a_pass_in_pieces_equals_the_whole(config):
    model, tokens = lively(config), ids(3, 12)
    whole = model(tokens)
    for sizes in ([12], [1] * 12, [5, 1, 4, 1, 1], [7, 5]):
        cache = Cache.empty(config, 3, 20)
        pieces = [model(piece, cache=cache) for piece in tokens.split(sizes, dim=1)]
        assert_close(torch.cat(pieces, 1), whole)
        assert cache.length == 12


@every
def test_a_future_token_changes_nothing_before_it(config):
    model, tokens = lively(config), ids(2, 9)
    before = model(tokens)
    tokens[:, 6] = (tokens[:, 6] + 1) % 61
    after = model(tokens)
    assert_close(after[:, :6], before[:, :6], 1e-6)  # an expert with more tokens rounds differently
    assert not torch.allclose(after[:, 6:], before[:, 6:], atol=1e-3)


@every
def test_unequal_prompts_together_equal_each_alone(config):
    model = lively(config)
    prompts = [ids(1, length, seed=length)[0].tolist() for length in (9, 2, 5)]
    together = greedy(model, prompts, 10)
    assert together == [greedy(model, [prompt], 10)[0] for prompt in prompts]
    # and equal to no cache at all
    line = list(prompts[1])
    for _ in range(10):
        line.append(int(model(torch.tensor([line]))[0, -1].argmax()))
    assert line[2:] == together[1]


def test_greedy_stops_at_eos():
    model = lively(DECODER_ONLY["llama"])
    free = greedy(model, [[1, 2, 3]], 8)[0]
    eos = free[3]
    assert greedy(model, [[1, 2, 3]], 8, eos)[0] == free[: free.index(eos)]
    assert len(free) == 8


def test_a_window_hides_what_is_older():
    attention = Attention(4, 2, 8, rotary=None, sliding_window=3)
    model, tokens = lively(llama_like(attention, layers=1)), ids(1, 8)
    before = model(tokens)
    tokens[0, 2] = (tokens[0, 2] + 1) % 61
    changed = (model(tokens) != before).any(-1)[0]
    assert changed.tolist() == [False, False, True, True, True, False, False, False]


def test_without_a_causal_mask_the_future_is_seen():
    attention = Attention(4, 2, 8, rotary=None, causal=False)
    config = llama_like(attention)
    model, tokens = lively(config), ids(1, 5)
    before = model(tokens)
    tokens[0, 4] = (tokens[0, 4] + 1) % 61
    assert not torch.allclose(model(tokens)[0, 0], before[0, 0])
    with pytest.raises(ArchcalcError, match="causal=False"):
        Cache.empty(config, 1, 8)


def test_fewer_key_heads_equal_as_many_with_copies():
    model = lively(DECODER_ONLY["llama"])
    full = lively(llama_like(Attention(4, 4, 8, rotary=model.layers[0].self_attn.config.rotary)))
    state = model.state_dict()
    for name in state:
        if "k_proj" in name or "v_proj" in name:
            state[name] = state[name].unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(state)
    assert_close(full(ids(2, 7)), model(ids(2, 7)))


def test_cache_bytes_and_when_it_is_full():
    config = DECODER_ONLY["llama"]
    cache = Cache.empty(config, batch=3, capacity=10, dtype=torch.float16)
    assert cache.nbytes == 2 * 2 * 3 * 2 * 10 * 8 * 2  # layers, k and v, B, K, C, H, bytes
    model, cache = lively(config), Cache.empty(config, 3, 10)
    model(ids(3, 9), cache=cache)
    with pytest.raises(ArchcalcError, match="capacity=10: this pass needs 11"):
        model(ids(3, 2), cache=cache)
    with pytest.raises(ArchcalcError, match="needs 12"):
        model(ids(3, 2), torch.tensor([[4, 5], [10, 11], [0, 1]]), cache)
    with pytest.raises(ArchcalcError, match="max_position_embeddings=64"):
        Cache.empty(config, 1, 65)
    with pytest.raises(ArchcalcError, match="65 tokens"):
        model(ids(1, 65))
    with pytest.raises(ArchcalcError, match="prompt_ids"):
        greedy(model, [[1], []], 3)


def test_tied_head_is_the_embedding():
    model = lively(DECODER_ONLY["gpt"])
    assert model.lm_head.weight is model.embed_tokens.weight
    untied = lively(DECODER_ONLY["llama"])
    assert untied.lm_head.weight is not untied.embed_tokens.weight


@pytest.mark.parametrize("name", ["llama", "post-norm"])
def test_without_its_sublayers_a_block_is_its_residual(name):
    config = DECODER_ONLY[name]
    model, x_BTD = lively(config), torch.randn(2, 5, 16)
    block, positions = model.layers[0], torch.arange(5).repeat(2, 1)
    mask_B1TS = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    context = Context(positions, mask_B1TS, *model.rotary(block.self_attn.config, 5, "cpu"))
    assert not torch.allclose(block(x_BTD, context), x_BTD, atol=0.1)
    for parameter in [*block.self_attn.parameters(), *block.mlp.parameters()]:
        parameter.zero_()
    expected = x_BTD if name == "llama" else block.mlp_norm(block.self_attn_norm(x_BTD))
    assert torch.equal(block(x_BTD, context), expected)


def test_stem_blocks_and_head_are_the_whole():
    model, tokens = lively(DECODER_ONLY["gpt"]), ids(2, 6)
    positions = torch.arange(6).repeat(2, 1)
    assert torch.equal(model.head(model.run(model.stem(tokens, positions), positions)), model(tokens))


def test_embedding_scale():
    llama = DECODER_ONLY["llama"]
    scaled = ModelConfig(61, 16, 64, Stack(llama.decoder.layers, llama.decoder.final_norm), scale_embedding=True)
    tokens, positions = ids(1, 4), torch.arange(4)[None]
    assert_close(lively(scaled).stem(tokens, positions), 4 * lively(llama).stem(tokens, positions))


@pytest.mark.parametrize("name", ["gpt", "llama", "moe"])
def test_a_block_traces_with_any_batch_and_length(name):
    model = lively(DECODER_ONLY[name])
    block, attention = model.layers[0], model.layers[0].self_attn.config
    tables = model.rotary(attention, 12, "cpu")

    class Step(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.block = block

        def forward(self, x_BTD, key, value, cos, sin, positions, write_indices, mask):
            past = Past((key, value), write_indices)
            return self.block(x_BTD, Context(positions, mask, cos, sin), past), *past.tensors

    def inputs(batch, tokens):
        cache = torch.zeros(batch, attention.num_key_value_heads, 12, attention.head_dim)
        positions = torch.arange(tokens).repeat(batch, 1)
        mask = (torch.arange(12) <= positions[:, :, None])[:, None]
        x_BTD = torch.randn(batch, tokens, 16, generator=torch.Generator().manual_seed(tokens))
        return x_BTD, cache, cache.clone(), *tables, positions, positions[:, 0].clone(), mask

    B, T = torch.export.Dim("B"), torch.export.Dim("T")
    both, rows = {0: B, 1: T}, {0: B}
    shapes = (both, rows, rows, None, None, both, rows, {0: B, 2: T})
    traced = torch.export.export(Step(), inputs(2, 5), dynamic_shapes=shapes).module()
    for got, expected in zip(traced(*inputs(3, 7)), Step()(*inputs(3, 7)), strict=True):
        assert_close(got, expected)


FAR = {"value_residual": True, "unet_residual": True, "deepnorm": True, "num_hidden_layers": 5}


def test_residuals_from_other_layers_in_pieces_equal_the_whole():
    """Value residual and U-net residual, with DeepNorm's factor: the whole is what its pieces are."""
    model = lively(preset("tiny-decoder", FAR))
    tokens, cache = ids(2, 9), Cache.empty(model.config, 2)
    whole = model(tokens)
    pieces = torch.cat([model(part, cache=cache) for part in tokens.split((4, 1, 4), 1)], dim=1)
    assert_close(pieces, whole)
    for name in ("value_residual", "skip"):
        for layer in model.layers:
            if getattr(layer, name) is not None:
                before = getattr(layer, name).weight.clone()
                getattr(layer, name).weight.mul_(0.5)
                assert not torch.allclose(model(tokens), whole, atol=1e-3)
                getattr(layer, name).weight.copy_(before)
    assert [layer.skip is not None for layer in model.layers] == [False, False, False, True, True]
    assert [layer.value_residual is not None for layer in model.layers] == [False, True, True, True, True]


def test_a_skip_adds_what_the_mirrored_layer_made():
    """With zeroed sublayers every output is the input, so a skip of s multiplies it by 1 + s."""
    model, x = lively(preset("tiny-decoder", FAR | {"deepnorm": False})), torch.randn(1, 3, 64)
    for layer in model.layers:
        for parameter in [*layer.self_attn.parameters(), *layer.mlp.parameters()]:
            parameter.zero_()
    model.layers[3].skip.weight.fill_(0.5)
    model.layers[4].skip.weight.fill_(2.0)
    assert_close(model.run(x, torch.arange(3)[None]), x * 1.5 + 2.0 * x)


def test_a_value_residual_mixes_in_the_values_of_the_first_layer():
    model = lively(preset("tiny-decoder", {"value_residual": True, "num_hidden_layers": 2}))
    first, second = (layer.self_attn for layer in model.layers)
    seen = []
    for attention in (first, second):
        attention.v_proj.register_forward_hook(lambda *parts: seen.append(parts[2]))
    cache = Cache.empty(model.config, 1)
    model.layers[1].value_residual.weight.copy_(torch.tensor([0.25, 3.0]))
    model(ids(1, 4), cache=cache)
    kept = cache.layers[1].tensors[1].transpose(1, 2).flatten(2)
    assert_close(kept, 0.25 * seen[1] + 3.0 * seen[0])
