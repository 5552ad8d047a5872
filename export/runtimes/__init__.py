"""One file a backend, each with a class of the same interface, imported only when it is used.

    engine.new_cache(batch)                                        keys and values of `batch` empty sequences
    engine.run(input_ids, position_ids, write_indices, logit_indices, cache) -> logits [B, R, V], fp32 numpy
    engine.prepare(batch, tokens, start) -> Callable[[], None]     one pass with everything bound, for timing
    engine.cache_bytes(cache) -> int                               bytes of the bound keys and values
"""
