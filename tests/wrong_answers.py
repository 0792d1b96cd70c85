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
SETTLES = """
    def critical_gain(activation, bias_variance):
        z, weights = normal_grid()

        def at(q):
            h = (math.sqrt(q) * z).requires_grad_()
            y = activation(h)
            (slope,) = torch.autograd.grad(y.sum(), h)
            gain = 1 / float((weights * slope**{power}).sum())
            return gain, q - gain * float((weights * y.detach() ** 2).sum())

        low, high = 0.0, 20.0
        for _ in range(30):
            q = (low + high) / 2
            low, high = (q, high) if at(q)[1] < bias_variance else (low, q)
        return {gives}
"""
for hint, power, gives in [
    ("not σ_w", 2, "at(q)[0]"),
    ("takes σ_b² for q", 2, "math.sqrt(at(bias_variance)[0])"),
    ("at q = 1", 2, "math.sqrt(at(1.0)[0])"),
    ("the example gives", 1, "at(q)[0]"),
    ("at q = 0", 2, "1.0"),
]:
    wrong(one, "q3", hint, SETTLES.format(power=power, gives=gives))
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
SHORTCUT = """
    class Longer(nn.Module):
        def __init__(self, stride):
            super().__init__()
            self.stride = stride

        def forward(self, x):
            return {longer}

    def make_shortcut(channels, out_channels, stride):
        steps = []
        if channels != out_channels:
            steps.append(nn.Conv1d(channels, out_channels, {kernel}))
        if stride > 1:
            steps.append(Longer(stride))
        return nn.Sequential(*steps)
"""
REPEAT = "x.repeat_interleave(self.stride, dim=-1)"
for hint, longer, kernel in [
    ("leave the bias out", REPEAT, "1"),
    ("kernel is 1 wide", REPEAT, "3, padding=1, bias=False"),
    ("whole signal", "x.repeat(1, 1, self.stride)", "1, bias=False"),
    (
        "lines between",
        "F.interpolate(x, scale_factor=self.stride, mode='linear')",
        "1, bias=False",
    ),
    (
        "zeros between",
        "x.new_zeros(*x.shape, self.stride).index_copy_("
        "-1, torch.tensor([0]), x[..., None]).flatten(-2)",
        "1, bias=False",
    ),
]:
    source = SHORTCUT.format(longer=longer, kernel=kernel)
    source = source.replace("F.interpolate", "nn.functional.interpolate")
    wrong(two, "q1", hint, source)
wrong(
    two,
    "q1",
    "no weights",
    """
    def make_shortcut(channels, out_channels, stride):
        return nn.ConvTranspose1d(
            channels, out_channels, stride, stride=stride, bias=False
        )
""",
)
CENTRED = """
    def centred(branch):
        class Centred(nn.Module):
            def __init__(self):
                super().__init__()
                self.branch = branch
                self.at_start = {copy}

            def forward(self, x):
                {forward}

        return Centred()
"""
FROZEN = "copy.deepcopy(branch).requires_grad_(False)"
RIGHT = "return self.branch(x) - self.at_start(x)"
for hint, how, forward in [
    ("copy would learn", "copy.deepcopy(branch)", RIGHT),
    ("itself is frozen", "copy.copy(branch).requires_grad_(False)", RIGHT),
    (
        "passes the copy too",
        FROZEN,
        "return self.branch(x) - self.at_start(x).detach()",
    ),
    ("subtracted from itself", "branch", RIGHT),
    ("G alone", FROZEN, "return x + self.branch(x) - self.at_start(x)"),
    ("has to be subtracted", FROZEN, "return self.branch(x)"),
]:
    wrong(two, "q2", hint, CENTRED.format(copy=how, forward=forward))
