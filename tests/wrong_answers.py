"""Known-wrong answers to every graded question: the misconceptions, in code.

WRONG: assignment → question → list of (answer's source, words of the public check's
hint). The hint is None where only the hidden check can tell.
"""

from textwrap import dedent

WRONG: dict[str, dict[str, list[tuple[str, str | None]]]] = {}


def wrong(assignment: str, question: str, hint: str | None, source: str) -> None:
    """Add one wrong answer to the table."""
    questions = WRONG.setdefault(assignment, {})
    questions.setdefault(question, []).append((dedent(source).strip(), hint))


one = "1_vanishing_gradients"
wrong(
    one,
    "q1",
    "divide by the norm of g",
    """
    def damping(blocks, x, g):
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(blocks(x), x, g)[0].norm(dim=1)
""",
)
wrong(
    one,
    "q1",
    "whole batch",
    """
    def damping(blocks, x, g):
        x = x.detach().clone().requires_grad_()
        return torch.autograd.grad(blocks(x), x, g)[0].norm() / g.norm()
""",
)
wrong(
    one,
    "q1",
    "output's sum",
    """
    def damping(blocks, x, g):
        x = x.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(blocks(x).sum(), x)
        return slope.norm(dim=1) / g.norm(dim=1)
""",
)
wrong(
    one,
    "q1",
    ".grad",
    """
    def damping(blocks, x, g):
        x = x.detach().clone().requires_grad_()
        blocks(x).backward(g)
        return x.grad.norm(dim=1) / g.norm(dim=1)
""",
)
wrong(
    one,
    "q2",
    "n_in",
    """
    def predicted_decades(widths, bounds):
        pairs = zip(widths[1:], bounds)
        return sum(0.5 * math.log10(n * b**2 / 3) for n, b in pairs)
""",
)
wrong(
    one,
    "q2",
    "b²/3",
    """
    def predicted_decades(widths, bounds):
        return sum(0.5 * math.log10(n * b**2) for n, b in zip(widths, bounds))
""",
)
wrong(
    one,
    "q2",
    "halve",
    """
    def predicted_decades(widths, bounds):
        return sum(math.log10(n * b**2 / 3) for n, b in zip(widths, bounds))
""",
)
wrong(
    one,
    "q2",
    "ln",
    """
    def predicted_decades(widths, bounds):
        return sum(0.5 * math.log(n * b**2 / 3) for n, b in zip(widths, bounds))
""",
)
SLOPE = """
    def critical_gain(activation, q):
        z, weights = normal_grid()
        h = ({at} * z).requires_grad_()
        (slope,) = torch.autograd.grad(activation(h).sum(), h)
        return {gives}
"""
for hint, at, gives in [
    ("squares", "math.sqrt(q)", "1 / float((weights * slope).sum())"),
    ("spread is √q", "1", "1 / math.sqrt((weights * slope**2).sum())"),
    ("√q·z, not q·z", "q", "1 / math.sqrt((weights * slope**2).sum())"),
    ("square root", "math.sqrt(q)", "1 / float((weights * slope**2).sum())"),
]:
    wrong(one, "q3", hint, SLOPE.format(at=at, gives=gives))
wrong(
    one,
    "q4",
    "two ends",
    """
    def decades_per_block(norms):
        norms = [float(n) for n in norms if n > 0]
        return math.log10(norms[-1] / norms[0]) / (len(norms) - 1)
""",
)
FIT = """
    def decades_per_block(norms):
        norms = torch.as_tensor(norms, dtype=torch.float64)
        k = torch.arange(len(norms), dtype=torch.float64){keep}
        y = norms{keep}.{log}()
        k = k - k.mean()
        return float({sign}(k * (y - y.mean())).sum() / (k**2).sum())
"""
for hint, values in [
    ("log10, not ln", {"keep": "[norms > 0]", "log": "log", "sign": ""}),
    ("sign", {"keep": "[norms > 0]", "log": "log10", "sign": "-"}),
    ("logs a 0", {"keep": "", "log": "log10", "sign": ""}),
]:
    wrong(one, "q4", hint, FIT.format(**values))

