"""References: shapes, where they come from, and what is refused."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch
from tensordict import TensorDict

from replay_service import VideoClipRef, clear_video_decoder_cache
from tests.video_files import drawn, needs_video, written


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("clips")
    return [written(folder / f"clip{n}.mp4", drawn(frames, seed=n)) for n, frames in enumerate((40, 17))]


# -- without a file -------------------------------------------------------------------------------------------------


def test_a_reference_is_a_batch_of_addresses() -> None:
    ref = VideoClipRef("a.mp4", torch.arange(100))
    assert (ref.batch_size, ref.frame_index.dtype, ref.file_id.dtype) == ((100,), torch.int64, torch.int64)
    assert (ref.sources, ref.source, ref.stream, ref.auto_decode) == (("a.mp4",), "a.mp4", None, False)
    assert ref[50:60].frame_index.tolist() == list(range(50, 60))
    assert ref[7].batch_size == ()
    assert VideoClipRef(Path("a.mp4"), torch.arange(6, dtype=torch.int32).view(2, 3)).batch_size == (2, 3)


def test_several_files_are_one_sequence() -> None:
    ref = VideoClipRef.from_files(["a.mp4", "b.mp4", "c.mp4"], num_frames_per_file=[3, 0, 2])
    assert ref.frame_index.tolist() == [0, 1, 2, 0, 1]
    assert ref.sources == ("a.mp4", "c.mp4")
    assert ref.file_id.tolist() == [0, 0, 0, 1, 1]
    assert ref[2:4].source == ["a.mp4", "c.mp4"]
    assert ref[3:].source == "c.mp4"
    assert VideoClipRef.from_files(["a", "b"], num_frames_per_file=4).batch_size == (8,)


def test_ids_name_places_among_the_sources() -> None:
    ref = VideoClipRef(("a", "b"), torch.tensor([[5, 6], [7, 8]]), torch.tensor([[1, 0], [0, 1]]))
    assert (ref.source, ref.sources) == (["b", "a", "a", "b"], ("b", "a"))
    assert ref.file_id.tolist() == [[0, 1], [1, 0]]


def test_thousands_of_files_take_sixteen_bytes_a_frame() -> None:
    paths = [f"/data/episodes/{n:05}.mp4" for n in range(3000)]
    ref = VideoClipRef.from_files(paths, num_frames_per_file=100)
    assert sum(tensor.nbytes for tensor in (ref.frame_index, ref.file_number)) == 16 * 300_000
    assert ref.sources == tuple(paths)
    assert len(pickle.dumps(ref[150_000:150_010])) < 3000


def test_bins_part_frames() -> None:
    ref = VideoClipRef.from_files(["a", "b"], num_frames_per_file=50)
    few = ref.rebin(30)
    assert (few.batch_size, few.source[0], few.source[-1]) == ((30,), "a", "b")
    stack = ref.rebin(30, frames_per_bin=4)
    assert stack.batch_size == (30, 4)
    places = stack.frame_index + 50 * stack.file_id
    assert bool((places[1:, 0] > places[:-1, -1]).all())
    assert torch.equal(ref.rebin(100).frame_index, ref.frame_index)
    assert VideoClipRef.from_file("a", num_frames=9, num_bins=3).frame_index.tolist() == [1, 4, 7]
    assert VideoClipRef.from_files(["a"], num_frames_per_file=9, num_bins=3, frames_per_bin=2).batch_size == (3, 2)


def test_references_of_other_files_can_be_put_side_by_side() -> None:
    one, two = (VideoClipRef(name, torch.arange(3)) for name in "ab")
    assert torch.cat([one, two]).source == ["a", "a", "a", "b", "b", "b"]
    assert torch.stack([one, two]).file_id.tolist() == [[0, 0, 0], [1, 1, 1]]
    steps = [TensorDict({"frame": ref, "x": torch.zeros(3)}, [3]) for ref in (one, two)]
    assert torch.cat(steps)[2:4]["frame"].source == ["a", "b"]
    assert torch.stack([steps[0][1], steps[1][2]])["frame"].source == ["a", "b"]


def test_pickle_brings_files_and_settings_along() -> None:
    ref = VideoClipRef.from_file("a", num_frames=4, stream=0, auto_decode=False, device="cpu", dtype=torch.float32)
    back = pickle.loads(pickle.dumps(TensorDict({"frame": ref}, [4])))["frame"]
    assert isinstance(back, VideoClipRef)
    assert (back.source, back.stream, back.out_device, back.out_dtype) == ("a", 0, torch.device("cpu"), torch.float32)
    assert torch.equal(back.frame_index, ref.frame_index)


def test_an_empty_reference_says_nothing() -> None:
    ref = VideoClipRef("a", torch.zeros(0, dtype=torch.int64))
    assert (ref.sources, ref.source, ref.stream, ref.out_dtype) == ((), [], None, None)
    assert ref.decode().shape[0] == 0


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: VideoClipRef((), [1]), ValueError, "sources"),
        (lambda: VideoClipRef((1,), [1]), TypeError, r"path \(1\)"),
        (lambda: VideoClipRef(("a", "b")), ValueError, "from_files"),
        (lambda: VideoClipRef("a", [0.5]), TypeError, "frame_index must be integers; got float32"),
        (lambda: VideoClipRef("a", [True]), TypeError, "got bool"),
        (lambda: VideoClipRef("a", [3, -1]), ValueError, r"frame_index \(-1\)"),
        (lambda: VideoClipRef("a", [1, 2], [0]), ValueError, r"file_id \(\[1\]\)"),
        (lambda: VideoClipRef("a", [1], [1]), ValueError, r"file_id \(1\) must be in \[0, 1\)"),
        (lambda: VideoClipRef("a", [1], stream=-1), ValueError, r"stream \(-1\)"),
        (lambda: VideoClipRef("a", [1], out_dtype="uint8"), TypeError, "dtype"),
        (lambda: VideoClipRef.from_file("a", num_frames=0), ValueError, "num_frames"),
        (lambda: VideoClipRef.from_file("a", frame_index=[1], num_bins=1), ValueError, "num_bins"),
        (lambda: VideoClipRef.from_file("a", num_frames=4, frames_per_bin=2), ValueError, "frames_per_bin"),
        (lambda: VideoClipRef.from_files([]), ValueError, "paths"),
        (lambda: VideoClipRef.from_files(["a"], num_frames_per_file=[1, 2]), ValueError, "num_frames_per_file"),
        (lambda: VideoClipRef("a", torch.zeros(0, dtype=torch.int64)).rebin(2), ValueError, "num_bins"),
        (lambda: VideoClipRef("a", [1]).rebin(0), ValueError, "num_bins"),
        (lambda: VideoClipRef("a", [1]).rebin(1, 0), ValueError, "frames_per_bin"),
    ],
)
def test_refused(make: object, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()  # type: ignore[operator]


# -- with files -----------------------------------------------------------------------------------------------------


@needs_video
def test_a_file_is_counted_when_nothing_else_says(clips: list[str]) -> None:
    assert VideoClipRef(clips[0]).batch_size == (40,)
    assert VideoClipRef.from_file(clips[1]).source == clips[1]
    assert VideoClipRef.from_file(clips[0], num_bins=8, frames_per_bin=3).batch_size == (8, 3)
    assert VideoClipRef.from_files(clips).batch_size == (57,)


@needs_video
def test_decoding_keeps_the_shape_of_the_reference(clips: list[str]) -> None:
    ref = VideoClipRef.from_files(clips)
    assert ref[7].decode().shape == (3, 32, 48)
    assert ref.rebin(10, 4).frames.shape == (10, 4, 3, 32, 48)
    assert ref[:0].decode().shape == (0, 3, 0, 0)
    assert ref[3:5].decode(dtype=torch.float32).dtype == torch.float32
    assert VideoClipRef.from_file(clips[0], dtype=torch.float16)[:2].decode().dtype == torch.float16


@needs_video
def test_auto_decode_gives_frames_for_an_index(clips: list[str]) -> None:
    ref = VideoClipRef.from_file(clips[0], auto_decode=True)
    assert torch.equal(ref[3:6], drawn(40)[3:6])
    assert torch.equal(ref[5], drawn(40)[5])
    assert isinstance(ref.rebin(4), VideoClipRef)


@needs_video
def test_frames_are_found_by_time(clips: list[str]) -> None:
    ref = VideoClipRef.from_timestamps(clips[0], torch.tensor([[0.0, 0.14], [0.16, 4.0]]))
    assert ref.frame_index.tolist() == [[0, 1], [2, 39]]
    assert VideoClipRef.from_timestamps(clips[0], []).batch_size == (0,)
    assert VideoClipRef.from_timestamps(clips[0], [0.5], fps=20).frame_index.tolist() == [10]
    with pytest.raises(ValueError, match=r"timestamps \(4\.5 s\).*clip0\.mp4.*rows \[1\]"):
        VideoClipRef.from_timestamps(clips[0], [1.0, 4.5])


@needs_video
def test_errors_name_the_file_and_the_rows(clips: list[str], tmp_path: Path) -> None:
    clear_video_decoder_cache()
    good = VideoClipRef(clips[0])[:3]
    text = tmp_path / "text.mp4"
    text.write_text("no video at all")
    with pytest.raises(FileNotFoundError, match=r"gone\.mp4.*rows \[3, 4\]"):
        torch.cat([good, VideoClipRef(tmp_path / "gone.mp4", [0, 1])]).decode()
    with pytest.raises(ValueError, match=r"text\.mp4.*must be a video.*rows \[3\]"):
        torch.cat([good, VideoClipRef(text, [0])]).decode()
    with pytest.raises(IndexError, match=r"frame_index \(40\) must be in \[0, 40\).*clip0\.mp4.*rows \[1, 3\]"):
        VideoClipRef(clips[0], [3, 40, 5, 99]).decode()
    with pytest.raises(ValueError, match=r"stream \(5\).*clip0\.mp4"):
        VideoClipRef(clips[0], stream=5)
    with pytest.raises(FileNotFoundError, match=r"gone\.mp4"):
        VideoClipRef(tmp_path / "gone.mp4")


@needs_video
def test_frames_of_two_sizes_are_not_stacked(clips: list[str], tmp_path: Path) -> None:
    other = VideoClipRef(written(tmp_path / "wide.mp4", drawn(4, 32, 64)))
    with pytest.raises(ValueError, match=r"wide\.mp4.*\[3, 32, 48\].*clip0\.mp4.*\[3, 32, 64\] in rows \[2, 3, 4, 5\]"):
        torch.cat([VideoClipRef(clips[0])[:2], other]).decode()
