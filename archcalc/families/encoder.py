"""What encoder-only families have in common: a stack without a causal mask, and a head that `architectures` names."""

from __future__ import annotations

import re

from archcalc.config import Head, Norm, Stack
from archcalc.errors import ConfigError, one_of
from archcalc.families.shared import attention, decoder, feed_forward, model, same
from archcalc.keys import Keys, shown

# Dropout, and sizes that only training reads: of ELECTRA's generator, of the classifiers of several tasks.
IGNORED = frozenset({
    "hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout_prob", "embedding_dropout_prob",
    "summary_last_dropout", "layer_norm_type", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers",
    "pooler_size_per_head", "pooler_type", "directionality", "net_structure_type", "num_memory_blocks",
    "down_scale_factor", "gap_size", "layers_to_keep", "language", "name", "generator_size", "classifiers_size",
    "tasks",
})  # fmt: skip
TASK = re.compile(r"(EncoderModel|Model|For[A-Z]\w*)$")


def task(k: Keys, default: str = "Model") -> str:
    """What the class in `architectures` is for: `Model`, `ForMaskedLM` and the like; the default where it is absent."""
    k.used.add("architectures")
    names = k.raw.get("architectures") or [default]
    if type(names) is not list or len(names) != 1 or type(names[0]) is not str:
        raise ConfigError(f"architectures={shown(names)}: must be a list of one class; give the one that is meant")
    found = TASK.search(names[0])
    if not found:
        raise ConfigError(f"architectures={shown(names)}: not understood; give a class such as BertModel")
    return found.group(1)


def labels(k: Keys) -> int:
    """How many labels a classifier tells apart: 2 where no key says it."""
    names, count = k.raw.get("id2label"), k.int("num_labels", default=None)
    found = len(names) if type(names) is dict else None
    if None not in (count, found) and count != found:
        raise ConfigError(f"num_labels={count} with id2label of {found}: they disagree; give only one")
    return found or count or 2


def task_head(k: Keys, norm: Norm, *, pooler: bool, lm: Head | None = None, between: Head | None = None) -> Head:
    """The head of the class that `architectures` names.

    Args:
        norm: of a masked language model's transform. pooler: the bare model has one.
        lm: what `ForMaskedLM` has instead of a transform and a bias.
        between: says, by `dense`, `dense_bias` and `norm`, what comes before a classifier of sequences.
    """
    name, lm = task(k), lm or Head("mlm", bias=True, norm=norm)
    between = between or Head()
    parts = {"bias": True, "dense": between.dense, "dense_bias": between.dense_bias, "norm": between.norm}
    known = {"Model": lambda: Head("pooler" if pooler else "none"), "ForMaskedLM": lambda: lm}
    known["ForSequenceClassification"] = lambda: Head("labels", labels=labels(k), **parts)
    # A norm in front of a classifier is there for tokens too; a bare matrix is not.
    every = parts | {"dense": bool(between.norm), "every_token": True}
    known["ForTokenClassification"] = known["ForQuestionAnswering"] = lambda: Head("labels", labels=labels(k), **every)
    if pooler and name == "ForPreTraining":
        return Head(lm.kind, lm.bias, lm.norm, beside=Head("labels", bias=True, labels=2))
    one_of("architectures", name, known)
    return known[name]()


def encoder_model(k: Keys, stack: Stack, head: Head, *, one_bias: bool = False, **fields) -> dict:
    """ModelConfig fields of an encoder-only model. `one_bias`: untied logits have no second bias that nothing reads."""
    found = model(k, stack, tie=True, head=head, **fields) | {"encoder": stack, "decoder": None}
    if head.kind == "mlm" and not (found["tie_word_embeddings"] or one_bias):
        raise ConfigError("tie_word_embeddings=False: a second bias of the logits is not understood; set it to true")
    return found


def post_norm_encoder(k: Keys, *, relative: int = 0, rotary=None, bias=True, act="gelu", gated=False, eps=1e-12):
    """(the stack of BERT and its kin, its norm).

    Args:
        relative: buckets of a bias by distance that all layers share.
    """
    k.must_be("position_embedding_type", "absolute", "relative keys are not understood")
    norm = Norm("layernorm", k.float("layer_norm_eps", default=eps))
    mlp = feed_forward(k, act=act, gated=gated, bias=bias)
    parts = {"bias": bias, "causal": False, "rotary": rotary}
    first, rest = (attention(k, relative_buckets=n, **parts) for n in ((relative, 0) if relative else (None, None)))
    return decoder(k, lambda layer: rest if layer else first, same(mlp), norm, "post"), norm
