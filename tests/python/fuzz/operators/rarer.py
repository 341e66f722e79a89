"""Families that few models need: Fourier transforms, matrices, statistics."""

from __future__ import annotations

from ..pool import Pool, Value
from .registry import operator


def _rows(p: Pool, least: int = 2, most: int = 2) -> Value:
    return p.float(least, most, lambda t: min(t.shape) > 0)


@operator("products")
def further_products(p: Pool) -> None:
    a = _rows(p)
    b = p.operand(p.rng.choice(p.sizes), a.t.shape[1])
    p.several(
        p.rng.choice(
            ["torch.inner({a}, {b})", "torch.tensordot({a}, {b}, ([1], [1]))", "torch.kron({a}, {b}[:1])",
             "torch.linalg.vecdot({a}, {a}.sin())", "torch.linalg.multi_dot([{a}, {b}.mT, {b}])",
             "torch.cross({a}[:, :1].expand(-1, 3), {a}[:, -1:].expand(-1, 3).sin() + torch.arange(3, dtype=D), dim=1)"]
        ).format(a=a, b=b)
    )  # fmt: skip


@operator("similarity")
def similar_rows(p: Pool) -> None:
    a = _rows(p)
    b = p.operand(*a.t.shape)
    line = p.rng.choice(["torch.cdist({a}, {b} * 0.5 + 1)", "F.cosine_similarity({a}, {b})",
                         "F.pairwise_distance({a}, {b})"])  # fmt: skip
    p.step(line.format(a=a, b=b))


@operator("margins")
def margins(p: Pool) -> None:
    a = _rows(p)
    b = p.operand(*a.t.shape)
    way = p.rng.choice(["mean", "sum", "none"])
    line = p.rng.choice(["F.triplet_margin_loss({a}, {b}, {b}.sin() + 1, reduction='{way}')",
                         "F.cosine_embedding_loss({a}, {b}, {a}.detach()[:, 0].sign(), reduction='{way}')"])  # fmt: skip
    p.step(line.format(a=a, b=b, way=way))


@operator("statistics")
def statistics(p: Pool) -> None:
    a = _rows(p)
    p.several(
        p.rng.choice(
            ["{a}.median(1)[0]", "{a}.quantile(0.3, 1)", "{a}.kthvalue(1, 1)[0]", "{a}.nanmedian(0)[0]",
             "torch.trapezoid({a}, dim=1)", "{a}.msort()", "torch.trace({a})", "torch.dist({a}, {a} + 1)"]
        ).format(a=a)
    )  # fmt: skip


@operator("fourier")
def fourier(p: Pool) -> None:
    a = _rows(p, 2, 3)
    line = p.rng.choice(["torch.view_as_real(torch.fft.rfft({a}))", "torch.fft.fftshift({a}, -1)",
                         "torch.fft.irfft(torch.fft.rfft({a}, dim=1), {a}.shape[1], 1)"])  # fmt: skip
    p.step(line.format(a=a))


@operator("linear_algebra")
def matrices(p: Pool) -> None:
    a = p.leaf((p.rng.choice(p.sizes), 3, 3), "unit", "param")
    m = p.step(f"{a} + 3 * torch.eye(3, dtype=D)")
    p.step(
        p.rng.choice(
            ["torch.linalg.inv({m})", "torch.linalg.det({m})", "torch.linalg.solve({m}, {a})",
             "torch.linalg.matrix_exp({a})", "torch.linalg.cholesky({m} @ {m}.mT)"]
        ).format(a=a, m=m)
    )  # fmt: skip
