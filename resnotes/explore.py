"""The explorer: one draw function that lives in a kernel and on a page without one.

`explore(draw, depth=range(1, 101), activation=("tanh", "relu"))` draws every frame
once. With a running kernel the reader gets ipywidgets, and each move calls `draw`.
Where there is no kernel (the built book, a code host's preview) native HTML controls
switch between the frames that were drawn, with no request to anywhere.
"""

from __future__ import annotations

import base64
import gzip
import html
import itertools
import json
import math
from collections.abc import Callable, Sequence
from numbers import Real

from .style import css, picture, put, svg, unique, with_assets

MAX_FRAMES = 400
# Shows the controls while the page is read, so that nothing moves later. Where scripts
# are off they stay hidden: a control that does nothing is worse than none.
_LIVE = (
    '<script>document.currentScript?.parentElement.classList.add("rn-live")</script>'
)
MAX_BYTES = 300_000  # of one explorer's frames, packed: a page's budget is 400 kB


def explore(
    draw: Callable, *, title: str, start: dict | None = None, **controls: Sequence
) -> None:
    """Let the reader move the arguments of `draw` and see what it draws.

    Parameters
    ----------
    draw
        Called as `draw(depth=40, activation="tanh")`, one keyword a control. Returns a
        matplotlib figure and one sentence that says, with its numbers, what the figure
        shows. The figure may be the same object every time, with its lines moved: that
        is the fast way.
    title
        One sentence that states the finding; it stands above the controls.
    start
        The values shown first, `{"depth": 40}`; else the first of each control.
    controls
        Name and values. Numbers (a `range` or a list) give a slider, strings or
        booleans radio buttons, more than four strings a menu.

    Raises
    ------
    TypeError
        If `draw` is no function, or returns something other than (figure, sentence).
    ValueError
        If there is no control, a control is empty, repeats or mixes values, `start` is
        not among the values, or the frames are too many or too large for a page.

    Examples
    --------
    >>> from resnotes import style
    >>> fig, ax = style.figure()
    >>> (dot,) = ax.plot([1], [0.5], "o")
    >>> def draw(depth):
    ...     dot.set_data([depth], [0.5**depth])
    ...     return fig, f"After {depth} halvings {0.5**depth:.2g} is left."
    >>> explore(draw, title="Halving is quick.", depth=range(1, 4))
    Explorer (3 frames; depth 1 … 3). After 1 halvings 0.5 is left.
    """
    explorer = Explorer(draw, title=title, start=start, **controls)
    bundle = {"text/html": explorer.html(), "text/plain": explorer.text()}
    try:
        import ipywidgets  # noqa: F401
    except ImportError:  # the page life is enough to read
        pass
    else:
        bundle |= explorer.widget()._repr_mimebundle_() | {
            "text/plain": explorer.text()
        }
    put(bundle)


