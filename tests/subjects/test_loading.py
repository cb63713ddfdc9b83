"""Devices, dtypes and weights that cannot be measured."""

from __future__ import annotations

import pytest
import torch

from attncheck.core.errors import AttncheckError, MeasurementError, Unavailable
from attncheck.subjects import load
from attncheck.subjects.models import finite


def test_float32_on_the_best_device_is_the_default(define, tiny):
    loaded = load(define("config", tiny))
    best = "cuda:0" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert (loaded.device, loaded.dtype) == (best, "float32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what a machine without a GPU says")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_missing_gpu_is_unavailable(define, tiny, device):
    with pytest.raises(Unavailable, match=f"device {device} is not here.*--attn-device cpu"):
        load(define("config", tiny, device=device))


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:0", "cuda:-1"])
def test_a_device_that_is_none_is_an_error(define, tiny, device):
    with pytest.raises(MeasurementError, match="allowed: auto, cpu, cuda, cuda:N, mps"):
        load(define("config", tiny, device=device))


def test_an_unknown_dtype_is_an_error(define, tiny):
    with pytest.raises(MeasurementError, match="dtype 'float31', did you mean 'float32'"):
        load(define("config", tiny, dtype="float31"))


def test_an_unknown_kind_is_an_error(define):
    with pytest.raises(AttncheckError, match="unknown subject kind 'pretraind'; did you mean 'pretrained'"):
        load(define("pretraind", {}))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(bad):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    finite("subject", model)
    with torch.no_grad():
        model[1].weight[0, 1] = bad
    with pytest.raises(MeasurementError, match=r"subject: parameter 1\.weight holds 1 of 9 values that are not finite"):
        finite("subject", model)


def test_a_mask_of_infinities_is_no_fault():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("mask", torch.full((2, 2), -torch.inf))
    finite("subject", model)
    model.register_buffer("table", torch.tensor([1.0, torch.nan]))
    with pytest.raises(MeasurementError, match="buffer table holds 1 of 2"):
        finite("subject", model)
