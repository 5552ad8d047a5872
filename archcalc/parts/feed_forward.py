"""Feed-forward layers: dense, and mixtures of experts with routed and shared ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from archcalc.checks import positive
from archcalc.errors import ConfigError, one_of
from archcalc.ops import Op, Tensor, activation, linear, weight
from archcalc.parts.norm import Norm, norm_op

ACTIVATIONS = ("relu", "relu2", "gelu", "gelu_tanh", "quick_gelu", "silu", "xielu")


@dataclass(frozen=True)
class FeedForward:
    """Two matrices (`gated` false) or three: act(x·up)·down, or (act(x·gate) * x·up)·down.

    SwiGLU is gated `silu`, GeGLU is gated `gelu`. Source: Shazeer 2020, arXiv:2002.05202.
    `bias` speaks for all of them, `down_bias`, where given, for the last. `xielu` owns two numbers and stores
    two more. Source: Huang & Schlag 2024, arXiv:2411.13010.

    Args:
        inner_norm: of what the last matrix reads. Source: Wang et al. 2023, arXiv:2310.11453 (BitNet).
        swiglu_limit: gate and up are cut there, and the product is gate·sigmoid(1.702·gate)·(up + 1). Source: the
            released gpt-oss code.
    """

    intermediate_size: int
    hidden_act: str
    gated: bool = False
    bias: bool = False
    down_bias: bool | None = None
    inner_norm: Norm | None = None
    swiglu_limit: float | None = None

    def __post_init__(self):
        positive(intermediate_size=self.intermediate_size)
        one_of("hidden_act", self.hidden_act, ACTIVATIONS)

    @property
    def dims(self) -> dict[str, int]:
        return {"F": self.intermediate_size} | ({"q": 2} if self.hidden_act == "xielu" else {})

    @property
    def ups(self) -> tuple[str, ...]:
        """The matrices that read the input."""
        return ("gate_proj", "up_proj") if self.gated else ("up_proj",)

    def ops(self, name: str, width: str = "F") -> tuple[Op, ...]:
        """`width` is the axis letter of its intermediate size."""
        return _dense_ops(self, name, width)


@lru_cache(maxsize=256)
def _dense_ops(mlp: FeedForward, name: str, width: str) -> tuple[Op, ...]:
    down_bias = mlp.bias if mlp.down_bias is None else mlp.down_bias
    inner = ()
    if mlp.hidden_act == "xielu":
        inner = (Op(f"{name}.xielu", (weight("q"), Tensor("buffer", "q")), Tensor("chip", "q")),)
    inner += (norm_op(mlp.inner_norm, f"{name}.inner_norm", f"BT{width}", width),) if mlp.inner_norm else ()
    return (
        *(linear(f"{name}.{up}", "BTD", f"D{width}", f"BT{width}", mlp.bias) for up in mlp.ups),
        *inner,
        linear(f"{name}.down_proj", f"BT{width}", f"{width}D", "BTD", down_bias),
    )


@dataclass(frozen=True)
class MixtureOfExperts:
    """A router sends each token to `num_experts_per_tok` of `num_local_experts` equal feed-forwards.

    Args:
        shared: one feed-forward that every token goes through beside the routed ones; `shared_gate` scales its
            output by sigmoid of a projection to one number.
        router_bias: the router has a bias. correction_bias: it owns a bias that balances the load, a buffer and
            not a parameter. Source: arXiv:2408.15664.
        latent_size: experts work in a narrower space than the model, between two projections.
        router_scales: the router scales its input (D) and each expert's output (E), as in Gemma 4.
        norms: a norm before the experts and one after them and after the shared feed-forward, as in Gemma 4.
        scoring: what the router makes of its logits: `softmax` or `sigmoid`. norm_topk_prob: the weights of the
            chosen experts are divided by their sum. routed_scaling_factor: and then multiplied by this.
        n_group, topk_group: experts are chosen from the best topk_group of n_group groups, a group being as good as
            its best two. Source: DeepSeek-AI 2024, arXiv:2412.19437, section 2.1.2.
        output_bias: one bias of what all experts together add. output_norm: of the sum of all, as in A.X-K1.
        hash_size: rows of a table from token to experts that replaces the router's choice; a buffer.
    """

    expert: FeedForward
    num_local_experts: int
    num_experts_per_tok: int
    shared: FeedForward | None = None
    shared_gate: bool = False
    router_bias: bool = False
    correction_bias: bool = False
    latent_size: int | None = None
    latent_bias: bool = False
    router_scales: bool = False
    norms: Norm | None = None
    hash_size: int | None = None
    output_bias: bool = False
    output_norm: Norm | None = None
    scoring: str = "softmax"
    norm_topk_prob: bool = True
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1

    def __post_init__(self):
        one_of("scoring_func", self.scoring, ("softmax", "sigmoid"))
        positive(num_local_experts=self.num_local_experts, num_experts_per_tok=self.num_experts_per_tok)
        if self.num_experts_per_tok > self.num_local_experts:
            raise ConfigError(
                f"num_experts_per_tok={self.num_experts_per_tok}: larger than num_local_experts="
                f"{self.num_local_experts}; a token cannot go to more experts than there are"
            )
        if self.latent_size is not None:
            positive(moe_latent_size=self.latent_size)

    @property
    def dims(self) -> dict[str, int]:
        found = {"F": self.expert.intermediate_size, "E": self.num_local_experts, "A": self.num_experts_per_tok}
        rest = {"f": self.shared and self.shared.intermediate_size, "l": self.latent_size, "v": self.hash_size}
        return found | {axis: size for axis, size in rest.items() if size} | ({"o": 1} if self.shared_gate else {})

    def ops(self, name: str) -> tuple[Op, ...]:
        return _routed_ops(self, name)


@lru_cache(maxsize=256)
def _routed_ops(moe: MixtureOfExperts, name: str) -> tuple[Op, ...]:
    router = linear(f"{name}.router", "BTD", "DE", "BTE", moe.router_bias)
    if moe.router_scales:
        router = Op(router.name, (*router.inputs, weight("D"), weight("E")), router.output)
    if moe.correction_bias:
        router = Op(router.name, (*router.inputs, Tensor("buffer", "E")), router.output)
    table = ()
    if moe.hash_size:
        rows = (Tensor("buffer", "vA"),)
        table = (Op(f"{router.name}.table", rows, Tensor("chip", "BTA"), gather="v", indices="BT"),)
    shared = moe.shared.ops(f"{name}.shared_expert", "f") if moe.shared else ()
    gate = (linear(f"{name}.shared_expert_gate", "BTD", "Do", "BTo", False),) if moe.shared_gate else ()
    before, after, between = (), (), ()
    if moe.norms:
        before = (norm_op(moe.norms, f"{name}.experts_norm"),)
        after = (norm_op(moe.norms, f"{name}.experts_post_norm"),)
        between = (norm_op(moe.norms, f"{name}.shared_expert_post_norm"),)
    if moe.latent_size:
        before = (*before, linear(f"{name}.latent_down_proj", "BTD", "Dl", "BTl", moe.latent_bias))
        after = (linear(f"{name}.latent_up_proj", "BTl", "lD", "BTD", moe.latent_bias), *after)
    if moe.output_bias:
        after = (*after, Op(f"{name}.bias", (activation("BTD"), weight("D")), activation("BTD")))
    last = (norm_op(moe.output_norm, f"{name}.post_norm"),) if moe.output_norm else ()
    return (router, *table, *before, *_expert_ops(moe, name), *after, *shared, *between, *gate, *last)


def _expert_ops(moe: MixtureOfExperts, name: str) -> tuple[Op, ...]:
    """The routed experts: E is indexed, once for each of A experts a token."""
    d, expert = "l" if moe.latent_size else "D", moe.expert
    down_bias = expert.bias if expert.down_bias is None else expert.down_bias

    def op(matrix: str, x: str, axes: str, y: str, bias: bool) -> Op:
        owned = (weight(axes),) + ((weight("E" + axes[-1]),) if bias else ())
        return Op(f"{name}.experts.{matrix}", (activation(x), *owned), activation(y), gather="E", indices="BTA")

    ups = [op(up, f"BT{d}", f"E{d}F", "BTAF", expert.bias) for up in expert.ups]
    return *ups, op("down_proj", "BTAF", f"EF{d}", f"BT{d}", down_bias)