class Explorer:
    """What `explore` shows: checked controls, the frames, the page and the widget."""

    def __init__(self, draw, *, title, start=None, **controls):
        if not callable(draw):
            raise TypeError(
                f"explore: draw is a {type(draw).__name__}; expected a function that "
                "returns (figure, sentence)"
            )
        if not isinstance(title, str) or not title.strip():
            raise ValueError(f"explore: title is {title!r}; expected a sentence")
        if not controls:
            raise ValueError(
                "explore: no controls came; give at least one, as depth=range(1, 101)"
            )
        self.draw, self.title = draw, title
        self.controls = {name: _values(name, v) for name, v in controls.items()}
        self.start = {name: values[0] for name, values in self.controls.items()}
        for name, value in (start or {}).items():
            if name not in self.controls:
                raise ValueError(
                    f"explore: start names {name!r}, which is no control; "
                    f"there are {', '.join(self.controls)}"
                )
            if value not in self.controls[name]:
                raise ValueError(
                    f"explore: start has {name}={value!r}, which is none of its values"
                )
            self.start[name] = value
        sizes = {name: len(values) for name, values in self.controls.items()}
        if math.prod(sizes.values()) > MAX_FRAMES:
            largest = max(sizes, key=lambda name: sizes[name])
            raise ValueError(
                f"explore: {' × '.join(map(str, sizes.values()))} "
                f"({' × '.join(sizes)}) are {math.prod(sizes.values())} frames, more "
                f"than {MAX_FRAMES}; drop a control or give fewer values of {largest}"
            )
        self.uid = unique(title, *self.controls)
        # draw may find the figure as another explorer left it; that is its business.
        self.frames = [
            self._frame(dict(zip(self.controls, values, strict=True)))
            for values in itertools.product(*self.controls.values())
        ]
        self.packed = self._pack()

    def _frame(self, values: dict) -> tuple[str, str]:
        """Draw one frame; return its SVG and its sentence."""
        result = self.draw(**values)
        shown = ", ".join(f"{name}={value!r}" for name, value in values.items())
        if not (isinstance(result, tuple) and len(result) == 2):
            raise TypeError(
                f"explore: draw({shown}) returned a {type(result).__name__}; expected "
                "(figure, sentence)"
            )
        fig, sentence = result
        if not hasattr(fig, "get_size_inches"):
            raise TypeError(
                f"explore: draw({shown}) returned a {type(fig).__name__} first; "
                "expected a matplotlib Figure"
            )
        if not isinstance(sentence, str) or not sentence.strip():
            raise TypeError(
                f"explore: draw({shown}) returned {sentence!r} second; expected a "
                "sentence that says what the figure shows"
            )
        return svg(fig, self.uid), sentence

    def _pack(self) -> str:
        drawings, sentences = zip(*self.frames, strict=True)
        data = json.dumps({"svg": drawings, "text": sentences}, ensure_ascii=False)
        packed = base64.b64encode(gzip.compress(data.encode(), 9, mtime=0)).decode()
        if len(packed) > MAX_BYTES:
            raise ValueError(
                f"explore: {len(self.frames)} frames pack to {len(packed) // 1000} kB, "
                f"more than {MAX_BYTES // 1000} kB; draw fewer points or give fewer "
                f"values of {max(self.controls, key=lambda n: len(self.controls[n]))}"
            )
        return packed

    def _start_frame(self) -> int:
        k = 0
        for name, values in self.controls.items():
            k = k * len(values) + values.index(self.start[name])
        return k

    def text(self) -> str:
        """Say in plain text what the explorer holds and shows first."""
        controls = "; ".join(
            f"{name} {_label(values[0])} … {_label(values[-1])}"
            if _is_slider(values)
            else f"{name} {' | '.join(map(_label, values))}"
            for name, values in self.controls.items()
        )
        sentence = self.frames[self._start_frame()][1]
        return f"Explorer ({len(self.frames)} frames; {controls}). {sentence}"

    # --- the page's life: every frame is in the HTML ---

    def html(self) -> str:
        """Return the explorer as HTML that needs no kernel, no network, no library."""
        start = self._start_frame()
        drawing, sentence = self.frames[start]
        controls = "".join(
            _control(self.uid, name, values, values.index(self.start[name]))
            for name, values in self.controls.items()
        )
        title = html.escape(self.title)
        return with_assets(
            f'<div class="rn-explorer" role="group" aria-label="{title}" '
            f'data-frame="{start}"><p class="rn-title">{title}</p>{_LIVE}'
            f'<div class="rn-controls">{controls}</div>'
            f'<div class="rn-picture">{picture(drawing, sentence)}</div>'
            f'<p class="rn-sentence" aria-live="polite">{html.escape(sentence)}</p>'
            f'<p class="rn-still">This is one of {len(self.frames)} pictures: the '
            f"controls that lead to the others need JavaScript.</p>"
            f'<script type="text/plain" class="rn-frames">{self.packed}</script></div>'
        )

    # --- the kernel's life: each move calls draw again ---

    def widget(self):
        """Return ipywidgets that call `draw` at each move.

        A number has a slider over the given values and a box that takes any other.
        """
        import ipywidgets

        self.inputs = {
            name: _number_box(values)
            if _is_slider(values)
            else ipywidgets.Dropdown(
                options=[(_label(v), v) for v in values], value=self.start[name]
            )
            for name, values in self.controls.items()
        }
        drawing, sentence = self.frames[self._start_frame()]
        self.picture = ipywidgets.HTML(self._live(drawing))
        self.sentence = ipywidgets.HTML(html.escape(sentence))
        rows = []
        for name, box in self.inputs.items():
            values = self.controls[name]
            box.value = self.start[name]
            parts = [ipywidgets.Label(name)]
            if _is_slider(values):
                parts.append(_slider_for(box, values))
            rows.append(ipywidgets.HBox([*parts, box]))
            box.observe(self._redraw, "value")
        title = ipywidgets.HTML(f"<b>{html.escape(self.title)}</b>")
        return ipywidgets.VBox([title, *rows, self.picture, self.sentence])

    def _live(self, drawing: str) -> str:
        return (
            f'{css()}<div class="rn-figure"><div class="rn-picture">{drawing}'
            "</div></div>"
        )

    def _redraw(self, _change) -> None:
        values = {name: box.value for name, box in self.inputs.items()}
        try:
            drawing, sentence = self._frame(values)
        except Exception as error:  # a typed value may be one that draw cannot take
            self.sentence.value = html.escape(f"{type(error).__name__}: {error}")
            return
        self.picture.value = self._live(drawing)
        self.sentence.value = html.escape(sentence)


