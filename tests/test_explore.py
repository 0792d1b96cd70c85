"""The explorer: its checks, its page and its widget, from one draw function."""

import base64
import gzip
import json
import re
import subprocess
import sys

import numpy as np
import pytest

from resnotes import style
from resnotes.explore import MAX_FRAMES, Explorer


def halving():
    """Return a draw function and the list of values it was called with."""
    fig, ax = style.figure()
    (line,) = ax.plot([], [], **style.line("plain"))
    ax.set(xlim=(0, 50), ylim=(1e-15, 1), yscale="log")
    calls = []

    def draw(**values):
        calls.append(values)
        depth = values["depth"]
        line.set_data(range(depth + 1), 0.5 ** np.arange(depth + 1))
        return fig, f"After {depth} halvings {0.5**depth:.2g} is left."

    return draw, calls


def frames(explorer):
    return json.loads(gzip.decompress(base64.b64decode(explorer.packed)))


def test_every_frame_is_drawn_once_in_the_order_of_the_controls():
    draw, calls = halving()
    explorer = Explorer(draw, title="t", depth=[1, 2], kind=("x", "y", "z"))
    assert calls == [{"depth": d, "kind": k} for d in (1, 2) for k in "xyz"]
    assert len(frames(explorer)["svg"]) == len(frames(explorer)["text"]) == 6


def test_the_frames_hold_what_draw_drew():
    draw, _ = halving()
    packed = frames(Explorer(draw, title="t", depth=range(1, 11)))
    assert packed["text"][9] == "After 10 halvings 0.00098 is left."
    # The curve of depth 10 has one "L" a halving; the axes' own paths are the same.
    lines = [svg.count("L ") for svg in packed["svg"]]
    assert np.diff(lines).tolist() == [1] * 9


def test_same_input_same_bytes():
    pages = {
        Explorer(halving()[0], title="t", depth=range(1, 4)).html() for _ in range(3)
    }
    assert len(pages) == 1


def test_the_start_is_shown_and_marked():
    explorer = Explorer(
        halving()[0], title="t", start={"depth": 3}, depth=[1, 2, 3], kind=("x", "y")
    )
    page = explorer.html()
    assert 'data-frame="4"' in page
    assert "After 3 halvings" in page and "After 1 halvings" not in page
    assert 'value="2" autocomplete="off" aria-valuetext="3"' in page


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], 'type="range"'),
        ([0.5, 1.0], 'type="range"'),
        (np.linspace(0, 1, 3), 'type="range"'),
        (("x", "y"), 'type="radio"'),
        ((False, True), 'type="radio"'),
        (tuple("abcde"), "<select"),
    ],
)
def test_each_kind_of_value_has_its_native_control(values, kind):
    def draw(depth, v):
        return halving()[0](depth=depth)

    page = Explorer(draw, title="t", depth=[1], v=values).html()
    control = page.split("rn-control")[3]  # the second one, after the list's name
    assert kind in page and control


def test_text_is_escaped():
    fig, _ = style.figure()
    evil = '<script>alert("x")</script>'
    page = Explorer(lambda v: (fig, evil), title=evil, v=(evil, "b")).html()
    assert "<script>alert" not in page


def test_no_request_to_anywhere():
    page = Explorer(halving()[0], title="t", depth=[1]).html()
    addresses = set(re.findall(r"https?://[^\"' )]+", page))
    assert addresses <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_a_hundred_frames_fit_easily():
    packed = Explorer(halving()[0], title="t", depth=range(1, 101)).packed
    assert len(packed) < 30_000


# --- what goes wrong ---


def good(**values):
    return style.figure()[0], "A sentence."


@pytest.mark.parametrize(
    ("draw", "controls", "error", "said"),
    [
        (3, {"v": [1]}, TypeError, "draw is a int"),
        (good, {}, ValueError, "no controls"),
        (good, {"v": []}, ValueError, "v has no values"),
        (good, {"v": 3}, ValueError, "it got one value"),
        (good, {"v": "tanh"}, ValueError, "it got one value"),
        (good, {"v": [1, "x"]}, ValueError, "mixes kinds"),
        (good, {"v": [1, 1]}, ValueError, "twice"),
        (good, {"v": [1.0, float("nan")]}, ValueError, "not finite"),
        (
            good,
            {"depth": range(100), "w": range(5)},
            ValueError,
            r"100 × 5 \(depth × w\) are 500 frames, more than 400; .* depth",
        ),
        (lambda v: None, {"v": [1]}, TypeError, r"draw\(v=1\) returned a NoneType"),
        (lambda v: (1, "x"), {"v": [1]}, TypeError, "returned a int first"),
        (lambda v: (good()[0], ""), {"v": [1]}, TypeError, "returned '' second"),
        (lambda v: (good()[0], None), {"v": [1]}, TypeError, "returned None second"),
    ],
)
def test_bad_input_gets_one_clear_sentence(draw, controls, error, said):
    with pytest.raises(error, match=said):
        Explorer(draw, title="t", **controls)


