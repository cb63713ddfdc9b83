"""Photographs, files and noise for models that see."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from PIL import Image

from attncheck.core.errors import MeasurementError
from attncheck.inputs.corpus import photo
from attncheck.inputs.images import crops


def test_the_photograph_in_the_subject_s_normalisation(feed):
    fed = feed("vit", "images", {"name": "flower"})
    pixels = fed.arguments["pixel_values"]
    assert pixels.shape == (1, 3, 32, 32)
    small = np.asarray(Image.open(io.BytesIO(photo("flower"))).convert("RGB").resize((32, 32), Image.Resampling.BICUBIC)) / 255
    expected = (small - np.array([0.485, 0.456, 0.406])) / np.array([0.229, 0.224, 0.225])
    np.testing.assert_allclose(pixels[0].numpy().transpose(1, 2, 0), expected, atol=1e-6)
    assert fed.labels[0][:3] == ["[CLS]", "r0c0", "r0c1"]
    assert len(fed.labels[0]) == 17


def test_the_rows_of_a_batch_differ(feed, load):
    fed = feed("vit", "images", {"name": "flower"}, batch=3, dtype="bfloat16")
    pixels = fed.arguments["pixel_values"]
    assert pixels.dtype == torch.bfloat16
    assert not torch.equal(pixels[0], pixels[1])
    assert not torch.equal(pixels[0], pixels[2])
    assert fed.content_hash == feed("vit", "images", {"name": "flower"}, batch=3).content_hash
    assert load("vit").model(pixels.float()).last_hidden_state.shape == (3, 17, 32)


def test_crops_lie_along_the_diagonal():
    image = Image.fromarray(np.arange(115 * 230, dtype=np.uint32).reshape(115, 230).astype(np.uint8))
    made = crops(image, 100, 3)
    assert [crop.size for crop in made] == [(100, 100)] * 3
    assert np.array_equal(np.asarray(made[0]), np.asarray(image)[:100, :100])
    assert np.array_equal(np.asarray(made[2]), np.asarray(image)[15:, 130:])
    assert np.array_equal(np.asarray(made[1])[:, ::-1], np.asarray(image)[8:108, 65:165])


def test_noise_is_frozen_and_standard(feed):
    fed = feed("vit", "images", {"name": "noise"}, batch=2)
    pixels = fed.arguments["pixel_values"]
    assert abs(pixels.mean()) < 0.05
    assert abs(pixels.std() - 1) < 0.05
    assert torch.equal(pixels[0], feed("vit", "images", {"name": "noise"}).arguments["pixel_values"][0])
    assert not torch.equal(pixels, feed("vit", "images", {"name": "noise", "seed": 1}, batch=2).arguments["pixel_values"])


def test_another_size_interpolates(feed, load):
    fed = feed("vit", "images", {"name": "noise", "size": 48})
    assert fed.arguments["interpolate_pos_encoding"] is True
    assert load("vit").model(**fed.arguments).last_hidden_state.shape == (1, 37, 32)


def test_grey_and_files(feed, load, tmp_path):
    Image.fromarray(np.full((40, 60, 3), 128, dtype=np.uint8)).save(tmp_path / "grey.png")
    fed = feed("grey-vit", "images", {"name": "grey.png"}, root=tmp_path)
    expected = (128 / 255 - 0.485) / 0.229
    torch.testing.assert_close(fed.arguments["pixel_values"], torch.full((1, 1, 32, 32), expected))
    assert torch.isfinite(load("grey-vit").model(**fed.arguments)[0]).all()
    (tmp_path / "text.png").write_text("no image")
    with pytest.raises(MeasurementError, match=r"text\.png is no image that Pillow can read"):
        feed("vit", "images", {"name": "text.png"}, root=tmp_path)


@pytest.mark.parametrize(
    ("name", "options", "common", "message"),
    [
        ("glassllm", {"name": "flower"}, {}, "the subject reads no images"),
        ("sdpa", {"name": "flower"}, {}, "the subject is an operator"),
        ("vit", {"name": "flowr"}, {}, "unknown image 'flowr'; did you mean 'flower'.*allowed: flower, digits, .*noise, or a file"),
        ("vit", {"name": "nowhere.jpg"}, {}, "there is no file nowhere.jpg"),
        ("vit", {"name": "flower", "size": 33}, {}, "size 33; allowed: a multiple of the patch of 8"),
        ("vit", {"name": "flower"}, {"length": 8}, "length does not go with images"),
        ("vit", {"name": "flower"}, {"padding": {"amount": 1}}, "padding does not go with images"),
    ],
)
def test_what_cannot_be_fed_says_why(feed, name, options, common, message):
    with pytest.raises(MeasurementError, match=message):
        feed(name, "images", options, **common)