def _values(name: str, values) -> list:
    """Check one control's values: numbers, or strings, or booleans; none twice."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        try:
            values = None if isinstance(values, str) else list(values)
        except TypeError:
            values = None
        if values is None:
            raise ValueError(
                f"explore: {name} takes a range, list or tuple of values, as "
                f"{name}=range(1, 101); it got one value"
            )
    values = [v.item() if hasattr(v, "item") else v for v in values]
    if not values:
        raise ValueError(f"explore: {name} has no values")
    kinds = (bool, str, Real)
    if not any(all(isinstance(v, kind) for v in values) for kind in kinds):
        raise ValueError(
            f"explore: {name} mixes kinds of value: {values[:4]}; expected all "
            "numbers, all strings or all booleans"
        )
    if any(isinstance(v, float) and not math.isfinite(v) for v in values):
        raise ValueError(f"explore: {name} holds a value that is not finite")
    if len(set(values)) < len(values):
        raise ValueError(f"explore: {name} holds a value twice")
    return values


def _is_slider(values: list) -> bool:
    return isinstance(values[0], Real) and not isinstance(values[0], bool)


def _label(value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _control(uid: str, name: str, values: list, at: int) -> str:
    """Return one native control; its value is the index into `values`."""
    labels = [html.escape(_label(v)) for v in values]
    shown = html.escape(name.replace("_", " "))
    size = f'data-size="{len(values)}"'
    if _is_slider(values):
        data = html.escape(json.dumps([_label(v) for v in values]))
        return (
            f'<label class="rn-control rn-slider" {size} data-labels="{data}">'
            f'<span class="rn-name">{shown}</span>'
            f'<input type="range" min="0" max="{len(values) - 1}" step="1" '
            f'value="{at}" autocomplete="off" aria-valuetext="{labels[at]}">'
            f'<output aria-live="off">{labels[at]}</output></label>'
        )
    if len(values) > 4:
        options = "".join(
            f'<option value="{k}"{" selected" * (k == at)}>{label}</option>'
            for k, label in enumerate(labels)
        )
        return (
            f'<label class="rn-control" {size}><span class="rn-name">{shown}</span>'
            f'<select autocomplete="off">{options}</select></label>'
        )
    radios = "".join(
        f'<label><input type="radio" name="{uid}-{shown}" value="{k}" '
        f'autocomplete="off"{" checked" * (k == at)}>{label}</label>'
        for k, label in enumerate(labels)
    )
    return (
        f'<fieldset class="rn-control" {size}><legend class="rn-name">{shown}</legend>'
        f"{radios}</fieldset>"
    )


def _number_box(values: list):
    import ipywidgets

    whole = all(isinstance(v, int) for v in values)
    box = ipywidgets.IntText if whole else ipywidgets.FloatText
    return box(layout={"width": "7em"})


def _slider_for(box, values: list):
    """Return a slider over `values` that sets `box` and follows it where it can."""
    import ipywidgets

    slider = ipywidgets.SelectionSlider(
        options=[(_label(v), v) for v in values], value=box.value, readout=False
    )

    def follow(change):
        if change["new"] in values:
            slider.value = change["new"]

    slider.observe(lambda change: setattr(box, "value", change["new"]), "value")
    box.observe(follow, "value")
    return slider
