"""Reference models in plain PyTorch, built from a `ModelConfig`: small, exact, and the same in every runtime."""

from models.builder import build
from models.cache import CrossCache, KVCache
from models.decoder_only import DecoderOnly
from models.encoder_decoder import EncoderDecoder
from models.weights import load

__all__ = ["CrossCache", "DecoderOnly", "EncoderDecoder", "KVCache", "build", "load"]
