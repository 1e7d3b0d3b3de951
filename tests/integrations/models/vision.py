"""Models of torchvision, timm, torch_geometric and diffusers, with random weights."""

from __future__ import annotations

from functools import partial
from importlib import import_module

import pytest

from tests.integrations.models.plain import CALLS, optimizer_of, written
from tests.integrations.models.worlds import Trial

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

WHOLE = {"weights": None}
PARTS = {"weights": None, "weights_backbone": None}
SEEN = "on the host"
FAR = "more than 50,000 values"
"""What comes of names like ``__dict__`` in code that reaches all of torch.ops.aten."""


def called(w, library, path, make, **options):
    """Call a model as it is, without gradients."""
    module, _, name = path.rpartition(".")
    built = getattr(import_module(f"{library}.{module}".rstrip(".")), name)
    model = w.model(lambda: built(**options))
    f = w.graph(model)
    for _ in range(CALLS):
        args, kwargs = make(w)
        with torch.no_grad():
            out = f(*args, **kwargs)
        yield out


def images(w, size=64):
    return (w.values(2, 3, size, size),), {}


def pictures(w):
    """Return images as detectors take them."""
    return ([w.values(3, 64, 64).sigmoid() for _ in range(2)],), {}


def trained(w, library, path, **options):
    """Train a classifier under autocast; its batch norms count."""
    module, _, name = path.rpartition(".")
    built = getattr(import_module(f"{library}.{module}".rstrip(".")), name)
    model = w.model(lambda: built(num_classes=10, **options), train=True)
    optimizer = optimizer_of(model)

    def step(x, y):
        optimizer.zero_grad()
        with w.autocast(torch.bfloat16):
            loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = w.graph(step, reads=lambda: written(model, optimizer))
    for _ in range(CALLS):
        yield f(w.values(2, 3, 64, 64), w.ids(2, below=10))
    yield written(model, optimizer)


# Graphs.


class Convolved(nn.Module):
    """Two layers of convolutions over the edges of a graph."""

    def __init__(self, kind, **options):
        super().__init__()
        layers = import_module("torch_geometric.nn")
        self.first = getattr(layers, kind)(8, 16, **options)
        self.second = getattr(layers, kind)(16, 4, **options)

    def forward(self, x, edges):
        return F.log_softmax(self.second(F.relu(self.first(x, edges)), edges), dim=1)


def ring(w, turns):
    """Return edges of which two at most meet in a node.

    Their sums are made by atomic operations, which come in any order: only two numbers
    have the same sum in each.
    """
    nodes = torch.arange(20, device=w.place)
    return torch.stack((nodes, nodes.roll(turns)))


def convolved(w, kind, **options):
    model = w.model(lambda: Convolved(kind, **options))
    f = w.graph(model)
    for turns in range(1, CALLS + 1):
        x, edges = w.values(20, 8), ring(w, turns)
        with torch.no_grad():
            out = f(x, edges)
        yield out


def convolved_training(w, kind):
    """Nodes of a graph are classed, some of them by a mask that is the graph's."""
    model = w.model(lambda: Convolved(kind), train=True)
    optimizer = optimizer_of(model)
    x, edges = w.values(20, 8), ring(w, 3)
    known = torch.arange(10, device=w.place)

    def step(x, edges, y):
        optimizer.zero_grad()
        loss = F.nll_loss(model(x, edges)[known], y[known])
        loss.backward()
        optimizer.step()
        return loss.detach()

    f = w.graph(step, reads=lambda: written(model, optimizer))
    for _ in range(CALLS):
        yield f(x, edges, w.ids(20, below=4))
    yield written(model, optimizer)


# Diffusion.


def unet():
    diffusers = import_module("diffusers")
    return diffusers.UNet2DConditionModel(
        sample_size=8,
        layers_per_block=1,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=32,
        norm_num_groups=8,
    )


def denoised(w):
    """The usual loop: a graphed UNet, and a scheduler that steps eagerly."""
    model = w.model(unet)
    scheduler = import_module("diffusers").DDIMScheduler()
    scheduler.set_timesteps(CALLS)
    f, x, told = w.graph(model), w.values(2, 4, 8, 8), w.values(2, 7, 32)
    for t in scheduler.timesteps.tolist():
        with torch.no_grad():
            noise = f(x, torch.tensor([t], device=w.place), told).sample
        x = scheduler.step(noise, t, x).prev_sample
        yield noise, x


def trial(name, run, *args, needs, **options):
    skips, program = options.pop("skips", None), partial(run, **options)
    return Trial(name, lambda w: program(w, *args), skips, needs=(needs,))


CLASSIFIERS = {
    "resnet18": {},
    "mobilenet_v3_small": {},
    "efficientnet_b0": {},
    "densenet121": {},
    "convnext_tiny": {},
    "swin_t": {},
    "vit_b_16": {"image_size": 64},
}
VISION = [
    *(
        trial(
            f"torchvision, {name}",
            called,
            *("torchvision", f"models.{name}", images),
            needs="torchvision",
            **WHOLE,
            **options,
        )
        for name, options in CLASSIFIERS.items()
    ),
    *(
        trial(
            f"torchvision, {name}",
            called,
            *("torchvision", f"models.segmentation.{name}", images),
            needs="torchvision",
            **PARTS,
        )
        for name in ("lraspp_mobilenet_v3_large", "deeplabv3_mobilenet_v3_large")
    ),
    *(
        trial(
            f"torchvision, {name}",
            called,
            *("torchvision", f"models.detection.{name}", pictures),
            needs="torchvision",
            skips=SEEN,
            **PARTS,
        )
        for name in (
            "ssdlite320_mobilenet_v3_large",
            "fasterrcnn_mobilenet_v3_large_fpn",
        )
    ),
    trial(
        "torchvision, training",
        trained,
        *("torchvision", "models.resnet18"),
        needs="torchvision",
        **WHOLE,
    ),
]
TIMM = [
    trial(
        f"timm, {name}",
        called,
        *("timm", "create_model", partial(images, size=size)),
        needs="timm",
        model_name=name,
    )
    for name, size in (
        ("resnet18", 64),
        ("mobilenetv3_small_050", 64),
        ("convnext_atto", 64),
        ("vit_tiny_patch16_224", 224),
        ("mixer_s32_224", 224),
    )
]
TIMM += [
    trial(
        "timm, training",
        trained,
        *("timm", "create_model"),
        needs="timm",
        model_name="resnet18",
    )
]
GRAPHS = [
    *(
        trial(
            f"torch_geometric, {kind}",
            convolved,
            kind,
            needs="torch_geometric",
            skips=skips,
        )
        for kind, skips in (
            ("SAGEConv", None),
            ("GCNConv", f"{FAR}|{SEEN}"),
            ("GATConv", f"{FAR}|{SEEN}"),
        )
    ),
    trial(
        "torch_geometric, training",
        convolved_training,
        "SAGEConv",
        needs="torch_geometric",
    ),
]
DIFFUSION = [trial("diffusers, a loop", denoised, needs="diffusers")]
TRIALS = [*VISION, *TIMM, *GRAPHS, *DIFFUSION]