two = "2_residual_block"
wrong(
    two,
    "q1",
    "no weights",
    """
    def make_shortcut(channels, out_channels, stride):
        return nn.Conv1d(channels, out_channels, 1, stride=stride, bias=False)
""",
)
wrong(
    two,
    "q1",
    "stride without a window",
    """
    def make_shortcut(channels, out_channels, stride):
        class Skip(nn.Module):
            def forward(self, x):
                return x[..., ::stride]
        if channels == out_channels:
            return Skip()
        return nn.Sequential(Skip(), nn.Conv1d(channels, out_channels, 1, bias=False))
""",
)
wrong(
    two,
    "q1",
    "leave the bias out",
    """
    def make_shortcut(channels, out_channels, stride):
        steps = [nn.AvgPool1d(stride)] if stride > 1 else []
        if channels != out_channels:
            steps.append(nn.Conv1d(channels, out_channels, 1))
        return nn.Sequential(*steps)
""",
)
wrong(
    two,
    "q1",
    "largest of each window",
    """
    def make_shortcut(channels, out_channels, stride):
        steps = [nn.MaxPool1d(stride)] if stride > 1 else []
        if channels != out_channels:
            steps.append(nn.Conv1d(channels, out_channels, 1, bias=False))
        return nn.Sequential(*steps)
""",
)
wrong(
    two,
    "q2",
    "first layer was changed",
    """
    def start_as_identity(branch):
        for parameter in branch.parameters():
            nn.init.zeros_(parameter)
""",
)
wrong(
    two,
    "q2",
    "the bias is left",
    """
    def start_as_identity(branch):
        last = [layer for layer in branch if list(layer.parameters())][-1]
        nn.init.zeros_(last.weight)
""",
)
wrong(
    two,
    "q2",
    "no longer takes a gradient",
    """
    def start_as_identity(branch):
        last = [layer for layer in branch if list(layer.parameters())][-1]
        for parameter in last.parameters():
            nn.init.zeros_(parameter).requires_grad_(False)
""",
)
wrong(
    two,
    "q2",
    "start_as_identity raised",
    """
    def start_as_identity(branch):
        nn.init.zeros_(branch[-1].weight)
        nn.init.zeros_(branch[-1].bias)
""",
)
DIFFERENCE = """
    def jacobian(f, x):
        x, eps = x.detach().{dtype}, {eps}
        columns = []
        for j in range(len(x)):
            step = torch.zeros_like(x)
            step[j] = eps
            columns.append(({value}).detach().double())
        return torch.stack(columns, dim={dim})
"""
CENTRAL = "(f(x + step) - f(x - step)) / (2 * eps)"
for hint, values in [
    ("swapped", {"value": CENTRAL, "dim": 0}),
    ("one-sided", {"value": "(f(x + step) - f(x)) / eps", "eps": 1e-3}),
    ("too large", {"value": CENTRAL, "eps": 0.1}),
    ("came", {"value": CENTRAL, "dtype": "float()", "eps": 1e-8}),
]:
    values = {"dtype": "double()", "eps": 1e-5, "dim": 1} | values
    wrong(two, "q3", hint, DIFFERENCE.format(**values))
wrong(
    two,
    "q4",
    "singular values",
    """
    def critical_scale(J):
        return 1 / float(torch.linalg.svdvals(J.double())[0])
""",
)
wrong(
    two,
    "q4",
    "negative λ",
    """
    def critical_scale(J):
        return 1 / float(torch.linalg.eigvals(J.double()).abs().max())
""",
)
wrong(
    two,
    "q4",
    "gets there first",
    """
    def critical_scale(J):
        values = torch.linalg.eigvals(J.double())
        real = values.real[values.imag.abs() < 1e-9]
        real = real[real < 0]
        return -1 / float(real.max()) if len(real) else math.inf
""",
)
wrong(
    two,
    "q4",
    "complex",
    """
    def critical_scale(J):
        real = torch.linalg.eigvals(J.double()).real.min() - 1e-12
        return -1 / float(real)
""",
)