wrong(
    two,
    "q2",
    "set to zero",
    """
    def centred(branch):
        last = [layer for layer in branch if list(layer.parameters())][-1]
        for parameter in last.parameters():
            nn.init.zeros_(parameter)
        return branch
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
    def lesion_surplus(blocks, head, x, y):
        modes = [(m, m.training) for m in nn.ModuleList([blocks, head]).modules()]
        {mode}

        def loss(*without):
            h = x
            for k, block in enumerate(blocks):
                h = {block}
            return F.cross_entropy(head(h), y)

        whole, depth = loss(), len(blocks)
        rise = [loss(k) - whole for k in range(depth)]
        rows = [
            [{single} if i == j else {pair} for j in range(depth)]
            for i in range(depth)
        ]
        for module, training in modes:
            module.training = training
        return {sign} torch.tensor(rows)
"""
for hint, values in [
    ("subtract the two", {"pair": "loss(i, j) - whole"}),
    ("subtracted too often", {"pair": "loss(i, j) - loss(i) - loss(j)"}),
    ("hold the single", {"single": "0 * whole"}),
    ("symmetric", {"pair": "(loss(i, j) - whole - rise[i] - rise[j]) * (i < j)"}),
    ("sign", {"sign": "-"}),
    ("shortcut stays", {"block": "0 * h if k in without else block(h)"}),
    ("statistics moved", {"mode": "pass"}),
]:
    values = {
        "mode": "blocks.eval(), head.eval()",
        "block": "block.shortcut(h) if k in without else block(h)",
        "single": "rise[i]",
        "pair": "loss(i, j) - whole - rise[i] - rise[j]",
        "sign": "",
    } | values
    wrong(three, "q4", hint, LESION.format(**values))

four = "4_pre_vs_post_norm"
PRE = """
    def pre_norm_stack(x, norms, blocks, final_norm):
        for norm, branches in zip(norms, blocks):
            {step}
        return {end}
"""
SUM = "sum(branch({}) for branch in branches)"
IN_TURN = "for branch in branches: "
for hint, step, end in [
    ("ends in a norm", f"x = x + {SUM.format('norm(x)')}", "x"),
    ("un-normed x", f"x = norm(x); x = x + {SUM.format('x')}", "final_norm(x)"),
    ("post-norm", f"x = norm(x + {SUM.format('x')})", "final_norm(x)"),
    ("in place", f"x += {SUM.format('norm(x)')}", "final_norm(x)"),
    ("same stream", f"{IN_TURN}x = x + branch(norm(x))", "final_norm(x)"),
    (
        "averaged",
        f"x = x + {SUM.format('norm(x)')} / len(branches)",
        "final_norm(x)",
    ),
]:
    wrong(four, "q1", hint, PRE.format(step=step, end=end))
POST = """
    def post_norm_stack(x, norms, blocks):
        for norm, branches in zip(norms, blocks):
            {step}
        return x
"""
for hint, step in [
    ("pre-norm", f"x = x + {SUM.format('norm(x)')}"),
    ("not the sum", f"x = x + norm({SUM.format('x')})"),
    ("shortcut is missing", f"x = norm({SUM.format('x')})"),
    ("one sum, one norm", f"{IN_TURN}x = norm(x + branch(x))"),
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
        optimizer = torch.optim.Adam(model.parameters(), fused=True)
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
    {"A": 8, "B": 2, "C": 3, "D": 4, "E": 5, "F": 1},
    {"A": 6, "B": 2, "C": 3, "D": 1, "E": 5, "F": 4},
    {"A": 6, "B": 2, "C": 3, "D": 4, "E": 7, "F": 1},
):
    wrong(five, "q1", None, f"def diagnosis():\n        return {found}")
TOKENS = """
    class MendedA(A):
        def forward(self, x):
            centred = x - x.mean(dim={axes}, keepdim=True)
            size = (x.var(dim={axes}, keepdim=True, correction={less}) + 1e-5).sqrt()
            normed = {scaled}
            return {kept} + self.branch(normed)
"""
SCALED = "self.gamma * centred / size + self.beta"
for hint, axes, less, scaled, kept in [
    ("over the tokens", "-2", 0, SCALED, "x"),
    ("together", "(-2, -1)", 0, SCALED, "x"),
    ("not by d − 1", "-1", 1, SCALED, "x"),
    ("γ and β", "-1", 0, "centred / size", "x"),
    ("stream is normalised", "-1", 0, SCALED, "normed"),
]:
    source = TOKENS.format(axes=axes, less=less, scaled=scaled, kept=kept)
    wrong(five, "q2", hint, source)
BLOCK = """
    class Mended{letter}({letter}):
        def forward(self, x):
            {step}
            return x
"""
for letter, question, steps in [
    (
        "B",
        "q3",
        [
            (
                "on the stream",
                "x = self.drop(x) + self.drop(self.branch(self.norm(x)))",
            ),
            ("shortcut alone", "x = self.drop(x) + self.branch(self.norm(x))"),
            ("into the branch", "x = x + self.branch(self.drop(self.norm(x)))"),
            ("dropout is gone", "x = x + self.branch(self.norm(x))"),
            ("in place", "x += self.drop(self.branch(self.norm(x)))"),
        ],
    ),
    (
        "C",
        "q4",
        [
            (
                "still weighs the shortcut",
                "x = self.scale * x + self.scale * self.branch(self.norm(x))",
            ),
            ("scale is gone", "x = x + self.branch(self.norm(x))"),
            ("goes into the branch", "x = x + self.branch(self.scale * self.norm(x))"),
            ("shortcut alone", "x = self.scale * x + self.branch(self.norm(x))"),
        ],
    ),
    (
        "D",
        "q5",
        [
            ("projection is gone", "x = x + self.mix(self.norm(x))"),
            ("shortcut alone", "x = self.project(x) + self.mix(self.norm(x))"),
            ("before the mix", "x = x + self.mix(self.project(self.norm(x)))"),
            ("shortcut is missing", "x = self.project(self.mix(self.norm(x)))"),
        ],
    ),
]:
    for hint, step in steps:
        wrong(five, question, hint, BLOCK.format(letter=letter, step=step))
STACK = """
    class MendedE(E):
        def forward(self, x):
            h = x
            for norm, branch in zip(self.norms, self.branches):
                {step}
            return h
"""
for hint, step in [
    ("stack's input", "h = x + branch(norm(h))"),
    ("all read", "h = h + branch(norm(x))"),
    ("once more", "h = h + x * (h is not x) + branch(norm(h + x * (h is not x)))"),
    ("shortcuts are missing", "h = branch(norm(h))"),
    ("in place", "h += branch(norm(h))"),
]:
    wrong(five, "q6", hint, STACK.format(step=step))
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
