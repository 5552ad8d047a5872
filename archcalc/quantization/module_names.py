"""Names of modules as quantization configs write them, beside the names that our ops have."""

from __future__ import annotations

import re

from archcalc.errors import ConfigError
from archcalc.keys import shown

# Names of one thing in checkpoints -> ours.
SPELT = {
    "attn": "self_attn", "attention": "self_attn", "self_attention": "self_attn", "mamba": "linear_attn",
    "ffn": "mlp", "feed_forward": "mlp", "block_sparse_moe": "mlp", "moe": "mlp", "shared_experts": "shared_expert",
    "shared_mlp": "shared_expert", "w1": "gate_proj", "w2": "down_proj", "w3": "up_proj", "h": "layers",
    "blocks": "layers", "embed": "embed_tokens", "embeddings": "embed_tokens", "wte": "embed_tokens",
    "head": "lm_head", "kv_a_proj_with_mqa": "kv_a_proj",
}  # fmt: skip
CONTAINERS = ("model", "language_model", "backbone", "transformer", "text_model", "decoder")
# What a checkpoint may name and nobody packs, or that is not counted: norms, convolutions, towers, further layers.
ELSEWHERE = re.compile(
    r"norm|e_score_correction_bias|conv1d|(^|[.*])(mtp|nextn|eh_proj|shared_head|vision|visual|vit|audio|embed_vision"
    r"|mm_projector|multi_modal_projector|multimodal_projector|patch_merge|merger|connector|index(ers?)?_\w*proj)"
)
STARS = 4  # of one pattern: more let a hostile one search for ages
MOST_SEARCHED = 1000


class Names:
    """Names of modules as configs write them: a name, the beginning of one, its end, a glob, a `re:` expression."""

    def __init__(self, patterns: tuple[str, ...]):
        self.known: dict[str, str] = {}  # a whole name or its end, in our spelling -> as the config writes it
        self.begun: dict[str, str] = {}  # what is before a last star
        self.searched: list[tuple[re.Pattern, str]] = []
        self.used: set[str] = set()
        for pattern in patterns:
            name = canonical(pattern)
            if pattern.startswith("re:"):
                self.searched.append((_expression(pattern), pattern))
            elif "*" in name.removesuffix("*"):
                self.searched.append((_glob(name), pattern))
            elif name.endswith("*"):
                self.begun.setdefault(name[:-1], pattern)
            else:
                self.known.setdefault(name, pattern)
        if len(self.searched) > MOST_SEARCHED:
            raise ConfigError(f"quantization_config: {len(self.searched)} globs; give at most {MOST_SEARCHED}")

    def fit(self, name: str) -> bool:
        """Whether a module's name (ours, with the index of its layer) is named."""
        found = []
        # Some families call every sublayer a mixer; to us only a recurrent one is, which the others call linear_attn.
        for spelt in {name.replace(".mixer.", ".linear_attn."), re.sub(r"^(layers\.\d+)\.\w+", r"\1.mixer", name)}:
            cuts = [i for i, letter in enumerate(spelt) if letter == "."]
            ends = (spelt, *(spelt[:i] for i in cuts), *(spelt[i + 1 :] for i in cuts))
            found += [self.known[end] for end in ends if end in self.known]
            found += [self.begun[spelt[:i]] for i in range(len(spelt) + 1) if spelt[:i] in self.begun]
        published = "model." + name.replace(".experts.", ".experts.0.").replace("mlp.router", "mlp.gate")
        for spelt in (name, published, published.replace("shared_expert.", "shared_experts.")):
            found += [pattern for expression, pattern in self.searched if expression.match(spelt)]
        self.used.update(found)
        return bool(found)

    def unused(self) -> list[str]:
        """Those that named nothing; embedding, head and router may be named where there is none to pack."""
        kept = re.compile(r"embed_tokens|router|lm_head|shared_expert_gate")
        given = (*self.known.values(), *self.begun.values(), *(pattern for _, pattern in self.searched))
        return [p for p in given if p not in self.used and not kept.search(canonical(p))]


def canonical(pattern: str) -> str:
    """A name from a config in our spelling: `model.layers.3.ffn.experts.7.w1` is layers.3.mlp.experts.gate_proj."""
    parts = pattern.split(".")
    while len(parts) > 1 and parts[0] in CONTAINERS:
        parts = parts[1:]
    parts = [SPELT.get(part.rstrip("*"), part.rstrip("*")) + "*" * part.endswith("*") for part in parts]
    parts = [part for i, part in enumerate(parts) if not (part.isdigit() and i and parts[i - 1] == "experts")]
    if parts[-1] == "gate":
        parts[-1] = "router"
    return ".".join(parts)


def _glob(name: str) -> re.Pattern:
    if name.count("*") > STARS:
        raise ConfigError(f"quantization_config: {shown(name)}: more than {STARS} stars; give plain names")
    return re.compile(re.escape(name).replace(r"\*", ".*") + r"(\..*)?$")


def _expression(pattern: str) -> re.Pattern:
    """A `re:` that ends soon: few repeats, none of a group."""
    text = pattern.removeprefix("re:")
    plain = re.fullmatch(r"(?:[\w\-/^$(|)]|\\[.dw\-][*+]?|\[[\w-]+\][*+]?|\.[*+]?)*", text)
    if not plain or len(re.findall(r"[*+]", text)) > STARS:
        raise ConfigError(f"quantization_config: {shown(pattern)}: too hard to search for; give plain names")
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigError(f"quantization_config: {shown(pattern)}: no expression, {error}; mend it") from None