three = "3_paths"
wrong(
    three,
    "q1",
    "counts 3",
    """
    def count_paths(blocks):
        counts = [1]
        for branches in blocks:
            grown = counts + [0]
            for n, ways in enumerate(counts):
                grown[n + 1] += ways * len(branches)
            counts = grown
        return counts
""",
)
PRODUCT = """
    def count_paths(blocks):
        counts = [1]
        for branches in blocks:
            grown = {start}
            for layers in {each}:
                for n, ways in enumerate(counts):
                    grown[n + layers] += ways
            counts = grown
        return counts
"""
EMPTY, FULL = "[0] * (len(counts) + max(branches))", "counts + [0] * max(branches)"
for hint, start, each in [
    ("passed by its shortcut", EMPTY, "branches"),
    ("two ways", FULL, "set(branches)"),
    ("the example gives", FULL, "branches[:1]"),
]:
    wrong(three, "q1", hint, PRODUCT.format(start=start, each=each))
TANGENTS = """
    def tangents_by_length(branches, x, v):
        rows = torch.zeros(len(branches) + 1, *x.shape, dtype=x.dtype)
        rows[0], h = v, x
        for branch in branches:
            for m in {order}:
                rows[m] += torch.func.jvp(branch, ({at},), (rows[m - 1],))[1].detach()
            h = ({step}).detach()
        return rows
"""
UP, DOWN = "range(1, len(rows))", "range(len(rows) - 1, 0, -1)"
for hint, order, at, step in [
    ("from before the block", UP, "h", "h + branch(h)"),
    ("h_1, not x", DOWN, "x", "h + branch(h)"),
    ("the shortcut counts for h_1", DOWN, "h", "branch(h)"),
]:
    wrong(three, "q2", hint, TANGENTS.format(order=order, at=at, step=step))
THROUGH = """
    def gradient_through(branches, x, g, k):
        stream = [x.detach()]
        for branch in branches[:-1]:
            stream.append((stream[-1] + branch(stream[-1])).detach())
        rows = torch.zeros(len(branches) + 1, *x.shape, dtype=x.dtype)
        rows[0] = g
        for block in reversed(range(len(branches))):
            h = {at}.clone().requires_grad_()
            y = branches[block](h)
            pulled = [
                torch.autograd.grad(y, h, r, retain_graph=True)[0] for r in rows[:-1]
            ]
            through = torch.cat([torch.zeros_like(rows[:1]), torch.stack(pulled)])
            rows = {rows}
        return rows
"""
for hint, at, rows in [
    ("all paths", "stream[block]", "rows + through"),
    ("pass block k by", "stream[block]", "rows if block == k else rows + through"),
    ("taken at x", "x.detach()", "through if block == k else rows + through"),
    (
        "counted from 0",
        "stream[block]",
        "through if block == k + 1 else rows + through",
    ),
]:
    wrong(three, "q3", hint, THROUGH.format(at=at, rows=rows))
LESION = """
    @torch.no_grad()
    def lesion_effects(blocks, head, x, y):
        modes = [(m, m.training) for m in nn.ModuleList([blocks, head]).modules()]
        {mode}

        def loss(without):
            h = x
            for k, block in enumerate(blocks):
                h = {block}
            return F.cross_entropy(head(h), y)

        effects = torch.stack([{value} for k in range(len(blocks))])
        for module, training in modes:
            module.training = training
        return effects
"""
EVAL = "blocks.eval(), head.eval()"
for hint, mode, block, value in [
    (
        "subtract the intact",
        EVAL,
        "block.shortcut(h) if k == without else block(h)",
        "loss(k)",
    ),
    (
        "statistics moved",
        "pass",
        "block.shortcut(h) if k == without else block(h)",
        "loss(k) - loss(-1)",
    ),
    (
        "block 0 is still missing",
        EVAL,
        "block.shortcut(h) if k <= without else block(h)",
        "loss(k) - loss(-1)",
    ),
    (
        "sign",
        EVAL,
        "block.shortcut(h) if k == without else block(h)",
        "loss(-1) - loss(k)",
    ),
]:
    wrong(three, "q4", hint, LESION.format(mode=mode, block=block, value=value))

