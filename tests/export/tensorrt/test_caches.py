"""Timings and compiled kernels in files: used where the package takes them, told and replaced where it does not."""

from types import SimpleNamespace

import pytest
import tensorrt_rtx
from engines import CAPACITY

from export.engine_caches import (
    save_runtime_cache,
    save_timing_cache,
    timing_cache_path,
    use_runtime_cache,
    use_timing_cache,
)
from export.engine_from_onnx import build_engine
from export.files import ExportError

GOOD = b"this version and GPU"


class Log:
    def __init__(self):
        self.said = []

    def warnings(self):
        return self.said

    errors = ()


class Settings:
    """A builder's configuration whose timing cache takes only `GOOD` bytes, and measures one thing more."""

    def __init__(self, log, complains):
        self.log, self.complains, self.cache = log, complains, None

    def create_timing_cache(self, known):
        if known not in (b"", GOOD) and self.complains:  # as TensorRT does with bytes that it cannot read
            self.log.said.append("Failed to deserialize timing cache")
            known = b""
        return SimpleNamespace(known=known, serialize=lambda: GOOD)

    def set_timing_cache(self, cache, ignore_mismatch):
        assert ignore_mismatch is False
        if cache.known not in (b"", GOOD):
            return False
        self.cache = cache
        return True

    def get_timing_cache(self):
        return self.cache


@pytest.mark.parametrize("complains", [True, False])
def test_a_timing_cache_is_used_only_if_it_fits(tmp_path, complains):
    path, log = tmp_path / "timing.cache", Log()
    settings = Settings(log, complains)
    assert use_timing_cache(settings, path, log) is None  # there is none yet
    assert save_timing_cache(settings, path) is None
    assert path.read_bytes() == GOOD
    assert use_timing_cache(settings, path, log) is None
    assert settings.cache.known == GOOD
    path.write_bytes(b"of another GPU")
    note = use_timing_cache(settings, path, log)
    assert note == f"{path}: timings of another version or GPU, not used; it is written again"
    assert settings.cache.known == b""


def test_timings_that_cannot_be_written_are_a_note(tmp_path, monkeypatch):
    settings = Settings(Log(), True)
    use_timing_cache(settings, tmp_path / "none", Log())
    (tmp_path / "file").write_text("")
    note = save_timing_cache(settings, tmp_path / "file" / "timing.cache")
    assert note == f"{tmp_path}/file/timing.cache: timings cannot be written, File exists"


def test_which_package_has_timings(tmp_path, fresh):
    full = SimpleNamespace(__name__="tensorrt", __version__="11.0")
    assert timing_cache_path(full, None, tmp_path, "sm_89") == tmp_path / "timing-sm_89.cache"
    assert timing_cache_path(full, tmp_path / "mine", tmp_path, "sm_89") == tmp_path / "mine"
    assert timing_cache_path(tensorrt_rtx, None, tmp_path, "sm_89") is None
    with pytest.raises(ExportError, match=r"timingCacheFile=mine: tensorrt_rtx .* times nothing while it builds"):
        build_engine(fresh(), CAPACITY, timing_cache="mine")


class RuntimeCache:
    def __init__(self):
        self.kernels = b""

    def deserialize(self, known):
        if known == GOOD:
            self.kernels = known
        return known == GOOD

    def serialize(self):
        return GOOD


def test_compiled_kernels_are_kept(tmp_path, caplog):
    path, used = tmp_path / "engine.kernels", []
    config = SimpleNamespace(create_runtime_cache=RuntimeCache, set_runtime_cache=used.append)
    first = use_runtime_cache(config, path)
    save_runtime_cache(first, path)
    second = use_runtime_cache(config, path)
    assert (first.kernels, second.kernels, path.read_bytes()) == (b"", GOOD, GOOD)
    assert used == [first, second]
    assert caplog.text == ""
    path.write_bytes(b"of another GPU")
    assert use_runtime_cache(config, path).kernels == b""
    assert f"{path}: kernels of another version or GPU, not used" in caplog.text
    save_runtime_cache(second, path / "below")
    assert "cannot be written" in caplog.text


def test_an_interrupted_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "engine.kernels"
    path.write_bytes(b"old")

    class Broken:
        def serialize(self):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_runtime_cache(Broken(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["engine.kernels"]
    assert path.read_bytes() == b"old"