@pytest.mark.parametrize("start", [{"depht": 1}, {"depth": 7}])
def test_a_start_that_is_not_there(start):
    with pytest.raises(ValueError, match="start"):
        Explorer(good, title="t", start=start, depth=[1, 2])


@pytest.mark.parametrize("title", ["", None, 3])
def test_a_title_is_needed(title):
    with pytest.raises(ValueError, match="title"):
        Explorer(good, title=title, v=[1])


def test_frames_too_heavy_for_a_page():
    rng = np.random.default_rng(0)
    fig, ax = style.figure()
    (line,) = ax.plot([], [])
    ax.set(xlim=(0, 3000), ylim=(0, 1))

    def draw(v):
        line.set_data(np.arange(3000), rng.random(3000))
        return fig, "Noise."

    with pytest.raises(ValueError, match=r"20 frames pack to \d+ kB, more than 300"):
        Explorer(draw, title="t", v=range(20))


def test_an_error_in_draw_is_the_authors_own():
    def draw(v):
        raise ZeroDivisionError("the author's")

    with pytest.raises(ZeroDivisionError, match="the author's"):
        Explorer(draw, title="t", v=[1])


# --- with a kernel ---


def live():
    draw, calls = halving()
    explorer = Explorer(draw, title="t", start={"depth": 2}, depth=range(1, 11))
    explorer.widget()
    calls.clear()
    return explorer, calls


def test_moving_the_slider_redraws_picture_and_sentence():
    explorer, calls = live()
    before = explorer.picture.value
    explorer.inputs["depth"].value = 9
    assert calls == [{"depth": 9}]
    assert explorer.picture.value != before
    assert explorer.sentence.value == "After 9 halvings 0.002 is left."


def test_values_beyond_the_drawn_ones_work():
    explorer, _ = live()
    explorer.inputs["depth"].value = 40
    assert explorer.sentence.value == "After 40 halvings 9.1e-13 is left."


def test_an_error_while_moving_is_said_and_the_next_move_works():
    explorer, _ = live()
    explorer.draw = lambda depth: 1 / 0
    explorer.inputs["depth"].value = 3
    assert "ZeroDivisionError" in explorer.sentence.value
    explorer.draw = halving()[0]
    explorer.inputs["depth"].value = 4
    assert explorer.sentence.value.startswith("After 4")


def test_the_widget_starts_as_the_page_does():
    explorer, _ = live()
    assert explorer.sentence.value == "After 2 halvings 0.25 is left."
    assert explorer.inputs["depth"].value == 2


def test_in_a_real_kernel(tmp_path):
    """Drive a control over the wire, as a notebook front end would."""
    from jupyter_client.manager import start_new_kernel

    code = """
from resnotes import style
from resnotes.explore import Explorer
fig, ax = style.figure()
(line,) = ax.plot([], [])
ax.set(xlim=(0, 200), ylim=(0, 200))
def draw(depth):
    line.set_data([0, depth], [0, depth])
    return fig, f"Depth is {depth}."
explorer = Explorer(draw, title="t", depth=range(1, 5))
widget = explorer.widget()
parts = explorer.inputs["depth"], explorer.picture, explorer.sentence
print(*(part.model_id for part in parts))
"""
    manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
    try:
        box, picture, sentence = _printed(client, code).split()
        update = {"method": "update", "state": {"value": 123}, "buffer_paths": []}
        message = client.session.msg("comm_msg", {"comm_id": box, "data": update})
        client.shell_channel.send(message)
        changed = {}
        while not {picture, sentence} <= set(changed):
            heard = client.get_iopub_msg(timeout=60)
            state = heard["content"].get("data", {}).get("state", {})
            if "value" in state:
                changed[heard["content"]["comm_id"]] = state["value"]
        assert changed[sentence] == "Depth is 123."
        assert "<svg" in changed[picture]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _printed(client, code):
    """Run code in the kernel and return what it printed."""
    texts = []

    def hear(message):
        if message["msg_type"] == "stream":
            texts.append(message["content"]["text"])

    client.execute_interactive(code, output_hook=hear, timeout=60)
    return "".join(texts)


def test_import_is_light():
    """Importing resnotes brings in no plotting, no Jupyter, nothing slow."""
    code = "import sys, resnotes; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    heavy = ["matplotlib", "IPython", "ipywidgets", "scipy", "distributed", "mnist1d"]
    assert [name for name in heavy if name in loaded] == []


def test_the_limit_is_the_documented_one():
    assert MAX_FRAMES == 400
