"""Open decoders: how many, by which threads, and what becomes of them in a forked process."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from replay_service import VideoClipRef, clear_video_decoder_cache, set_video_decoder_cache_size
from replay_service.buffer.video.decoders import CACHE, DecoderCache, open_video
from tests.source_tree import ROOT
from tests.video_files import drawn, needs_video, written


@pytest.fixture
def clips(tmp_path: Path) -> Iterator[list[str]]:
    clear_video_decoder_cache()
    yield [written(tmp_path / f"{n}.mp4", drawn(20, seed=n)) for n in range(4)]
    set_video_decoder_cache_size(32)
    clear_video_decoder_cache()


@needs_video
def test_as_many_decoders_stay_open_as_was_said(clips: list[str]) -> None:
    set_video_decoder_cache_size(2)
    opened = [open_video(clip) for clip in clips]
    assert len(CACHE) == 2
    assert open_video(clips[3]) is opened[3]
    assert open_video(clips[2]) is opened[2]
    assert open_video(clips[0]) is not opened[0]
    assert open_video(clips[2]) is opened[2]  # number 3 was the least recently used one
    set_video_decoder_cache_size(1)
    assert len(CACHE) == 1
    set_video_decoder_cache_size(0)
    assert torch.equal(VideoClipRef(clips[1]).decode(), drawn(20, seed=1))
    assert len(CACHE) == 0


@needs_video
def test_clear_closes_them_and_files_can_be_read_again(clips: list[str]) -> None:
    first = open_video(clips[0])
    clear_video_decoder_cache()
    assert len(CACHE) == 0
    assert open_video(clips[0]) is not first


@needs_video
def test_a_file_that_was_replaced_is_opened_again(clips: list[str]) -> None:
    ref = VideoClipRef(clips[0])
    assert torch.equal(ref.decode(), drawn(20, seed=0))
    written(Path(clips[0]), drawn(20, seed=9))
    assert torch.equal(ref.decode(), drawn(20, seed=9))
    Path(clips[0]).unlink()
    with pytest.raises(FileNotFoundError):
        ref.decode()


@needs_video
@pytest.mark.parametrize("size", [1, 32])
def test_threads_may_decode_the_same_files_at_once(clips: list[str], size: int) -> None:
    set_video_decoder_cache_size(size)
    ref, dense = VideoClipRef.from_files(clips), torch.cat([drawn(20, seed=n) for n in range(4)])

    def check(seed: int) -> bool:
        order = torch.randint(0, 80, (30,), generator=torch.Generator().manual_seed(seed))
        return torch.equal(ref[order].decode(), dense[order])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(check, range(40)))


@needs_video
def test_a_forked_process_opens_files_of_its_own(clips: list[str]) -> None:
    ref, dense = VideoClipRef.from_files(clips), torch.cat([drawn(20, seed=n) for n in range(4)])
    assert torch.equal(ref.decode(), dense)
    before = len(CACHE)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def child(end: Any) -> None:
        orders = [torch.randperm(80, generator=torch.Generator().manual_seed(seed)) for seed in range(10)]
        end.send((len(CACHE), all(torch.equal(ref[order].decode(), dense[order]) for order in orders)))

    process = context.Process(target=child, args=(theirs,))
    process.start()
    for seed in range(10):  # both read the same files at the same time
        order = torch.randperm(80, generator=torch.Generator().manual_seed(seed))
        assert torch.equal(ref[order].decode(), dense[order])
    assert ours.recv() == (0, True)
    process.join()
    assert process.exitcode == 0
    assert len(CACHE) == before


@needs_video
def test_a_started_process_gets_what_it_needs_by_pickle(clips: list[str]) -> None:
    ref = VideoClipRef.from_files(clips)[15:25]
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        assert torch.equal(torch.from_numpy(pool.apply(_decoded, (ref,))), ref.decode())


def _decoded(ref: VideoClipRef) -> Any:
    return ref.decode().numpy()


@pytest.mark.parametrize(("value", "kind"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_sizes_that_are_none(value: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="maxsize"):
        set_video_decoder_cache_size(value)


def test_a_missing_file_is_named_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nothing\.mp4"):
        DecoderCache(1).get(str(tmp_path / "nothing.mp4"), None)


WITHOUT = """
import sys

sys.modules["torchcodec"] = None
from replay_service import VideoClipRef

def told():
    assert VideoClipRef("a.mp4", [0]).source == "a.mp4"
    try:
        VideoClipRef(sys.argv[1], [0]).decode()
    except ImportError as error:
        print(str(error).replace(chr(10), " "))

told()

class Finder:
    def find_spec(self, name, *rest):
        if name.startswith("torchcodec"):
            raise RuntimeError("Could not load libtorchcodec. Likely causes: FFmpeg is not properly installed")

del sys.modules["torchcodec"]
sys.meta_path.insert(0, Finder())
told()
"""


def test_what_is_not_installed_is_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, __file__], cwd=ROOT, capture_output=True, text=True, timeout=100
    )
    torchcodec, ffmpeg = done.stdout.splitlines()
    assert "pip install 'replay-service[video]'" in torchcodec
    assert "apt-get install ffmpeg" in ffmpeg
