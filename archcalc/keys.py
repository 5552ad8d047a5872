"""A strict reader of one Hugging Face config: every key is understood, known to be harmless, or refused by name."""

from __future__ import annotations

import re
from itertools import islice

from archcalc.checks import LARGEST, positive
from archcalc.errors import ConfigError, nearest, one_of

# What a class of Hugging Face ends in, by the end of its name; `none` has no head.
ENDINGS = (
    (re.compile(r"\w*(ForCausalLM|LMHeadModel|ForConditionalGeneration|ForSeq2SeqLM|MTModel|WithLMHead)"), "lm"),
    (re.compile(r"\w*ForMaskedLM"), "mlm"),
    (re.compile(r"(?!\w*(For[A-Z]|Head|Reward|Encoder|Decoder|Value))\w*Model"), "none"),
)
REQUIRED = object()  # the default of a key that must be there

# Keys that change neither a shape nor what is computed at inference: labels, tokens, dropout, training, sampling,
# kernels, the tool that wrote the file, and how training split the model (`pretraining_tp`: sums in slices).
HARMLESS = frozenset({
    "_name_or_path", "architectures", "custom_pipelines", "finetuning_task", "model_type", "prefix",
    "problem_type", "task_specific_params", "tokenizer_class", "transformers_version", "id2label", "label2id",
    "_attn_implementation", "_attn_implementation_autoset", "attn_implementation", "_commit_hash", "dtype",
    "torch_dtype", "torchscript",
    "use_bfloat16", "use_cache", "return_dict", "output_attentions", "output_hidden_states", "output_past",
    "gradient_checkpointing", "chunk_size_feed_forward", "reorder_and_upcast_attn", "bos_token_id",
    "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "decoder_start_token_id",
    "forced_bos_token_id", "forced_eos_token_id", "initializer_range", "init_std", "attention_dropout",
    "activation_dropout", "attention_probs_dropout_prob", "dropout", "hidden_dropout", "hidden_dropout_prob",
    "residual_dropout", "embedding_dropout",
    "classifier_dropout", "classif_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop", "encoder_layerdrop",
    "decoder_layerdrop", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "max_length", "min_length", "do_sample", "early_stopping", "num_beams",
    "num_beam_groups", "diversity_penalty", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty",
    "length_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids",
    "num_return_sequences", "output_scores", "return_dict_in_generate", "remove_invalid_values",
    "suppress_tokens", "begin_suppress_tokens", "exponential_decay_length_penalty", "_from_model_config",
    "unsloth_fixed", "unsloth_version", "transformers.js_config", "_flash_attn_2_enabled", "neftune_noise_alpha",
    "tokenizer_model_max_length", "tokenizer_padding_side", "model_max_length", "tf_legacy_loss", "trust_remote_code",
    "world_size",
    "renormalize_logits", "eos_token_ids", "unk_token_id", "mask_token_id", "pad_token", "bos_token", "eos_token",
    "num_labels", "_num_labels", "sentence_transformers", "sbert_ce_default_activation_function", "is_composition",
    "transformers_weights", "use_return_dict", "cache_implementation", "use_flash_attention_2", "use_flash_attn",
    "custom_pipeline", "author", "total_flos", "use_deepspeed_checkpointing", "line_by_line", "pretraining_tp",
})  # fmt: skip

# Keys that are harmless at one value and change the computation at any other.
HARMLESS_AT = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "cross_attention_hidden_size": None,
    "rope_interleaved": False,
    "partial_rotary_factor": 1.0,
    "is_decoder": False,
    "tie_encoder_decoder": False,
    "pruned_heads": {},
    "normalize_embedding": False,
    "add_bias_logits": False,
    "use_sliding_window": False,
}


def shown(value: object) -> str:
    """`repr` of a value in a message: one line, at most 60 characters, for any value at all."""
    try:
        text = repr(_begun(value))
    except (ValueError, RecursionError):  # an int of more than 4300 digits; a list nested too deep
        return f"<{type(value).__name__} too large to print>"
    return text if len(text) <= 60 else text[:57] + "..."


class Cut:
    """Stands for what is inside a value that is nested deeper than a message shows."""

    def __repr__(self) -> str:
        return "..."


def _begun(value: object, depth: int = 4) -> object:
    """The beginning of a value, so that a message costs nothing however large the value is."""
    if type(value) is str:
        return value[:100]
    if type(value) is list:
        return [_begun(item, depth - 1) for item in value[:12]] if depth else Cut()
    if type(value) is dict:
        first = islice(value.items(), 12)
        return {_begun(name): _begun(item, depth - 1) for name, item in first} if depth else Cut()
    return value


