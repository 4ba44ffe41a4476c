"""Makes tiny projectors (mmproj files) with random weights, one for each form of embeddings, and files to show them.

Their embeddings have no meaning, but they depend on the whole image or sound, and are the same on every run.
"""

from __future__ import annotations

import importlib.util
import io
import struct
import wave
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from gguf import GGUFWriter

from edgeagent.types import ChatPrompt, Media, MediaKind, MediaPlace, Message
from tests.models import WIDTH

# gemma3: a fixed grid whose embeddings attend to each other. lfm2: a grid that follows the image's shape. ultravox:
# sounds, by an encoder like Whisper's. qwen2vl_merger: positions in three dimensions (M-RoPE), for a model with them.
# idefics3: tiles of a fixed grid, with text between them.
Kind = Literal["gemma3", "lfm2", "ultravox", "qwen2vl_merger", "idefics3"]
_SCALE = {"gemma3": 2, "lfm2": 2, "ultravox": 4, "qwen2vl_merger": 2, "idefics3": 4}
# The marks between the tiles of idefics3, of which an image has up to 2 × 2, in a vocabulary.
TILE_TOKENS = (
    *("\n\n", "<fake_token_around_image>", "<global-img>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
_MELS, _MAX_FRAMES = 80, 1500


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of an encoder. `patch` and `image`: sides in pixels."""

    width: int = 32
    num_ffn: int = 64
    num_layers: int = 2
    num_heads: int = 2
    patch: int = 4
    image: int = 64


TINY = Size()


def make_projector(
    path: Path,
    kind: Kind,
    *,
    width: int = WIDTH,
    seed: int = 0,
    size: Size = TINY,
    kind_key: str = "clip.projector_type",
) -> Path:
    """Write a projector for text models with embeddings of `width` values, and return its path."""
    writer = GGUFWriter(path, "clip")
    random = np.random.default_rng(seed)

    def add(name: str, *shape: int, std: float | None = None) -> None:
        std = shape[-1] ** -0.5 if std is None else std
        writer.add_tensor(name, (random.standard_normal(shape) * std).astype(np.float32))

    def constant(name: str, length: int, value: float) -> None:
        writer.add_tensor(name, np.full(length, value, np.float32))

    sense = "audio" if kind == "ultravox" else "vision"
    writer.add_string(kind_key, kind)
    writer.add_bool(f"clip.has_{sense}_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    for name, number in (
        ("embedding_length", size.width),
        ("feed_forward_length", size.num_ffn),
        ("block_count", size.num_layers),
        ("projection_dim", width),
        ("attention.head_count", size.num_heads),
    ):
        writer.add_uint32(f"clip.{sense}.{name}", number)
    writer.add_float32(f"clip.{sense}.attention.layer_norm_epsilon", 1e-6)
    begin = sense[0]
    for layer in range(size.num_layers):
        block = f"{begin}.blk.{layer}."
        for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
            add(f"{block}{name}.weight", size.width, size.width)
            if not (kind == "ultravox" and name == "attn_k"):
                add(f"{block}{name}.bias", size.width, std=0.1)
        add(f"{block}ffn_up.weight", size.num_ffn, size.width)
        add(f"{block}ffn_up.bias", size.num_ffn, std=0.1)
        add(f"{block}ffn_down.weight", size.width, size.num_ffn)
        add(f"{block}ffn_down.bias", size.width, std=0.1)
        for name in ("ln1", "ln2"):
            constant(f"{block}{name}.weight", size.width, 1.0)
            constant(f"{block}{name}.bias", size.width, 0.0)
    constant(f"{begin}.post_ln.weight", size.width, 1.0)
    constant(f"{begin}.post_ln.bias", size.width, 0.0)
    if sense == "vision":
        writer.add_uint32("clip.vision.image_size", size.image)
        writer.add_uint32("clip.vision.patch_size", size.patch)
        writer.add_uint32("clip.vision.projector.scale_factor", _SCALE[kind])
        writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
        writer.add_array("clip.vision.image_std", [0.25, 0.25, 0.25])
        add("v.patch_embd.weight", size.width, 3, size.patch, size.patch, std=(3 * size.patch * size.patch) ** -0.5)
        if kind == "qwen2vl_merger":  # its patches have two frames, and rotary positions
            add(
                "v.patch_embd.weight.1",
                size.width,
                3,
                size.patch,
                size.patch,
                std=(3 * size.patch * size.patch) ** -0.5,
            )
        else:
            add("v.patch_embd.bias", size.width, std=0.1)
            add("v.position_embd.weight", (size.image // size.patch) ** 2, size.width, std=0.3)
    if kind == "gemma3":
        add("mm.input_projection.weight", size.width, width, std=size.width**-0.5)
        constant("mm.soft_emb_norm.weight", size.width, 1.0)
    elif kind == "idefics3":
        writer.add_uint32("clip.vision.preproc_image_size", 2 * size.image)
        add("mm.model.fc.weight", width, size.width * _SCALE[kind] ** 2)
    elif kind != "ultravox":
        first = 1 if kind == "lfm2" else 0
        add(f"mm.{first}.weight", size.num_ffn, size.width * _SCALE[kind] ** 2)
        add(f"mm.{first}.bias", size.num_ffn, std=0.1)
        add("mm.2.weight", width, size.num_ffn)
        add("mm.2.bias", width, std=0.1)
    else:
        writer.add_uint32("clip.audio.num_mel_bins", _MELS)
        writer.add_uint32("clip.audio.projector.stack_factor", _SCALE[kind])
        stacked = size.width * _SCALE[kind]
        add("a.conv1d.1.weight", size.width, _MELS, 3, std=(3 * _MELS) ** -0.5)
        add("a.conv1d.1.bias", size.width, 1, std=0.1)
        add("a.conv1d.2.weight", size.width, size.width, 3, std=(3 * size.width) ** -0.5)
        add("a.conv1d.2.bias", size.width, 1, std=0.1)
        add("a.position_embd.weight", _MAX_FRAMES, size.width, std=0.3)
        constant("mm.a.norm_pre.weight", stacked, 1.0)
        add("mm.a.mlp.1.weight", 2 * size.num_ffn, stacked)
        constant("mm.a.norm_mid.weight", size.num_ffn, 1.0)
        add("mm.a.mlp.2.weight", width, size.num_ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def png(seed: int = 0, width: int = 80, height: int = 60) -> bytes:
    """Return a PNG of random stripes."""
    rows = np.random.default_rng(seed).integers(0, 256, (height, width * 3), np.uint8)
    packed = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    parts = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", packed), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in parts
    )


def wav(seed: int = 0, seconds: float = 1.0, rate: int = 16_000) -> bytes:
    """Return a WAV of noise."""
    samples = np.random.default_rng(seed).normal(0, 4000, int(rate * seconds)).astype("<i2")
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(rate)
        writer.writeframes(samples.tobytes())
    return file.getvalue()


def medium(data: bytes, kind: MediaKind = "image") -> Media:
    return Media(kind, data, sha256(data).digest())


def question(text: str, *media: Media, offsets: Mapping[int, int] = {}) -> ChatPrompt:
    """Return a conversation with one question about media. They stand before the text, or at `offsets` by index."""
    places = tuple(MediaPlace(offsets.get(index, 0), index) for index in range(len(media)))
    return ChatPrompt((Message("user", text, media=places),), media=media)


def _has_libmtmd() -> bool:
    spec = importlib.util.find_spec("llama_cpp")
    folders = [] if spec is None else spec.submodule_search_locations or []
    return any(list(Path(folder).glob("lib/*mtmd*")) for folder in folders)


NEEDS_LIBMTMD = pytest.mark.skipif(not _has_libmtmd(), reason="this build of llama.cpp has no libmtmd; run make setup")


def gif(*colours: int) -> bytes:
    """Return a GIF of 20 × 10 pixels with a frame of each colour, 0 to 3; by default two of colour 0.

    The codes are cleared before each pixel.
    """
    file = b"GIF89a" + struct.pack("<HHBBB", 20, 10, 0x91, 0, 0) + bytes(range(0, 240, 20))
    for colour in colours or (0, 0):
        bits, count = 0, 0
        for code in [4, colour] * 200 + [5]:
            bits |= code << count
            count += 3
        codes = bits.to_bytes((count + 7) // 8, "little")
        file += b"\x2c" + struct.pack("<HHHHB", 0, 0, 20, 10, 0) + b"\x02" + bytes([len(codes)]) + codes + b"\0"
    return file + b"\x3b"


def jpeg() -> bytes:
    """Return a grey JPEG of 16 × 16 pixels: baseline, with the shortest codes."""

    def part(marker: int, data: bytes) -> bytes:
        return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data

    table = b"\x01" + bytes(15) + b"\0"  # one code, "0", for the symbol 0: no difference, or the end of a block
    return b"".join(
        (
            b"\xff\xd8",
            part(0xDB, b"\0" + bytes([1] * 64)),
            part(0xC0, struct.pack(">BHHBBBB", 8, 16, 16, 1, 1, 0x11, 0)),
            part(0xC4, b"\0" + table),
            part(0xC4, b"\x10" + table),
            part(0xDA, b"\x01\x01\0\0\x3f\0"),
            bytes(1),  # four blocks of two codes
            b"\xff\xd9",
        )
    )


def mp3(num_frames: int = 20) -> bytes:
    """Return a silent MP3: frames of 32 kbit/s with 44,100 samples a second."""
    return (b"\xff\xfb\x10\xc4" + bytes(100)) * num_frames


def flac(num_samples: int = 4096) -> bytes:
    """Return a silent FLAC of 16,000 samples a second, whose header claims `num_samples` and which has 4,096."""
    form = struct.pack(">HH", 4096, 4096) + bytes(6)
    form += (16_000 << 44 | 15 << 36 | num_samples).to_bytes(8, "big") + bytes(16)
    head = b"\xff\xf8\xc5\x08\0"  # 4,096 samples of 16 kHz, mono, 16 bits; frame 0
    head += bytes([crc(head, 0x07, 8)])
    frame = head + b"\0\0\0"  # a constant of 0
    frame += crc(frame, 0x8005, 16).to_bytes(2, "big")
    return b"fLaC\x80\0\0\x22" + form + frame


def crc(data: bytes, polynomial: int, num_bits: int) -> int:
    value, top = 0, 1 << (num_bits - 1)
    for byte in data:
        value ^= byte << (num_bits - 8)
        for _ in range(8):
            value = (value << 1 ^ (polynomial if value & top else 0)) & ((1 << num_bits) - 1)
    return value
