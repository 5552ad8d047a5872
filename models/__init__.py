"""Reference models in plain PyTorch, built from a `ModelConfig`: small, exact, and the same in every runtime."""

from models.builder import build
from models.cache import Cache, CrossCache
from models.language_model import DecoderOnly, EncoderDecoder, EncoderOnly, left_padded
from models.weights import load

__all__ = ["Cache", "CrossCache", "DecoderOnly", "EncoderDecoder", "EncoderOnly", "build", "left_padded", "load"]
