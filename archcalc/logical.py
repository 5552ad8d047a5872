"""The logical cache: what a decoder has to keep between two passes, without blocks, ranks or rounding."""

from __future__ import annotations

from fractions import Fraction

from archcalc.config import ModelConfig, once_a_config
from archcalc.cost import bound, cache_elements
from archcalc.precision import Precision

FAR = 2**40  # a context that no window reaches


@once_a_config
def held(config: ModelConfig) -> tuple:
    """(elements of one token, and of the state of a sequence; of one more token beyond every window; what windows hold
    beyond that)."""
    step = bound(config)[1]
    far = cache_elements(step, 1, FAR).cache
    slope = Fraction(cache_elements(step, 1, 2 * FAR).cache - far, FAR)  # a fraction where an entry is of some tokens
    return cache_elements(step, 1, 1, 1), slope, int(far - slope * FAR)


def kv_cache(config: ModelConfig, batch: int, context: int, source: int, stored: Precision) -> dict[str, int]:
    """Bytes of the self and cross caches and of recurrent states, for one more token and for the whole request.

    Where windows end, a token costs less: at a long context a sequence takes `constant_bytes` + `slope_bytes_per_token`
    times its tokens. An encoder alone keeps nothing.

    Args:
        context, source: tokens of the decoder and of the source. stored: number format of keys and values.
    """
    if not config.decoder:
        return {"bytes_per_token": 0, "bytes": 0}
    one, slope, constant = held(config)
    own, cross, state = cache_elements(bound(config)[1], batch, context, source)
    found = {"bytes_per_token": stored.stored_bytes(one.cache), "bytes": stored.stored_bytes(own)}
    if config.encoder:
        found |= {
            "cross_bytes_per_source_token": stored.stored_bytes(one.cross),
            "cross_bytes": stored.stored_bytes(cross),
        }
    if constant:
        a_token = slope * stored.bits / 8
        a_token = int(a_token) if a_token.denominator == 1 else float(a_token)
        found |= {"slope_bytes_per_token": a_token, "constant_bytes": stored.stored_bytes(constant)}
    if state:
        found |= {
            "state_bytes_per_sequence": stored.stored_bytes(one.state),
            "state_bytes": stored.stored_bytes(state),
        }
    return found
