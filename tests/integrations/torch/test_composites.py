"""Operations that torch has in two forms, and one that leaves cuSOLVER broken."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

nn, F = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning"),
]

CALLS = 6


def _interpolated(mode):
    return lambda x: F.interpolate(
        x.view(4, 1, 4, 8), scale_factor=1.7, mode=mode, align_corners=False
    )


def _recurrent(kind, **options):
    module = kind(8, 8, batch_first=True, **options).cuda().eval()
    return lambda x: module(x.view(4, 4, 8))


def _encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).cuda().eval()
    return lambda x: layer(x.view(4, 4, 8))


OPERATIONS = {
    "batch norm": lambda: nn.BatchNorm1d(32).cuda(),
    "bilinear": lambda: _interpolated("bilinear"),
    "bicubic": lambda: _interpolated("bicubic"),
    "dropout": lambda: lambda x: F.dropout(x, 0.3),
    "encoder": _encoder,
    "gru": lambda: _recurrent(nn.GRU),
    "lstm": lambda: _recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "matmul": lambda: lambda x: x.view(4, 1, 4, 8) @ x.view(4, 8, 4),
    "one hot": lambda: lambda x: F.one_hot(x.argmax(1), 32) * x,
    "rnn": lambda: _recurrent(nn.RNN, nonlinearity="relu"),
    "stft": lambda: (
        lambda x: torch.stft(x.flatten(), 32, window=x[0], return_complex=True)
    ),
}


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", OPERATIONS)
def test_inference_mode_gives_the_bits_of_eager_calls(rt, same, name, inside):
    """There torch hands modes whole operations, which are others one by one."""
    torch.manual_seed(1)
    plain, mode = OPERATIONS[name](), torch.inference_mode()
    f = rt.graph(mode(plain) if inside else plain)
    f, plain = (f, mode(plain)) if inside else (mode(f), mode(plain))
    for seed in range(CALLS):
        x = torch.randn(4, 32, device="cuda")
        torch.manual_seed(seed)
        found = f(x)
        torch.manual_seed(seed)
        same(found, plain(x))


SOLVERS = "cholesky", "det", "eig", "eigh", "eigvalsh", "inv", "lstsq", "qr", "svd"


@pytest.mark.parametrize("name", [*SOLVERS, "slogdet", "solve"])
def test_what_no_capture_takes_raises_nothing(rt, name, record_property):
    """Neither in these calls nor in others, behind a recording that fails."""
    op = getattr(torch.linalg, name)
    args = [1] if name in ("lstsq", "solve") else []

    def fn(x):
        y = x @ x.T + 5 * torch.eye(4, device="cuda")
        return op(y, *(y for _ in args))

    f, x = rt.graph(fn), torch.randn(4, 32, device="cuda")
    for _ in range(CALLS):
        found, expected = f(x), fn(x)
        pairs = [(found, expected)]
        if isinstance(found, tuple):
            pairs = [*zip(found, expected, strict=True)]
        assert all(torch.equal(*pair) for pair in pairs) or name == "lstsq"
    record_property("replays", f.stats().replays)