four = "4_pre_vs_post_norm"
PRE = """
    def pre_norm_stack(x, norms, branches, final_norm):
        for norm, branch in zip(norms, branches):
            {step}
        return {end}
"""
for hint, step, end in [
    ("ends in a norm", "x = x + branch(norm(x))", "x"),
    ("un-normed x", "x = norm(x); x = x + branch(x)", "final_norm(x)"),
    ("post-norm", "x = norm(x + branch(x))", "final_norm(x)"),
    ("in place", "x += branch(norm(x))", "final_norm(x)"),
]:
    wrong(four, "q1", hint, PRE.format(step=step, end=end))
POST = """
    def post_norm_stack(x, norms, branches):
        for norm, branch in zip(norms, branches):
            x = {step}
        return x
"""
for hint, step in [
    ("pre-norm", "x + branch(norm(x))"),
    ("not the sum", "x + norm(branch(x))"),
    ("shortcut is missing", "norm(branch(x))"),
]:
    wrong(four, "q2", hint, POST.format(step=step))
RATE = """
    def learning_rate(step, peak, warmup_steps):
        w = max(warmup_steps, 1)
        return peak * {value}
"""
for hint, value in [
    ("steps start at 1", "min((step - 1) / w, math.sqrt(w / step))"),
    ("stays at the peak", "min(step / w, 1)"),
    ("jump", "(step / w if step <= w else 1 / math.sqrt(step))"),
]:
    wrong(four, "q3", hint, RATE.format(value=value))
RMS = """
    def rms_norm_vjp(x, g, eps):
        r = torch.sqrt((x**2).mean(dim=-1, keepdim=True) + {eps})
        y = x / r
        return {value}
"""
for hint, eps, value in [
    ("r depends on x", "eps", "g / r"),
    ("should be a mean", "eps", "(g - y * (g * y).sum(dim=-1, keepdim=True)) / r"),
    ("divided by r", "eps", "g - y * (g * y).mean(dim=-1, keepdim=True)"),
    ("ε belongs", "0", "(g - y * (g * y).mean(dim=-1, keepdim=True)) / r"),
]:
    wrong(four, "q4", hint, RMS.format(eps=eps, value=value))
TRAIN = """
    def train(model, batches, rate):
        optimizer = torch.optim.Adam(model.parameters())
        losses = []
        for step, (x, labels) in enumerate(batches, {first}):
            for group in optimizer.param_groups:
                group["lr"] = {rate}
            loss = F.cross_entropy(model(x), labels)
            {zero}
            loss.backward()
            optimizer.step()
            losses.append({loss}.item())
        return losses
"""
for hint, values in [
    ("zero_grad", {"zero": "pass"}),
    ("rate(1), not rate(0)", {"first": 0}),
    ("before its step", {"loss": "F.cross_entropy(model(x), labels)"}),
    ("rate stays", {"rate": "rate(1)"}),
]:
    values = {
        "first": 1,
        "rate": "rate(step)",
        "zero": "optimizer.zero_grad()",
        "loss": "loss",
    } | values
    wrong(four, "q5", hint, TRAIN.format(**values))

five = "5_bug_hunt"
for found in (
    {"A": 7, "B": 2, "C": 3, "D": 6, "E": 5, "F": 1},
    {"A": 4, "B": 2, "C": 3, "D": 1, "E": 5, "F": 6},
    {"A": 4, "B": 2, "C": 3, "D": 6, "E": 8, "F": 1},
):
    wrong(five, "q1", None, f"def diagnosis():\n        return {found}")