def label(name: str) -> str:
    """A key's name in a message, where a hostile one can neither break the line nor flood it."""
    return name if name.isprintable() and len(name) <= 60 else shown(name)


class Keys:
    """Reads typed values and remembers which keys were read, so that `finish` can refuse the rest.

    A key may be written under its canonical name or under one of its family's `aliases`; null counts as absent.

    Args:
        raw: the config as parsed from JSON.
        aliases: canonical name -> the family's names for the same thing.
        ignored: keys that are harmless in this family, beyond HARMLESS.
        release: sizes of the released model that the Hugging Face class defaults to; an absent key takes them, and
            `assumed` remembers that it did.
        owner: what refuses a key, for messages ("model_type gpt2").
        prefix: the path of a nested object, for messages ("rope_scaling.").
    """

    def __init__(self, raw: dict, aliases=None, ignored=frozenset(), *, release=None, owner="this config", prefix=""):
        for name in raw:
            if type(name) is not str:
                raise ConfigError(f"key {shown(name)}: a key must be a string; give Hugging Face config.json names")
        self.raw, self.aliases, self.ignored = raw, aliases or {}, ignored
        self.owner, self.prefix = owner, prefix
        self.release = release or {}
        self.used: set[str] = set()
        self.assumed: dict[str, object] = {}

    def view(self, raw: dict, aliases: dict) -> Keys:
        """The same config under other aliases; what the view reads counts as read here."""
        other = Keys(raw, aliases, self.ignored, release=self.release, owner=self.owner, prefix=self.prefix)
        other.used, other.assumed = self.used, self.assumed
        return other

    def given(self, name: str) -> bool:
        """Whether the config has the key at all, even as null."""
        return any(n in self.raw for n in (name, *self.aliases.get(name, ())))

    def _find(self, name: str, default):
        """(the name in this config, its value), or (name, default) where it is absent or null."""
        names = (name, *self.aliases.get(name, ()))
        self.used.update(names)
        found = [(n, self.raw[n]) for n in names if self.raw.get(n) is not None]
        if not found:
            if default is not REQUIRED:
                return name, default
            known = next((n for n in names if n in self.release), None)
            if known is None:
                raise self._missing(name)
            return known, self.assumed.setdefault(known, self.release[known])
        for other, value in found[1:]:
            if type(value) is not type(found[0][1]) or value != found[0][1]:
                raise ConfigError(
                    f"{self.prefix}{found[0][0]}={shown(found[0][1])} with {other}={shown(value)}: "
                    "two names of one thing disagree; give only one"
                )
        return self.prefix + found[0][0], found[0][1]

    def _missing(self, name: str) -> ConfigError:
        spelt = " or ".join((name, *self.aliases.get(name, ())))
        hint = nearest(name, [label(n) for n in self.raw if n not in self.used and n not in HARMLESS])
        return ConfigError(f"{self.prefix}{name}: missing, and never guessed; give {spelt}{hint}")

    def int(self, name: str, default=REQUIRED):
        """A size: a whole number from 1 to 2^31 - 1. 4096.0 and true are refused."""
        label, value = self._find(name, default)
        if value is not default:
            if type(value) is int and abs(value) > LARGEST:  # before a message formats what cannot be printed
                raise ConfigError(f"{label}={shown(value)}: must be at most {LARGEST}; no model is that large")
            positive(**{label: value if type(value) in (int, float, bool) else Shown(value)})
        return value

    def count(self, name: str, default=REQUIRED):
        """A number of things of which there may be none: a whole number from 0 to 2^31 - 1."""
        label, value = self._find(name, default)
        if value is not default and (type(value) is not int or not 0 <= value <= LARGEST):
            raise ConfigError(f"{label}={shown(value)}: must be a whole number from 0 to {LARGEST}; give 0 for none")
        return value

    def ints(self, name: str):
        """A tuple of whole numbers from 0 (layer numbers, switches), or None."""
        label, value = self._find(name, None)
        if value is None:
            return None
        if type(value) is not list or not all(type(item) is int and 0 <= item <= LARGEST for item in value):
            raise ConfigError(f"{label}={shown(value)}: must be a list of whole numbers from 0; write [0, 1, ...]")
        return tuple(value)

    def float(self, name: str, default=REQUIRED):
        """A finite number; a whole one may be written without a point."""
        label, value = self._find(name, default)
        if value is default:
            return value
        # A comparison with an int is exact, so it also refuses one too large for a float.
        if type(value) not in (int, float) or not -1.7e308 < value < 1.7e308:
            raise ConfigError(f"{label}={shown(value)}: must be a finite number; give one such as 1e-05 or 10000.0")
        if name.endswith(("eps", "epsilon")) and not 0 < value < 1:
            raise ConfigError(f"{label}={shown(value)}: must lie between 0 and 1; 1e-05 is usual")
        return float(value)

    def bool(self, name: str, default=REQUIRED):
        """true or false. 0, 1 and "true" are refused."""
        label, value = self._find(name, default)
        if value is not default and type(value) is not bool:
            raise ConfigError(f"{label}={shown(value)}: must be true or false; give one of the two")
        return value

    def str(self, name: str, default=REQUIRED):
        """A string."""
        label, value = self._find(name, default)
        if value is not default and type(value) is not str:
            raise ConfigError(f"{label}={shown(value)}: must be a string; put it in quotes")
        return value

    def choice(self, name: str, meanings: dict, default=REQUIRED):
        """What one of the strings in `meanings` means; `default` is one of those strings."""
        label, value = self._find(name, default)
        one_of(label, value if type(value) is str and len(value) <= 60 else Shown(value), meanings)
        return meanings[value]

    def strings(self, name: str, allowed: tuple):
        """A tuple of strings, each one of `allowed`, or None."""
        label, value = self._find(name, None)
        if value is None:
            return None
        if type(value) is not list or not all(type(item) is str for item in value):
            raise ConfigError(f"{label}={shown(value)}: must be a list of strings; use {', '.join(allowed)}")
        for item in sorted(set(value)):
            one_of(label, item if len(item) <= 60 else Shown(item), allowed)
        return tuple(value)

    def nested(self, name: str):
        """A reader of the object under a key, or None. The caller finishes it."""
        label, value = self._find(name, None)
        if value is None:
            return None
        if type(value) is not dict:
            raise ConfigError(f"{label}={shown(value)}: must be an object; write {{...}} or null")
        return Keys(value, owner=f"{label} of {self.owner}", prefix=label + ".")

    def architecture(self) -> str | None:
        """What the model ends in, by `architectures`: `lm`, `mlm`, `none`; None where the config does not say.

        A family that asks decides itself what it makes of it.
        """
        label, value = self._find("architectures", None)
        if value is None or value == []:
            return None
        if type(value) is not list or not all(type(name) is str for name in value):
            raise ConfigError(f"{label}={shown(value)}: must be a list of names of classes; give one, or null")
        found = {name: next((kind for end, kind in ENDINGS if end.fullmatch(name)), "") for name in value[:100]}
        for name, kind in found.items():
            if not kind:
                raise ConfigError(
                    f"{label}={shown(name)}: its head is not understood; give a ...ForCausalLM (or another language "
                    "model), a ...Model to count without a head, or null"
                )
        if len(set(found.values())) > 1:
            raise ConfigError(f"{label}={shown(value)}: some with a head, some without; give one")
        return found[value[0]]

    def must_be(self, name: str, allowed, why: str = "anything else is not understood yet"):
        """Refuse the key at any value but one."""
        label, value = self._find(name, allowed)
        if value != allowed:
            raise ConfigError(f"{label}={shown(value)}: {why}; remove it or set it to {shown(allowed)}")

    def finish(self, asked=frozenset()) -> None:
        """Refuse what nobody read and nobody knows to be harmless.

        Args:
            asked: keys that the user set by hand. A null that nobody reads is refused there: it would do nothing.
        """
        known = self.used
        if not self.prefix:  # the harmless keys belong to the top level
            for name, allowed in HARMLESS_AT.items():
                if name not in self.used:
                    self.must_be(name, allowed)
            known = self.used | HARMLESS | self.ignored
        left = [n for n in self.raw if n not in known and (self.raw[n] is not None or n in asked)]
        if left:
            name, value = left[0], shown(self.raw[left[0]])
            others = f"; nor are {', '.join(map(label, left[1:6]))}" if left[1:] else ""
            raise ConfigError(
                f"{self.prefix}{label(name)}={value}: not understood by {self.owner}{others}; "
                f"fix or remove it{nearest(name[:60], self.used)}"
            )


class Shown:
    """Stands for a value in a message that another module formats with `repr`."""

    def __init__(self, value: object):
        self.text = shown(value)

    def __repr__(self) -> str:
        return self.text
