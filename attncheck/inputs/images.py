"""`images:` a shipped photograph, digits, a file, or noise."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.errors import nearest
from attncheck.core.evidence import Feed
from attncheck.inputs import corpus
from attncheck.inputs.building import Building
from attncheck.inputs.corpus import PHOTOS, photo
from attncheck.inputs.digits import Source, Split, digits, resized
from attncheck.inputs.file import found
from attncheck.inputs.hashing import content_hash
from attncheck.inputs.kinds import input_kind
from attncheck.inputs.randomness import random_state

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

DIGITS: dict[str, Source] = {"digits": "drawn", "scikit-learn-digits": "scikit-learn"}
MARGIN = 1.15
"""A batch takes its crops from a photograph of this many times the side."""


def files_of(arguments: Mapping[str, Any], root: Path) -> list[Path]:
    name = arguments["name"]
    if name in PHOTOS:
        return [Path(corpus.__file__).parent / PHOTOS[name].file]
    return [] if name == "noise" or name in DIGITS else [root / name]


@input_kind("images", files=files_of)
def images(building: Building, *, name: str, size: int | None = None, seed: int = 0, split: Split = "test") -> Feed:
    """Square images in the subject's own size and normalisation.

    `name` is a shipped photograph (flower), digits or scikit-learn-digits (the images that the recipe vit-digits trains on; `split` test
    are those held out), noise (independent N(0, 1) pixels after normalisation, from `seed`), or a file of the project. The photograph is
    scaled to the side and cropped in the middle; the rows of a batch are crops along its diagonal, every other one mirrored. `size`
    overrides the side in pixels, for models that interpolate their positions. `length` and `padding` do not apply.
    """
    import numpy as np

    encoder, takes = building.encoder, building.forward_parameters
    if encoder is None:
        raise building.error("images are for models, and the subject is an operator; feed it qkv: ...")
    if (encoder.image_size is None and size is None) or (takes and "pixel_values" not in takes and "input_ids" in takes):
        raise building.error("the subject reads no images; feed it text, corpus, tokens or file")
    for option, value in (("length", building.definition.length), ("padding", building.definition.padding)):
        if value:
            raise building.error(f"{option} does not go with images")
    side = size or encoder.image_size or 0
    patch = building.extra("patch_size", None)
    if side < 1 or (patch and side % patch):
        raise building.error(f"size {side}; allowed: a multiple of the patch of {patch or 1} pixels")
    if name == "noise":
        shape = (encoder.channels, side, side)
        pixels = np.stack([random_state(building, seed, row).standard_normal(shape) for row in range(building.batch)])
    elif name in DIGITS:
        pixels = np.stack([_normalised(building, image) for image in _digits(building, name, split, side)])
    else:
        opened = _opened(building, name)
        pixels = np.stack([_normalised(building, crop) for crop in crops(opened, side, building.batch)])
    array = pixels.astype(np.float32)
    main = "pixel_values" if not takes or "pixel_values" in takes else str(building.extra("first_parameter", "pixel_values"))
    arguments: dict[str, Any] = {main: building.tensor(array)}
    if side != encoder.image_size and "interpolate_pos_encoding" in takes:
        arguments["interpolate_pos_encoding"] = True
    return Feed(arguments=arguments, labels=_labels(building, side, patch), content_hash=content_hash({main: array}))


def _digits(building: Building, name: str, split: Split, side: int) -> list[Image]:
    from PIL import Image as Library

    found, _ = digits(split, DIGITS[name])
    if building.batch > len(found):
        raise building.error(f"batch {building.batch}, but {name} has {len(found)} images to {split} on")
    channels = building.encoder.channels if building.encoder else 1
    return [Library.fromarray(resized(image, side)).convert("L" if channels == 1 else "RGB") for image in found[: building.batch]]


def crops(image: Image, side: int, batch: int) -> list[Image]:
    """`batch` different squares of `side` pixels: the middle for one, along the diagonal of a slightly larger image for several."""
    from PIL import Image as Library
    from PIL import ImageOps

    larger = side if batch == 1 else round(side * MARGIN)
    scale = larger / min(image.size)
    width, height = (max(larger, round(length * scale)) for length in image.size)
    scaled = image.resize((width, height), Library.Resampling.BICUBIC)
    made = []
    for row in range(batch):
        share = 0.5 if batch == 1 else row / (batch - 1)
        left, top = round((width - side) * share), round((height - side) * share)
        crop = scaled.crop((left, top, left + side, top + side))
        made.append(ImageOps.mirror(crop) if row % 2 else crop)
    return made


def _opened(building: Building, name: str) -> Image:
    from PIL import Image as Library
    from PIL import UnidentifiedImageError

    if name in PHOTOS:
        return Library.open(io.BytesIO(photo(name))).convert("RGB")
    hint = nearest(name, [*PHOTOS, *DIGITS, "noise"])
    if "." not in name and "/" not in name:
        shown = ", ".join([*PHOTOS, *DIGITS, "noise"])
        raise building.error(f"unknown image {name!r}" + (f"; did you mean {hint!r}?" if hint else "") + f"; allowed: {shown}, or a file")
    try:
        return Library.open(found(building, name)).convert("RGB")
    except UnidentifiedImageError:
        raise building.error(f"{name} is no image that Pillow can read") from None


def _normalised(building: Building, image: Image) -> np.ndarray[Any, Any]:
    """[channels, side, side]: pixels in [0, 1] minus the subject's mean, over its deviation; one channel takes the luminance."""
    import numpy as np

    channels = building.encoder.channels if building.encoder else 3
    pixels = np.asarray(image.convert("L") if channels == 1 else image, dtype=np.float64) / 255
    planes = pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)
    if planes.shape[0] != channels:
        raise building.error(f"the subject reads images of {channels} channels; photographs have 3 (or 1)")
    mean = np.array(building.extra("image_mean", (0.5,) * channels)[:channels])
    deviation = np.array(building.extra("image_std", (0.5,) * channels)[:channels])
    made: np.ndarray[Any, Any] = (planes - mean[:, None, None]) / deviation[:, None, None]
    return made


def _labels(building: Building, side: int, patch: int | None) -> list[list[str]]:
    if not patch:
        return []
    across = side // patch
    row = [*building.extra("image_prefix", ()), *(f"r{y}c{x}" for y in range(across) for x in range(across))]
    return [row] * building.batch
