"""A ModelConfig from a Hugging Face config.json. A key that is not understood is refused, never skipped."""

from __future__ import annotations

import gc
import json
import os

from archcalc import families
from archcalc.composite import SHARED, language_model, text_sizes
from archcalc.config import Head, ModelConfig
from archcalc.errors import ConfigError
from archcalc.keys import Keys, shown
from archcalc.quantization import quantization

PADDED = ("pad_vocab_size_multiple", "pad_vocab_to_multiple_of")  # to a multiple of what the vocabulary is padded
LARGEST_FILE = 4_000_000  # bytes; most have a few thousand, one that names every quantized expert 3 million
BARE = Head(kind="none")


def load_config(path, overrides: dict | None = None) -> ModelConfig:
    """Read a config.json, or the one in a folder.

    Args:
        path: the file or the folder; the model is named after the folder.
        overrides: keys to set before reading, as `config_from_keys` takes them.

    Raises:
        ConfigError: the file is missing, not strict JSON, too large, or not understood.
    """
    file = os.path.join(path, "config.json") if os.path.isdir(path) else os.fspath(path)
    folder, base = os.path.split(os.path.abspath(file))
    name = os.path.basename(folder) if base == "config.json" else os.path.splitext(base)[0]
    keys, beside = read_json(file), file.removesuffix("config.json") + "hf_quant_config.json"
    if file.endswith("config.json") and keys.get("quantization_config") is None and os.path.isfile(beside):
        keys["quantization_config"] = {"quant_method": "modelopt"} | _said_beside(beside)
    return config_from_keys(keys, overrides, name=name)


def _said_beside(file: str) -> dict:
    """What hf_quant_config.json, which Model Optimizer writes next to a config.json, says of the weights."""
    keys = read_json(file)
    if type(keys.get("quantization")) is not dict:
        raise ConfigError(f"{_tail(file)}: quantization={shown(keys.get('quantization'))}: must be an object; mend it")
    return keys["quantization"]


def read_json(file: str) -> dict:
    """The object in a JSON file of at most 1 MB. Raises ConfigError for anything else, naming the file."""
    try:
        with open(file, "rb") as stream:
            data = stream.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a null character
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{_tail(file)}: cannot be read, {reason}; give a config.json or its folder") from None
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"{_tail(file)}: larger than {LARGEST_FILE} bytes; a config.json has a few thousand")
    try:
        value = parse_json(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{_tail(file)}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"{_tail(file)}: not JSON, {error}; fix that place") from None
    except ConfigError as error:
        raise ConfigError(f"{_tail(file)}: {error}") from None
    if type(value) is not dict:
        raise ConfigError(f"{_tail(file)}: holds a {type(value).__name__}, not an object; write {{...}}")
    return value


def _tail(file: str) -> str:
    """A path in a message: its end says most, and no character of it can break the line."""
    text = file if file.isprintable() else repr(file)
    return text if len(text) <= 200 else "..." + text[-197:]


def parse_json(text: str):
    """The value of strict JSON. Raises JSONDecodeError for bad syntax, ConfigError for what JSON does not allow."""
    collecting = gc.isenabled()
    gc.disable()  # nothing of it is garbage, and looking through a million lists takes a second
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ConfigError("nested too deep; a config has a few levels") from None
    except (json.JSONDecodeError, ConfigError):
        raise
    except ValueError:  # Python refuses to convert an integer of thousands of digits
        raise ConfigError("a number has too many digits; no size of a model needs them") from None
    finally:
        if collecting:
            gc.enable()


def _unique(pairs: list) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ConfigError(f"key {shown(twice)}: given twice in one object; keep one")
    return found


def _no_constant(name: str):
    if name == "Infinity":  # a bound of time steps in published configs; refused where a number is read
        return float("inf")
    raise ConfigError(f"{name}: not a number that JSON allows; give a finite one or null")


def parse_override(text: str) -> tuple[str, object]:
    """`name=value` as (name, value): the value as JSON where it is JSON, else as a bare string.

    Raises:
        ConfigError: there is no `=` or no name, or the value is an object with a key given twice.

    >>> parse_override("num_key_value_heads=4"), parse_override("hidden_act=relu")
    (('num_key_value_heads', 4), ('hidden_act', 'relu'))
    """
    name, equals, value = text.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ConfigError(f"{shown(text)}: not an override; write name=value, as in num_key_value_heads=4")
    try:
        return name, parse_json(value)
    except json.JSONDecodeError:
        return name, value.strip()
    except ConfigError as error:
        raise ConfigError(f"{shown(name)[1:-1]}={shown(value)}: {error}") from None


