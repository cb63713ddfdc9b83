"""Images of the digits 0 to 9: drawn with the fonts that matplotlib ships, or scikit-learn's scans."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from attncheck.core.errors import Unavailable

if TYPE_CHECKING:
    import numpy as np

Split = Literal["train", "test"]
Source = Literal["drawn", "scikit-learn"]
SIDE = 28
"""Pixels of a drawn digit."""
COUNTS = {"train": 3000, "test": 500}
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSans-Oblique", "DejaVuSansMono", "DejaVuSerif", "DejaVuSerif-Italic")
_SCANS_TRAINED_ON = 1400


def digits(split: Split, source: Source = "drawn") -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Grey images uint8 [n, side, side], strokes bright, and their digits int64 [n]; always the same ones.

    drawn: 28 x 28 pixels, 3000 and 500 of them; font, size, place, slant, contrast and noise are random, so that a digit is not told
    by a single pixel. scikit-learn: the 8 x 8 scans of its load_digits, 1400 and 397 of them; Unavailable where it is not installed.
    """
    return _drawn(split) if source == "drawn" else _scanned(split)


@cache
def _drawn(split: Split) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    from pathlib import Path

    import matplotlib
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    state = np.random.RandomState(np.array([2410, 18613, len(split)], dtype=np.uint32))
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = {(name, size): ImageFont.truetype(str(folder / f"{name}.ttf"), size) for name in FONTS for size in range(16, 25)}
    count = COUNTS[split]
    labels = state.randint(0, 10, count)
    images = np.zeros((count, SIDE, SIDE), dtype=np.uint8)
    for number, label in enumerate(labels.tolist()):
        font = fonts[FONTS[state.randint(len(FONTS))], int(state.randint(16, 25))]
        angle, right, down = state.uniform(-15, 15), state.uniform(-3, 3), state.uniform(-3, 3)
        contrast, noise = state.uniform(0.5, 1.0), state.normal(0, 12, (SIDE, SIDE))
        canvas = Image.new("L", (SIDE, SIDE))
        ImageDraw.Draw(canvas).text((SIDE / 2 + right, SIDE / 2 + down), str(label), fill=255, font=font, anchor="mm")
        turned = np.asarray(canvas.rotate(angle, Image.Resampling.BILINEAR), dtype=np.float64)
        images[number] = np.clip(turned * contrast + noise, 0, 255).astype(np.uint8)
    return images, labels.astype(np.int64)


@cache
def _scanned(split: Split) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    import numpy as np

    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise Unavailable("scikit-learn's digits are not here", "pip install 'attncheck[training]'") from error
    found = load_digits()
    chosen = slice(0, _SCANS_TRAINED_ON) if split == "train" else slice(_SCANS_TRAINED_ON, None)
    return np.clip(found.images[chosen] / 16 * 255, 0, 255).astype(np.uint8), found.target[chosen].astype(np.int64)


def resized(image: np.ndarray[Any, Any], side: int) -> np.ndarray[Any, Any]:
    """A grey image uint8 [any, any] with `side` pixels a side, bicubic."""
    import numpy as np
    from PIL import Image

    if image.shape == (side, side):
        return image
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))
