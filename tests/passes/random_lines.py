"""Lines of source that random programs are written with, as templates: forms of X, of weights, products and sums."""

from typing import Any

K = 64
ROWS = ((40, K), (2, 20, K), (1, K), (17, K), (1, 40, K), (20, 2, K))
WIDTHS = (32, 48, 96, 64, 40, 33, 1)
RANKS = (4, 8, 1, 16)
FACTORS = ("2", "-1", "0.5", "0", "1")

# Formatted with x, the tensor; k, its last size; c, a one-element tensor; v, a vector [k].
FORMS_OF_X = (
    *("{x}.clone()", "{x}.contiguous()", "{x} * 2", "0.5 * {x}", "-{x}", "{x} / 4", "{x} * {c}", "{x} * {v}"),
    *("{x}.double().to({x}.dtype)", "{x}.half()", "{x}.float()", "{x}.unsqueeze(0)", "{x}.squeeze(0)", "{x}.relu()"),
    *("{x}.transpose(-1, -2).transpose(-1, -2)", "{x}.transpose(-1, -2).contiguous().transpose(-1, -2)"),
    *(
        "{x}[..., :32]",
        "{x}[..., 32:]",
        "{x}[..., ::2]",
        "{x}[:20]",
        "{x}[1:]",
        "{x}[::2]",
        "{x}[0]",
        "{x}.chunk(2)[1]",
    ),
    *("F.pad({x}, (0, 8))", "F.pad({x}, (8, 0))", "F.pad({x}, (0, 0, 0, 8))", "F.pad({x}, (0, -32))"),
    *("{x}.flatten(0, -2)", "{x}.reshape(-1, 20, {k})", "{x}.reshape(-1, 8, {k})", "{x}.expand(2, *{x}.shape)"),
    *("{x}.transpose(0, 1)", "{x}.reshape({k}, -1).t()", "{x}.reshape(-1, 32)", "torch.cat([{x}, {x}])", "{x}.flip(0)"),
    *("{x} + 1", "{x} + {x}", "{x}.t()", "{x}.repeat(2, 1)"),
)
SCALED = (
    *("{x} * 2", "2 * {x}", "{x} / 4", "-{x}", "{x} * {c}", "{c} * {x}", "{x} * 0.5 * {c}", "{x} / {c}", "{x} * {v}"),
    *("{x} + {x}", "{x} * 0", "{x}.clone()", "{x}.double().to({x}.dtype)", "{x}.half().float()", "{x}.unsqueeze(0)"),
    *("{x}.mul_(2)", "{x}.neg_()", "{x}.relu()", "{x} - 0.5", "{x} + {v}", "{x}.add_({v})", "{x}.t().contiguous().t()"),
    *("{x} * {c}.float()", "{x} * {c}.long()", "{x} * {x}.mean()", "{x} * {x}[..., :1]", "{x}.float()", "{x}.half()"),
    *("{x}.transpose(-1, -2)", "{x}[:1]", "{x}.double()"),
)
# How a weight [k, n] comes out of a parameter, and the parameter's shape.
WEIGHTS: tuple[tuple[str, Any], ...] = (
    ("{w}", lambda k, n: (k, n)),
    ("{w}.t()", lambda k, n: (n, k)),
    ("{w}[:, :{n}]", lambda k, n: (k, n + 16)),
    ("{w}[:, 8:8 + {n}]", lambda k, n: (k, n + 16)),
    ("{w}[:, 1:]", lambda k, n: (k, n + 1)),
    ("{w}[:, ::2]", lambda k, n: (k, 2 * n)),
    ("{w}[8:]", lambda k, n: (k + 8, n)),
    ("{w}[1]", lambda k, n: (2, k, n)),
    ("{w}.squeeze(0)", lambda k, n: (1, k, n)),
    ("{w}.expand({k}, {n})", lambda k, n: (k, 1)),
    ("{w}.expand({k}, {n})", lambda k, n: (1, n)),
    ("{w}.view({n}, {k}).t()", lambda k, n: (k * n,)),
    ("{w}.reshape({k}, {n})", lambda k, n: (n, k)),
    ("{w}.t().contiguous()", lambda k, n: (n, k)),
    ("({w} * 2)", lambda k, n: (k, n)),
    ("({w} + 1)", lambda k, n: (k, n)),
    ("{w}.t().double().to({w}.dtype)", lambda k, n: (n, k)),
    ("{w}.chunk(2, 1)[1]", lambda k, n: (k, 2 * n)),
    ("torch.cat([{w}, {w}], 1)[:, :{n}]", lambda k, n: (k, n)),
    ("{w}.permute(1, 2, 0)[0]", lambda k, n: (n, 2, k)),
    ("{w}.expand({k}, {n})", lambda k, n: (1, 1)),
    ("{w}.as_strided(({k}, {n}), (1, 1))", lambda k, n: (k + n,)),
    ("{w}.as_strided(({k}, {n}), ({n}, 1), 3)", lambda k, n: (k * n + 3,)),
    ("{w}.flip(0)", lambda k, n: (k, n)),
    ("({w} @ {w})[:, :{n}]", lambda k, n: (k, k)),
    ("F.pad({w}, (0, 0, 0, max({k} - 8, 0)))", lambda k, n: (min(k, 8), n)),
)
PRODUCTS = (
    *("{x} @ {w}", "F.linear({x}, {w}.t())", "F.linear({x}, {w}.t(), {b})", "torch.addmm({a}, {x}, {w}{ab})"),
    *("torch.addmm({b}, {x}, {w})", "torch.mm({x}, {w})", "({w}.t() @ {x}.transpose(-1, -2)).transpose(-1, -2)"),
    *("torch.einsum('mk,kn->mn', {x}, {w})", "torch.einsum('mk,nk->mn', {x}, {w}.t())", "torch.tensordot({x}, {w}, 1)"),
    *("torch.einsum('mk,kn->nm', {x}, {w})", "torch.bmm({x}[None], {w}[None])", "torch.bmm({x}[None], {w}[None])[0]"),
    *("torch.baddbmm({a}, {x}[None], {w}[None]{ab})[0]", "torch.einsum('bmk,kn->bmn', {x}, {w})"),
    *(
        "torch.bmm({x}, {w}.expand({x}.shape[0], -1, -1))",
        "torch.baddbmm({a}, {x}, {w}.expand({x}.shape[0], -1, -1){ab})",
    ),
    *(
        "torch.bmm({x}, {w} * torch.ones_like({x}[:, :1, :1]))",
        "torch.addbmm({a}, {x}, {w}.expand({x}.shape[0], -1, -1){ab})",
    ),
    *(
        "({x}.flatten(0, -2) @ {w}).view(*{x}.shape[:-1], -1)",
        "{x} @ {w} + {b}",
        "{b} - {x} @ {w}",
        "{x}[..., None, :] @ {w}",
    ),
    *("torch.addmm({a}, {x}, {w}{ab}).add_(1)", "torch.cat([{x} @ {w}, {x} @ {w}], -1)", "{x} @ {w}[:, 0]"),
    *(
        "F.pad({x}, (0, 8)) @ F.pad({w}, (0, 0, 0, 8))",
        "(F.pad({x}, (0, 8, 0, 8)) @ F.pad({w}, (0, 8)))[..., :-8, :-8]",
    ),
    *(
        "(F.pad({x}, (0, 8, 0, 8)) @ F.pad({w}, (0, 8, 0, 8)))[..., :-8, :-8]",
        "F.pad({x}, (0, 8)) @ F.pad({w}, (0, 0, 8, 0))",
    ),
    *("F.pad({x}, (0, 8), value=1.0) @ F.pad({w}, (0, 0, 0, 8))", "(F.pad({x}, (0, 0, 0, 8)) @ {w})[..., :-8, :]"),
    *(
        "({x} @ F.pad({w}, (0, 8)))[..., 8:]",
        "({x} @ F.pad({w}, (0, 8)))[..., :-8]",
        "F.linear({x}, {w}.t(), {b}).half()",
    ),
    "torch.addmm({b}, F.pad({x}, (0, 8, 0, 8)), F.pad({w}, (0, 0, 0, 8)))[:-8]",
    *(
        "{x} @ ({l} @ {h})",
        "{x} @ ({w} + {l} @ {h})",
        "{x} @ {w} + ({x} @ {l}) @ {h}",
        "({x} @ {l}) @ {h}",
        "{x} @ {w} + {x} @ {w}",
    ),
    *(
        "{x} @ {w} + {x} @ ({l} @ {h})",
        "{x} @ {w} - F.linear({x}, {l}.t()) @ {h} * 2",
        "{x} @ {w} + ({x} * {x}.mean() @ {l}) @ {h}",
    ),
)
SUMS = (
    *("{p} + {u}", "{u} + {p}", "{p} - {u}", "{u} - {p}", "torch.add({p}, {u}, alpha={f})", "{p} + {u} + {b}"),
    *("torch.add({u}, {p}, alpha={f})", "torch.sub({p}, {u}, alpha={f})", "{p}.add_({u})", "{p}.add_({u}, alpha={f})"),
    *("{p}.sub_({u})", "({p} + {b}) + {u}", "({p} + {u}).half()", "{p} + 2 * ({u} + {u})", "{p} + {u}.unsqueeze(0)"),
    *(
        "2 * ({p} + {u})",
        "{p} * 2 + {u}",
        "{p} + {a} + {u}",
        "({p} + {u}) + {p}",
        "{u} + {u} + {p}",
        "{p}.view(-1) + {u}.reshape(-1)",
    ),
    *(
        "{p}.transpose(-1, -2) + {u}.transpose(-1, -2)",
        "{p}.transpose(-1, -2) + {u}",
        "{p} + {u}.float()",
        "{p}.float() + {u}",
    ),
    *(
        "({p} + {b}) - ({u} + {b})",
        "{p} + ({u} - {p})",
        "{p} + {u}.mean()",
        "{p} + {u}[:1]",
        "{p} / 2 + {u}",
        "{p} * {u}",
    ),
    *(
        "torch.rsub({u}, {p})",
        "torch.stack([{p}, {u}]).sum(0)",
        "({p} + {u}).transpose(-1, -2).contiguous()",
        "{p}.clone() + {u}",
    ),
    *(
        "({p} - {b}) + {u}",
        "({p} + {b}.float()) + {u}",
        "torch.add({p}, {b}, alpha=2) + {u}",
        "{b} + {p} + {u}",
        "torch.where({p} > 9, {p}, {p} + {u})",
    ),
)
# A vector [n] out of a parameter, and the parameter's shape; so too for tensors of one element.
VECTORS: tuple[tuple[str, Any], ...] = (
    ("{v}", lambda n: (n,)),
    ("{v}[::2]", lambda n: (2 * n,)),
    ("{v}[1:]", lambda n: (n + 1,)),
    ("{v}.expand({n})", lambda n: (1,)),
    ("{v}[1]", lambda n: (2, n)),
    ("{v}[:, 1]", lambda n: (n, 2)),
    ("{v}[None]", lambda n: (n,)),
    ("{v}.t()", lambda n: (n, 1)),
    ("({v} * 2)", lambda n: (n,)),
    ("{v}.expand(1, {n})", lambda n: (1, 1)),
)
SCALES: tuple[tuple[str, tuple[int, ...]], ...] = (
    *(("{v}", ()), ("{v}", (1,)), ("{v}", (1, 1)), ("{v}", (1, 1, 1)), ("{v}[1]", (4,)), ("{v}[1:2]", (4,))),
    *(("{v}.mean()", (4,)), ("({v} * 2)", (1,)), ("{v}.squeeze()", (1, 1)), ("{v}[1, 2]", (2, 4))),
)
FUSED_SUMS = (
    *("torch.addmm({p}, {y}, {w})", "torch.addmm({p}, {y}, {w}{ab})", "torch.addmm({p}, {y}, {w}).relu_()"),
    *("torch.baddbmm({p}, {y}, {w}.expand({y}.shape[0], -1, -1){ab})", "{p}.addmm_({y}, {w}{ab})"),
)
USES = (
    *("{r}.relu()", "{r}.mul_(2)", "{r}.relu_()", "{r}[0].zero_()", "{r}.sum()", "{r} * {r}", "{r}[..., :16]", "{r}"),
    *("{r}.transpose(-1, -2)", "{r}.view(-1)", "{r}.add_(1).sum(-1)", "{r}.half()", "{r} + {o}", "{r}.softmax(-1)"),
)
AFTER = ("{x}.mul_(2)", "{x}.add_(1)", "{w}.mul_(0.5)")