def config_from_keys(keys: dict, overrides: dict | None = None, name: str = "model") -> ModelConfig:
    """A ModelConfig from Hugging Face keys.

    Args:
        keys: the content of a config.json; `model_type` chooses the family.
        overrides: keys to set first. A canonical name (`hidden_size`) replaces the family's own (`n_embd`);
            null takes a key away.
        name: what reports call the model.

    Returns:
        The config; its `keys` are what was read, so that `config_from_keys(config.keys) == config`.

    Raises:
        ConfigError: a key is missing, misspelt, of the wrong type, contradicted or not understood.
    """
    overrides = overrides or {}
    for given in (keys, overrides):
        if not isinstance(given, dict):
            raise ConfigError(f"{shown(given)}: must be an object of config.json keys; give one with a model_type")
    whole = keys | {name: value for name, value in overrides.items() if name in SHARED}
    keys, left_out = language_model(whole)
    model_type = overrides.get("model_type", keys.get("model_type"))
    family = families.family(model_type)
    raw = with_overrides(keys, overrides, family)
    k = families.reader(raw, family, model_type)
    sizes = text_sizes(whole, model_type)
    k.release = sizes | k.release
    fields = family.build(k)
    if "architectures" not in k.used:  # the family leaves it to the rule of all
        fields |= _ending(k)
    fields["quantization"] = quantization(k)
    _check_padding(k, fields["vocab_size"])
    k.finish(asked=overrides)
    fields["left_out"] = (*left_out, *fields.get("left_out", ()))
    raw = {n: v for n, v in k.assumed.items() if n in sizes} | raw  # no family takes these by itself
    return ModelConfig(**fields, name=name, keys=raw, assumed=k.assumed)


def _check_padding(k: Keys, rows: int) -> None:
    """Refuse a vocabulary that its own code pads further: how many rows a checkpoint has is never guessed."""
    for name in PADDED:
        multiple = k.int(name, default=1)
        if rows % multiple:
            raise ConfigError(
                f"vocab_size={rows} with {name}={multiple}: tables would have {-(-rows // multiple) * multiple} rows; "
                "give that number, or remove the key"
            )


def _ending(k: Keys) -> dict:
    """A head, as the family has it, or none for a class that is a bare model."""
    kind = k.architecture()
    if kind == "mlm":
        raise ConfigError(
            f"architectures={shown(k.raw['architectures'])}: {k.owner} has no masked language model; give its "
            "...ForCausalLM, or null"
        )
    return {"head": BARE} if kind == "none" else {}


def with_overrides(keys: dict, overrides: dict, family) -> dict:
    """A copy of the keys with the overrides in place of every other name of the same thing."""
    raw = dict(keys)
    if not {"rope_theta", "rope_scaling", "rope_parameters"}.isdisjoint(overrides):
        _split_rope(raw, overrides)
    per_stack = getattr(family, "PER_STACK", {})
    for canonical, names in per_stack.items():
        if canonical in overrides:
            _drop(raw, names)
        elif canonical in raw and not overrides.keys().isdisjoint(names):
            # One stack is set: let the shared key speak for the other one alone.
            shared = raw.pop(canonical)
            raw.update({name: raw.get(name) or shared for name in names})
    for canonical, names in getattr(family, "ALIASES", {}).items():
        if canonical in overrides:
            _drop(raw, names)
        elif not overrides.keys().isdisjoint(names):
            raw.pop(canonical, None)
    return raw | overrides


def _drop(raw: dict, names) -> None:
    for name in names:
        raw.pop(name, None)


def _split_rope(raw: dict, overrides: dict) -> None:
    """Take `rope_parameters` apart into rope_theta and rope_scaling, of which an override then replaces one."""
    if "rope_parameters" in overrides:
        return _drop(raw, ("rope_theta", "rope_scaling"))
    found = [name for name in ("rope_scaling", "rope_parameters") if raw.get(name) is not None]
    if len(found) != 1 or type(raw[found[0]]) is not dict:
        return None  # nothing to take apart, or something that the family refuses
    nested = dict(raw[found[0]])
    inner, outer = nested.pop("rope_theta", None), raw.get("rope_theta")
    if None in (inner, outer) or inner == outer or "rope_theta" in overrides:
        del raw[found[0]]
        raw |= {"rope_theta": outer if inner is None else inner, "rope_scaling": nested or None}
    return None