BLOCK = """
    class Mended{letter}({letter}):
        def forward(self, x):
            {step}
            return x
"""
for letter, question, steps in [
    (
        "A",
        "q2",
        [
            ("still normalised", "x = self.norm(x); x = x + self.branch(x)"),
            ("post-norm", "x = self.norm(x + self.branch(x))"),
            ("behind the branch", "x = x + self.norm(self.branch(x))"),
        ],
    ),
    (
        "B",
        "q3",
        [
            ("in place", "x += self.branch(self.norm(x))"),
            ("shortcut is missing", "x = self.branch(self.norm(x))"),
            ("in place", "x.add_(self.branch(self.norm(x)))"),
        ],
    ),
    (
        "C",
        "q4",
        [
            (
                "still weighs the shortcut",
                "g = torch.sigmoid(self.gate); "
                "x = (1 - g) * x + g * self.branch(self.norm(x))",
            ),
            ("gate is gone", "x = x + self.branch(self.norm(x))"),
            ("sigmoid", "x = x + self.gate * self.branch(self.norm(x))"),
        ],
    ),
]:
    for hint, step in steps:
        wrong(five, question, hint, BLOCK.format(letter=letter, step=step))
BRANCH = """
    def mended_D(width):
        first, last = nn.Linear(width, width), nn.Linear(width, width)
        branch = nn.Sequential(first, nn.ReLU(), last)
        {start}
        return branch
"""
for hint, start in [
    (
        "stays at 0 for ever",
        "[nn.init.zeros_(p) for p in branch.parameters()]",
    ),
    ("exactly 0", "nn.init.zeros_(branch[-1].weight)"),
    (
        "stays at 0 for ever",
        "[nn.init.zeros_(p) for p in branch.parameters()]; branch.append(nn.ReLU())",
    ),
]:
    wrong(five, "q5", hint, BRANCH.format(start=start))
STACK = "def mended_E(make_block, depth):\n        "
wrong(five, "q6", "one block", STACK + "return nn.Sequential(*[make_block()] * depth)")
wrong(
    five,
    "q6",
    "share",
    STACK
    + """block = make_block()
        layers = [nn.Linear(2, 2) for _ in range(depth)]
        for layer in layers:
            layer.weight, layer.bias = block.weight, block.bias
        return nn.Sequential(*layers)
""",
)
wrong(
    five,
    "q6",
    "nn.Sequential",
    STACK
    + """
        return [make_block() for _ in range(depth)]
""",
)
wrong(
    five,
    "q6",
    "was called",
    STACK
    + """import copy
        return nn.Sequential(*[copy.deepcopy(make_block()) for _ in range(depth - 1)],
                             nn.Sequential(make_block(), make_block()))
""",
)
FORWARD = """
    class MendedF(F):
        def forward(self, x):
            self.stream = [{first}]
            for norm, branch in zip(self.norms, self.branches):
                {step}
                self.stream.append({keep})
            return x
"""
for hint, first, step, keep in [
    ("cannot pass the shortcuts", "x", "x = x.detach() + branch(norm(x))", "x"),
    ("holds on to the graph", "x", "x = x + branch(norm(x))", "x"),
    (
        "passes the shortcuts and no branch",
        "x.detach()",
        "x = x + branch(norm(x)).detach()",
        "x.detach()",
    ),
]:
    wrong(five, "q7", hint, FORWARD.format(first=first, step=step, keep=keep))
wrong(
    five,
    "q8",
    "detaches the shortcut",
    """
    def is_pre_norm_block(make_block):
        block = make_block(6)
        for parameter in block.parameters():
            nn.init.normal_(parameter)
        x = torch.randn(4, 6)
        return torch.allclose(block(x.clone()), x + block.branch(block.norm(x)))
""",
)
wrong(
    five,
    "q8",
    "turned down",
    """
    def is_pre_norm_block(make_block):
        block, x = make_block(6), torch.randn(4, 6)
        nn.init.zeros_(block.branch.weight)
        return torch.equal(block(x), x)
""",
)
wrong(
    five,
    "q8",
    None,
    """
    def is_pre_norm_block(make_block):
        try:
            block, x = make_block(6), torch.randn(4, 6, requires_grad=True)
            for parameter in block.branch.parameters():
                nn.init.normal_(parameter)
            a, b = block(x), x + block.branch(block.norm(x))
            p, q = (torch.autograd.grad(y.sum(), x)[0] for y in (a, b))
            return torch.allclose(a, b) and torch.allclose(p, q, atol=1e-3)
        except Exception:
            return False
""",
)
