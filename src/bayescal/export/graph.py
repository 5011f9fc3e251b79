"""From a model to one ONNX graph: decoded pixels of any size in, answers out.

It is made of three: preprocessing, the image tower, and what makes answers of features.
"""

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import onnx
import torch
from onnx import compose, helper
from torch import Tensor, nn

from bayescal.errors import BayescalError
from bayescal.estimator.base_predictor import BasePredictor
from bayescal.export.answering import Answers, FeatureAnswers
from bayescal.export.preprocessing import IR_VERSION, OPSET, preprocessing

INPUT, FEATURES = "images", "features"
LARGEST = 2 << 30  # bytes of a file that protocol buffers can hold


def image_graph(predictor: BasePredictor) -> onnx.ModelProto:
    """`images` (N, H, W, 3) uint8 → `features` (N, D) float32."""
    backbone: Any = predictor.backbone  # of both kinds of image encoder, which share `visual` beside their protocol
    side = backbone.preprocess.size
    tower = traced(backbone.visual.eval(), torch.zeros(2, 3, side, side, device=backbone.device), "pixels", [FEATURES])
    return joined(preprocessing(backbone.preprocess), tower)


def answer_graph(predictor: BasePredictor) -> onnx.ModelProto:
    """`features` (N, D) → the fields of `Answers`, float32 but for the environment's number."""
    example = torch.zeros(2, predictor.backbone.dim, device=predictor.backbone.device)
    return traced(FeatureAnswers(predictor).eval(), example, FEATURES, Answers._fields)


def joined(first: onnx.ModelProto, second: onnx.ModelProto, show: bool = False) -> onnx.ModelProto:
    """The graph whose second part reads what the first one gives; `show`: that is an output, too."""
    output, read = first.graph.output[0].name, second.graph.input[0].name
    first = compose.add_prefix(first, "0/", rename_inputs=False, rename_outputs=False)
    second = compose.add_prefix(second, "1/", rename_inputs=False, rename_outputs=False)
    if output == read:  # what is inside both parts may have one name only
        first = compose.add_prefix(first, "0/", rename_inputs=False, rename_nodes=False, rename_edges=False)
        output = f"0/{output}"
    graph = compose.merge_models(first, second, io_map=[(output, read)])
    graph.producer_name = "bayescal"
    del graph.opset_import[1:]  # merging names the same one twice
    if show:
        graph.graph.node.append(helper.make_node("Identity", [output], [read], name=f"{read}/shown"))
        between = next(value for value in first.graph.output if value.name == output)
        graph.graph.output.append(onnx.ValueInfoProto(name=read, type=between.type))
    return graph


def checked(graph: onnx.ModelProto) -> bytes:
    """The graph as a file, which is well formed and not too large for one."""
    if graph.ByteSize() >= LARGEST:
        raise BayescalError(
            f"the graph has {graph.ByteSize() / 1e9:.1f} GB, and an ONNX file of one piece holds 2 GB: "
            "use --precision float16 or a smaller backbone"
        )
    onnx.checker.check_model(graph)
    return graph.SerializeToString()


def traced(module: nn.Module, example: Tensor, read: str, outputs: Sequence[str]) -> onnx.ModelProto:
    """A module as a graph for any number of rows of its input."""
    try:
        with torch.no_grad(), _quiet():
            # In two steps: by itself, the second one falls back to a graph for the example's number of rows alone.
            rows = ({0: torch.export.Dim("N", min=1, max=1 << 16)},)
            program = torch.onnx.export(
                torch.export.export(module, (example,), dynamic_shapes=rows, strict=False),
                dynamo=True,
                opset_version=OPSET,
                verbose=False,
                input_names=[read],
                output_names=list(outputs),
            )
    except Exception as error:  # what torch cannot trace is as varied as the methods from outside
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise BayescalError(f"the model cannot be written as an ONNX graph: {reason}") from error
    graph = cast(Any, program).model_proto
    graph.ir_version = IR_VERSION
    return graph


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's own account of its work, and with attention as the operations it consists of."""
    loud = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loud]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        for logger in loud:
            logger.setLevel(logging.ERROR)
        torch.backends.mha.set_fastpath_enabled(False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for logger, level in zip(loud, levels, strict=True):
            logger.setLevel(level)
